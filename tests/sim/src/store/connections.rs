//! Connections and transactions of a process.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use idem_reference::Defect;
use idem_store::random;
use idem_store::record::{Observation, Outcome, Owner, Payload};
use idem_store::store::{
    ClaimInTransaction, ClaimRequest, Connects, FencedWrite, TransactionalStore,
};
use idem_store::{StoreError, StoreErrorKind};

use super::{Endpoint, SimStore};
use crate::message::{
    Answer, Begin, ConnectionId, Reply, Request, Statement, connection_lost, wrong_reply,
};
use crate::world::{Queue, Unanswered};

/// Time limit of a body's statement.
const PATIENCE: Duration = Duration::from_secs(2);

/// A connection of a process.
pub(crate) struct SimConnection {
    id: ConnectionId,
    store: SimStore,
    /// Number of transactions and savepoints that the driver has begun.
    depth: u32,
}

impl SimConnection {
    /// Runs a statement of a body or of a caller, in bounded time: the engine does not limit them.
    pub(crate) async fn run(&mut self, statement: Statement) -> Result<(), StoreError> {
        let done = tokio::time::timeout(PATIENCE, self.execute(statement)).await;
        done.unwrap_or_else(|_| Err(connection_lost())).map(drop)
    }

    pub(crate) fn id(&self) -> ConnectionId {
        self.id
    }

    async fn execute(&self, statement: Statement) -> Answer {
        let request = Request::InTransaction(statement);
        self.store.ask_on(self.id, request).await
    }

    /// Executes a statement of the store in a transaction of the caller's. If the store has ended that transaction, the
    /// caller's next statements would commit one by one, so the connection refuses writes.
    async fn execute_joined(&self, statement: Statement) -> Answer {
        let answer = self.execute(statement).await;
        if let Err(error) = &answer
            && error.kind() == StoreErrorKind::Conflict
            && self.store.defect != Some(Defect::EndedCallerWrites)
        {
            self.execute(Statement::RefuseWrites).await?;
        }
        answer
    }

    /// Sends a statement without waiting for its answer.
    fn send(&self, statement: Statement) {
        let request = Request::InTransaction(statement);
        self.store.endpoint.send(Some(self.id), request, None);
    }
}

impl Connects<SimStore> for SimConnection {
    fn connection(&mut self) -> &mut Self {
        self
    }
}

/// An open transaction, or a savepoint in the caller's. Dropping it rolls it back.
pub(crate) struct SimTransaction<'c> {
    connection: Connection<'c>,
    /// Until the transaction is claimed in, if the store has begun it.
    unanswered: Option<Unanswered>,
    is_ended: bool,
}

enum Connection<'c> {
    /// A connection of the pool. It returns there if the transaction ends in an orderly way.
    Own(SimConnection),
    Joined(&'c mut SimConnection),
}

impl Deref for SimTransaction<'_> {
    type Target = SimConnection;

    fn deref(&self) -> &SimConnection {
        match &self.connection {
            Connection::Own(connection) => connection,
            Connection::Joined(connection) => connection,
        }
    }
}

impl DerefMut for SimTransaction<'_> {
    fn deref_mut(&mut self) -> &mut SimConnection {
        match &mut self.connection {
            Connection::Own(connection) => connection,
            Connection::Joined(connection) => connection,
        }
    }
}

impl SimTransaction<'_> {
    fn savepoint(&self) -> String {
        format!("joined_{}", self.depth)
    }

    /// Executes a statement of the store.
    async fn execute_own(&self, statement: Statement) -> Answer {
        match &self.connection {
            Connection::Own(connection) => connection.execute(statement).await,
            Connection::Joined(connection) => connection.execute_joined(statement).await,
        }
    }

    /// Ends the transaction with this statement. Once sent, the statement takes effect whoever waits for it.
    async fn end(mut self, statement: Statement) -> Result<(), StoreError> {
        let is_rollback = matches!(statement, Statement::Rollback | Statement::RollbackTo(_));
        // Whoever stops waiting leaves a connection that is closed, after the statement.
        self.is_ended = false;
        let answer = self.execute_own(statement).await;
        // A rollback says that the store had ended the transaction, and there is nothing left.
        let is_conflict = |error: &StoreError| error.kind() == StoreErrorKind::Conflict;
        self.is_ended = answer.is_ok() || is_rollback && answer.as_ref().is_err_and(is_conflict);
        if self.is_ended
            && let Connection::Own(connection) = &self.connection
        {
            connection.store.endpoint.give_back(connection.id);
        }
        answer.map(drop)
    }
}

impl Drop for SimTransaction<'_> {
    fn drop(&mut self) {
        match &self.connection {
            _ if self.is_ended => {}
            Connection::Own(connection) => connection.send(Statement::Close),
            Connection::Joined(connection) => match connection.store.defect {
                Some(Defect::KeepsDroppedJoin) => {}
                Some(Defect::DroppedJoinEndsTransaction) => {
                    self.send(Statement::Rollback);
                    self.send(Statement::Begin(Begin::Caller));
                }
                _ => {
                    let savepoint = self.savepoint();
                    self.send(Statement::RollbackToLater(savepoint));
                }
            },
        }
        self.depth -= 1;
    }
}

/// A `BEGIN` whose answer has not come.
struct Beginning {
    endpoint: Endpoint,
    connection: ConnectionId,
    is_begun: bool,
    /// A driver that forgets the `BEGIN` and lends the connection to others.
    is_pooled: bool,
}

impl Drop for Beginning {
    fn drop(&mut self) {
        if self.is_begun {
            return;
        }
        match self.is_pooled {
            true => self.endpoint.give_back(self.connection),
            false => self.endpoint.close(self.connection),
        }
    }
}

macro_rules! execute {
    ($transaction:expr, $statement:expr, $reply:path) => {
        match $transaction.execute_own($statement).await? {
            $reply(answer) => Ok(answer),
            _ => Err(wrong_reply()),
        }
    };
}

impl SimStore {
    /// Begins a transaction of a caller on a connection of the pool.
    pub(crate) async fn begin_for_caller(&self) -> Result<SimTransaction<'static>, StoreError> {
        let transaction = self.begin_as(Begin::Caller).await?;
        self.shared.world().caller_begins(transaction.id());
        Ok(transaction)
    }

    async fn begin_as(&self, begin: Begin) -> Result<SimTransaction<'static>, StoreError> {
        let id = self.endpoint.connect();
        let mut beginning = Beginning {
            endpoint: self.endpoint.clone(),
            connection: id,
            is_begun: false,
            is_pooled: self.defect == Some(Defect::PoolsDroppedBegin),
        };
        let begin = Request::InTransaction(Statement::Begin(begin));
        self.ask_on(id, begin).await?;
        beginning.is_begun = true;
        Ok(SimTransaction {
            connection: Connection::Own(SimConnection {
                id,
                store: self.clone(),
                depth: 1,
            }),
            unanswered: None,
            is_ended: false,
        })
    }
}

impl TransactionalStore for SimStore {
    type Connection = SimConnection;
    type Transaction<'c> = SimTransaction<'c>;
    type Savepoint = String;

    async fn begin(&self) -> Result<Self::Transaction<'static>, StoreError> {
        let begin = Begin::Store {
            is_guarded: self.defect != Some(Defect::CommitsEnded),
            autocommit: self.defect == Some(Defect::KeepsAutocommit),
        };
        let unanswered = self.claims(Queue::Begins);
        let mut transaction = self.begin_as(begin).await?;
        transaction.unanswered = Some(unanswered);
        Ok(transaction)
    }

    fn begin_concurrency(&self) -> usize {
        self.claim_concurrency
    }

    async fn join<'c>(
        &self,
        connection: &'c mut SimConnection,
    ) -> Result<Self::Transaction<'c>, StoreError> {
        let savepoint = format!("joined_{}", connection.depth + 1);
        let join = match self.defect {
            Some(Defect::JoinsEnded) => Statement::Savepoint(savepoint),
            _ => Statement::Join(savepoint),
        };
        connection.execute_joined(join).await?;
        connection.depth += 1;
        Ok(SimTransaction {
            connection: Connection::Joined(connection),
            unanswered: None,
            is_ended: false,
        })
    }

    fn is_in_transaction(connection: &SimConnection) -> bool {
        connection.depth > 0
    }

    async fn precheck(
        &self,
        claim: &ClaimRequest,
    ) -> Result<Option<ClaimInTransaction>, StoreError> {
        match self.ask(Request::Precheck(claim.clone())).await? {
            Reply::Prechecked(found) => Ok(found),
            _ => Err(wrong_reply()),
        }
    }

    async fn claim_in(
        &self,
        transaction: &mut Self::Transaction<'_>,
        observed: Option<&Observation>,
        claim: &ClaimRequest,
    ) -> Result<ClaimInTransaction, StoreError> {
        let _unanswered = transaction.unanswered.take();
        let statement = Statement::Claim(observed.copied(), claim.clone());
        execute!(transaction, statement, Reply::InTransaction)
    }

    async fn complete_in(
        &self,
        transaction: &mut Self::Transaction<'_>,
        owner: &Owner,
        outcome: &Outcome,
    ) -> Result<FencedWrite, StoreError> {
        let statement = Statement::Complete(*owner, outcome.clone());
        execute!(transaction, statement, Reply::Fenced)
    }

    async fn save_step_in(
        &self,
        transaction: &mut Self::Transaction<'_>,
        owner: &Owner,
        name: &str,
        payload: &Payload,
    ) -> Result<FencedWrite, StoreError> {
        let statement = Statement::SaveStep(*owner, name.to_owned(), payload.clone());
        execute!(transaction, statement, Reply::Fenced)
    }

    async fn savepoint(&self, connection: &mut SimConnection) -> Result<String, StoreError> {
        let savepoint = format!("changes_{:016x}", random::number());
        let statement = Statement::Savepoint(savepoint.clone());
        connection.execute(statement).await.map(|_| savepoint)
    }

    async fn rollback_to(
        &self,
        connection: &mut SimConnection,
        savepoint: &String,
    ) -> Result<(), StoreError> {
        let statement = Statement::RollbackTo(savepoint.clone());
        connection.execute(statement).await.map(drop)
    }

    async fn commit(&self, transaction: Self::Transaction<'_>) -> Result<(), StoreError> {
        match &transaction.connection {
            Connection::Own(_) => transaction.end(Statement::Commit).await,
            // The caller commits.
            Connection::Joined(_) => {
                let savepoint = transaction.savepoint();
                transaction.end(Statement::Release(savepoint)).await
            }
        }
    }

    async fn rollback(&self, transaction: Self::Transaction<'_>) -> Result<(), StoreError> {
        match &transaction.connection {
            Connection::Own(_) => transaction.end(Statement::Rollback).await,
            Connection::Joined(_) => {
                let savepoint = transaction.savepoint();
                transaction.end(Statement::RollbackTo(savepoint)).await
            }
        }
    }
}
