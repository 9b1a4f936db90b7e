//! Claims in a transaction that stays open while a body runs, and purges in a transaction.

use std::future::{Ready, ready};

use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{Postgres, SqlStr};

use super::statements::PostgresStatements;
use super::{BEGIN, ClaimRow, PostgresStore, error, existing, id_mismatch, read_claim_row};
use crate::error::{StoreError, StoreErrorKind};
use crate::record::{Observation, Outcome, Owner, Record};
use crate::store::sql::{
    self, Backend, InTransaction, OpenTransaction, Query, Returning, SharedStatements,
};
use crate::store::{ClaimInTransaction, ClaimRequest, FencedWrite, Purged, TransactionalStore};

sql::transactions!(lends PostgresStore, Postgres, PgConnection);

impl Backend for InTransaction<'_, PostgresStore, PgConnection> {
    type Row = PgRow;

    const RECORD_COLUMNS: usize = PostgresStore::RECORD_COLUMNS;

    fn statements(&self) -> &SharedStatements {
        &self.store.statements.shared
    }

    fn record(row: &PgRow) -> Result<Record, StoreError> {
        PostgresStore::record(row)
    }

    async fn read(&self, query: Query<'_>) -> Result<Vec<PgRow>, StoreError> {
        let mut connection = self.connection.lock().await;
        let rows = self.store.protocol.rows(&mut connection, &query).await;
        rows.map_err(error)
    }

    async fn write(&self, query: Query<'_>) -> Result<u64, StoreError> {
        let mut connection = self.connection.lock().await;
        let affected = self.store.protocol.affected(&mut connection, &query).await;
        affected.map_err(error)
    }
}

impl PostgresStore {
    /// Begins the transaction of a change by hand.
    pub(super) async fn begin_by_hand(
        &self,
    ) -> Result<OpenTransaction<'static, Postgres>, StoreError> {
        OpenTransaction::begin(&self.pool, Some(SqlStr::from_static(BEGIN)))
            .await
            .map_err(error)
    }

    /// Number of records that a purge by hand examines: nothing is read before its transaction begins.
    pub(super) fn due_for_purge(&self, limit: u32) -> Ready<Result<u32, StoreError>> {
        ready(Ok(limit))
    }

    /// Purges one batch in a transaction.
    pub(super) async fn purge_in(
        on: &InTransaction<'_, Self, PgConnection>,
        limit: &u32,
    ) -> Result<Purged, StoreError> {
        let PostgresStatements { purge, requeue, .. } = &*on.store.statements;
        sql::purge(on, purge, requeue, *limit).await
    }
}

impl Returning for InTransaction<'_, PostgresStore, PgConnection> {
    async fn write_returning(&self, query: Query<'_>) -> Result<Vec<PgRow>, StoreError> {
        self.read(query).await
    }
}

impl TransactionalStore for PostgresStore {
    sql::transactions!(in trait PostgresStore, Postgres, PgConnection);

    async fn begin(&self) -> Result<OpenTransaction<'static, Postgres>, StoreError> {
        OpenTransaction::begin(&self.pool, None)
            .await
            .map_err(error)
    }

    async fn precheck(&self, _: &ClaimRequest) -> Result<Option<ClaimInTransaction>, StoreError> {
        Ok(None)
    }

    async fn claim_in(
        &self,
        transaction: &mut Self::Transaction<'_>,
        observed: Option<&Observation>,
        claim: &ClaimRequest,
    ) -> Result<ClaimInTransaction, StoreError> {
        let on = InTransaction::new(self, transaction);
        for _ in 0..sql::MAX_CONFLICTS {
            match on.try_claim_locked(observed, claim).await {
                Ok(Some(answer)) => return Ok(answer),
                Ok(None) => {}
                Err(error) => {
                    // A standby began the transaction, see `connections::is_read_only`.
                    if error.kind() == StoreErrorKind::ReadOnly {
                        transaction.close_on_drop();
                    }
                    return Err(error);
                }
            }
        }
        Err(sql::too_many_conflicts())
    }
}

impl InTransaction<'_, PostgresStore, PgConnection> {
    /// Returns `None` if the record changed between read and write.
    async fn try_claim_locked(
        &self,
        observed: Option<&Observation>,
        claim: &ClaimRequest,
    ) -> Result<Option<ClaimInTransaction>, StoreError> {
        let PostgresStatements {
            claim_locked,
            claim_again,
            take_over,
            ..
        } = &*self.store.statements;
        let lock = claim.id.as_bytes().first_chunk();
        let lock = lock.map_or(0, |eight| i64::from_be_bytes(*eight));
        let query = sql::claim_query(claim_locked, claim).number(lock);
        let rows = self.read(query).await?;
        let row = rows.first().ok_or_else(|| sql::corrupt("id"))?;
        let record = match read_claim_row(row, claim)? {
            ClaimRow::Created(granted) => return Ok(Some(ClaimInTransaction::Granted(granted))),
            ClaimRow::LostRace => return Ok(None),
            ClaimRow::Locked(record) => {
                let there = record.filter(|record| !record.is_expired());
                return Ok(Some(ClaimInTransaction::Locked {
                    fingerprint: there.map(|record| record.fingerprint),
                }));
            }
            ClaimRow::IdMismatch => return Err(id_mismatch(self, claim).await),
            ClaimRow::Record(record) => record,
        };
        let answer = if record.is_expired() || claim.may_claim(&record) {
            sql::claim_returning(self, sql::claim_query(claim_again, claim)).await?
        } else if let Some(observed) = observed {
            sql::try_take_over(self, take_over, observed, claim).await?
        } else {
            Some(existing(record))
        };
        Ok(answer.map(Into::into))
    }
}
