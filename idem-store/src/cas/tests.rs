//! What the table of cases cannot see: faults between the writes of one method, tombstones, bounds, and uncertain clocks.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use proptest::prelude::*;

use super::*;
use crate::key::{Identity, Key, Operation, Scope};
use crate::record::{
    ClaimId, Digest, OnCrash, Outcome, Owner, Payload, Record, RecordState, Timestamp,
};
use crate::store::{
    AuditFilter, AuditStore, ClaimOutcome, ClaimRequest, FencedWrite, Filter, Granted,
    ManualChange, PageRequest, RecoveryStore, Resolution, Resolved, Store,
};

/// Entries in memory, with a clock that a test sets, and faults.
#[derive(Default)]
struct Shelf(Mutex<Shelved>);

struct Shelved {
    entries: BTreeMap<Vec<u8>, (Vec<u8>, u64)>,
    revision: u64,
    now: Now,
    /// Number of calls until one fails, and whether it takes effect before that.
    fault: Option<(u32, bool)>,
    calls: u32,
    times: u32,
    /// True if every write loses.
    is_contended: bool,
}

impl Default for Shelved {
    fn default() -> Self {
        Self {
            entries: BTreeMap::new(),
            revision: 0,
            now: Now::exact(at(1_000_000)),
            fault: None,
            calls: 0,
            times: 0,
            is_contended: false,
        }
    }
}

const DOWN: Failure = Failure::new(
    StoreErrorKind::Unavailable,
    "the shelf gives no answer; try again",
);

impl Shelf {
    fn state(&self) -> std::sync::MutexGuard<'_, Shelved> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn call<T>(&self, act: impl FnOnce(&mut Shelved) -> T) -> Result<T, Failure> {
        let mut state = self.state();
        state.calls += 1;
        match state.fault {
            Some((0, takes_effect)) => {
                state.fault = None;
                if takes_effect {
                    act(&mut state);
                }
                Err(DOWN.with_code(7))
            }
            fault => {
                state.fault = fault.map(|(left, takes_effect)| (left - 1, takes_effect));
                Ok(act(&mut state))
            }
        }
    }
}

#[async_trait]
impl Backend for Arc<Shelf> {
    type Revision = u64;

    async fn read(&self, key: &[u8]) -> Result<Option<Versioned<u64>>, Failure> {
        let found = self.call(|state| state.entries.get(key).cloned())?;
        Ok(found.map(|(value, revision)| Versioned { value, revision }))
    }

    async fn write(
        &self,
        key: &[u8],
        value: Vec<u8>,
        expected: Option<&u64>,
    ) -> Result<bool, Failure> {
        self.call(|state| {
            let found = state.entries.get(key).map(|(_, revision)| revision);
            if state.is_contended || found != expected {
                return false;
            }
            state.revision += 1;
            let revision = state.revision;
            state.entries.insert(key.to_vec(), (value, revision));
            true
        })
    }

    async fn delete(&self, key: &[u8], expected: &u64) -> Result<bool, Failure> {
        self.call(|state| {
            let found = state.entries.get(key).map(|(_, revision)| revision);
            found == Some(expected) && state.entries.remove(key).is_some()
        })
    }

    async fn scan(
        &self,
        prefix: &[u8],
        after: &[u8],
        limit: usize,
    ) -> Result<Vec<Entry<u64>>, Failure> {
        self.call(|state| {
            let found = state.entries.iter();
            let found = found.filter(|(key, _)| key.starts_with(prefix) && key.as_slice() > after);
            let found = found.map(|(key, (value, revision))| Entry {
                key: key.clone(),
                value: value.clone(),
                revision: *revision,
            });
            found.take(limit).collect()
        })
    }

    async fn now(&self) -> Result<Now, Failure> {
        let mut state = self.state();
        state.times += 1;
        Ok(state.now)
    }
}

fn at(micros: i64) -> Timestamp {
    Timestamp::from_micros(micros)
}

fn shelf() -> (Arc<Shelf>, CasStore<Arc<Shelf>>) {
    let shelf = Arc::new(Shelf::default());
    (Arc::clone(&shelf), CasStore::new(shelf))
}

fn claim(key: &str) -> ClaimRequest {
    let identity = Identity {
        scope: Scope::none(),
        operation: Operation::new("cas.test").unwrap(),
        key: Key::new(key).unwrap(),
    };
    ClaimRequest {
        id: RecordId::of(&identity),
        identity,
        fingerprint: Digest::new(1, [0; 4], &[7; 32]),
        claim_id: ClaimId::random(),
        lease: Duration::from_secs(60),
        retention: Duration::from_secs(600),
        on_crash: OnCrash::Rerun,
        owner_label: None,
        members: None,
    }
}

fn payload(text: &str) -> Payload {
    Payload {
        codec: "json/1".into(),
        bytes: text.as_bytes().into(),
    }
}

async fn granted(store: &impl Store, claim: &ClaimRequest) -> Granted {
    match store.claim(claim).await.unwrap() {
        ClaimOutcome::Granted(granted) => granted,
        ClaimOutcome::Existing(record) => panic!("{record:?} is in the way"),
    }
}

async fn own(store: &impl Store, claim: &ClaimRequest) -> Owner {
    Owner {
        id: claim.id,
        claim_id: claim.claim_id,
        fencing_token: granted(store, claim).await.fencing_token,
    }
}

async fn interrupted(store: &impl Store, claim: &ClaimRequest) -> Record {
    let owner = own(store, claim).await;
    store.interrupt(&owner).await.unwrap();
    store.get(&claim.id).await.unwrap().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_call_that_always_loses_gives_up() {
    let (shelf, store) = shelf();
    shelf.state().is_contended = true;
    let error = store.claim(&claim("k")).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Conflict);
    assert!(error.is_retryable());
    // A read and a write in each round.
    assert_eq!(shelf.state().calls, 2 * CasStore::<()>::ROUNDS);
}

#[tokio::test]
async fn what_is_not_changed_is_not_written() {
    let (shelf, store) = shelf();
    let request = claim("k");
    let owner = own(&store, &request).await;
    let outcome = Outcome::Completed(payload("1"));
    store.complete(&owner, &outcome).await.unwrap();
    let before = shelf.state().revision;
    let again = claim("k");
    store.claim(&again).await.unwrap();
    store.complete(&owner, &outcome).await.unwrap();
    let absent = Owner {
        id: claim("absent").id,
        ..owner
    };
    store.complete(&absent, &outcome).await.unwrap();
    let state = shelf.state();
    assert_eq!((state.revision, state.entries.len()), (before, 1));
}

#[tokio::test]
async fn a_tombstone_is_kept_for_an_hour() {
    let (shelf, store) = shelf();
    let record = interrupted(&store, &claim("k")).await;
    let erased = store
        .resolve(&record.observation(), &Resolution::Erase)
        .await;
    assert_eq!(erased.unwrap(), Resolved::Done);
    assert_eq!(store.get(&record.id).await.unwrap(), None);

    // The clock goes back, and the token goes on.
    shelf.state().now = Now::exact(at(5));
    let next = granted(&store, &claim("k")).await;
    assert!(next.fencing_token > record.fencing_token, "{next:?}");
    let seen = store.get(&record.id).await.unwrap().unwrap();
    shelf.state().now = Now::exact(seen.lease_until);
    let seen = store.get(&record.id).await.unwrap().unwrap();
    let erased = store.resolve(&seen.observation(), &Resolution::Erase).await;
    assert_eq!(erased.unwrap(), Resolved::Done);

    let hour = Duration::from_secs(3600);
    let token = at(next.fencing_token.number());
    for (now, is_kept) in [
        (token.after(hour), true),
        (token.after(hour).after(Duration::from_micros(1)), false),
    ] {
        shelf.state().now = Now::exact(now);
        store.purge(10, Timestamp::MAX).await.unwrap();
        assert_eq!(shelf.state().entries.len(), usize::from(is_kept));
    }
}

/// Whatever is cut off in a manual change, its entry is in the audit if and only if it took effect.
#[tokio::test(start_paused = true)]
async fn a_manual_change_and_its_entry_are_one() {
    let mut outcomes = std::collections::BTreeSet::new();
    for resolution in [Resolution::Release, Resolution::Erase] {
        for (nth, takes_effect) in (0..12).flat_map(|nth| [(nth, false), (nth, true)]) {
            let (shelf, store) = shelf();
            let record = interrupted(&store, &claim("k")).await;
            let change = ManualChange::new("ann", "because").unwrap();
            shelf.state().fault = Some((nth, takes_effect));
            let seen = record.observation();
            let answer = store.resolve_manually(&seen, &resolution, &change).await;
            shelf.state().fault = None;

            let after = store.get(&record.id).await.unwrap();
            let is_changed = after.as_ref() != Some(&record);
            let listed = async || {
                let filter = AuditFilter::default();
                let page = AuditStore::audit(&store, &filter, &PageRequest::default())
                    .await
                    .unwrap();
                assert!(
                    page.unreadable.is_empty() && page.next.is_none(),
                    "{page:?}"
                );
                page.entries.len()
            };
            let context = format!("{resolution:?} with fault {nth} {takes_effect}: {answer:?}");
            assert_eq!(listed().await, usize::from(is_changed), "{context}");
            assert!(answer.is_err() || is_changed, "{context}");
            // A purge finishes what was cut off, and the entry stays.
            store.purge(10, Timestamp::MAX).await.unwrap();
            assert_eq!(listed().await, usize::from(is_changed), "{context}");
            let slot = store.read(&record.id).await.unwrap().slot;
            assert!(slot.audited.is_empty(), "{context}");
            outcomes.insert((answer.is_ok(), is_changed));
        }
    }
    let expected = [(false, false), (false, true), (true, true)];
    assert!(outcomes.iter().eq(&expected), "{outcomes:?}");
}

/// Whatever is cut off, an input that was saved comes due, once.
#[tokio::test(start_paused = true)]
async fn a_saved_input_comes_due_whatever_is_cut_off() {
    let minute = Duration::from_secs(60);
    for (nth, takes_effect) in (0..8).flat_map(|nth| [(nth, false), (nth, true)]) {
        let (shelf, store) = shelf();
        let request = claim("k");
        let owner = own(&store, &request).await;
        let operation = &request.identity.operation;
        store
            .save_input(&owner, &payload("1"), minute)
            .await
            .unwrap();
        shelf.state().now = Now::exact(at(1_000_000).after(minute));
        let due = store.due(operation, 10).await.unwrap();
        assert_eq!(due.len(), 1);

        shelf.state().fault = Some((nth, takes_effect));
        let postponed = store.begin_recovery(&due[0], minute).await;
        shelf.state().fault = None;
        let now = shelf.state().now.earliest;
        shelf.state().now = Now::exact(now.after(minute));
        let again = store.due(operation, 10).await.unwrap();
        let context = format!("with fault {nth} {takes_effect}: {postponed:?}");
        assert_eq!(again.len(), 1, "{context}");
        if postponed.is_ok() {
            assert_eq!(again[0].recoveries, 1, "{context}");
        }
        let late = store.postpone(&due[0], minute).await.unwrap();
        let is_changed = again[0] != due[0];
        assert_eq!(late == Resolved::Stale, is_changed, "{context}");
    }
}

#[tokio::test]
async fn bounded_purges_come_to_an_end() {
    let (shelf, store) = shelf();
    const RECORDS: usize = 300;
    for number in 0..RECORDS {
        let request = ClaimRequest {
            lease: Duration::ZERO,
            retention: Duration::ZERO,
            ..claim(&number.to_string())
        };
        granted(&store, &request).await;
    }
    let mut removed = 0;
    let mut batches = 0;
    loop {
        let purged = store.purge(7, Timestamp::MAX).await.unwrap();
        removed += purged.removed;
        batches += 1;
        if !purged.more {
            break;
        }
    }
    assert_eq!(removed, RECORDS as u64);
    assert!(batches <= RECORDS / 7 + 2, "{batches}");
    // Tombstones are on no page.
    let page = store
        .list(&Filter::default(), &PageRequest::default())
        .await;
    assert!(page.unwrap().records.is_empty());
    assert_eq!(shelf.state().entries.len(), RECORDS);
}

/// Concurrent batches, of which a slow one ends last, do not look at the same records again and again.
#[test]
fn a_slow_purge_does_not_move_the_others_back() {
    let kept = Mutex::new(purge::Place::default());
    let mut slow = purge::Progress::new(&kept);
    slow.moves_to(&[7]);
    let mut quick = purge::Progress::new(&kept);
    quick.moves_to(&[9]);
    quick.ends_lap();
    let place = quick.place().clone();
    drop(quick);
    drop(slow);
    assert_eq!(*kept.lock().unwrap(), place);
}

/// A purge that begins in the middle also looks at the records before.
#[tokio::test]
async fn a_purge_that_says_it_is_the_last_one_has_looked_at_all_records() {
    let (shelf, store) = shelf();
    for number in 0..200 {
        let request = ClaimRequest {
            lease: Duration::from_secs(number % 2),
            retention: Duration::ZERO,
            ..claim(&number.to_string())
        };
        granted(&store, &request).await;
    }
    let some = store.purge(50, Timestamp::MAX).await.unwrap();
    assert_eq!((some.removed, some.more), (50, true));
    let now = shelf.state().now.earliest;
    shelf.state().now = Now::exact(now.after(Duration::from_secs(2)));
    let rest = store.purge(1_000, Timestamp::MAX).await.unwrap();
    assert_eq!((rest.removed, rest.more), (150, false));

    // Asking for the time may take a request: a purge that finds nothing does so once for 64 entries.
    shelf.state().times = 0;
    assert!(
        store
            .purge(1_000, Timestamp::MAX)
            .await
            .unwrap()
            .is_nothing()
    );
    assert_eq!(shelf.state().times, 4);
}

/// A real error of the store is not taken for the injected one.
#[cfg(feature = "conformance")]
#[tokio::test]
async fn a_case_on_lost_answers_does_not_decide_if_the_store_fails() {
    let (shelf, store) = shelf();
    // The case reads; then the claim reads, and its write fails.
    shelf.state().fault = Some((2, false));
    let case = crate::conformance::case("lost_answer_of_a_claim").unwrap();
    let found = case.run(Arc::new(store)).await.unwrap_err();
    assert!(found.inconclusive, "{found}");
    assert!(found.seen.contains("the shelf gives no answer"), "{found}");
}

/// A backend so slow that each batch is dropped must not keep later records from being purged.
#[tokio::test]
async fn a_batch_that_fails_half_way_is_continued() {
    let (shelf, store) = shelf();
    for number in 0..200 {
        let request = ClaimRequest {
            lease: Duration::ZERO,
            retention: Duration::ZERO,
            ..claim(&number.to_string())
        };
        granted(&store, &request).await;
    }
    let mut failures = 0;
    loop {
        shelf.state().fault = Some((30, false));
        let purged = store.purge(1_000, Timestamp::MAX).await;
        match purged {
            Ok(purged) if !purged.more => break,
            Ok(_) => {}
            Err(_) => failures += 1,
        }
        assert!(failures < 100, "the batches do not move on");
    }
    assert!(failures > 5, "{failures}");
    shelf.state().fault = None;
    // A record that failed is passed over until the next round.
    let rest = store.purge(1_000, Timestamp::MAX).await.unwrap();
    assert!(rest.removed <= failures, "{rest:?}");
    let none = store.purge(1_000, Timestamp::MAX).await.unwrap();
    assert!(none.is_nothing(), "{none:?}");
}

#[tokio::test]
async fn an_entry_that_cannot_be_read_is_named_and_passed_over() {
    let (shelf, store) = shelf();
    for key in ["a", "b", "c"] {
        granted(&store, &claim(key)).await;
    }
    let id = claim("b").id;
    if let Some((value, _)) = shelf.state().entries.get_mut(&record_key(&id)) {
        value.truncate(value.len() - 1);
    }
    let page = store
        .list(&Filter::default(), &PageRequest::default())
        .await;
    let page = page.unwrap();
    assert_eq!(page.records.len(), 2);
    assert_eq!(page.unreadable[0].name, id.to_string());
    assert!(!store.purge(10, Timestamp::MAX).await.unwrap().more);
    let error = store.claim(&claim("b")).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Corrupt);
}

#[tokio::test]
async fn errors_and_debug_show_nothing_that_is_stored() {
    let (shelf, store) = shelf();
    let request = claim("very-secret-key");
    let owner = own(&store, &request).await;
    shelf.state().fault = Some((0, false));
    let outcome = Outcome::Completed(payload("very-secret-value"));
    let error = store.complete(&owner, &outcome).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the shelf gives no answer; try again (code 7)"
    );
    let read = shelf.read(&record_key(&request.id)).await.unwrap();
    let entries = shelf.scan(&[], &[], 9).await.unwrap();
    let shown = format!("{error:?} {store:?} {read:?} {entries:?}");
    assert!(!shown.contains("secret"), "{shown}");
    // The bytes of a key, as `Debug` shows them.
    assert!(!shown.contains("118, 101, 114, 121"), "{shown}");
}

/// A clock whose interval holds the true time.
fn around(time: i64, (before, after): (i64, i64)) -> Now {
    Now {
        earliest: at(time - before),
        latest: at(time + after),
    }
}

proptest! {
    /// By the true time, and whatever the two readers of the clock know of it.
    #[test]
    fn neither_a_lease_nor_a_retention_is_shorter_than_it_was_asked_for(
        claimed in (0..2_000_000i64, 0..2_000_000i64),
        judged in (0..2_000_000i64, 0..2_000_000i64),
        elapsed in 0..6_000_000i64,
        duration in 1..3_000_000u64,
        ends: bool,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (shelf, store) = shelf();
            let begin = 1_000_000_000;
            shelf.state().now = around(begin, claimed);
            let duration = Duration::from_micros(duration);
            let request = match ends {
                true => ClaimRequest { retention: duration, ..claim("k") },
                false => ClaimRequest { lease: duration, ..claim("k") },
            };
            let owner = own(&store, &request).await;
            if ends {
                let written = store.complete(&owner, &Outcome::Unrecorded).await.unwrap();
                prop_assert_eq!(written, FencedWrite::Applied);
            }
            shelf.state().now = around(begin + elapsed, judged);
            let is_over = match store.get(&request.id).await.unwrap() {
                None => true,
                Some(record) if record.state == RecordState::Running => {
                    let successor = claim("k");
                    let answer = store.take_over(&record.observation(), &successor).await;
                    matches!(answer.unwrap(), ClaimOutcome::Granted(_))
                }
                Some(_) => false,
            };
            let asked = duration.as_micros() as i64;
            prop_assert!(!is_over || elapsed >= asked, "over after {elapsed} of {asked}");
            // It ends as soon as that is certain.
            let certain = asked + claimed.1 + judged.0;
            prop_assert!(is_over || elapsed < certain, "not over after {elapsed} of {certain}");
            Ok(())
        })?;
    }
}
