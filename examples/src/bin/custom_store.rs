//! A custom store: a `BTreeMap` behind a mutex, checked by the conformance cases of the store contract.
//!
//! A store changes records by atomic transitions and measures time by its own clock. Here each transition is one method
//! under one lock, which makes it atomic. The contract is documented on `idem_runtime::Store`.
//!
//! Run it with `cargo run --bin custom_store`.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use idem_runtime::conformance::{self, Case};
use idem_runtime::error::{StoreError, StoreErrorKind};
use idem_runtime::record::{FencingToken, Observation, Outcome, Owner};
use idem_runtime::store::{
    ClaimOutcome, ClaimRequest, Cursor, FencedWrite, Filter, Granted, Page, PageRequest, Purged,
    Resolution, Resolved,
};
use idem_runtime::{Call, Error, Idem, OnCrash, Record, RecordId, State, Store, Timestamp};

// ------------------------------------------------------------------------------------------------------- the store

#[derive(Debug, Default)]
struct ShelfStore(Mutex<Shelf>);

#[derive(Debug, Default)]
struct Shelf {
    records: BTreeMap<RecordId, Record>,
    /// The highest fencing token ever given out. Tokens never decrease, not even for a key whose record was deleted.
    last_fencing_token: Option<FencingToken>,
    /// The time of the current transition. If the system's clock is set back, this time does not go back with it.
    now: Option<Timestamp>,
}

impl ShelfStore {
    /// Begins a transition, which ends when the guard is dropped.
    fn step(&self) -> MutexGuard<'_, Shelf> {
        let mut shelf = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        shelf.now = shelf.now.max(Some(SystemTime::now().into()));
        shelf
    }
}

impl Shelf {
    fn now(&self) -> Timestamp {
        self.now.unwrap_or(Timestamp::from_micros(0))
    }

    /// Returns the record as of now. An expired record counts as absent, whether it was purged or not.
    fn record(&mut self, id: &RecordId) -> Option<&mut Record> {
        let now = self.now();
        let record = self.records.get_mut(id)?;
        record.read_at = now;
        (!record.is_expired()).then_some(record)
    }

    /// Returns the record if this owner may still change it.
    fn held(&mut self, owner: &Owner) -> Option<&mut Record> {
        self.record(&owner.id)
            .filter(|it| is_of(it, owner) && !it.state.is_ended())
    }

    fn next_fencing_token(&mut self) -> FencingToken {
        let next = FencingToken::next(self.last_fencing_token, self.now());
        self.last_fencing_token = Some(next);
        next
    }

    fn claim(&mut self, claim: &ClaimRequest) -> ClaimOutcome {
        let now = self.now();
        match self.record(&claim.id) {
            None => self.begin(claim),
            Some(record) if is_same_claim(record, claim) => {
                record.lease_until = now.after(claim.lease);
                granted(record)
            }
            Some(record)
                if record.state == State::Released && record.fingerprint == claim.fingerprint =>
            {
                self.begin_next_attempt(claim)
            }
            Some(record) => existing(record),
        }
    }

    fn begin(&mut self, claim: &ClaimRequest) -> ClaimOutcome {
        let now = self.now();
        let record = Record {
            id: claim.id,
            identity: claim.identity.clone(),
            fingerprint: claim.fingerprint,
            state: State::Running,
            payload: None,
            claim_id: Some(claim.claim_id),
            fencing_token: self.next_fencing_token(),
            attempt: 1,
            lease_until: now.after(claim.lease),
            retention: claim.retention,
            on_crash: claim.on_crash,
            first_claimed_at: now,
            ended_at: None,
            read_at: now,
        };
        let answer = granted(&record);
        self.records.insert(claim.id, record);
        answer
    }

    /// Keeps the fingerprint, `on_crash` and the time of the first claim.
    fn begin_next_attempt(&mut self, claim: &ClaimRequest) -> ClaimOutcome {
        let fencing_token = self.next_fencing_token();
        let Some(record) = self.record(&claim.id) else {
            return self.begin(claim);
        };
        record.state = State::Running;
        record.claim_id = Some(claim.claim_id);
        record.fencing_token = fencing_token;
        record.attempt = record.attempt.saturating_add(1);
        record.lease_until = record.read_at.after(claim.lease);
        record.retention = claim.retention;
        record.ended_at = None;
        granted(record)
    }
}

#[async_trait]
impl Store for ShelfStore {
    async fn claim(&self, claim: &ClaimRequest) -> Result<ClaimOutcome, StoreError> {
        Ok(self.step().claim(claim))
    }

    async fn take_over(
        &self,
        observed: &Observation,
        claim: &ClaimRequest,
    ) -> Result<ClaimOutcome, StoreError> {
        let mut shelf = self.step();
        let Some(record) = shelf.record(&claim.id) else {
            return Ok(shelf.claim(claim));
        };
        if is_same_claim(record, claim) {
            return Ok(shelf.claim(claim));
        }
        // Compare-and-swap: the record must still be as it was observed. A renewal since then has changed the
        // observation.
        let may = record.observation() == *observed
            && is_unsettled(record)
            && record.on_crash != OnCrash::Refuse
            && record.fingerprint == claim.fingerprint;
        if !may {
            return Ok(existing(record));
        }
        Ok(shelf.begin_next_attempt(claim))
    }

    async fn renew(&self, owner: &Owner, lease: Duration) -> Result<FencedWrite, StoreError> {
        Ok(fenced(self.step().held(owner), |record| {
            record.state = State::Running;
            record.lease_until = record.read_at.after(lease);
        }))
    }

    async fn complete(&self, owner: &Owner, outcome: &Outcome) -> Result<FencedWrite, StoreError> {
        let mut shelf = self.step();
        // The same owner has completed the record before, and the store's answer was lost.
        if let Some(record) = shelf.record(&owner.id)
            && record.state.is_ended()
            && is_of(record, owner)
        {
            return Ok(FencedWrite::Applied);
        }
        Ok(fenced(shelf.held(owner), |record| end(record, outcome)))
    }

    async fn release(&self, owner: &Owner) -> Result<FencedWrite, StoreError> {
        Ok(fenced(self.step().held(owner), release))
    }

    async fn interrupt(&self, owner: &Owner) -> Result<FencedWrite, StoreError> {
        Ok(fenced(self.step().held(owner), |record| {
            record.state = State::Interrupted;
        }))
    }

    async fn resolve(
        &self,
        observed: &Observation,
        resolution: &Resolution,
    ) -> Result<Resolved, StoreError> {
        let mut shelf = self.step();
        let fencing_token = shelf.next_fencing_token();
        let Some(record) = shelf
            .record(&observed.id)
            .filter(|it| it.observation() == *observed)
        else {
            return Ok(Resolved::Stale);
        };
        let may = match resolution {
            // A record can be erased unless an owner with a valid lease is running it. The other resolutions
            // require a record whose outcome is unknown.
            Resolution::Erase => record.state != State::Running || record.is_lapsed(),
            _ => is_unsettled(record),
        };
        if !may {
            return Ok(Resolved::Stale);
        }
        match resolution {
            Resolution::Complete(outcome) => {
                end(record, outcome);
                fence_off(record, fencing_token);
            }
            Resolution::Release => {
                release(record);
                fence_off(record, fencing_token);
            }
            // The outcome is unknown, and its owner may still report it.
            Resolution::Interrupt => record.state = State::Interrupted,
            Resolution::Erase => drop(shelf.records.remove(&observed.id)),
        }
        Ok(Resolved::Done)
    }

    async fn get(&self, id: &RecordId) -> Result<Option<Record>, StoreError> {
        Ok(self.step().record(id).cloned())
    }

    async fn list(&self, filter: &Filter, page: &PageRequest) -> Result<Page, StoreError> {
        let after = page.after.as_ref().map(id_of).transpose()?;
        let begin = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut shelf = self.step();
        let now = shelf.now();
        let mut records = Vec::new();
        for (_, record) in shelf.records.range_mut((begin, Bound::Unbounded)) {
            record.read_at = now;
            if !record.is_expired() && filter.matches(record) {
                // One more record than requested shows that there is another page.
                if records.len() == page.limit as usize {
                    let last: Option<&Record> = records.last();
                    let next = last.map(|record| cursor_behind(&record.id));
                    return Ok(Page { records, next });
                }
                records.push(record.clone());
            }
        }
        Ok(Page {
            records,
            next: None,
        })
    }

    async fn purge(&self, limit: u32) -> Result<Purged, StoreError> {
        let mut shelf = self.step();
        let now = shelf.now();
        let mut purged = Purged::default();
        let mut left = limit;
        shelf.records.retain(|_, record| {
            record.read_at = now;
            let unknown = record.state == State::Running
                && record.on_crash != OnCrash::Rerun
                && record.lease_until.after(record.retention) <= now;
            if !record.is_expired() && !unknown {
                return true;
            }
            let Some(rest) = left.checked_sub(1) else {
                purged.more = true;
                return true;
            };
            left = rest;
            if unknown {
                record.state = State::Interrupted;
                purged.interrupted += 1;
                return true;
            }
            purged.removed += 1;
            purged.abandoned += u64::from(record.state == State::Running);
            false
        });
        Ok(purged)
    }
}

fn is_of(record: &Record, owner: &Owner) -> bool {
    record.claim_id == Some(owner.claim_id) && record.fencing_token == owner.fencing_token
}

/// Returns true if the record is running under this claim. The caller repeats a claim whose answer was lost.
fn is_same_claim(record: &Record, claim: &ClaimRequest) -> bool {
    record.state == State::Running
        && record.claim_id == Some(claim.claim_id)
        && record.fingerprint == claim.fingerprint
}

/// Returns true if no valid owner remains and the outcome is unknown.
fn is_unsettled(record: &Record) -> bool {
    record.state == State::Interrupted || record.is_lapsed()
}

fn granted(record: &Record) -> ClaimOutcome {
    ClaimOutcome::Granted(Granted {
        fencing_token: record.fencing_token,
        attempt: record.attempt,
        first_claimed_at: record.first_claimed_at,
        on_crash: record.on_crash,
    })
}

fn existing(record: &Record) -> ClaimOutcome {
    ClaimOutcome::Existing(Box::new(record.clone()))
}

fn fenced(record: Option<&mut Record>, step: impl FnOnce(&mut Record)) -> FencedWrite {
    match record {
        Some(record) => {
            step(record);
            FencedWrite::Applied
        }
        None => FencedWrite::Fenced,
    }
}

fn end(record: &mut Record, outcome: &Outcome) {
    record.state = outcome.state();
    record.payload = outcome.payload().cloned();
    record.ended_at = Some(record.read_at);
}

fn release(record: &mut Record) {
    record.state = State::Released;
    record.claim_id = None;
    record.ended_at = Some(record.read_at);
}

/// Gives the record a new fencing token after it was resolved, so that its owner, if it was only paused, cannot
/// overwrite the resolution.
fn fence_off(record: &mut Record, fencing_token: FencingToken) {
    record.claim_id = None;
    record.fencing_token = fencing_token;
}

/// Returns the cursor of a page: the id of its last record, in hexadecimal.
fn cursor_behind(id: &RecordId) -> Cursor {
    let hex: String = id.as_bytes().iter().map(|it| format!("{it:02x}")).collect();
    Cursor::new(hex)
}

fn id_of(cursor: &Cursor) -> Result<RecordId, StoreError> {
    let text = cursor.as_str();
    let byte = |at: usize| u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok();
    let bytes: Option<Vec<u8>> = (0..32).map(byte).collect();
    match bytes.and_then(|it| it.try_into().ok()) {
        Some(bytes) if text.len() == 64 => Ok(RecordId::from_bytes(bytes)),
        _ => Err(StoreError::new(
            StoreErrorKind::Other,
            "this cursor is not of this store",
        )),
    }
}

// ------------------------------------------------------------------------------------------- the conformance report

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let store = Arc::new(ShelfStore::default());

    // The cases use separate records, so all of them can run concurrently. A store declares its optional capabilities.
    // This store saves neither steps nor recovery inputs, so the cases about those are skipped.
    let (about_it, others): (Vec<&Case>, Vec<&Case>) = conformance::cases()
        .iter()
        .partition(|case| case.applies_to(&*store));
    let running: Vec<_> = about_it
        .into_iter()
        .map(|case| (case, tokio::spawn(case.run(store.clone()))))
        .collect();
    let (mut passed, total) = (0, running.len());
    for (case, outcome) in running {
        match outcome.await? {
            Ok(()) => {
                passed += 1;
                println!("ok      {}", case.name());
            }
            Err(violation) => println!("BROKEN  {violation}"),
        }
    }
    println!("\n{passed} of {total} rules are kept.");
    println!(
        "{} are about what it does not keep: steps, and what calls are made again with.",
        others.len()
    );
    anyhow::ensure!(passed == total, "the store breaks the contract");

    // An `Idem` handle takes any store, also one behind an `Arc`.
    let idem = Idem::new(store);
    let call = || Call::new("greet", "key-1", "request", Duration::from_secs(60));
    let first: String = idem
        .run(call(), async || Ok::<_, Error>("hello".to_owned()))
        .await?;
    let again: String = idem
        .run(call(), async || Ok::<_, Error>("good bye".to_owned()))
        .await?;
    println!("A call said {first:?}, and its retry {again:?}.");
    anyhow::ensure!(first == "hello" && again == first);
    Ok(())
}
