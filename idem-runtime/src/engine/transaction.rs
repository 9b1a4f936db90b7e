//! Calls whose record, effect and result are committed together. There is no lease and no heartbeat: the transaction
//! holds the record until it ends. If the transaction ends early, the body's changes are rolled back.

mod claim;
mod held;

use std::fmt;
use std::sync::Arc;

use tracing::{Instrument as _, Span};

use self::claim::{JoinedConnection, OwnConnection, TransactionSource};
pub(super) use self::held::commit;
use self::held::{BodyChanges, HeldTransaction, NeedsSavepoint, NotRun};
use super::reentrancy::{self, ReentrancyGuard};
use super::typed::{self, CallContext, Codecs, EngineRef, ErrorCodec, Finality};
use super::{Attempt, Call, Idem};
use crate::codec::value::ValueCodec;
use crate::key::RecordId;
use crate::metrics::{CallOutcome, Timed};
use crate::record::{Outcome, RecordState};
use crate::store::{Connects, TransactionalStore};

/// A handle on a store with transactions.
pub struct Transactions<S: TransactionalStore> {
    engine: EngineRef,
    store: Arc<S>,
}

/// Converts a handle whose store has transactions.
pub(crate) fn transactions<S: TransactionalStore>(idem: &Idem<S>) -> Transactions<S> {
    Transactions {
        engine: typed::handle(idem),
        store: Arc::clone(&idem.store),
    }
}

/// A body that may run in an open transaction. Dropping it rolls the transaction back.
pub struct InTransaction<'c, S: TransactionalStore, T, E> {
    held: HeldTransaction<'c, S>,
    context: CallContext<T, E>,
}

/// Polls a transactional body.
pub struct Driver<'a> {
    address: usize,
    record: RecordId,
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
    C: Connects<S>,
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
    let Transactions { engine, store } = transactions;
    let refusal = source.refusal();
    let begun = typed::prepare(engine, call.transactional(), codecs, F::JOINS);
    let begun = begun.map(|(call, context)| {
        // Only a stored error needs a savepoint: everything else rolls back the whole transaction.
        let needs_savepoint = NeedsSavepoint(context.codecs.store_errors());
        let held = HeldTransaction::claim(store, source, call, needs_savepoint);
        let held = held.instrument(context.report.span.clone());
        (held, context)
    });
    async move {
        let (held, context) = begun?;
        if let Some(refusal) = refusal {
            return Err(context.refuse(refusal.into()));
        }
        match held.await {
            Ok(held) => {
                context
                    .report
                    .span
                    .record("idem.attempt", held.attempt().number());
                Ok(InTransaction { held, context })
            }
            Err(NotRun::Replay(ended, waited)) => Err(context.replay(&ended, waited)),
            Err(NotRun::Refuse(error)) => Err(context.refuse(error)),
        }
    }
}

impl<'c, S: TransactionalStore, T, E> InTransaction<'c, S, T, E> {
    /// The running attempt.
    pub fn attempt(&self) -> Attempt {
        self.held.attempt().clone()
    }

    /// The driver that polls the body, and the connection that the body works with.
    pub fn parts(&mut self) -> (Driver<'_>, &mut S::Connection) {
        let driver = Driver {
            address: reentrancy::address(self.held.attempt().engine()),
            record: self.held.attempt().call().request.id,
            span: &self.context.report.span,
        };
        self.held.body_begins();
        (driver, self.held.connection())
    }

    /// Commits or rolls back according to the body's result, and returns the caller's result.
    ///
    /// # Errors
    /// The function's own error, or an error of the call.
    pub fn finish<C>(
        self,
        result: Result<T, E>,
        classify: C,
    ) -> impl Future<Output = Result<T, E>> + use<'c, S, T, E, C>
    where
        C: FnOnce(&E) -> Finality,
    {
        let outcome = self.outcome(&result, classify);
        let Self { mut held, context } = self;
        let number = held.attempt().number();
        held.body_ended();
        let completing = held.attempt().call().metrics.start(Timed::Complete);
        let has_taken_over = held.attempt().has_taken_over();
        let retention = held.attempt().call().retention();
        let ended = match outcome {
            Some(outcome) if result.is_ok() => held.end(BodyChanges::Keep, outcome),
            Some(outcome) => held.end(BodyChanges::RollBack, outcome),
            None => held.undo(),
        };
        let ended = ended.instrument(context.report.span.clone());
        async move {
            let call_outcome = match ended.await {
                Ok(Some(RecordState::Unrecorded)) => CallOutcome::Unrecorded,
                Ok(Some(_)) if has_taken_over => CallOutcome::TakenOver,
                Ok(Some(_)) => CallOutcome::Executed,
                Ok(None) => CallOutcome::Released,
                Err(error) => return context.refuse(error),
            };
            completing.stop();
            context.record_executed(call_outcome, number, retention);
            result
        }
    }

    /// Outcome of the record. None if the record is rolled back with all that the body did.
    fn outcome(
        &self,
        result: &Result<T, E>,
        classify: impl FnOnce(&E) -> Finality,
    ) -> Option<Outcome> {
        let attempt = self.held.attempt();
        let codecs = &self.context.codecs;
        match result {
            Ok(value) => Some(codecs.completed(value, attempt)),
            Err(error) if codecs.store_errors() && classify(error) == Finality::Final => {
                codecs.failed(error, attempt)
            }
            Err(_) => None,
        }
    }
}

impl<'a> Driver<'a> {
    /// Runs the body within the caller's task.
    pub fn drive<F: Future + 'a>(self, body: F) -> impl Future<Output = F::Output> + use<'a, F> {
        ReentrancyGuard::new(body, self.address, self.record, self.span)
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
