//! A store with transactions that has a defect: SQLite's store, with one method that does something else.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use idem_runtime::conformance::Counters;
use idem_runtime::error::StoreError;
use idem_runtime::key::RecordId;
use idem_runtime::record::{Observation, Outcome, Owner, Payload, Record, Timestamp};
use idem_runtime::store::{
    ClaimInTransaction, ClaimOutcome, ClaimRequest, Connects, FencedWrite, Filter, Granted, Page,
    PageRequest, Purged, Resolution, Resolved, StepStore, TransactionalStore,
};
use idem_runtime::{SqliteStore, Store};
use sqlx::SqliteConnection;

use super::super::places::Database;

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

#[derive(Debug)]
pub(super) struct DefectiveStore {
    inner: SqliteStore,
    defect: Defect,
    /// Owner of the last claim in a transaction.
    owner: Mutex<Option<Owner>>,
}

impl DefectiveStore {
    pub(super) fn new(inner: SqliteStore, defect: Defect) -> Self {
        Self {
            inner,
            defect,
            owner: Mutex::default(),
        }
    }

    fn owner(&self) -> std::sync::MutexGuard<'_, Option<Owner>> {
        self.owner.lock().unwrap_or_else(PoisonError::into_inner)
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
        self.inner.begin().await
    }

    async fn join<'c>(
        &self,
        connection: &'c mut SqliteConnection,
    ) -> Result<Self::Transaction<'c>, StoreError> {
        self.inner.join(connection).await
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
        let observed = observed.filter(|_| self.defect != Defect::ForgetsTheObservation);
        let claimed = self.inner.claim_in(transaction, observed, claim).await?;
        let granted = match &claimed {
            ClaimInTransaction::Granted(granted) => *granted,
            ClaimInTransaction::Existing(record) if self.defect == Defect::GrantsEndedRecords => {
                Granted::on(record)
            }
            _ => return Ok(claimed),
        };
        *self.owner() = Some(Owner {
            id: claim.id,
            claim_id: claim.claim_id,
            fencing_token: granted.fencing_token,
        });
        Ok(ClaimInTransaction::Granted(granted))
    }

    async fn complete_in(
        &self,
        transaction: &mut Self::Transaction<'_>,
        owner: &Owner,
        outcome: &Outcome,
    ) -> Result<FencedWrite, StoreError> {
        let last = *self.owner();
        let last = last.filter(|_| self.defect == Defect::CompletesForStrangers);
        let owner = last.unwrap_or(*owner);
        self.inner.complete_in(transaction, &owner, outcome).await
    }

    async fn save_step_in(
        &self,
        transaction: &mut Self::Transaction<'_>,
        owner: &Owner,
        name: &str,
        payload: &Payload,
    ) -> Result<FencedWrite, StoreError> {
        let inner = &self.inner;
        let saved = inner
            .save_step_in(transaction, owner, name, payload)
            .await?;
        Ok(match self.defect {
            Defect::SavesStepsAgain => FencedWrite::Applied,
            _ => saved,
        })
    }

    async fn savepoint(
        &self,
        connection: &mut SqliteConnection,
        name: &str,
    ) -> Result<(), StoreError> {
        self.inner.savepoint(connection, name).await
    }

    async fn rollback_to(
        &self,
        connection: &mut SqliteConnection,
        name: &str,
    ) -> Result<(), StoreError> {
        match self.defect {
            Defect::IgnoresSavepoint => Ok(()),
            _ => self.inner.rollback_to(connection, name).await,
        }
    }

    async fn commit(&self, transaction: Self::Transaction<'_>) -> Result<(), StoreError> {
        match self.defect {
            Defect::RollsBackAtCommit => self.inner.rollback(transaction).await,
            _ => self.inner.commit(transaction).await,
        }
    }

    async fn rollback(&self, transaction: Self::Transaction<'_>) -> Result<(), StoreError> {
        match self.defect {
            Defect::CommitsAtRollback => self.inner.commit(transaction).await,
            _ => self.inner.rollback(transaction).await,
        }
    }
}

#[async_trait]
impl Store for DefectiveStore {
    async fn claim(&self, claim: &ClaimRequest) -> Result<ClaimOutcome, StoreError> {
        let last = *self.owner();
        let held = last.filter(|owner| owner.id == claim.id);
        match (self.defect, held) {
            (Defect::GrantsLeasesBesideTransactions, Some(owner)) => {
                Ok(ClaimOutcome::Granted(Granted {
                    fencing_token: owner.fencing_token,
                    attempt: 1,
                    first_claimed_at: self.inner.now().await?,
                    on_crash: claim.on_crash,
                }))
            }
            _ => self.inner.claim(claim).await,
        }
    }

    async fn take_over(
        &self,
        observed: &Observation,
        claim: &ClaimRequest,
    ) -> Result<ClaimOutcome, StoreError> {
        self.inner.take_over(observed, claim).await
    }

    async fn renew(&self, owner: &Owner, lease: Duration) -> Result<FencedWrite, StoreError> {
        self.inner.renew(owner, lease).await
    }

    async fn complete(&self, owner: &Owner, outcome: &Outcome) -> Result<FencedWrite, StoreError> {
        self.inner.complete(owner, outcome).await
    }

    async fn release(&self, owner: &Owner) -> Result<FencedWrite, StoreError> {
        self.inner.release(owner).await
    }

    async fn interrupt(&self, owner: &Owner) -> Result<FencedWrite, StoreError> {
        self.inner.interrupt(owner).await
    }

    async fn resolve(
        &self,
        observed: &Observation,
        resolution: &Resolution,
    ) -> Result<Resolved, StoreError> {
        self.inner.resolve(observed, resolution).await
    }

    async fn get(&self, id: &RecordId) -> Result<Option<Record>, StoreError> {
        self.inner.get(id).await
    }

    async fn list(&self, filter: &Filter, page: &PageRequest) -> Result<Page, StoreError> {
        self.inner.list(filter, page).await
    }

    async fn now(&self) -> Result<Timestamp, StoreError> {
        self.inner.now().await
    }

    async fn purge(&self, limit: u32, as_of: Timestamp) -> Result<Purged, StoreError> {
        self.inner.purge(limit, as_of).await
    }

    fn steps(&self) -> Option<&dyn StepStore> {
        self.inner.steps()
    }
}
