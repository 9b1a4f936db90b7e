//! A store with transactions that has a defect: SQLite's store, with one method that does something else.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use idem_runtime::SqliteStore;
use idem_runtime::conformance::Counters;
use idem_runtime::error::{StoreError, StoreErrorKind};
use idem_runtime::record::{Observation, Outcome, Owner, Payload, Record};
use idem_runtime::store::{
    ClaimInTransaction, ClaimRequest, Connects, FencedWrite, Granted, OpenTransaction, Savepoint,
    TransactionalStore,
};
use sqlx::{Sqlite, SqliteConnection};
use tokio::runtime::Handle;
use tokio::task;

use super::super::places::Database;
use crate::engine::plain::{Beside, Plain};

/// A defect of a store with transactions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Defect {
    RollsBackAtCommit,
    CommitsAtRollback,
    CommitsAtDrop,
    IgnoresSavepoint,
    ReplacesSavepoints,
    CompletesForStrangers,
    GrantsOtherRequests,
    RunsEndedRecordsAgain,
    ForgetsTheObservation,
    SavesStepsAgain,
    GrantsLeasesBesideTransactions,
    LosesJoinedCalls,
    /// A joined call that ends so decides how its caller's transaction ends.
    JoinDecides(End),
    KeepsDroppedJoins,
    /// This number of transactions do not begin, with an error that is retryable.
    FailsAtFirst(u32),
}

/// End of a transaction, or of a part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Commit,
    Rollback,
}

/// State beside the store.
#[derive(Debug)]
pub(super) struct Defects {
    defect: Defect,
    /// Last claim in a transaction.
    last: Mutex<Option<(Owner, Granted)>>,
    /// A joined call has decided how the transaction ends.
    is_decided: AtomicBool,
    begins: AtomicU32,
}

pub(super) type DefectiveStore = Plain<SqliteStore, Defects>;

/// A store with this defect.
pub(super) fn defective(store: SqliteStore, defect: Defect) -> DefectiveStore {
    let beside = Defects {
        defect,
        last: Mutex::default(),
        is_decided: AtomicBool::default(),
        begins: AtomicU32::default(),
    };
    Plain::with(store, beside)
}

impl Defects {
    fn has(&self, defect: Defect) -> bool {
        self.defect == defect
    }

    fn last(&self) -> MutexGuard<'_, Option<(Owner, Granted)>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if a claim of this record is granted that must not be.
    fn grants(&self, record: &Record, claim: &ClaimRequest) -> bool {
        let is_same = record.fingerprint == claim.fingerprint;
        match self.defect {
            Defect::GrantsOtherRequests => !is_same,
            Defect::RunsEndedRecordsAgain => is_same && record.state.is_ended(),
            _ => false,
        }
    }

    /// Returns how a transaction ends that is to end in this way.
    fn end(&self, asked: End, is_joined: bool) -> End {
        match self.defect {
            Defect::RollsBackAtCommit => End::Rollback,
            Defect::CommitsAtRollback => End::Commit,
            Defect::LosesJoinedCalls if is_joined => End::Rollback,
            Defect::JoinDecides(end) if is_joined => {
                self.is_decided.fetch_or(asked == end, Ordering::SeqCst);
                asked
            }
            Defect::JoinDecides(end) if self.is_decided.swap(false, Ordering::SeqCst) => end,
            _ => asked,
        }
    }
}

impl Beside for Defects {
    fn granted(&self, claim: &ClaimRequest) -> Option<Granted> {
        let held = self.last().filter(|(owner, _)| owner.id == claim.id);
        let (_, granted) = held.filter(|_| self.has(Defect::GrantsLeasesBesideTransactions))?;
        Some(granted)
    }
}

impl Connects<DefectiveStore> for SqliteConnection {
    fn connection(&mut self) -> &mut Self {
        self
    }
}

impl Counters<DefectiveStore> for Database<SqliteStore> {
    async fn add(&self, connection: &mut SqliteConnection, name: &str) -> Result<(), StoreError> {
        Counters::<SqliteStore>::add(self, connection, name).await
    }

    async fn committed(&self, name: &str) -> Result<u64, StoreError> {
        Counters::<SqliteStore>::committed(self, name).await
    }
}

/// An open transaction, or a savepoint in one.
pub(super) struct DefectiveTransaction<'c> {
    /// None once it has ended.
    open: Option<OpenTransaction<'c, Sqlite>>,
    is_joined: bool,
    /// Store that commits the transaction if it is dropped.
    commits_at_drop: Option<SqliteStore>,
}

impl<'c> DefectiveTransaction<'c> {
    fn new(store: &DefectiveStore, open: OpenTransaction<'c, Sqlite>, is_joined: bool) -> Self {
        let commits_at_drop = store.beside.has(match is_joined {
            true => Defect::KeepsDroppedJoins,
            false => Defect::CommitsAtDrop,
        });
        Self {
            open: Some(open),
            is_joined,
            commits_at_drop: commits_at_drop.then(|| store.store.clone()),
        }
    }

    fn open(&mut self) -> &mut OpenTransaction<'c, Sqlite> {
        self.open.as_mut().expect("the transaction is open")
    }
}

impl Deref for DefectiveTransaction<'_> {
    type Target = SqliteConnection;

    fn deref(&self) -> &SqliteConnection {
        self.open.as_ref().expect("the transaction is open")
    }
}

impl DerefMut for DefectiveTransaction<'_> {
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        self.open()
    }
}

impl Drop for DefectiveTransaction<'_> {
    fn drop(&mut self) {
        if let (Some(open), Some(store)) = (self.open.take(), &self.commits_at_drop) {
            let committed = task::block_in_place(|| Handle::current().block_on(store.commit(open)));
            committed.unwrap();
        }
    }
}

/// Runs a statement of the store.
async fn run(connection: &mut SqliteConnection, statement: &'static str) -> Result<(), StoreError> {
    let done = sqlx::raw_sql(statement).execute(connection).await;
    done.map(drop)
        .map_err(|_| StoreError::new(StoreErrorKind::Other, "the statement failed"))
}

impl DefectiveStore {
    async fn end(
        &self,
        mut transaction: DefectiveTransaction<'_>,
        asked: End,
    ) -> Result<(), StoreError> {
        let end = self.beside.end(asked, transaction.is_joined);
        let open = transaction.open.take().expect("the transaction is open");
        match end {
            End::Commit => self.store.commit(open).await,
            End::Rollback => self.store.rollback(open).await,
        }
    }
}

impl TransactionalStore for DefectiveStore {
    type Connection = SqliteConnection;
    type Transaction<'c> = DefectiveTransaction<'c>;
    /// None if all savepoints have one name.
    type Savepoint = Option<Savepoint>;

    async fn begin(&self) -> Result<Self::Transaction<'static>, StoreError> {
        let begins = self.beside.begins.fetch_add(1, Ordering::SeqCst);
        if matches!(self.beside.defect, Defect::FailsAtFirst(number) if begins < number) {
            return Err(StoreError::new(StoreErrorKind::Conflict, "a planned fault"));
        }
        let open = self.store.begin().await?;
        Ok(DefectiveTransaction::new(self, open, false))
    }

    async fn join<'c>(
        &self,
        connection: &'c mut SqliteConnection,
    ) -> Result<Self::Transaction<'c>, StoreError> {
        let open = self.store.join(connection).await?;
        Ok(DefectiveTransaction::new(self, open, true))
    }

    fn begin_concurrency(&self) -> usize {
        self.store.begin_concurrency()
    }

    fn is_in_transaction(connection: &SqliteConnection) -> bool {
        SqliteStore::is_in_transaction(connection)
    }

    async fn claim_in(
        &self,
        transaction: &mut Self::Transaction<'_>,
        observed: Option<&Observation>,
        claim: &ClaimRequest,
    ) -> Result<ClaimInTransaction, StoreError> {
        let observed = observed.filter(|_| !self.beside.has(Defect::ForgetsTheObservation));
        let open = transaction.open();
        let claimed = self.store.claim_in(open, observed, claim).await?;
        let granted = match &claimed {
            ClaimInTransaction::Granted(granted) => *granted,
            ClaimInTransaction::Existing(record) if self.beside.grants(record, claim) => {
                Granted::on(record)
            }
            _ => return Ok(claimed),
        };
        let owner = Owner {
            id: claim.id,
            claim_id: claim.claim_id,
            fencing_token: granted.fencing_token,
        };
        *self.beside.last() = Some((owner, granted));
        Ok(ClaimInTransaction::Granted(granted))
    }

    async fn complete_in(
        &self,
        transaction: &mut Self::Transaction<'_>,
        owner: &Owner,
        outcome: &Outcome,
    ) -> Result<FencedWrite, StoreError> {
        let last = *self.beside.last();
        let owner = match last {
            Some((last, _)) if self.beside.has(Defect::CompletesForStrangers) => last,
            _ => *owner,
        };
        let open = transaction.open();
        self.store.complete_in(open, &owner, outcome).await
    }

    async fn save_step_in(
        &self,
        transaction: &mut Self::Transaction<'_>,
        owner: &Owner,
        name: &str,
        payload: &Payload,
    ) -> Result<FencedWrite, StoreError> {
        let open = transaction.open();
        let saved = self.store.save_step_in(open, owner, name, payload).await?;
        Ok(match self.beside.defect {
            Defect::SavesStepsAgain => FencedWrite::Applied,
            _ => saved,
        })
    }

    async fn savepoint(
        &self,
        connection: &mut SqliteConnection,
    ) -> Result<Self::Savepoint, StoreError> {
        match self.beside.defect {
            Defect::ReplacesSavepoints => run(connection, "SAVEPOINT same").await.map(|()| None),
            _ => self.store.savepoint(connection).await.map(Some),
        }
    }

    async fn rollback_to(
        &self,
        connection: &mut SqliteConnection,
        savepoint: &Self::Savepoint,
    ) -> Result<(), StoreError> {
        match savepoint {
            _ if self.beside.has(Defect::IgnoresSavepoint) => Ok(()),
            Some(savepoint) => self.store.rollback_to(connection, savepoint).await,
            None => run(connection, "ROLLBACK TO same").await,
        }
    }

    async fn commit(&self, transaction: Self::Transaction<'_>) -> Result<(), StoreError> {
        self.end(transaction, End::Commit).await
    }

    async fn rollback(&self, transaction: Self::Transaction<'_>) -> Result<(), StoreError> {
        self.end(transaction, End::Rollback).await
    }
}
