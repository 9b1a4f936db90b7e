//! Claims in a transaction that stays open while a body runs, and purges in a transaction.

use std::future::{Ready, ready};

use sqlx::sqlite::{SqliteConnection, SqliteRow};
use sqlx::{SqlStr, Sqlite};

use super::statements::SqliteStatements;
use super::{SqliteStore, error, retry_busy};
use crate::error::StoreError;
use crate::record::{Observation, Outcome, Owner, Timestamp};
use crate::store::sql::{self, Backend, InTransaction, OpenTransaction, Query, Returning, Seal};
use crate::store::{
    ClaimInTransaction, ClaimOutcome, ClaimRequest, FencedWrite, Purged, Store, TransactionalStore,
};

sql::transactions!(SqliteStore, Sqlite, SqliteConnection, SqliteRow);

impl SqliteStore {
    /// Begins the transaction of a manual change.
    pub(super) async fn begin_manual_change(
        &self,
    ) -> Result<OpenTransaction<'static, Sqlite>, StoreError> {
        self.begin().await
    }

    /// Number of records that a manual purge examines: nothing is read before its transaction begins.
    pub(super) fn due_for_purge(&self, limit: u32) -> Ready<Result<u32, StoreError>> {
        ready(Ok(limit))
    }

    /// Purges one batch in a transaction.
    pub(super) async fn purge_in(
        on: &InTransaction<'_, Self, SqliteConnection>,
        limit: &u32,
    ) -> Result<Purged, StoreError> {
        let SqliteStatements { purge, requeue, .. } = &*on.store.statements;
        sql::purge(on, purge, requeue, *limit, Timestamp::MAX).await
    }
}

impl Returning for InTransaction<'_, SqliteStore, SqliteConnection> {
    async fn write_returning(&self, query: Query<'_>) -> Result<Vec<SqliteRow>, StoreError> {
        self.read(query).await
    }
}

impl TransactionalStore for SqliteStore {
    sql::transactions!(in trait SqliteStore, Sqlite, SqliteConnection, sql::complete_as);

    /// A transaction that waits for its turn to write has no connection. Fewer of them would hold up replays, which read
    /// before they wait.
    fn begin_concurrency(&self) -> usize {
        64
    }

    /// The transaction is the writer from its beginning. If it became the writer half way, another transaction might
    /// have written since its first read, and it could only be rolled back.
    async fn begin(&self) -> Result<OpenTransaction<'static, Sqlite>, StoreError> {
        let turn = self.writer.turn().await;
        let pool = sql::Connections::to_file(self.pool.clone());
        let begun = retry_busy(|| {
            let statement = SqlStr::from_static("BEGIN IMMEDIATE");
            OpenTransaction::begin(&pool, Some(statement))
        });
        let mut begun = begun.await.map_err(error)?.with_turn(turn);
        if !self.owns_connections {
            return Ok(begun);
        }
        let (seal, allows_commit) = Seal::new();
        let mut handle = begun.lock_handle().await.map_err(error)?;
        handle.set_commit_hook(allows_commit);
        drop(handle);
        Ok(begun.with_seal(seal))
    }

    /// A plain read, so that a replay does not queue behind writers.
    async fn precheck(
        &self,
        claim: &ClaimRequest,
    ) -> Result<Option<ClaimInTransaction>, StoreError> {
        let record = self.get(&claim.id).await?;
        let ended = record.filter(|record| record.state.is_ended());
        Ok(ended.map(|record| ClaimInTransaction::Existing(Box::new(record))))
    }

    /// SQLite has one writer at a time, so there is no race with this transaction, and no locked row to wait for.
    async fn claim_in(
        &self,
        transaction: &mut Self::Transaction<'_>,
        observed: Option<&Observation>,
        claim: &ClaimRequest,
    ) -> Result<ClaimInTransaction, StoreError> {
        let on = InTransaction::new(self, transaction);
        for _ in 0..sql::MAX_CONFLICTS {
            let query = sql::claim_query(&self.statements.claim, claim);
            let answer = match (sql::claim_returning(&on, query).await?, observed) {
                (Some(granted), _) => Some(granted),
                (None, Some(observed)) => {
                    sql::try_take_over(&on, &self.statements.take_over, observed, claim).await?
                }
                (None, None) => sql::get(&on, &claim.id)
                    .await?
                    .map(|record| ClaimOutcome::Existing(Box::new(record))),
            };
            if let Some(answer) = answer {
                return Ok(answer.into());
            }
        }
        Err(sql::too_many_conflicts())
    }
}
