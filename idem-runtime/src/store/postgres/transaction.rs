//! Claiming in a transaction that stays open while a body runs.

use sqlx::Postgres;
use sqlx::postgres::{PgConnection, PgRow};

use super::statements::Statements;
use super::{Found, PostgresStore, error, existing, foreign, found};
use crate::error::StoreError;
use crate::record::{Ending, Holder, Observation};
use crate::store::sql::{self, Backend, On, OpenTransaction, Query, Returning};
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
        OpenTransaction::begin(&self.pool, None)
            .await
            .map_err(error)
    }

    async fn look(&self, _: &ClaimRequest) -> Result<Option<ClaimInTransaction>, StoreError> {
        Ok(None)
    }

    async fn claim_in(
        &self,
        transaction: &mut Self::Transaction<'_>,
        observed: Option<&Observation>,
        claim: &ClaimRequest,
    ) -> Result<ClaimInTransaction, StoreError> {
        let on = On::new(self, transaction);
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
        let row = rows.first().ok_or_else(|| sql::corrupt("id"))?;
        let record = match found(row, claim)? {
            Found::New(granted) => return Ok(Some(ClaimInTransaction::Granted(granted))),
            Found::Nothing => return Ok(None),
            Found::Locked(record) => {
                let there = record.filter(|record| !record.is_expired());
                return Ok(Some(ClaimInTransaction::Locked {
                    fingerprint: there.map(|record| record.fingerprint),
                }));
            }
            Found::Foreign => return Err(foreign(self, claim).await),
            Found::Record(record) => record,
        };
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
