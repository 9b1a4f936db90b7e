//! Settings of sessions, users and databases that the store cannot work with.

use std::time::Duration;

use sqlx::postgres::{PgExecutor, PgPool};
use sqlx::{AssertSqlSafe, Postgres, Row as _};
use tokio::time::timeout;

use super::connections::give_back;
use super::pooling::{self, Pooling};
use super::retry_conflicts;
use crate::store::sql::{Connections, Table};

/// Settings of a session, and what limits the number of sessions.
#[derive(Debug)]
pub(super) struct Settings {
    encoding: String,
    role: String,
    has_schema: bool,
    /// Largest number of connections, with the name of its setting; `None` without a limit.
    limit: Option<(i64, &'static str)>,
}

/// Setting that the store cannot work with.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{problem}")]
pub(super) struct Unusable {
    pub(super) problem: String,
    pub(super) remedy: &'static str,
}

/// Longest time in which a pooler is looked for.
const PATIENCE: Duration = Duration::from_secs(2);

/// All servers that speak PostgreSQL have these tables and functions, but not all settings. Superusers have no limit of
/// their own.
const QUERY: &str = "SELECT coalesce(current_setting('client_encoding', true), 'UTF8'), \
     coalesce(current_setting('session_replication_role', true), 'origin'), \
     coalesce(current_schema(), ''), \
     coalesce((SELECT rolconnlimit FROM pg_catalog.pg_roles WHERE rolname = session_user AND NOT rolsuper), -1)::text, \
     coalesce((SELECT datconnlimit FROM pg_catalog.pg_database WHERE datname = current_database() \
         AND NOT EXISTS (SELECT 1 FROM pg_catalog.pg_roles WHERE rolname = session_user AND rolsuper)), -1)::text, \
     coalesce(current_setting('max_connections', true), '-1')";

impl Settings {
    /// Reads the settings of a connection of the pool.
    pub(super) async fn of(pool: &Connections<Postgres>) -> Result<Self, sqlx::Error> {
        let read = || async {
            let mut connection = pool.acquire().await?;
            let settings = Self::on(&mut *connection).await;
            give_back(connection, settings)
        };
        retry_conflicts(|| pool.watch(read())).await
    }

    /// Reads the settings of a connection, which may be in a transaction. The statement is sent as text, for poolers that
    /// do not track prepared statements.
    pub(super) async fn on(executor: impl PgExecutor<'_>) -> Result<Self, sqlx::Error> {
        let query = sqlx::raw_sql(AssertSqlSafe(QUERY));
        let row = query.fetch_one(executor).await?;
        let text = |column: usize| row.try_get::<String, _>(column);
        let mut limit = None;
        for (column, name) in [
            (3, "`CONNECTION LIMIT` of the user"),
            (4, "`CONNECTION LIMIT` of the database"),
            (5, "`max_connections` of the server"),
        ] {
            let number = text(column)?.parse().unwrap_or(-1);
            if number >= 0 && limit.is_none_or(|(lowest, _)| number < lowest) {
                limit = Some((number, name));
            }
        }
        Ok(Self {
            encoding: text(0)?,
            role: text(1)?,
            has_schema: !text(2)?.is_empty(),
            limit,
        })
    }

    /// The first setting that the store cannot work with on this pool. Looks for a pooler if the pool may be larger than
    /// the server allows.
    pub(super) async fn unusable(&self, pool: &PgPool, table: &Table) -> Option<Unusable> {
        let found = |problem: String, remedy| Some(Unusable { problem, remedy });
        if self.encoding != "UTF8" {
            let encoding = &self.encoding;
            return found(
                format!(
                    "`client_encoding` is {encoding} on the connections of the pool, and the driver sends and reads UTF8, so \
                     texts would be changed"
                ),
                "leave `client_encoding` as the driver sets it",
            );
        }
        if self.role == "replica" {
            return found(
                "`session_replication_role` is replica, which disables the trigger that keeps fencing tokens of deleted \
                 records"
                    .to_owned(),
                "set it to origin for the user of the service",
            );
        }
        if !self.has_schema && table.schema.is_none() {
            return found(
                "no schema in the `search_path` exists that the user may use, so the tables cannot be found".to_owned(),
                "set `search_path` for the user of the service, or name a schema with `with_schema`",
            );
        }
        let most = pool.options().get_max_connections();
        match self.limit {
            Some((limit, name)) if limit < i64::from(most) && !is_pooled(pool).await => found(
                format!(
                    "the {name} is {limit}, and the pool opens up to {most} connections: calls would wait for connections \
                     that the server refuses"
                ),
                "set `max_connections` of the pool to less than the limit, for all processes together, or raise the limit",
            ),
            _ => None,
        }
    }

    /// Refuses settings that the store cannot work with.
    pub(super) async fn require_usable(
        &self,
        pool: &PgPool,
        table: &Table,
    ) -> Result<(), sqlx::Error> {
        match self.unusable(pool, table).await {
            None => Ok(()),
            Some(unusable) => Err(sqlx::Error::AnyDriverError(Box::new(unusable))),
        }
    }
}

/// Refuses settings of the connections of a pool that an outbox cannot work with.
#[cfg(feature = "outbox")]
pub(in crate::store) async fn examine(
    pool: &Connections<Postgres>,
    table: &Table,
) -> Result<(), sqlx::Error> {
    let settings = Settings::of(pool).await?;
    settings.require_usable(pool, table).await
}

/// Returns true if a pooler shares the connections of the server between transactions. A pool may then have more
/// connections than the server. Without a second connection there is no such pooler.
async fn is_pooled(pool: &PgPool) -> bool {
    let options = pool.connect_options();
    match timeout(PATIENCE, pooling::detect(&options)).await {
        Ok(Ok(pooling)) => pooling != Pooling::None,
        Ok(Err(_)) | Err(_) => false,
    }
}
