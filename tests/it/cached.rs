//! The replay cache beyond the table of cases: saved reads of the store, size limits, and records that it never serves.

mod outage;
mod redis;

use std::time::Duration;

use idem_runtime::conformance::faults::{FaultStore, Op};
use idem_runtime::record::{ClaimId, Observation, Record, RecordState, Timestamp};
use idem_runtime::store::{ClaimOutcome, ClaimRequest, Resolution, Resolved};
use idem_runtime::{Cached, Call, Error, Idem, MemoryStore, Store};
use tokio::time::{advance, timeout};

use crate::records::{HOUR, claim, manual_change, outcome, own};

/// A store that counts its calls, and the cache in front of it.
fn pair() -> (FaultStore<MemoryStore>, Cached<FaultStore<MemoryStore>>) {
    let store = FaultStore::new(MemoryStore::new());
    (store.clone(), Cached::new(store))
}

/// Completes a record directly in the store, so that the cache does not have it.
async fn ended(store: &FaultStore<MemoryStore>, key: &str, bytes: &[u8]) -> ClaimRequest {
    let claim = claim(key);
    let owner = own(store.inner(), &claim).await;
    store
        .inner()
        .complete(&owner, &outcome(bytes))
        .await
        .unwrap();
    claim
}

/// Record that a claim finds.
async fn found(store: &impl Store, claim: &ClaimRequest) -> Record {
    match store.claim(claim).await.unwrap() {
        ClaimOutcome::Existing(record) => *record,
        ClaimOutcome::Granted(granted) => panic!("{granted:?} instead of a record"),
    }
}

async fn observed(store: &FaultStore<MemoryStore>, claim: &ClaimRequest) -> Observation {
    let record = store.inner().get(&claim.id).await.unwrap();
    record.unwrap().observation()
}

fn payload(record: &Record) -> &[u8] {
    &record.payload.as_ref().unwrap().bytes
}

#[tokio::test(start_paused = true)]
async fn a_replay_asks_the_store_once() {
    let (store, cached) = pair();
    let claim = ended(&store, "once", b"1").await;
    let first = found(&cached, &claim).await;
    assert_eq!(store.total(), 1);

    advance(Duration::from_secs(20)).await;
    let second = found(&cached, &claim).await;
    assert_eq!(store.total(), 1, "the second replay asked the store");
    // Exactly the store's answer, including the time of reading.
    assert_eq!(second, found(store.inner(), &claim).await);
    assert_eq!(second.read_at, first.read_at.after(Duration::from_secs(20)));
}

#[tokio::test(start_paused = true)]
async fn the_record_that_a_waiting_call_read_is_cached() {
    let (store, cached) = pair();
    let claim = ended(&store, "read", b"1").await;
    cached.get(&claim.id).await.unwrap().unwrap();
    cached.get(&claim.id).await.unwrap().unwrap();
    assert_eq!(store.count(Op::Get), 2, "an operator got a cached record");
    found(&cached, &claim).await;
    assert_eq!(store.count(Op::Claim), 0);
}

#[tokio::test(start_paused = true)]
async fn only_ended_records_are_cached() {
    let (store, cached) = pair();
    let claim = claim("running");
    let owner = own(&cached, &claim).await;
    let other = ClaimRequest {
        claim_id: ClaimId::random(),
        ..claim.clone()
    };
    for _ in 0..2 {
        assert_eq!(found(&cached, &other).await.state, RecordState::Running);
    }
    assert_eq!(store.count(Op::Claim), 3);
    cached.release(&owner).await.unwrap();
    own(&cached, &other).await;
}

#[tokio::test(start_paused = true)]
async fn no_record_is_served_after_its_retention() {
    let store = FaultStore::new(MemoryStore::new());
    let cached = Cached::new(store.clone()).max_age(10 * HOUR);
    let claim = ended(&store, "expires", b"1").await;
    found(&cached, &claim).await;
    advance(HOUR - Duration::from_micros(1)).await;
    let last = found(&cached, &claim).await;
    assert!(!last.is_expired());
    assert_eq!(store.count(Op::Claim), 1);

    advance(Duration::from_micros(1)).await;
    own(&cached, &claim).await;
}

#[tokio::test(start_paused = true)]
async fn the_remaining_retention_counts_from_the_request() {
    let store = FaultStore::new(MemoryStore::new());
    let cached = Cached::new(store.clone()).max_age(10 * HOUR);
    let claim = ended(&store, "slow", b"1").await;
    let gate = store.hold_after(Op::Claim);
    let reads = found(&cached, &claim);
    let answers = async {
        gate.reached().await;
        advance(HOUR / 2).await;
        gate.open();
    };
    tokio::join!(reads, answers);

    advance(HOUR / 2 - Duration::from_micros(1)).await;
    assert!(!found(&cached, &claim).await.is_expired());
    assert_eq!(store.count(Op::Claim), 1);
    advance(Duration::from_micros(1)).await;
    own(&cached, &claim).await;
}

#[tokio::test(start_paused = true)]
async fn an_erasure_elsewhere_takes_effect_within_the_maximum_age() {
    let store = FaultStore::new(MemoryStore::new());
    let cached = Cached::new(store.clone()).max_age(Duration::from_secs(5));
    let claim = ended(&store, "elsewhere", b"1").await;
    let seen = found(&cached, &claim).await.observation();
    let erased = store.inner().resolve(&seen, &Resolution::Erase).await;
    assert_eq!(erased.unwrap(), Resolved::Done);

    advance(Duration::from_millis(4_999)).await;
    found(&cached, &claim).await;
    advance(Duration::from_millis(1)).await;
    own(&cached, &claim).await;
}

#[tokio::test(start_paused = true)]
async fn reading_a_record_shows_an_erasure_elsewhere() {
    let (store, cached) = pair();
    let claim = ended(&store, "looked", b"1").await;
    let seen = found(&cached, &claim).await.observation();
    let erased = store.inner().resolve(&seen, &Resolution::Erase).await;
    assert_eq!(erased.unwrap(), Resolved::Done);
    assert!(cached.get(&claim.id).await.unwrap().is_none());
    own(&cached, &claim).await;
}

#[tokio::test(start_paused = true)]
async fn an_erasure_through_the_cache_takes_effect_immediately() {
    let (store, cached) = pair();
    let claim = ended(&store, "erased", b"1").await;
    let seen = found(&cached, &claim).await.observation();
    let erased = cached.resolve(&seen, &Resolution::Erase).await.unwrap();
    assert_eq!(erased, Resolved::Done);
    own(&cached, &claim).await;
}

#[tokio::test(start_paused = true)]
async fn a_correction_through_the_cache_takes_effect_immediately() {
    let (store, cached) = pair();
    let claim = claim("corrected");
    let owner = own(&store, &claim).await;
    store.interrupt(&owner).await.unwrap();
    let seen = observed(&store, &claim).await;
    let by_hand = Resolution::Complete(outcome(b"1"));
    let resolved = store.inner().resolve(&seen, &by_hand).await;
    assert_eq!(resolved.unwrap(), Resolved::Done);
    let seen = found(&cached, &claim).await.observation();
    let correction = Resolution::Correct(outcome(b"2"));
    let change = manual_change();
    let audit = cached.audit().unwrap();
    let corrected = audit.resolve_manually(&seen, &correction, &change).await;
    assert_eq!(corrected.unwrap(), Resolved::Done);
    assert_eq!(payload(&found(&cached, &claim).await), b"2");
}

/// The read sees the record, the record is erased, and only then does the answer to the read arrive.
#[tokio::test(start_paused = true)]
async fn a_record_read_before_an_erasure_is_not_cached() {
    for op in [Op::Claim, Op::Get] {
        let (store, cached) = pair();
        let claim = ended(&store, "overtaken", b"1").await;
        let seen = observed(&store, &claim).await;
        let gate = store.hold_after(op);
        let reads = async {
            match op {
                Op::Claim => drop(cached.claim(&claim).await.unwrap()),
                _ => drop(cached.get(&claim.id).await.unwrap()),
            }
        };
        let erases = async {
            gate.reached().await;
            let erased = cached.resolve(&seen, &Resolution::Erase);
            assert_eq!(erased.await.unwrap(), Resolved::Done);
            gate.open();
        };
        tokio::join!(reads, erases);
        own(&cached, &claim).await;
    }
}

/// Another process erased the record during the read, and this process has claimed its key anew.
#[tokio::test(start_paused = true)]
async fn a_record_read_before_a_new_claim_is_not_cached() {
    let (store, cached) = pair();
    let claim = ended(&store, "anew", b"old").await;
    let seen = observed(&store, &claim).await;
    let gate = store.hold_after(Op::Get);
    let reads = cached.get(&claim.id);
    let runs = async {
        gate.reached().await;
        let erased = store.inner().resolve(&seen, &Resolution::Erase);
        assert_eq!(erased.await.unwrap(), Resolved::Done);
        let owner = own(&cached, &claim).await;
        gate.open();
        owner
    };
    let (_, owner) = tokio::join!(reads, runs);
    cached.complete(&owner, &outcome(b"new")).await.unwrap();
    assert_eq!(payload(&found(&cached, &claim).await), b"new");
}

/// Other processes erased the record and wrote a new one, and another read has stored the new record in the cache.
#[tokio::test(start_paused = true)]
async fn a_late_answer_does_not_replace_a_later_record() {
    let (store, cached) = pair();
    let claim = ended(&store, "late", b"old").await;
    let seen = observed(&store, &claim).await;
    let gate = store.hold_after(Op::Claim);
    let late = found(&cached, &claim);
    let meanwhile = async {
        gate.reached().await;
        let erased = store.inner().resolve(&seen, &Resolution::Erase).await;
        assert_eq!(erased.unwrap(), Resolved::Done);
        let again = ended(&store, "late", b"new").await;
        assert_eq!(payload(&found(&cached, &again).await), b"new");
        gate.open();
    };
    let (old, ()) = tokio::join!(late, meanwhile);
    assert_eq!(payload(&old), b"old");
    assert_eq!(payload(&found(&cached, &claim).await), b"new");
    assert_eq!(store.count(Op::Claim), 2, "the new record was not cached");
}

/// The erasure was applied, but its caller was dropped or got an error.
#[tokio::test(start_paused = true)]
async fn an_erasure_without_acknowledgement_takes_effect() {
    let (store, cached) = pair();
    for lost in ["hangs", "fails"] {
        let claim = ended(&store, lost, b"1").await;
        let seen = found(&cached, &claim).await.observation();
        match lost {
            "hangs" => store.hang_after(Op::Resolve, 1),
            _ => store.fail_after(Op::Resolve, 1),
        }
        let erased = cached.resolve(&seen, &Resolution::Erase);
        let answer = timeout(Duration::from_secs(1), erased).await;
        assert!(!matches!(answer, Ok(Ok(_))), "{answer:?}");
        own(&cached, &claim).await;
    }
}

#[tokio::test(start_paused = true)]
async fn another_request_is_refused_from_the_cache() {
    let (store, cached) = pair();
    let idem = Idem::new(cached);
    let call = |request: u64| Call::new("test.operation", "key", &request, HOUR);
    let body = async || Ok::<_, Error>("done".to_owned());
    idem.run(call(1), body).await.unwrap();
    idem.run(call(1), body).await.unwrap();
    store.reset();

    let reused = idem
        .run(call(2), async || -> Result<String, Error> {
            panic!("ran another request")
        })
        .await;
    assert!(matches!(reused, Err(Error::KeyReused)), "{reused:?}");
    assert_eq!(idem.run(call(1), body).await.unwrap(), "done");
    assert_eq!(store.total(), 0, "the record did not come from the cache");
}

/// Number of records that are answered from the cache, without the store.
async fn hits(
    store: &FaultStore<MemoryStore>,
    cached: &impl Store,
    claims: &[ClaimRequest],
) -> usize {
    store.outage();
    let mut hits = 0;
    for claim in claims {
        match cached.claim(claim).await {
            Ok(ClaimOutcome::Existing(_)) => hits += 1,
            Ok(ClaimOutcome::Granted(granted)) => panic!("{granted:?} without the store"),
            Err(_) => {}
        }
    }
    hits
}

#[tokio::test(start_paused = true)]
async fn the_cached_bytes_are_bounded() {
    const CAPACITY: usize = 256 << 10;
    const RESULT: usize = 4 << 10;
    let store = FaultStore::new(MemoryStore::new());
    let cached = Cached::with_capacity(store.clone(), CAPACITY);
    let mut claims = Vec::new();
    for number in 0..256 {
        let claim = ended(&store, &format!("bound-{number}"), &[7; RESULT]).await;
        found(&cached, &claim).await;
        claims.push(claim);
    }
    let hits = hits(&store, &cached, &claims).await;
    assert!(hits * RESULT <= CAPACITY, "{hits} of {RESULT} bytes each");
    // Most of the capacity is used.
    assert!(
        hits * RESULT >= CAPACITY / 2,
        "only {hits} records are cached"
    );
}

#[tokio::test(start_paused = true)]
async fn small_results_are_weighed_with_their_record() {
    const CAPACITY: usize = 64 << 10;
    let store = FaultStore::new(MemoryStore::new());
    let cached = Cached::with_capacity(store.clone(), CAPACITY);
    let mut claims = Vec::new();
    for number in 0..1_000 {
        let claim = ended(&store, &format!("small-{number}"), b"").await;
        found(&cached, &claim).await;
        claims.push(claim);
    }
    let hits = hits(&store, &cached, &claims).await;
    assert!(hits > 0);
    assert!(
        hits * size_of::<Record>() <= CAPACITY,
        "{hits} records are cached"
    );
}

#[tokio::test(start_paused = true)]
async fn a_record_too_large_for_the_cache_is_replayed_from_the_store() {
    let store = FaultStore::new(MemoryStore::new());
    for capacity in [0, 16 << 10] {
        let cached = Cached::with_capacity(store.clone(), capacity);
        let claim = ended(&store, &format!("large-{capacity}"), &[7; 32 << 10]).await;
        store.reset();
        for replays in 1..=3 {
            assert_eq!(payload(&found(&cached, &claim).await).len(), 32 << 10);
            assert_eq!(store.total(), replays);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_maximum_age_of_zero_disables_the_cache() {
    let store = FaultStore::new(MemoryStore::new());
    let cached = Cached::new(store.clone()).max_age(Duration::ZERO);
    let claim = ended(&store, "zero", b"1").await;
    found(&cached, &claim).await;
    found(&cached, &claim).await;
    assert_eq!(store.total(), 2);
}

#[tokio::test(start_paused = true)]
async fn purging_the_store_purges_the_cache() {
    let (store, cached) = pair();
    let claim = ended(&store, "purged", &[7; 1 << 10]).await;
    found(&cached, &claim).await;
    assert!(!format!("{cached:?}").contains("bytes: 0"), "{cached:?}");
    advance(2 * HOUR).await;
    assert_eq!(cached.purge(100, Timestamp::MAX).await.unwrap().removed, 1);
    assert!(format!("{cached:?}").contains("bytes: 0"), "{cached:?}");
}
