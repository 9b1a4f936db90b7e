//! Properties that only the memory store has: its capacity, and its clock.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use idem_runtime::error::StoreErrorKind;
use idem_runtime::record::{RecordState, Timestamp};
use idem_runtime::store::{ClaimOutcome, ClaimRequest, FencedWrite, Purged, Resolution, Resolved};
use idem_runtime::{MemoryStore, OnCrash, Store};

use crate::records::{HOUR, claim, outcome, own};

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test(start_paused = true)]
async fn a_full_store_refuses_new_keys_and_replays_stored_ones() {
    let store = MemoryStore::with_capacity(3);
    let owners = [
        own(&store, &claim("a")).await,
        own(&store, &claim("b")).await,
        own(&store, &claim("c")).await,
    ];
    let refused = store.claim(&claim("d")).await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Full);
    assert!(!refused.is_retryable());
    assert!(refused.to_string().contains("3 records"), "{refused}");

    for owner in &owners {
        let done = store.complete(owner, &outcome(b"1")).await.unwrap();
        assert_eq!(done, FencedWrite::Applied);
    }
    for key in ["a", "b", "c"] {
        let answer = store.claim(&claim(key)).await.unwrap();
        assert!(
            matches!(answer, ClaimOutcome::Existing(_)),
            "{key} was evicted"
        );
    }
    assert!(store.claim(&claim("d")).await.is_err());
    assert_eq!(store.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_full_store_reuses_the_room_of_an_expired_record() {
    // The lease is longer than the retention: only the outcome decides when the record may be removed.
    let store = MemoryStore::with_capacity(2);
    let brief = ClaimRequest {
        retention: MINUTE,
        ..claim("brief")
    };
    let owner = own(&store, &brief).await;
    own(&store, &claim("long")).await;
    store.complete(&owner, &outcome(b"1")).await.unwrap();

    tokio::time::advance(MINUTE - Duration::from_millis(1)).await;
    assert!(store.claim(&claim("new")).await.is_err());
    tokio::time::advance(Duration::from_millis(1)).await;
    own(&store, &claim("new")).await;
    assert_eq!(store.len(), 2);
    assert!(store.claim(&claim("another")).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn the_room_of_expired_records_is_found_in_every_shard() {
    let store = MemoryStore::with_capacity(500);
    for round in 0..4 {
        for number in 0..500 {
            let brief = ClaimRequest {
                retention: MINUTE,
                ..claim(&format!("{round}-{number}"))
            };
            let owner = own(&store, &brief).await;
            store.release(&owner).await.unwrap();
        }
        assert_eq!(store.len(), 500);
        tokio::time::advance(MINUTE).await;
    }
}

#[tokio::test]
async fn concurrent_claims_never_exceed_the_capacity() {
    let store = Arc::new(MemoryStore::with_capacity(100));
    let mut claims = tokio::task::JoinSet::new();
    for task in 0..8 {
        let store = Arc::clone(&store);
        claims.spawn_blocking(move || {
            (0..100)
                .filter(|number| ready(store.claim(&claim(&format!("{task}-{number}")))).is_ok())
                .count()
        });
    }
    let granted: usize = claims.join_all().await.into_iter().sum();
    assert_eq!((granted, store.len()), (100, 100));
}

#[tokio::test(start_paused = true)]
async fn purging_removes_all_expired_records_in_bounded_batches() {
    let store = MemoryStore::new();
    for number in 0..250 {
        let on_crash = match number % 5 {
            0 => OnCrash::Refuse,
            _ => OnCrash::Rerun,
        };
        let abandoned = ClaimRequest {
            lease: MINUTE,
            retention: MINUTE,
            on_crash,
            ..claim(&number.to_string())
        };
        own(&store, &abandoned).await;
    }
    assert_eq!(purge_all(&store, 10).await, Purged::default());
    tokio::time::advance(2 * MINUTE).await;
    assert_eq!(
        purge_all(&store, 10).await,
        Purged {
            removed: 200,
            abandoned: 200,
            interrupted: 50,
            forgotten: 0,
            more: false
        }
    );
    assert_eq!(store.len(), 50);
    tokio::time::advance(100 * HOUR).await;
    assert_eq!(purge_all(&store, 10).await, Purged::default());
    assert_eq!(store.len(), 50);
}

async fn purge_all(store: &MemoryStore, limit: u32) -> Purged {
    let mut total = Purged::default();
    loop {
        let purged = store.purge(limit, Timestamp::MAX).await.unwrap();
        assert!(purged.removed + purged.interrupted <= u64::from(limit));
        total.removed += purged.removed;
        total.abandoned += purged.abandoned;
        total.interrupted += purged.interrupted;
        if !purged.more {
            return total;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_record_with_zero_retention_does_not_keep_the_purger_busy() {
    let store = MemoryStore::new();
    for key in ["a", "b", "c"] {
        let running = ClaimRequest {
            retention: Duration::ZERO,
            ..claim(key)
        };
        own(&store, &running).await;
    }
    tokio::time::advance(MINUTE).await;
    assert_eq!(purge_all(&store, 2).await, Purged::default());
    assert!(!store.purge(1, Timestamp::MAX).await.unwrap().more);
    tokio::time::advance(HOUR).await;
    assert_eq!(purge_all(&store, 2).await.abandoned, 3);
    assert!(store.is_empty());
}

#[tokio::test(start_paused = true)]
async fn repeated_erasures_do_not_fill_the_store() {
    let store = MemoryStore::with_capacity(10);
    for _ in 0..1000 {
        let claim = claim("again");
        let owner = own(&store, &claim).await;
        store.release(&owner).await.unwrap();
        let record = store.get(&claim.id).await.unwrap().unwrap();
        let observed = record.observation();
        let erased = store.resolve(&observed, &Resolution::Erase).await.unwrap();
        assert_eq!(erased, Resolved::Done);
    }
    assert!(store.is_empty());
    tokio::time::advance(2 * HOUR).await;
    assert_eq!(purge_all(&store, 50).await, Purged::default());
}

#[tokio::test(start_paused = true)]
async fn paused_time_is_the_clock_of_the_store() {
    let store = MemoryStore::new();
    let claim = claim("k");
    let owner = own(&store, &claim).await;
    let before = store.get(&claim.id).await.unwrap().unwrap();
    tokio::time::advance(HOUR - Duration::from_micros(1)).await;
    let held = store.get(&claim.id).await.unwrap().unwrap();
    assert!(!held.is_lapsed());
    tokio::time::advance(Duration::from_micros(1)).await;
    let over = store.get(&claim.id).await.unwrap().unwrap();
    assert!(over.is_lapsed());
    assert_eq!(over.read_at.since(before.read_at), HOUR);

    store.complete(&owner, &outcome(b"1")).await.unwrap();
    tokio::time::advance(HOUR - Duration::from_micros(1)).await;
    let record = store.get(&claim.id).await.unwrap().unwrap();
    assert_eq!(record.state, RecordState::Completed);
    tokio::time::advance(Duration::from_micros(1)).await;
    assert_eq!(store.get(&claim.id).await.unwrap(), None);
}

#[test]
fn it_works_outside_of_a_runtime() {
    let store = MemoryStore::new();
    let claim = claim("k");
    assert!(matches!(
        ready(store.claim(&claim)),
        Ok(ClaimOutcome::Granted(_))
    ));
    let record = ready(store.get(&claim.id)).unwrap().unwrap();
    assert_eq!(record.state, RecordState::Running);
}

/// Value of a future that is ready at the first poll.
fn ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("a step in memory waits for nothing"),
    }
}
