//! Detection of a pooler between the store and the server, such as PgBouncer, that shares connections of the server
//! between its clients.
//!
//! Everything is sent as text: a prepared statement is what such a pooler may lose.

use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool};
use sqlx::{ConnectOptions as _, Connection as _};
use tokio::time::timeout;

use super::connections::text;
use super::{UNTRACKED, error};
use crate::error::{StoreError, StoreErrorKind};

/// Longest wait for the second connection. A pooler in session mode has none for it if its pool is exhausted.
const PATIENCE: Duration = Duration::from_secs(2);

/// Number of comparisons. A client with a statement in flight may keep the connection of the server from the second
/// client at that moment, and each client then seems to have one to itself.
const ROUNDS: usize = 5;

/// Way in which connections of the server are given to clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pooling {
    /// Each client has a connection of the server to itself: no pooler, or one in session mode.
    None,
    /// A connection is shared between transactions. The pooler knows which client prepared which statement.
    Tracked,
    /// A connection is shared between transactions. A client may find the prepared statement of another client.
    Untracked,
    /// A connection is shared between statements, so that no transaction can be opened.
    Statements,
}

/// Refuses a pooler that shares prepared statements between clients. With it, a call would fail, or run the statement
/// that another client prepared under the same name.
///
/// Without a second connection nothing is refused: the errors of later calls say the same.
pub(super) async fn refuse_if_untracked(pool: &PgPool) -> Result<(), StoreError> {
    let options = pool.connect_options();
    match timeout(PATIENCE, detect(&options)).await {
        Ok(Ok(Pooling::Untracked)) => Err(StoreError::new(StoreErrorKind::Other, UNTRACKED)),
        Ok(Ok(_) | Err(_)) | Err(_) => Ok(()),
    }
}

/// Opens two connections, and detects whether the second one gets the connection of the server that the first one had,
/// although the first one is still open.
///
/// # Cancel safety
/// If the future is dropped, its connections are closed.
pub(super) async fn detect(options: &PgConnectOptions) -> Result<Pooling, StoreError> {
    let mut first = options.connect().await.map_err(error)?;
    let mut second = options.connect().await.map_err(error)?;
    let detected = compare(&mut first, &mut second).await;
    for connection in [first, second] {
        let _ = connection.close().await;
    }
    detected
}

async fn compare(
    first: &mut PgConnection,
    second: &mut PgConnection,
) -> Result<Pooling, StoreError> {
    const PROCESS: &str = "SELECT pg_backend_pid()::text";
    for _ in 0..ROUNDS {
        let before = text(first, PROCESS).await?;
        // The open transaction keeps the connection of the server from the first client.
        if let Err(refused) = sqlx::raw_sql("BEGIN").execute(&mut *second).await {
            return match refuses_transactions(&refused) {
                true => Ok(Pooling::Statements),
                false => Err(error(refused)),
            };
        }
        let of_second = text(second, PROCESS).await?;
        let after = text(first, PROCESS).await?;
        let is_shared = of_second == before || after != before;
        let pooling = match is_shared {
            true => tracking(second).await,
            false => Pooling::None,
        };
        let _ = sqlx::raw_sql("ROLLBACK").execute(&mut *second).await;
        if is_shared {
            return Ok(pooling);
        }
    }
    Ok(Pooling::None)
}

/// Returns true if PgBouncer in statement mode refuses a transaction. Any other error says nothing about the mode.
fn refuses_transactions(refused: &sqlx::Error) -> bool {
    let answer = refused.as_database_error();
    answer.is_some_and(|answer| answer.message().contains("statement pooling mode"))
}

/// Detects whether the pooler knows the prepared statements of this client, which is in a transaction.
async fn tracking(connection: &mut PgConnection) -> Pooling {
    // A pooler that tracks statements gives them names of its own on the server.
    const PREPARED: &str =
        "SELECT 'idem' FROM pg_prepared_statements WHERE name LIKE 'sqlx\\_s\\_%'
         AND statement LIKE 'SELECT ''idem'' FROM pg_prepared_statements WHERE name%'";
    let Ok(names) = sqlx::query(PREPARED).fetch_all(&mut *connection).await else {
        // The name was taken.
        return Pooling::Untracked;
    };
    // The server then keeps no statement of this check.
    let _ = connection.clear_cached_statements().await;
    match names.is_empty() {
        true => Pooling::Tracked,
        false => Pooling::Untracked,
    }
}
