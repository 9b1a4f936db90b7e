//! Calls whose record, effect and result are committed together. There is no lease and no heartbeat: the transaction
//! holds the record until it ends. If the transaction ends early, the body's changes are rolled back.

mod claim;
pub(super) mod reentrancy;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;
use tracing::{Instrument as _, Span};

use self::claim::{JoinedConnection, OwnConnection, TransactionClaimer, TransactionSource};
use self::reentrancy::ReentrancyGuard;
use super::call::Prepared;
use super::claim::{Claimed, Claimer, Waited};
use super::provenance::Source as Provenance;
use super::singleflight::{Leader, Phase, SharedOutcome};
use super::timing::{Backoff, bounded, later};
use super::typed::{Codecs, Entry, ErrorCodec, ErrorKind, Handle, Joins, ValueCodec, outcome};
use super::{Attempt, Call, Idem};
use crate::error::{Error, StoreError};
use crate::record::{Outcome, Owner};
use crate::store::{Connects, FencedWrite, TransactionalStore};

/// A handle on a store with transactions.
pub struct Transactions<S: TransactionalStore> {
    handle: Handle,
    store: Arc<S>,
}

/// Converts a handle whose store has transactions.
pub fn transactions<S: TransactionalStore>(idem: &Idem<S>) -> Transactions<S> {
    Transactions {
        handle: Handle(Ok(Arc::clone(idem.engine()))),
        store: Arc::clone(&idem.store),
    }
}

/// A body that may run in an open transaction. Dropping it rolls the transaction back.
pub struct InTransaction<'c, S: TransactionalStore, T, E> {
    held: HeldTransaction<'c, S>,
    entry: Entry<T, E>,
}

/// A transaction that holds a record.
///
/// This type is free of the user's types, and its methods return boxed futures that are `Send`. The compiler therefore
/// need not prove `Send` for them, which it cannot do under `#[async_trait]`.
struct HeldTransaction<'c, S: TransactionalStore> {
    /// Dropped first, so that the record is released as early as possible before waiters are woken.
    transaction: S::Transaction<'c>,
    store: Arc<S>,
    /// True if this is part of a transaction of the caller's, which may still roll it back.
    nested: bool,
    savepoint: Option<String>,
    leader: Option<Leader>,
    attempt_guard: AttemptGuard,
    owner: Owner,
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
enum Instead {
    Replay(SharedOutcome, Waited),
    Refuse(Error),
}

impl<X: Into<Error>> From<X> for Instead {
    fn from(error: X) -> Self {
        Self::Refuse(error.into())
    }
}

type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Polls a transactional body.
pub struct Driver<'a> {
    address: usize,
    span: &'a Span,
}

/// Claims the record of a call in a new transaction. `Err` is the function's return value if its body does not run.
pub(crate) fn enter<S: TransactionalStore, T, E>(
    transactions: Transactions<S>,
    call: Call,
    values: ValueCodec<T>,
    errors: ErrorCodec<E>,
) -> impl Future<Output = Result<InTransaction<'static, S, T, E>, Result<T, E>>> {
    enter_from(
        transactions,
        OwnConnection::new(),
        call,
        Codecs { values, errors },
    )
}

/// Claims the record of a call in the open transaction of the caller's connection.
pub(crate) fn join<'c, S, C, T, E>(
    transactions: Transactions<S>,
    connection: &'c mut C,
    call: Call,
    values: ValueCodec<T>,
    errors: ErrorCodec<E>,
) -> impl Future<Output = Result<InTransaction<'c, S, T, E>, Result<T, E>>>
where
    S: TransactionalStore,
    C: Connects<S::Connection>,
{
    join_connection(transactions, connection.connection(), call, values, errors)
}

/// Claims the record of a call in the open transaction of the store's connection type.
pub(crate) fn join_connection<'c, S: TransactionalStore, T, E>(
    transactions: Transactions<S>,
    connection: &'c mut S::Connection,
    call: Call,
    values: ValueCodec<T>,
    errors: ErrorCodec<E>,
) -> impl Future<Output = Result<InTransaction<'c, S, T, E>, Result<T, E>>> {
    let source = JoinedConnection::new(connection);
    enter_from(transactions, source, call, Codecs { values, errors })
}

fn enter_from<'c, S: TransactionalStore, F: TransactionSource<'c, S> + 'c, T, E>(
    transactions: Transactions<S>,
    source: F,
    call: Call,
    codecs: Codecs<T, E>,
) -> impl Future<Output = Result<InTransaction<'c, S, T, E>, Result<T, E>>> {
    let Transactions { handle, store } = transactions;
    let refusal = source.refusal();
    let begun = Entry::prepare(handle, call.transactional(), codecs, Joins(F::JOINS));
    let begun = begun.map(|(call, entry)| {
        // Only a stored error needs a savepoint: everything else rolls back the whole transaction.
        let savepoint = entry.codecs.errors.stored.is_some();
        let held = hold(store, source, call, savepoint).instrument(entry.span.clone());
        (held, entry)
    });
    async move {
        let (held, entry) = begun?;
        if let Some(refusal) = refusal {
            return Err(entry.refuse(refusal.into()));
        }
        match held.await {
            Ok(held) => {
                entry.span.record("attempt", held.attempt_guard.0.number());
                Ok(InTransaction { held, entry })
            }
            Err(Instead::Replay(ended, waited)) => Err(entry.replay(&ended, waited)),
            Err(Instead::Refuse(error)) => Err(entry.refuse(error)),
        }
    }
}

/// Claims the record in a transaction.
fn hold<'c, S: TransactionalStore, F: TransactionSource<'c, S> + 'c>(
    store: Arc<S>,
    source: F,
    call: Arc<Prepared>,
    savepoint: bool,
) -> Boxed<'c, Result<HeldTransaction<'c, S>, Instead>> {
    Box::pin(async move {
        let limit = call.engine.policy.store_timeout;
        let mut attempting = TransactionClaimer::new(Arc::clone(&store), source);
        let mut claimer = Claimer::in_transaction(call, &mut attempting);
        let claimed = claimer.claim().await;
        drop(claimer);
        let (attempt, leader) = match claimed {
            Ok(Claimed::Run(attempt, leader)) => (attempt, leader),
            Ok(Claimed::Replay(ended, waited)) => {
                attempting.give_up(limit).await;
                return Err(Instead::Replay(ended, waited));
            }
            Ok(Claimed::NeedsReconcile(_)) => {
                attempting.give_up(limit).await;
                // `reconcile` would act outside of the transaction.
                return Err(Error::Interrupted.into());
            }
            Err(error) => {
                attempting.give_up(limit).await;
                return Err(error.into());
            }
        };
        let (Some(transaction), Some(owner)) = (attempting.into_transaction(), attempt.owner())
        else {
            return Err(Error::LeaseLost.into());
        };
        let mut held = HeldTransaction {
            transaction,
            store,
            nested: F::JOINS,
            savepoint: None,
            leader,
            attempt_guard: AttemptGuard(attempt),
            owner,
        };
        if savepoint && let Err(error) = held.set_savepoint().await {
            held.roll_back().await;
            return Err(error.into());
        }
        Ok(held)
    })
}

impl<'c, S: TransactionalStore, T, E> InTransaction<'c, S, T, E> {
    /// The running attempt.
    pub fn attempt(&self) -> Attempt {
        self.held.attempt_guard.0.clone()
    }

    /// The driver that polls the body, and the connection that the body works with.
    pub fn parts(&mut self) -> (Driver<'_>, &mut S::Connection) {
        let driver = Driver {
            address: reentrancy::address(self.held.attempt_guard.0.engine()),
            span: &self.entry.span,
        };
        (driver, &mut self.held.transaction)
    }

    /// Commits or rolls back according to the body's result, and returns the caller's result.
    ///
    /// # Errors
    /// The function's own error, or an error of the call.
    pub fn finish<J>(
        self,
        result: Result<T, E>,
        judge: J,
    ) -> impl Future<Output = Result<T, E>> + use<'c, S, T, E, J>
    where
        J: FnOnce(&E) -> ErrorKind,
    {
        let outcome = self.outcome(&result, judge);
        let Self { held, entry } = self;
        let number = held.attempt_guard.0.number();
        let label = match outcome {
            Some(Outcome::Unrecorded) => "unrecorded",
            _ => "executed",
        };
        let ended = match outcome {
            Some(outcome) => held.end(result.is_err(), outcome),
            None => held.undo(),
        };
        let ended = ended.instrument(entry.span.clone());
        async move {
            if let Err(error) = ended.await {
                return entry.refuse(error);
            }
            entry.span.record("outcome", label);
            if let Some(observer) = &entry.observer {
                observer.tell(Provenance::Executed, number, SystemTime::now());
            }
            result
        }
    }

    /// Outcome of the record. None if the record is rolled back with all that the body did.
    fn outcome(
        &self,
        result: &Result<T, E>,
        judge: impl FnOnce(&E) -> ErrorKind,
    ) -> Option<Outcome> {
        let attempt = &self.held.attempt_guard.0;
        let policy = &attempt.engine().policy;
        let (codec, limit) = (policy.codec, policy.max_result_bytes);
        let codecs = &self.entry.codecs;
        match (result, &codecs.errors.stored) {
            (Ok(value), _) => {
                let encoded = (codecs.values.encode)(value, codec, limit);
                Some(outcome(encoded, Outcome::Completed, attempt))
            }
            (Err(error), Some(errors)) if judge(error) == ErrorKind::Terminal => {
                let encoded = (errors.encode)(error, codec, limit);
                Some(outcome(encoded, Outcome::Failed, attempt))
            }
            (Err(_), _) => None,
        }
    }
}

impl<'c, S: TransactionalStore> HeldTransaction<'c, S> {
    fn store_timeout(&self) -> Duration {
        self.attempt_guard.0.engine().policy.store_timeout
    }

    async fn set_savepoint(&mut self) -> Result<(), StoreError> {
        // A unique name, because MySQL would otherwise replace the savepoint of an enclosing call.
        let name = format!("idem_{:016x}", rand::random::<u64>());
        let limit = self.store_timeout();
        let step = self.store.savepoint(&mut self.transaction, &name);
        bounded(limit, Box::pin(step)).await?;
        self.savepoint = Some(name);
        Ok(())
    }

    /// Commits the body's changes together with the outcome. With a terminal error, commits the outcome only.
    fn end(mut self, failed: bool, outcome: Outcome) -> Boxed<'c, Result<(), Error>> {
        Box::pin(async move {
            match self.complete(failed, &outcome).await {
                Ok(FencedWrite::Applied) => {}
                Ok(FencedWrite::Fenced) => {
                    // Another process has changed the row, or the body has tampered with the transaction.
                    self.roll_back().await;
                    return Err(Error::LeaseLost);
                }
                Err(error) => {
                    self.roll_back().await;
                    return Err(error.into());
                }
            }
            let limit = self.store_timeout();
            let Self {
                transaction,
                store,
                nested,
                savepoint: _,
                leader,
                attempt_guard,
                owner,
            } = self;
            let committed = bounded(limit, Box::pin(store.commit(transaction))).await;
            if let Err(error) = committed
                && (nested || !was_committed(&attempt_guard.0, &owner).await)
            {
                return Err(error.into());
            }
            let Some(leader) = leader else { return Ok(()) };
            if nested {
                // The caller's transaction may still roll this back, so the outcome is not shared.
                leader.step_down(|| Phase::AskStore);
            } else {
                leader.step_down(|| {
                    Phase::Ended(Arc::new(SharedOutcome {
                        outcome,
                        fingerprint: attempt_guard.0.call().request.fingerprint,
                        attempt: attempt_guard.0.number(),
                        at: SystemTime::now(),
                    }))
                });
            }
            Ok(())
        })
    }

    /// Writes the outcome.
    async fn complete(
        &mut self,
        failed: bool,
        outcome: &Outcome,
    ) -> Result<FencedWrite, StoreError> {
        let limit = self.store_timeout();
        if let (true, Some(savepoint)) = (failed, &self.savepoint) {
            let step = self.store.rollback_to(&mut self.transaction, savepoint);
            bounded(limit, Box::pin(step)).await?;
        }
        let step = self
            .store
            .complete_in(&mut self.transaction, &self.owner, outcome);
        bounded(limit, Box::pin(step)).await
    }

    fn undo(self) -> Boxed<'c, Result<(), Error>> {
        Box::pin(async move {
            self.roll_back().await;
            Ok(())
        })
    }

    /// Rolls everything back. If this fails, the database rolls back once the connection is lost.
    async fn roll_back(self) {
        let limit = self.store_timeout();
        let step = self.store.rollback(self.transaction);
        if let Err(error) = bounded(limit, Box::pin(step)).await {
            tracing::debug!(
                target: "idem",
                error = ?error.kind(),
                "the connection was lost before the transaction could be rolled back",
            );
        }
        // Waiters are woken after the record is free.
        drop(self.leader);
    }
}

/// Finds out, on another connection, whether an unacknowledged commit took effect. False if the record is not there, or
/// if the store cannot answer. The caller then retries with the same key, and gets the result if the commit was still
/// in progress and succeeds.
async fn was_committed(attempt: &Attempt, owner: &Owner) -> bool {
    let engine = attempt.engine();
    let policy = &engine.policy;
    let give_up_at = later(Instant::now(), policy.store_patience);
    let mut retries = Backoff::of_retries();
    loop {
        let read = bounded(policy.store_timeout, engine.store.get(&owner.id)).await;
        match read {
            Ok(record) => {
                return record.is_some_and(|record| {
                    record.state.is_ended()
                        && record.claim_id == Some(owner.claim_id)
                        && record.fencing_token == owner.fencing_token
                });
            }
            Err(error) => {
                let pause = retries.pause();
                if !error.is_retryable() || Instant::now() + pause >= give_up_at {
                    return false;
                }
                tokio::time::sleep(pause).await;
            }
        }
    }
}

impl<'a> Driver<'a> {
    /// Runs the body within the caller's task.
    pub fn drive<F: Future + 'a>(self, body: F) -> impl Future<Output = F::Output> + use<'a, F> {
        ReentrancyGuard::new(body, self.address, self.span)
    }
}

impl<S: TransactionalStore> fmt::Debug for Transactions<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transactions").finish_non_exhaustive()
    }
}

impl<S: TransactionalStore, T, E> fmt::Debug for InTransaction<'_, S, T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InTransaction").finish_non_exhaustive()
    }
}

impl fmt::Debug for Driver<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").finish_non_exhaustive()
    }
}
