//! A custom store: a `BTreeMap` behind a mutex, checked by the conformance cases of the store contract.
//!
//! A store changes records by atomic transitions and measures time by its own clock. Here each transition is one method
//! under one lock, which makes it atomic. The contract is documented on `idem_store::Store`.
//! `idem_store::store::transitions` has its rules, so that only keeping, finding and deleting records is left to do.
//!
//! Run it with `cargo run --bin custom_store`.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use idem_runtime::{Call, Error, Idem};
use idem_store::conformance::{self, Case};
use idem_store::record::{FencingToken, Observation, Outcome, Owner};
use idem_store::store::transitions::{self, Purge};
use idem_store::store::{
    ClaimOutcome, ClaimRequest, FencedWrite, Filter, Granted, Page, PageRequest, Purged,
    Resolution, Resolved,
};
use idem_store::{Record, RecordId, Store, StoreError, Timestamp};

// ------------------------------------------------------------------------------------------------------- the store

#[derive(Debug, Default)]
struct ShelfStore(Mutex<Shelf>);

#[derive(Debug, Default)]
struct Shelf {
    records: BTreeMap<RecordId, Record>,
    /// The highest fencing token of all deleted records. Tokens never decrease, not even for a key whose record was
    /// deleted.
    fencing_floor: Option<FencingToken>,
    /// The time of the current transition. If the system's clock is set back, this time does not go back with it.
    now: Option<Timestamp>,
}

impl ShelfStore {
    /// Begins a transition, which ends when the guard is dropped.
    fn begin(&self) -> MutexGuard<'_, Shelf> {
        let mut shelf = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        shelf.now = shelf.now.max(Some(SystemTime::now().into()));
        shelf
    }

    /// Applies a transition that only an owner may make.
    fn write(
        &self,
        owner: &Owner,
        transition: impl FnOnce(&mut Record) -> FencedWrite,
    ) -> FencedWrite {
        let mut shelf = self.begin();
        let record = shelf.record(&owner.id);
        record.map_or(FencedWrite::Fenced, transition)
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

    /// Creates the record of a first claim, in place of an expired one if there is one.
    fn claim_absent(&mut self, claim: &ClaimRequest) -> ClaimOutcome {
        self.delete(&claim.id);
        let record = transitions::begin(claim, self.fencing_floor, self.now());
        let granted = Granted::on(&record);
        self.records.insert(claim.id, record);
        ClaimOutcome::Granted(granted)
    }

    fn delete(&mut self, id: &RecordId) {
        let deleted = self.records.remove(id);
        let deleted = deleted.map(|record| record.fencing_token);
        self.fencing_floor = self.fencing_floor.max(deleted);
    }
}

#[async_trait]
impl Store for ShelfStore {
    async fn claim(&self, claim: &ClaimRequest) -> Result<ClaimOutcome, StoreError> {
        let mut shelf = self.begin();
        Ok(match shelf.record(&claim.id) {
            Some(record) => transitions::claim(record, claim),
            None => shelf.claim_absent(claim),
        })
    }

    async fn take_over(
        &self,
        observed: &Observation,
        claim: &ClaimRequest,
    ) -> Result<ClaimOutcome, StoreError> {
        let mut shelf = self.begin();
        Ok(match shelf.record(&claim.id) {
            // Compare-and-swap: the record must still be as it was observed. A renewal since then has changed the
            // observation.
            Some(record) => transitions::take_over(record, observed, claim),
            None => shelf.claim_absent(claim),
        })
    }

    async fn renew(&self, owner: &Owner, lease: Duration) -> Result<FencedWrite, StoreError> {
        Ok(self.write(owner, |record| transitions::renew(record, owner, lease)))
    }

    async fn complete(&self, owner: &Owner, outcome: &Outcome) -> Result<FencedWrite, StoreError> {
        Ok(self.write(owner, |record| {
            transitions::complete(record, owner, outcome)
        }))
    }

    async fn release(&self, owner: &Owner) -> Result<FencedWrite, StoreError> {
        Ok(self.write(owner, |record| transitions::release(record, owner)))
    }

    async fn interrupt(&self, owner: &Owner) -> Result<FencedWrite, StoreError> {
        Ok(self.write(owner, |record| transitions::interrupt(record, owner)))
    }

    async fn resolve(
        &self,
        observed: &Observation,
        resolution: &Resolution,
    ) -> Result<Resolved, StoreError> {
        let mut shelf = self.begin();
        let Some(record) = shelf.record(&observed.id) else {
            return Ok(Resolved::Stale);
        };
        let resolved = transitions::resolve(record, observed, resolution);
        if resolved == Resolved::Done && *resolution == Resolution::Erase {
            shelf.delete(&observed.id);
        }
        Ok(resolved)
    }

    async fn get(&self, id: &RecordId) -> Result<Option<Record>, StoreError> {
        Ok(self.begin().record(id).cloned())
    }

    async fn list(&self, filter: &Filter, page: &PageRequest) -> Result<Page, StoreError> {
        let (after, limit) = page.in_id_order()?;
        let begin = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut shelf = self.begin();
        let now = shelf.now();
        let records = shelf
            .records
            .range_mut((begin, Bound::Unbounded))
            .map(|(_, record)| {
                record.read_at = now;
                record
            })
            .filter(|record| !record.is_expired() && filter.matches(record))
            // One more record than requested shows that there is another page.
            .take(limit + 1)
            .map(|record| record.clone())
            .collect();
        Ok(Page::in_id_order(records, filter, limit))
    }

    async fn now(&self) -> Result<Timestamp, StoreError> {
        Ok(self.begin().now())
    }

    async fn purge(&self, limit: u32, as_of: Timestamp) -> Result<Purged, StoreError> {
        let mut shelf = self.begin();
        let now = shelf.now().min(as_of);
        let mut purged = Purged::default();
        let mut expired = Vec::new();
        for record in shelf.records.values_mut() {
            if purged.removed + purged.interrupted == u64::from(limit) {
                purged.more = true;
                break;
            }
            record.read_at = now;
            let purge = transitions::purge(record);
            purged.count(purge, record);
            if purge == Purge::Expired {
                expired.push(record.id);
            }
        }
        for id in expired {
            shelf.delete(&id);
        }
        Ok(purged)
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

#[cfg(test)]
mod checked {
    use idem_runtime::Attempt;
    use idem_runtime::advanced::RunOptions;
    use idem_testing::{Fresh, Provider, check_on};

    use super::*;

    #[test]
    fn a_charge_on_the_custom_store_is_recognised() {
        let bank = Provider::new("bank");
        let charge = async |idem: Idem<ShelfStore>, key: &str| {
            let call = Call::new("charge", key, "500 cents", Duration::from_secs(60));
            let body = async |attempt: Attempt| {
                let key = attempt.downstream_key("bank");
                let receipt = bank.send(key.as_str(), "charge").await;
                receipt.map_err(|_| Error::Interrupted)
            };
            idem.run_with(call, RunOptions::new(), body).await
        };
        let store = Fresh::new(async || Ok(ShelfStore::default()));
        check_on(store, async |idem| charge(idem, "key-1").await)
            .other_call(async |idem| charge(idem, "key-2").await)
            .provider(&bank)
            .assert_at_least_once_with_downstream_key();
    }
}
