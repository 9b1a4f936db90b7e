//! A purge as of a time before that of the store's clock: it changes only what was due then.

use std::sync::Arc;
use std::time::Duration;

use idem_runtime::record::{Owner, RecordState, Timestamp};
use idem_runtime::store::{ClaimRequest, FencedWrite, Purged};
use idem_runtime::{OnCrash, Store};
use idem_tests::on_stores;
use idem_tests::places::shared;
use tokio::time::sleep;

use crate::records::{HOUR, claim, outcome, own};

on_stores! { [] shared:
    a_purge_as_of_an_earlier_time_keeps_what_was_not_due_then,
    the_clock_of_a_store_is_that_of_its_records,
}

const BRIEF: Duration = Duration::from_millis(20);

async fn brief(store: &dyn Store, key: &str, on_crash: OnCrash) -> Owner {
    let claim = ClaimRequest {
        lease: BRIEF,
        retention: BRIEF,
        on_crash,
        ..claim(key)
    };
    own(store, &claim).await
}

async fn complete(store: &dyn Store, owner: &Owner) {
    let completed = store.complete(owner, &outcome(b"1")).await.unwrap();
    assert_eq!(completed, FencedWrite::Applied);
}

/// Creates a record of each kind that a purge changes: completed, abandoned under `rerun`, and unknown under `refuse`. A
/// completed one is examined when its claim would have ended.
/// Returns the time of the store's clock at which all of them are due.
async fn create(store: &dyn Store, suffix: &str) -> Timestamp {
    let ended = brief(store, &format!("ended-{suffix}"), OnCrash::Refuse).await;
    complete(store, &ended).await;
    brief(store, &format!("abandoned-{suffix}"), OnCrash::Rerun).await;
    brief(store, &format!("unknown-{suffix}"), OnCrash::Refuse).await;
    passed(store, 3 * BRIEF).await
}

/// Waits until this time has passed by the store's clock.
async fn passed(store: &dyn Store, time: Duration) -> Timestamp {
    let end = store.now().await.unwrap().after(time);
    loop {
        let now = store.now().await.unwrap();
        if now > end {
            return now;
        }
        sleep(BRIEF / 4).await;
    }
}

/// Purges records one by one, so that one that stays at the head of the queue would hide the others.
async fn purge_all(store: &dyn Store, as_of: Timestamp) -> Purged {
    let mut all = Purged::default();
    loop {
        let purged = store.purge(1, as_of).await.unwrap();
        all.removed += purged.removed;
        all.abandoned += purged.abandoned;
        all.interrupted += purged.interrupted;
        if !purged.more {
            return all;
        }
    }
}

/// As if the clock had jumped forward after the first of two groups of records was due.
async fn a_purge_as_of_an_earlier_time_keeps_what_was_not_due_then(store: Arc<dyn Store>) {
    let store = &*store;
    // Given a record that was due for a check at a time, and completed later,
    let late = brief(store, "late", OnCrash::Refuse).await;
    let as_of = create(store, "early").await;
    complete(store, &late).await;
    // and others that were due at that time, or only later,
    create(store, "late").await;
    // when a purge works as of that time,
    let expected = Purged {
        removed: 2,
        abandoned: 1,
        interrupted: 1,
        forgotten: 0,
        more: false,
    };
    // then it changes those that were due, and no others,
    assert_eq!(purge_all(store, as_of).await, expected);
    assert_eq!(purge_all(store, as_of).await, Purged::default());
    let early = store.get(&claim("unknown-early").id).await.unwrap();
    assert_eq!(early.map(|it| it.state), Some(RecordState::Interrupted));
    let unknown = store.get(&claim("unknown-late").id).await.unwrap();
    assert_eq!(unknown.map(|it| it.state), Some(RecordState::Running));
    // and a purge without that limit changes them.
    let rest = Purged {
        removed: 3,
        ..expected
    };
    assert_eq!(purge_all(store, Timestamp::MAX).await, rest);
    assert_eq!(purge_all(store, Timestamp::MAX).await, Purged::default());
}

async fn the_clock_of_a_store_is_that_of_its_records(store: Arc<dyn Store>) {
    let owner = own(&*store, &claim("k")).await;
    let before = store.now().await.unwrap();
    let record = store.get(&owner.id).await.unwrap().unwrap();
    let after = store.now().await.unwrap();
    assert!(before <= record.read_at && record.read_at <= after);
    assert!(record.first_claimed_at <= before && before < record.first_claimed_at.after(HOUR));
}
