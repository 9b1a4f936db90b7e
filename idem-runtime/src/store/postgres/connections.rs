//! Statements on connections: in which protocol they are sent, and which connections are not used again.

use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Postgres, Row as _};

use super::error;
use crate::error::StoreError;
use crate::store::sql::{Query, TakenConnection};

/// Way in which a store sends its statements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Protocol {
    /// Each statement is prepared once on each connection, under a name, and its values follow in binary form.
    #[default]
    Prepared,
    /// Each statement is one message of text that contains its values (simple query protocol). It leaves nothing behind
    /// on the server, so each of them may go to another connection of the server.
    Simple,
}

impl Protocol {
    /// Runs a statement and returns all of its rows: the commit comes after the last one.
    pub(super) async fn rows(
        self,
        connection: &mut PgConnection,
        query: &Query<'_>,
    ) -> Result<Vec<PgRow>, sqlx::Error> {
        match self {
            Self::Prepared => query.build::<Postgres>().fetch_all(connection).await,
            Self::Simple => {
                let text = sqlx::raw_sql(query.literal());
                text.fetch_all(connection).await
            }
        }
    }

    /// Runs a statement and returns the number of rows that it changed.
    pub(super) async fn affected(
        self,
        connection: &mut PgConnection,
        query: &Query<'_>,
    ) -> Result<u64, sqlx::Error> {
        let done = match self {
            Self::Prepared => query.build::<Postgres>().execute(connection).await?,
            Self::Simple => {
                let text = sqlx::raw_sql(query.literal());
                text.execute(connection).await?
            }
        };
        Ok(done.rows_affected())
    }
}

/// Returns a connection to its pool after a statement, or closes it if it is of no use any more.
pub(super) fn give_back<T>(
    mut connection: TakenConnection<Postgres>,
    done: Result<T, sqlx::Error>,
) -> Result<T, sqlx::Error> {
    connection.note(&done);
    if done
        .as_ref()
        .is_err_and(|error| is_read_only(error) || is_not_alone(error))
    {
        connection.close_on_drop();
    }
    done
}

/// Returns true if the server refuses writes. It may be a standby: a failover behind one address breaks no connection, so
/// only a new connection can lead to the new primary.
fn is_read_only(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Database(answer) if answer.code().as_deref() == Some("25006"))
}

/// Division by zero: a transaction is open on a connection of the pool, see `statements.rs`.
pub(super) const NOT_ALONE: &str = "22012";
/// A transaction is open, and has read or written something. It is the answer to a `BEGIN` of the store, and to a statement
/// that must not be in a transaction.
pub(super) const ACTIVE_TRANSACTION: &str = "25001";
/// The open transaction has failed, and refuses all statements.
const FAILED_TRANSACTION: &str = "25P02";

/// Returns true if a statement on a connection of the pool was refused because other code has left a transaction open
/// there. Closing the connection ends it.
pub(super) fn is_not_alone(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Database(answer)
        if matches!(answer.code().as_deref(), Some(NOT_ALONE | ACTIVE_TRANSACTION | FAILED_TRANSACTION)))
}

/// Sends a query as text, and returns the text in the first column of its first row.
pub(super) async fn text(connection: &mut PgConnection, query: &str) -> Result<String, StoreError> {
    let row = sqlx::raw_sql(AssertSqlSafe(query.to_owned()))
        .fetch_one(connection)
        .await
        .map_err(error)?;
    row.try_get(0).map_err(error)
}
