//! Claiming in a transaction that stays open while a body runs.

use sqlx::Postgres;
use sqlx::postgres::{PgConnection, PgRow};

use super::statements::{IS_LOCKED, IS_NEW, Statements};
use super::{PostgresStore, error, existing};
use crate::error::StoreError;
use crate::record::{Ending, Holder, Observation};
use crate::store::sql::{self, Backend, On, OpenTransaction, Query, Readable, Returning};
use crate::store::{ClaimInTransaction, ClaimRequest, Fenced, TransactionalStore};

sql::transactions!(PostgresStore, Postgres, PgConnection, PgRow);

impl Returning for On<'_, PostgresStore, PgConnection> {
    async fn write_returning(&self, query: Query<'_>) -> Result<Vec<PgRow>, StoreError> {
        self.read(query).await
    }
}

impl TransactionalStore for PostgresStore {
    sql::transactions!(in trait PostgresStore, Postgres, PgConnection);

    async fn begin(&self) -> Result<OpenTransaction<'static, Postgres>, StoreError> {
        Ok(OpenTransaction {
            transaction: self.pool.begin().await.map_err(error)?,
            _turn: None,
        })
    }

    async fn look(&self, _: &ClaimRequest) -> Result<Option<ClaimInTransaction>, StoreError> {
        Ok(None)
    }

    async fn claim_in(
        &self,
        connection: &mut PgConnection,
        observed: Option<&Observation>,
        claim: &ClaimRequest,
        _: bool,
    ) -> Result<ClaimInTransaction, StoreError> {
        let on = On::new(self, connection);
        for _ in 0..sql::ROUNDS {
            if let Some(answer) = on.try_claim_locked(observed, claim).await? {
                return Ok(answer);
            }
        }
        Err(sql::restless())
    }
}

impl On<'_, PostgresStore, PgConnection> {
    /// None where the record changed under it.
    async fn try_claim_locked(
        &self,
        observed: Option<&Observation>,
        claim: &ClaimRequest,
    ) -> Result<Option<ClaimInTransaction>, StoreError> {
        let Statements {
            claim_locked,
            claim_again,
            take_over,
            ..
        } = &*self.store.statements;
        let lock = claim.id.as_bytes().first_chunk();
        let lock = lock.map_or(0, |eight| i64::from_be_bytes(*eight));
        let query = sql::claim_query(claim_locked, claim).number(lock);
        let rows = self.read(query).await?;
        let Some(row) = rows.first() else {
            // Nothing that is committed is in the way, or it was committed just now.
            let locked = sql::get(self, &claim.id).await?.is_none();
            return Ok(locked.then_some(ClaimInTransaction::Locked { fingerprint: None }));
        };
        let is_new = row.number(IS_NEW).map_err(error)?;
        if is_new == 1 {
            let granted = sql::granted_of_record(row)?;
            return Ok(Some(ClaimInTransaction::Granted(granted)));
        }
        let record = sql::record(row)?;
        if is_new == IS_LOCKED {
            return Ok(Some(ClaimInTransaction::Locked {
                fingerprint: (!record.is_expired()).then_some(record.fingerprint),
            }));
        }
        let answer = if record.is_expired() || sql::may_be_granted(&record, claim) {
            sql::grant(self, sql::claim_query(claim_again, claim)).await?
        } else if let Some(observed) = observed {
            sql::try_take_over(self, take_over, observed, claim).await?
        } else {
            Some(existing(record))
        };
        Ok(answer.map(Into::into))
    }
}
