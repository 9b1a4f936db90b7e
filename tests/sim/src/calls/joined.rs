//! A call that joins a transaction of its caller.

use std::time::Duration;

use idem_runtime::advanced::RunOptions;
use idem_runtime::{Attempt, Error, Idem};
use idem_store::store::TransactionalStore;
use idem_store::{StoreError, StoreErrorKind};

use super::{Service, is_final, join, key_text};
use crate::leaving::Leaving;
use crate::message::{Row, RowKind, Statement};
use crate::outcome::{Receipt, SimError};
use crate::plan::{Joined, Mode, TransactionEnd};
use crate::store::{SimConnection, SimStore, SimTransaction};

/// Time limit of a caller's `BEGIN`, `COMMIT` and `ROLLBACK`.
const PATIENCE: Duration = Duration::from_secs(2);

/// Answer of a joined call. None: its caller dropped the call, and goes on with the transaction.
type JoinedAnswer = Option<Result<Receipt, SimError>>;

impl Service {
    /// Makes the call between two statements of the caller's own, and ends the transaction.
    pub(super) async fn call_joined(
        &self,
        idem: &Idem<SimStore>,
        joined: Joined,
        request: u32,
    ) -> Result<Receipt, SimError> {
        let store = idem.store();
        let mut transaction = limited(store.begin_for_caller()).await?;
        let connection = transaction.id();
        let mut rows = 0;
        match self.insert_own_row(&mut transaction).await {
            Ok(()) => rows += 1,
            Err(error) if joined.is_careless && goes_on(&error) => {}
            Err(error) => return Err(error),
        }
        let answer = self.join(idem, &mut transaction, joined, request).await;
        let mut has_failed = false;
        if let Some(Err(error @ SimError::Idempotency(Error::Store(_)))) = &answer {
            // Such an error may have undone all of the transaction. Dropping it rolls it back.
            has_failed = joined.is_careless && goes_on(error);
            if !has_failed {
                return answer.unwrap_or(Err(SimError::Dropped));
            }
            self.shared.world().joined_call_failed(connection);
        }
        match self.insert_own_row(&mut transaction).await {
            Ok(()) => rows += 1,
            Err(error) if has_failed && goes_on(&error) => {}
            Err(error) => return Err(error),
        }
        match joined.end {
            TransactionEnd::Commit => {
                self.shared.world().expects_own_rows(connection, rows);
                limited(store.commit(transaction)).await?;
                answer.unwrap_or(Err(SimError::Dropped))
            }
            TransactionEnd::RollBack => {
                // If the statement is lost, the connection is closed, which rolls back as well.
                let _ = limited(store.rollback(transaction)).await;
                self.undone(answer)
            }
        }
    }

    async fn join(
        &self,
        idem: &Idem<SimStore>,
        transaction: &mut SimTransaction<'_>,
        joined: Joined,
        request: u32,
    ) -> JoinedAnswer {
        let before = self.shared.world().known_disappearances(self.key);
        let call = self.join_once(idem, transaction, joined, request);
        let first = Leaving::new(call, joined.leaves).await;
        let Some(Ok(receipt)) = &first else {
            return first;
        };
        if joined.twice {
            match self.join_once(idem, transaction, joined, request).await {
                Ok(second) if second != *receipt => {
                    let mut world = self.shared.world();
                    // A record may expire or be erased before the second call, which then runs the body.
                    if world.disappearances(self.key) == before {
                        let what = format!("key {}: two values in one transaction", self.key);
                        world.violation("joined transactions", what);
                    }
                }
                // A value that could not be stored goes to the first call alone.
                Ok(_) | Err(SimError::Idempotency(Error::Unrecorded)) => {}
                Err(error) => return Some(Err(error)),
            }
        }
        first
    }

    async fn join_once(
        &self,
        idem: &Idem<SimStore>,
        connection: &mut SimConnection,
        joined: Joined,
        request: u32,
    ) -> Result<Receipt, SimError> {
        if joined.by_macro {
            return join(idem, connection, &key_text(self.key), request, self).await;
        }
        let options = RunOptions::new().replay_err(is_final);
        let body = async |tx: &mut SimConnection, attempt: Attempt| {
            self.body_in_transaction(request, &attempt, tx).await
        };
        let call = self.plain_call(Mode::Transaction, request);
        idem.join_transaction(connection, call, options, body).await
    }

    /// Inserts a row of the caller's own.
    async fn insert_own_row(&self, transaction: &mut SimTransaction<'_>) -> Result<(), SimError> {
        let row = Row {
            key: self.key,
            run: self.caller as u64,
            kind: RowKind::Callers,
        };
        let inserted = transaction.run(Statement::Insert(row)).await;
        Ok(inserted.map_err(Error::from)?)
    }

    /// The caller's answer once its transaction is rolled back: what its own run returned did not happen.
    fn undone(&self, answer: JoinedAnswer) -> Result<Receipt, SimError> {
        let Some(answer) = answer else {
            return Err(SimError::Dropped);
        };
        let run = match &answer {
            Ok(receipt) => Some(receipt.run),
            Err(error) => error.run(),
        };
        match run.filter(|run| self.shared.world().is_own(*run, self.caller)) {
            Some(run) => Err(SimError::Failed { run }),
            None => answer,
        }
    }
}

/// True for an error after which a careless caller goes on. After the others, the connection is lost.
fn goes_on(error: &SimError) -> bool {
    match error {
        SimError::Idempotency(Error::Store(error)) => {
            use StoreErrorKind::{Conflict, Other, ReadOnly};
            matches!(error.kind(), Conflict | Other | ReadOnly)
        }
        _ => false,
    }
}

async fn limited<T>(statement: impl Future<Output = Result<T, StoreError>>) -> Result<T, SimError> {
    let done = tokio::time::timeout(PATIENCE, statement).await;
    let timed_out = || StoreError::new(StoreErrorKind::Timeout, "no answer to the caller");
    let done = done.unwrap_or_else(|_| Err(timed_out()));
    Ok(done.map_err(Error::from)?)
}
