//! Whose turn it is to write.

use std::sync::Arc;

use futures_util::TryStreamExt as _;
use sqlx::sqlite::{SqliteArguments, SqliteConnection, SqliteRow};
use sqlx::{Either, Execute as _, Executor as _, SqlStr, Sqlite, SqlitePool};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{error, retry_busy};
use crate::error::StoreError;
use crate::store::sql::{Asked, Batches, Query, Together};

/// SQLite has one writer at a time and lets the others poll; those of this store wait here instead, in order, and what
/// waits here is written together.
#[derive(Debug, Clone)]
pub(in crate::store) struct Writer {
    pool: SqlitePool,
    turns: Arc<Semaphore>,
    batches: Batches<OneCommit>,
}

/// What a statement gave and did.
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
            batches: Batches::new(Arc::clone(&turns), None),
            turns,
        }
    }

    /// Waits for a turn.
    pub(in crate::store) async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        // They are never closed.
        Arc::clone(&self.turns).acquire_owned().await.ok()
    }

    /// Runs a statement that writes, to its end.
    pub(super) async fn write(&self, query: &Query<'_>) -> Result<Written, StoreError> {
        let alone = retry_busy(|| async {
            let mut connection = self.pool.acquire().await?;
            written(&mut connection, query.build::<Sqlite>()).await
        });
        let step = || {
            let mut query = query.build::<Sqlite>();
            let arguments = query.take_arguments().ok().flatten().unwrap_or_default();
            (query.sql(), arguments)
        };
        let together = || OneCommit(self.pool.clone());
        self.batches
            .take(together, step, alone)
            .await
            .map_err(error)
    }
}

/// Statements that are committed together.
#[derive(Debug, Clone)]
struct OneCommit(SqlitePool);

impl Together for OneCommit {
    type Step = (SqlStr, SqliteArguments);
    type Answer = Written;

    /// Nobody is answered before the commit, and nobody at all where one of the statements failed: alone, each gets the
    /// error that is its own.
    async fn run(&self, steps: Vec<Asked<Self>>) {
        let (statements, senders): (Vec<_>, Vec<_>) = steps.into_iter().unzip();
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
        let mut transaction = retry_busy(|| self.0.begin_with("BEGIN IMMEDIATE")).await?;
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
    let mut steps = connection.fetch_many(query);
    while let Some(step) = steps.try_next().await? {
        match step {
            Either::Left(done) => all.rows_affected += done.rows_affected(),
            Either::Right(row) => all.rows.push(row),
        }
    }
    drop(steps);
    Ok(all)
}
