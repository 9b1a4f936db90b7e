//! Queue of writers.

use std::sync::Arc;

use futures_util::TryStreamExt as _;
use sqlx::sqlite::{SqliteArguments, SqliteConnection, SqliteRow};
use sqlx::{Either, Execute as _, Executor as _, SqlStr, Sqlite, SqlitePool};
use tokio::sync::oneshot::Sender;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{error, retry_busy};
use crate::error::StoreError;
use crate::store::sql::{self, BatchExecutor, Batcher, OpenTransaction, Query};

/// SQLite has one writer at a time, and the others poll. The writers of this store wait here instead, in order, and
/// queued statements share one commit.
#[derive(Debug, Clone)]
pub(in crate::store) struct Writer {
    pool: SqlitePool,
    turns: Arc<Semaphore>,
    batcher: Batcher<OneCommit>,
}

/// Result of a statement that writes: its rows and the number of changed rows.
#[derive(Debug, Default)]
pub(super) struct Written {
    pub(super) rows: Vec<SqliteRow>,
    pub(super) rows_affected: u64,
}

impl Writer {
    pub(super) fn new(pool: SqlitePool) -> Self {
        let turns = Arc::new(Semaphore::new(1));
        Self {
            pool,
            batcher: Batcher::new(Arc::clone(&turns), None),
            turns,
        }
    }

    /// Waits for the permit to write.
    pub(in crate::store) async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        // The semaphore is never closed.
        Arc::clone(&self.turns).acquire_owned().await.ok()
    }

    /// Runs a statement that writes, to its end.
    pub(super) async fn write(&self, query: &Query<'_>) -> Result<Written, StoreError> {
        let run_single = async || {
            let written = retry_busy(|| async {
                let mut connection = self.pool.acquire().await?;
                written(&mut connection, query.build::<Sqlite>()).await
            });
            written.await.map_err(error)
        };
        let request = |sender| {
            let mut query = query.build::<Sqlite>();
            let arguments = query.take_arguments().ok().flatten().unwrap_or_default();
            ((query.sql(), arguments), sender)
        };
        let executor = || OneCommit(self.pool.clone());
        self.batcher.submit(executor, request, run_single).await
    }
}

/// Statements that share one commit.
#[derive(Debug, Clone)]
struct OneCommit(SqlitePool);

impl BatchExecutor for OneCommit {
    type Pending = ((SqlStr, SqliteArguments), Sender<Written>);

    /// Responds after the commit. If one of the statements fails, there is no response: each statement then runs
    /// individually, and its caller gets its own error.
    async fn run(&self, batch: Vec<Self::Pending>) {
        let (statements, senders): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
        if let Ok(answers) = self.commit(statements).await {
            for (sender, answer) in senders.into_iter().zip(answers) {
                let _ = sender.send(answer);
            }
        }
    }
}

impl OneCommit {
    async fn commit(
        &self,
        statements: Vec<(SqlStr, SqliteArguments)>,
    ) -> Result<Vec<Written>, sqlx::Error> {
        let begin = || Some(SqlStr::from_static("BEGIN IMMEDIATE"));
        let pool = sql::Connections::to_file(self.0.clone());
        let mut transaction =
            retry_busy(|| OpenTransaction::<Sqlite>::begin(&pool, begin())).await?;
        let mut answers = Vec::with_capacity(statements.len());
        for (sql, arguments) in statements {
            let query = sqlx::query_with(sql, arguments);
            answers.push(written(&mut transaction, query).await?);
        }
        transaction.commit().await?;
        Ok(answers)
    }
}

async fn written(
    connection: &mut SqliteConnection,
    query: sqlx::query::Query<'_, Sqlite, SqliteArguments>,
) -> Result<Written, sqlx::Error> {
    let mut all = Written::default();
    let mut parts = connection.fetch_many(query);
    while let Some(part) = parts.try_next().await? {
        match part {
            Either::Left(done) => all.rows_affected += done.rows_affected(),
            Either::Right(row) => all.rows.push(row),
        }
    }
    drop(parts);
    Ok(all)
}
