//! Cases of a [`TransactionalStore`], which its author runs with data of an application in the same database.
//!
//! [`run_all`](super::run_all) has the cases of the records alone. These are about what a transaction does to both: the records,
//! and the data that a body changes.

use std::fmt;
use std::time::Duration;

use super::kit::*;
use super::{Failed, limited, repeated};
use crate::error::StoreError;
use crate::record::{ClaimId, Observation, OnCrash, Outcome, Owner, RecordState};
use crate::store::{
    ClaimInTransaction, ClaimOutcome, ClaimRequest, FencedWrite, TransactionalStore,
};

/// Wait for the answer to a claim of a record that an open transaction holds. A store that grants the claim later passes.
const BRIEF: Duration = Duration::from_millis(200);

/// Data of an application, beside the records of a [`TransactionalStore`]: counters by name. An author of a store implements
/// this for [`run_transactional`], for instance by a table with a row for each addition.
pub trait Counters<S: TransactionalStore>: Sync {
    /// Adds one to a counter, on the connection of a transaction.
    ///
    /// # Errors
    /// Those of the database.
    fn add(
        &self,
        connection: &mut S::Connection,
        name: &str,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Reads the committed value of a counter, on another connection. A counter that was never added to is zero.
    ///
    /// # Errors
    /// Those of the database.
    fn committed(&self, name: &str) -> impl Future<Output = Result<u64, StoreError>> + Send;
}

/// Result of [`run_transactional`] on a store that breaks no rule.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransactionalReport {
    /// Names of the cases that passed.
    pub passed: Vec<&'static str>,
    /// Names of the cases on steps, if the store keeps none.
    pub inapplicable: Vec<&'static str>,
}

impl fmt::Display for TransactionalReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cases of transactions passed", self.passed.len())?;
        match &*self.inapplicable {
            [] => Ok(()),
            cases => write!(f, ", without {}", cases.join(", ")),
        }
    }
}

/// Runs all cases of transactions on a store, one after the other. They create fresh records and counters, and do not clean
/// up. A case that could not decide is repeated, twice at most. Needs a tokio runtime with timers, and a store that may open
/// two transactions at the same time.
///
/// # Errors
/// [`Failed`] with each rule that the store breaks, and with each case that could not decide.
///
/// # Cancel safety
/// If the future is dropped, records and counters remain.
pub async fn run_transactional<S, C>(store: &S, counters: &C) -> Result<TransactionalReport, Failed>
where
    S: TransactionalStore,
    C: Counters<S>,
{
    let cases = Cases { store, counters };
    let (mut passed, mut inapplicable) = (Vec::new(), Vec::new());
    let mut failed = Failed::none();
    macro_rules! run {
        ($($case:ident: $rule:literal,)*) => {$(
            let name = stringify!($case);
            if name.starts_with("step_") && store.steps().is_none() {
                inapplicable.push(name);
            } else {
                let run = || limited(name, $rule, cases.$case());
                let outcome = repeated(run().await, run).await;
                if outcome.is_ok() {
                    passed.push(name);
                }
                failed.add(outcome);
            }
        )*};
    }
    run! {
        commit_shows_both: "a record and the changes of the body are visible to others from the commit on, and not before",
        rollback_leaves_neither: "a rollback leaves neither the record nor the changes of the body",
        drop_leaves_neither: "a dropped transaction leaves neither the record nor the changes of the body, and the key can be claimed",
        open_transaction_excludes_others: "from a claim in a transaction to its end, no other caller is granted the record",
        ended_record_is_replayed: "a claim of an ended record in a transaction returns the record with its outcome",
        claim_compares_the_fingerprint: "a claim in a transaction with another fingerprint is not granted",
        completion_is_fenced: "a completion by another owner in the transaction is refused",
        changes_are_undone_without_the_record: "a rollback to a savepoint undoes all changes since then, also if another savepoint was set, and the record is still held",
        lapsed_record_is_taken_over: "a lapsed record that still equals the observation is taken over in a transaction",
        joined_call_ends_with_its_caller: "a call that joined a transaction is committed with it, and rolled back with it",
        joined_rollback_keeps_the_caller: "a rollback of a joined call keeps the earlier changes of its caller",
        joined_drop_keeps_the_caller: "a joined call that is dropped leaves nothing, and keeps the earlier changes of its caller",
        step_is_saved_with_its_changes: "a step is saved together with the changes of its transaction, and once",
    }
    failed.check().map(|()| TransactionalReport {
        passed,
        inapplicable,
    })
}

/// The cases, on a store and beside its data.
struct Cases<'a, S, C> {
    store: &'a S,
    counters: &'a C,
}

impl<S: TransactionalStore, C: Counters<S>> Cases<'_, S, C> {
    async fn begin(&self) -> Result<S::Transaction<'static>, String> {
        let begun = self.store.begin().await.map_err(failed("begin"))?;
        ensure!(
            S::is_in_transaction(&begun),
            "`is_in_transaction` is false in a transaction"
        );
        Ok(begun)
    }

    async fn commit(&self, transaction: S::Transaction<'_>) -> CaseResult {
        let done = self.store.commit(transaction).await;
        done.map_err(failed("commit"))
    }

    async fn roll_back(&self, transaction: S::Transaction<'_>) -> CaseResult {
        let done = self.store.rollback(transaction).await;
        done.map_err(failed("rollback"))
    }

    async fn claim(
        &self,
        transaction: &mut S::Transaction<'_>,
        observed: Option<&Observation>,
        claim: &ClaimRequest,
    ) -> Result<ClaimInTransaction, String> {
        let claimed = self.store.claim_in(transaction, observed, claim).await;
        claimed.map_err(failed("claim_in"))
    }

    /// Makes a claim that must be granted.
    async fn own(
        &self,
        transaction: &mut S::Transaction<'_>,
        claim: &ClaimRequest,
    ) -> Result<Owner, String> {
        match self.claim(transaction, None, claim).await? {
            ClaimInTransaction::Granted(granted) => Ok(owned_by(claim, &granted)),
            answer => Err(format!("it was not granted: {answer:?}")),
        }
    }

    /// Completes a record that must be held.
    async fn complete(&self, transaction: &mut S::Transaction<'_>, owner: &Owner) -> CaseResult {
        let done = self
            .store
            .complete_in(transaction, owner, &outcome())
            .await
            .map_err(failed("complete_in"))?;
        ensure!(done == FencedWrite::Applied, "the owner was refused");
        Ok(())
    }

    async fn add(&self, connection: &mut S::Connection, claim: &ClaimRequest) -> CaseResult {
        let added = self.counters.add(connection, &name(claim)).await;
        added.map_err(failed("add"))
    }

    /// Claims, changes and completes in a transaction.
    async fn whole(
        &self,
        transaction: &mut S::Transaction<'_>,
        claim: &ClaimRequest,
    ) -> CaseResult {
        let owner = self.own(transaction, claim).await?;
        self.add(transaction, claim).await?;
        self.complete(transaction, &owner).await
    }

    /// Checks what others see: the state of the record, and the counter.
    async fn see(
        &self,
        claim: &ClaimRequest,
        state: Option<RecordState>,
        count: u64,
    ) -> CaseResult {
        let record = retrying("get", || self.store.get(&claim.id)).await?;
        let seen = record.as_ref().map(|record| record.state);
        ensure!(seen == state, "others see {record:?}");
        let payload = record.and_then(|record| record.outcome());
        ensure!(
            seen != Some(RecordState::Completed) || payload == Some(outcome()),
            "others see another outcome: {payload:?}"
        );
        let name = name(claim);
        let committed = retrying("committed", || self.counters.committed(&name)).await?;
        ensure!(committed == count, "others count {committed} changes");
        Ok(())
    }

    /// Makes a claim in a transaction of its own that must be granted, as soon as the record is free, and ends it.
    async fn is_free(&self, claim: &ClaimRequest) -> CaseResult {
        let mut patience = Patience::new("the record was never free again");
        loop {
            let mut transaction = self.begin().await?;
            match self.claim(&mut transaction, None, &other(claim)).await? {
                ClaimInTransaction::Granted(granted) => {
                    self.roll_back(transaction).await?;
                    ensure!(granted.attempt == 1, "it is attempt {}", granted.attempt);
                    return Ok(());
                }
                ClaimInTransaction::Locked { .. } => self.roll_back(transaction).await?,
                ClaimInTransaction::Existing(record) => {
                    self.roll_back(transaction).await?;
                    return Err(format!("a record is left: {record:?}"));
                }
            }
            patience.wait().await?;
        }
    }

    async fn commit_shows_both(&self) -> CaseResult {
        let claim = fresh();
        let mut transaction = self.begin().await?;
        self.whole(&mut transaction, &claim).await?;
        self.see(&claim, None, 0).await?;
        self.commit(transaction).await?;
        self.see(&claim, Some(RecordState::Completed), 1).await
    }

    async fn rollback_leaves_neither(&self) -> CaseResult {
        let claim = fresh();
        let mut transaction = self.begin().await?;
        self.whole(&mut transaction, &claim).await?;
        self.roll_back(transaction).await?;
        self.see(&claim, None, 0).await?;
        self.is_free(&claim).await
    }

    async fn drop_leaves_neither(&self) -> CaseResult {
        let claim = fresh();
        let mut transaction = self.begin().await?;
        self.whole(&mut transaction, &claim).await?;
        drop(transaction);
        self.is_free(&claim).await?;
        self.see(&claim, None, 0).await
    }

    async fn open_transaction_excludes_others(&self) -> CaseResult {
        let claim = fresh();
        let mut transaction = self.begin().await?;
        self.own(&mut transaction, &claim).await?;
        let rival = async {
            let mut transaction = self.store.begin().await?;
            let rival = other(&claim);
            self.store.claim_in(&mut transaction, None, &rival).await
        };
        // A database may let the rival wait for the end of the transaction, and then there is no answer in this time.
        if let Ok(Ok(ClaimInTransaction::Granted(granted))) =
            tokio::time::timeout(BRIEF, rival).await
        {
            return Err(format!("a rival was granted it: {granted:?}"));
        }
        let leased = other(&claim);
        let leased = tokio::time::timeout(BRIEF, self.store.claim(&leased)).await;
        if let Ok(Ok(ClaimOutcome::Granted(granted))) = leased {
            return Err(format!("a leased claim was granted: {granted:?}"));
        }
        // The leased claim may still be under way, and be granted now. So nobody asks for the record any more.
        self.roll_back(transaction).await
    }

    async fn ended_record_is_replayed(&self) -> CaseResult {
        let claim = self.committed().await?;
        let mut transaction = self.begin().await?;
        let answer = self.claim(&mut transaction, None, &other(&claim)).await?;
        self.roll_back(transaction).await?;
        match answer {
            ClaimInTransaction::Existing(record) if record.outcome() == Some(outcome()) => {
                self.see(&claim, Some(RecordState::Completed), 1).await
            }
            answer => Err(format!("the answer was {answer:?}")),
        }
    }

    /// The claim of a record that ended in a committed transaction.
    async fn committed(&self) -> Result<ClaimRequest, String> {
        let claim = fresh();
        let mut transaction = self.begin().await?;
        self.whole(&mut transaction, &claim).await?;
        self.commit(transaction).await?;
        Ok(claim)
    }

    async fn claim_compares_the_fingerprint(&self) -> CaseResult {
        let claim = self.committed().await?;
        let request = ClaimRequest {
            fingerprint: digest(2),
            ..other(&claim)
        };
        let mut transaction = self.begin().await?;
        let answer = self.claim(&mut transaction, None, &request).await?;
        self.roll_back(transaction).await?;
        let is_existing = matches!(&answer, ClaimInTransaction::Existing(record)
            if record.fingerprint == claim.fingerprint);
        ensure!(is_existing, "the answer was {answer:?}");
        Ok(())
    }

    async fn completion_is_fenced(&self) -> CaseResult {
        let claim = fresh();
        let mut transaction = self.begin().await?;
        let owner = self.own(&mut transaction, &claim).await?;
        let stranger = Owner {
            claim_id: ClaimId::random(),
            ..owner
        };
        let refused = self
            .store
            .complete_in(&mut transaction, &stranger, &Outcome::Unrecorded)
            .await
            .map_err(failed("complete_in"))?;
        ensure!(refused == FencedWrite::Fenced, "a stranger completed it");
        self.add(&mut transaction, &claim).await?;
        self.complete(&mut transaction, &owner).await?;
        self.commit(transaction).await?;
        self.see(&claim, Some(RecordState::Completed), 1).await
    }

    async fn set_savepoint(&self, connection: &mut S::Connection) -> Result<S::Savepoint, String> {
        let set = self.store.savepoint(connection).await;
        set.map_err(failed("savepoint"))
    }

    async fn changes_are_undone_without_the_record(&self) -> CaseResult {
        let claim = fresh();
        let mut transaction = self.begin().await?;
        let owner = self.own(&mut transaction, &claim).await?;
        let savepoint = self.set_savepoint(&mut transaction).await?;
        self.add(&mut transaction, &claim).await?;
        // As a call does that joins the transaction.
        self.set_savepoint(&mut transaction).await?;
        self.add(&mut transaction, &claim).await?;
        let undone = self.store.rollback_to(&mut transaction, &savepoint).await;
        undone.map_err(failed("rollback_to"))?;
        self.complete(&mut transaction, &owner).await?;
        self.commit(transaction).await?;
        self.see(&claim, Some(RecordState::Completed), 0).await
    }

    async fn lapsed_record_is_taken_over(&self) -> CaseResult {
        let claim = ClaimRequest {
            lease: SHORT,
            on_crash: OnCrash::Rerun,
            ..fresh()
        };
        retrying("claim", || self.store.claim(&claim)).await?;
        let mut patience = Patience::new("the lease never ran out");
        let observed = loop {
            let record = retrying("get", || self.store.get(&claim.id)).await?;
            let record = record.ok_or("there is no record")?;
            if record.is_lapsed() {
                break record.observation();
            }
            patience.wait().await?;
        };
        let next = other(&claim);
        let mut transaction = self.begin().await?;
        let answer = self.claim(&mut transaction, Some(&observed), &next).await?;
        let ClaimInTransaction::Granted(granted) = answer else {
            return Err(format!("it was not taken over: {answer:?}"));
        };
        ensure!(granted.attempt == 2, "it is attempt {}", granted.attempt);
        let owner = owned_by(&next, &granted);
        self.add(&mut transaction, &claim).await?;
        self.complete(&mut transaction, &owner).await?;
        self.commit(transaction).await?;
        self.see(&claim, Some(RecordState::Completed), 1).await
    }

    /// Joins the transaction of a caller, and calls there.
    async fn joined<'c>(
        &self,
        caller: &'c mut S::Transaction<'static>,
        claim: &ClaimRequest,
    ) -> Result<S::Transaction<'c>, String> {
        let mut joined = self.store.join(caller).await.map_err(failed("join"))?;
        self.whole(&mut joined, claim).await?;
        Ok(joined)
    }

    async fn joined_call_ends_with_its_caller(&self) -> CaseResult {
        for is_kept in [true, false] {
            let claim = fresh();
            let mut caller = self.begin().await?;
            self.add(&mut caller, &claim).await?;
            let joined = self.joined(&mut caller, &claim).await?;
            self.commit(joined).await?;
            self.see(&claim, None, 0).await?;
            if is_kept {
                self.commit(caller).await?;
                self.see(&claim, Some(RecordState::Completed), 2).await?;
            } else {
                self.roll_back(caller).await?;
                self.see(&claim, None, 0).await?;
            }
        }
        Ok(())
    }

    async fn joined_rollback_keeps_the_caller(&self) -> CaseResult {
        let claim = fresh();
        let mut caller = self.begin().await?;
        self.add(&mut caller, &claim).await?;
        let joined = self.joined(&mut caller, &claim).await?;
        self.roll_back(joined).await?;
        self.commit(caller).await?;
        self.see(&claim, None, 1).await
    }

    async fn joined_drop_keeps_the_caller(&self) -> CaseResult {
        let claim = fresh();
        let mut caller = self.begin().await?;
        self.add(&mut caller, &claim).await?;
        drop(self.joined(&mut caller, &claim).await?);
        self.add(&mut caller, &claim).await?;
        self.commit(caller).await?;
        self.see(&claim, None, 2).await
    }

    async fn step_is_saved_with_its_changes(&self) -> CaseResult {
        let steps = self.store.steps().ok_or("the store keeps no steps")?;
        let claim = fresh();
        let granted = retrying("claim", || self.store.claim(&claim)).await?;
        let owner = owned_by(&claim, &fencing_token_of(granted)?);
        let value = payload(b"a step");
        for (is_kept, answer, count) in [
            (false, FencedWrite::Applied, 0),
            (true, FencedWrite::Applied, 1),
            (false, FencedWrite::Fenced, 1),
        ] {
            let mut transaction = self.begin().await?;
            self.add(&mut transaction, &claim).await?;
            let saved = self
                .store
                .save_step_in(&mut transaction, &owner, "step", &value)
                .await
                .map_err(failed("save_step_in"))?;
            ensure!(saved == answer, "saving the step answered {saved:?}");
            match is_kept {
                true => self.commit(transaction).await?,
                false => self.roll_back(transaction).await?,
            }
            let saved = retrying("saved_steps", || steps.saved_steps(&owner)).await?;
            let number = saved.map_or(0, |it| it.len() as u64);
            ensure!(number == count, "{number} steps are saved");
            self.see(&claim, Some(RecordState::Running), count).await?;
        }
        Ok(())
    }
}

/// Name of the counter that belongs to a claim.
fn name(claim: &ClaimRequest) -> String {
    claim.id.to_string()
}
