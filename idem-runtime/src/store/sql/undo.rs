//! Undoes the open transaction of a connection while its session lives on, as its server does: for `idem-testing`.

use std::any::Any;

use crate::error::{StoreError, StoreErrorKind};

/// Undoes the transaction before its commit, or before an earlier statement. Returns false if the server of this connection
/// undoes none there, or if this build knows no such server.
///
/// # Errors
/// The server did not undo it.
pub async fn undo(connection: &mut (dyn Any + Send), is_commit: bool) -> Result<bool, StoreError> {
    let undone = by_statement(connection, is_commit).await;
    undone.map_err(|error| StoreError::new(StoreErrorKind::Other, error.to_string()))
}

#[cfg_attr(
    not(feature = "postgres"),
    expect(unused_variables, reason = "other databases undo before a commit, too")
)]
async fn by_statement(
    connection: &mut (dyn Any + Send),
    is_commit: bool,
) -> Result<bool, sqlx::Error> {
    // The disk is full: SQLite rolls the transaction back, and the connection goes on without one.
    #[cfg(feature = "sqlite")]
    if let Some(connection) = connection.downcast_mut::<sqlx::SqliteConnection>() {
        sqlx::raw_sql("ROLLBACK").execute(connection).await?;
        return Ok(true);
    }
    // A deadlock: MySQL rolls the transaction back, and the session goes on without one.
    #[cfg(feature = "mysql")]
    if let Some(connection) = connection.downcast_mut::<sqlx::MySqlConnection>() {
        sqlx::raw_sql("ROLLBACK").execute(connection).await?;
        return Ok(true);
    }
    // An error: PostgreSQL keeps the transaction open, refuses further statements, and undoes it at its end. No statement
    // comes between the outcome and the commit.
    #[cfg(feature = "postgres")]
    if !is_commit && let Some(connection) = connection.downcast_mut::<sqlx::PgConnection>() {
        let failed = sqlx::raw_sql("SELECT 1 / 0").execute(connection).await;
        return match failed {
            Err(sqlx::Error::Database(_)) => Ok(true),
            Err(error) => Err(error),
            Ok(_) => Ok(false),
        };
    }
    Ok(false)
}
