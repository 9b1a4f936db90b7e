//! A store with transactions that has a defect: SQLite's store, with one method that does something else.

use std::sync::{Mutex, MutexGuard, PoisonError};

use idem_runtime::SqliteStore;
use idem_runtime::conformance::Counters;
use idem_runtime::error::StoreError;
use idem_runtime::record::{Observation, Outcome, Owner, Payload};
use idem_runtime::store::{
    ClaimInTransaction, ClaimRequest, Connects, FencedWrite, Granted, TransactionalStore,
};
use sqlx::SqliteConnection;

use super::super::places::Database;
use crate::engine::plain::{Beside, Plain};

/// A defect of a store with transactions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Defect {
    RollsBackAtCommit,
    CommitsAtRollback,
    IgnoresSavepoint,
    CompletesForStrangers,
    GrantsEndedRecords,
    ForgetsTheObservation,
    SavesStepsAgain,
    GrantsLeasesBesideTransactions,
}

/// State beside the store.
#[derive(Debug)]
pub(super) struct Defects {
    defect: Defect,
    /// Last claim in a transaction.
    last: Mutex<Option<(Owner, Granted)>>,
}

pub(super) type DefectiveStore = Plain<SqliteStore, Defects>;

/// A store with this defect.
pub(super) fn defective(store: SqliteStore, defect: Defect) -> DefectiveStore {
    let last = Mutex::default();
    Plain::with(store, Defects { defect, last })
}

impl Defects {
    fn has(&self, defect: Defect) -> bool {
        self.defect == defect
    }

    fn last(&self) -> MutexGuard<'_, Option<(Owner, Granted)>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
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

impl TransactionalStore for DefectiveStore {
    type Connection = SqliteConnection;
    type Transaction<'c> = <SqliteStore as TransactionalStore>::Transaction<'c>;

    async fn begin(&self) -> Result<Self::Transaction<'static>, StoreError> {
        self.store.begin().await
    }

    async fn join<'c>(
        &self,
        connection: &'c mut SqliteConnection,
    ) -> Result<Self::Transaction<'c>, StoreError> {
        self.store.join(connection).await
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
        let claimed = self.store.claim_in(transaction, observed, claim).await?;
        let granted = match &claimed {
            ClaimInTransaction::Granted(granted) => *granted,
            ClaimInTransaction::Existing(record) if self.beside.has(Defect::GrantsEndedRecords) => {
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
        self.store.complete_in(transaction, &owner, outcome).await
    }

    async fn save_step_in(
        &self,
        transaction: &mut Self::Transaction<'_>,
        owner: &Owner,
        name: &str,
        payload: &Payload,
    ) -> Result<FencedWrite, StoreError> {
        let saved = self.store.save_step_in(transaction, owner, name, payload);
        let saved = saved.await?;
        Ok(match self.beside.defect {
            Defect::SavesStepsAgain => FencedWrite::Applied,
            _ => saved,
        })
    }

    async fn savepoint(
        &self,
        connection: &mut SqliteConnection,
        name: &str,
    ) -> Result<(), StoreError> {
        self.store.savepoint(connection, name).await
    }

    async fn rollback_to(
        &self,
        connection: &mut SqliteConnection,
        name: &str,
    ) -> Result<(), StoreError> {
        match self.beside.defect {
            Defect::IgnoresSavepoint => Ok(()),
            _ => self.store.rollback_to(connection, name).await,
        }
    }

    async fn commit(&self, transaction: Self::Transaction<'_>) -> Result<(), StoreError> {
        match self.beside.defect {
            Defect::RollsBackAtCommit => self.store.rollback(transaction).await,
            _ => self.store.commit(transaction).await,
        }
    }

    async fn rollback(&self, transaction: Self::Transaction<'_>) -> Result<(), StoreError> {
        match self.beside.defect {
            Defect::CommitsAtRollback => self.store.commit(transaction).await,
            _ => self.store.rollback(transaction).await,
        }
    }
}
