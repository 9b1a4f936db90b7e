//! A transaction that holds a record, from its claim to its commit or rollback.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::claim::{TransactionClaimer, TransactionSource};
use crate::engine::claim::{Claimed, Claimer, Waited};
use crate::engine::interference::TransactionCall;
use crate::engine::prepared::Prepared;
use crate::engine::progress::{Phase, SharedOutcome};
use crate::engine::singleflight::Leader;
use crate::engine::typed::Joins;
use crate::engine::{Attempt, Engine, decisions};
use crate::error::{Error, InvalidCall, StoreError, StoreErrorKind};
use crate::metrics::{Level, Raised, Timed, Timer};
use crate::record::{Outcome, Owner, RecordState};
use crate::store::{FencedWrite, TransactionalStore};
use crate::timing::bounded;

/// A transaction that holds a record.
///
/// This type is free of the user's types, and its methods return boxed futures that are `Send`. The compiler therefore
/// need not prove `Send` for them, which it cannot do under `#[async_trait]`.
pub(super) struct HeldTransaction<'c, S: TransactionalStore> {
    /// Dropped first, so that the record is released as early as possible before waiters are woken.
    transaction: S::Transaction<'c>,
    store: Arc<S>,
    /// True if this is part of a transaction of the caller's, which may still roll it back.
    joins: Joins,
    savepoint: Option<S::Savepoint>,
    leader: Option<Leader>,
    attempt_guard: AttemptGuard,
    owner: Owner,
    /// Runs while the body does.
    body_timer: Option<Timer>,
    _lease: Raised,
}

/// The attempt. Dropping the guard ends it: tasks that the body left running must not treat the record as theirs any
/// more.
struct AttemptGuard(Attempt);

impl Drop for AttemptGuard {
    fn drop(&mut self) {
        self.0.lose();
    }
}

/// Reason for not running the body.
pub(super) enum NotRun {
    Replay(Box<SharedOutcome>, Waited),
    Refuse(Error),
}

impl<X: Into<Error>> From<X> for NotRun {
    fn from(error: X) -> Self {
        Self::Refuse(error.into())
    }
}

/// True if the body's changes may have to be rolled back without the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NeedsSavepoint(pub(super) bool);

/// Fate of the body's changes when the outcome is committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BodyChanges {
    Keep,
    RollBack,
}

type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

impl<'c, S: TransactionalStore> HeldTransaction<'c, S> {
    /// Claims the record in a transaction.
    pub(super) fn claim<F: TransactionSource<'c, S> + 'c>(
        store: Arc<S>,
        source: F,
        call: Arc<Prepared>,
        needs_savepoint: NeedsSavepoint,
    ) -> Boxed<'c, Result<Self, NotRun>> {
        Box::pin(async move {
            let limit = call.engine.policy.store_timeout;
            let engine = Arc::clone(&call.engine);
            let mut transactions = TransactionClaimer::new(Arc::clone(&store), engine, source);
            let mut claimer = Claimer::in_transaction(call, &mut transactions);
            let claimed = claimer.claim().await;
            drop(claimer);
            let (attempt, leader) = match granted(claimed) {
                Ok(granted) => granted,
                Err(not_run) => {
                    transactions.give_up(limit).await;
                    return Err(not_run);
                }
            };
            let (Some(transaction), Some(owner)) =
                (transactions.into_transaction(), attempt.owner())
            else {
                return Err(Error::LeaseLost.into());
            };
            let mut held = Self {
                transaction,
                store,
                joins: F::JOINS,
                savepoint: None,
                leader,
                body_timer: None,
                _lease: attempt.call().metrics.raise(Level::LeasesHeld),
                attempt_guard: AttemptGuard(attempt),
                owner,
            };
            if needs_savepoint == NeedsSavepoint(true) {
                let set = held.set_savepoint().await.map_err(Error::from);
                let ready = set.and_then(|()| held.attempt().call().check_deadline());
                if let Err(error) = ready {
                    let _ = held.roll_back().await;
                    return Err(error.into());
                }
            }
            Ok(held)
        })
    }

    pub(super) fn attempt(&self) -> &Attempt {
        &self.attempt_guard.0
    }

    /// The connection that the body works with.
    pub(super) fn connection(&mut self) -> &mut S::Connection {
        &mut self.transaction
    }

    /// Starts to measure the body.
    pub(super) fn body_begins(&mut self) {
        let metrics = self.attempt().call().metrics;
        self.body_timer = Some(metrics.start(Timed::Body));
    }

    /// Records how long the body ran.
    pub(super) fn body_ended(&mut self) {
        if let Some(timer) = self.body_timer.take() {
            timer.stop();
        }
    }

    fn store_timeout(&self) -> Duration {
        self.attempt().engine().policy.store_timeout
    }

    async fn set_savepoint(&mut self) -> Result<(), StoreError> {
        let limit = self.store_timeout();
        let set = self.store.savepoint(&mut self.transaction);
        self.savepoint = Some(bounded(limit, Box::pin(set)).await?);
        Ok(())
    }

    /// Commits the outcome, and the body's changes if they are kept. Returns the state of the committed record: a result
    /// that is too large for the store is committed as unrecorded.
    pub(super) fn end(
        mut self,
        changes: BodyChanges,
        mut outcome: Outcome,
    ) -> Boxed<'c, Result<Option<RecordState>, Error>> {
        Box::pin(async move {
            let mut completed = self.complete(changes, &outcome).await;
            if let Err(error) = &completed
                && error.kind() == StoreErrorKind::TooLarge
                && outcome.payload().is_some()
            {
                self.attempt().report_unrecorded(error);
                outcome = Outcome::Unrecorded;
                completed = self.complete(changes, &outcome).await;
            }
            match completed {
                Ok(FencedWrite::Applied) => {
                    let state = outcome.state();
                    self.commit(outcome).await.map(|()| Some(state))
                }
                // The claim is in the same transaction, so that transaction was undone.
                Ok(FencedWrite::Fenced) => Err(self.fail(undone()).await),
                Err(error) => Err(self.fail(error).await),
            }
        })
    }

    /// Writes the outcome.
    async fn complete(
        &mut self,
        changes: BodyChanges,
        outcome: &Outcome,
    ) -> Result<FencedWrite, StoreError> {
        let limit = self.store_timeout();
        if let (BodyChanges::RollBack, Some(savepoint)) = (changes, &self.savepoint) {
            let undone = self.store.rollback_to(&mut self.transaction, savepoint);
            bounded(limit, Box::pin(undone)).await?;
        }
        let call = TransactionCall::Complete(&self.owner, outcome);
        let attempt = &self.attempt_guard.0;
        let interference = &attempt.engine().interference;
        let connection = &mut *self.transaction;
        interference.before(call, Some(connection)).await?;
        let (transaction, owner) = (&mut self.transaction, &self.owner);
        let written = match attempt.call().replay_for() {
            None => {
                let completed = self.store.complete_in(transaction, owner, outcome);
                bounded(limit, Box::pin(completed)).await?
            }
            Some(payload_for) => {
                let completed =
                    self.store
                        .complete_for_in(transaction, owner, outcome, payload_for);
                bounded(limit, Box::pin(completed)).await?
            }
        };
        let is_applied = written == FencedWrite::Applied;
        interference.after(call, is_applied).await?;
        Ok(written)
    }

    /// Commits, and publishes the outcome to the waiters.
    async fn commit(self, outcome: Outcome) -> Result<(), Error> {
        let Self {
            transaction,
            store,
            joins: Joins(joins),
            savepoint: _,
            leader,
            attempt_guard: guard,
            owner,
            body_timer: _,
            _lease: lease,
        } = self;
        let sent_at = Instant::now();
        let committed = commit(guard.0.engine(), &*store, transaction).await;
        if let Err(error) = committed
            && (joins || !was_committed(&guard.0, &owner).await)
        {
            return Err(explain(&guard.0, &owner, error).await);
        }
        drop(lease);
        if let Some(leader) = leader {
            match joins {
                // The caller's transaction may still roll this back, so the outcome is not shared.
                true => leader.step_down(|| Phase::AskStore),
                false => leader.share(Some(sent_at), || guard.0.share(outcome)),
            }
        }
        Ok(())
    }

    /// Rolls everything back: no record is left.
    pub(super) fn undo(self) -> Boxed<'c, Result<Option<RecordState>, Error>> {
        Box::pin(async move {
            let attempt = self.attempt().clone();
            let owner = self.owner;
            match self.roll_back().await {
                Ok(()) => Ok(None),
                Err(error) => match explain(&attempt, &owner, error).await {
                    error @ Error::InvalidCall(_) => Err(error),
                    // Nothing is left, as the body asked for.
                    _ => Ok(None),
                },
            }
        })
    }

    /// Rolls everything back after an error. Returns the error of the call.
    async fn fail(self, error: StoreError) -> Error {
        let attempt = self.attempt().clone();
        let owner = self.owner;
        let _ = self.roll_back().await;
        explain(&attempt, &owner, error).await
    }

    /// Rolls everything back. If this fails, the database rolls back once the connection is lost.
    async fn roll_back(self) -> Result<(), StoreError> {
        let limit = self.store_timeout();
        let undone = self.store.rollback(self.transaction);
        let undone = bounded(limit, Box::pin(undone)).await;
        if let Err(error) = &undone {
            tracing::debug!(
                target: "idem",
                error = ?error.kind(),
                "the transaction was not rolled back by this call, but before or with its connection",
            );
        }
        // Waiters are woken after the record is free.
        drop(self.leader);
        undone
    }
}

/// Commits a transaction. After an error it is unknown whether that took effect.
pub(in crate::engine) async fn commit<S: TransactionalStore>(
    engine: &Engine,
    store: &S,
    mut transaction: S::Transaction<'_>,
) -> Result<(), StoreError> {
    let (limit, call) = (engine.policy.store_timeout, TransactionCall::Commit);
    let interference = &engine.interference;
    if let Err(error) = interference.before(call, Some(&mut *transaction)).await {
        let _ = bounded(limit, Box::pin(store.rollback(transaction))).await;
        return Err(error);
    }
    bounded(limit, Box::pin(store.commit(transaction))).await?;
    interference.after(call, true).await
}

/// Error of a call whose claim is gone from its transaction.
fn undone() -> StoreError {
    StoreError::new(
        StoreErrorKind::Conflict,
        "the transaction was rolled back while the body ran; give the errors of statements back, and make the call again",
    )
}

/// Returns the error of a call that failed for this reason. If a statement of the body has committed the transaction half
/// way, the record is visible to others. It is interrupted, unless the store has done so.
async fn explain(attempt: &Attempt, owner: &Owner, error: StoreError) -> Error {
    if error.kind() != StoreErrorKind::Conflict {
        return error.into();
    }
    let engine = attempt.engine();
    let limit = engine.policy.store_timeout;
    // Interrupting waits for an open transaction of the caller's, and reading does not.
    let record = bounded(limit, engine.store.get(&owner.id)).await;
    let Ok(Some(record)) = record else {
        return error.into();
    };
    if !decisions::was_committed_early(&record, owner) {
        return error.into();
    }
    if record.state != RecordState::Interrupted {
        let interrupted = bounded(limit, engine.store.interrupt(owner)).await;
        if !matches!(interrupted, Ok(FencedWrite::Applied)) {
            return error.into();
        }
    }
    attempt.call().warn_interrupted();
    InvalidCall::CommittedInBody.into()
}

/// The attempt that the claim was granted to.
fn granted(claimed: Result<Claimed, Error>) -> Result<(Attempt, Option<Leader>), NotRun> {
    match claimed? {
        Claimed::Run(attempt, leader) => Ok((attempt, leader)),
        Claimed::Replay(ended, waited) => Err(NotRun::Replay(Box::new(ended), waited)),
        // `reconcile` would act outside of the transaction.
        Claimed::NeedsReconcile(_) => Err(Error::Interrupted.into()),
    }
}

/// Finds out, on another connection, whether an unacknowledged commit took effect. False if the record is not there, or
/// if the store cannot answer. The caller then retries with the same key, and gets the result if the commit was still
/// in progress and succeeds.
async fn was_committed(attempt: &Attempt, owner: &Owner) -> bool {
    let engine = attempt.engine();
    let Ok(Some(record)) = engine.retry(|| engine.store.get(&owner.id)).await else {
        return false;
    };
    decisions::was_committed(&record, owner)
}
