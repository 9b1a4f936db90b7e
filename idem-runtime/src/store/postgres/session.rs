//! Savepoints and transactions of a session. PostgreSQL never ends a transaction by itself while its session goes on: after
//! an error it refuses every statement until the client rolls back.

use sqlx::{AssertSqlSafe, PgConnection, Postgres, SqlStr};
use sqlx_core::transaction::TransactionManager as _;

use crate::store::sql::{Cancellation, Manager, innermost_savepoint};

impl Cancellation for Postgres {
    const GETS_OUT_OF_STEP: bool = false;
    const TEARS_SAVEPOINTS: bool = true;
    const AWAITS_ROLLBACK: bool = false;
    const CLOSES_IF_BEGIN_FAILS: bool = true;

    async fn roll_back_by(
        connection: &mut PgConnection,
        statement: SqlStr,
    ) -> Result<(), sqlx::Error> {
        sqlx::raw_sql(statement).execute(connection).await.map(drop)
    }

    /// sqlx would roll back to the savepoint and keep it. It is released as well, because savepoints would nest, see
    /// [`release`](Self::release). sqlx stops counting the savepoint when the rollback is queued. If the future is dropped
    /// after that, the rollback is sent before the next statement, and one level may remain. One level also remains after
    /// a joined call that is dropped, because the rollback is then sent alone.
    async fn roll_back_joined(
        connection: &mut PgConnection,
        _depth: usize,
    ) -> Result<bool, sqlx::Error> {
        let savepoint = innermost_savepoint::<Self>(connection);
        Manager::<Self>::start_rollback(connection);
        let release = AssertSqlSafe(format!("RELEASE {}", savepoint.as_str()));
        sqlx::raw_sql(release).execute(connection).await?;
        Ok(true)
    }

    /// Rolling back to a released savepoint would be an error and abort the caller's transaction. The savepoint is
    /// therefore set again at the current position. Rolling back to it then changes nothing, and makes sqlx count it no
    /// more. It is released then, because savepoints would nest: each call would add a level, and the time of the commit
    /// grows with the square of the levels. If the future is dropped before that, one level remains.
    async fn release(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
        let savepoint = innermost_savepoint::<Self>(connection);
        let release_and_set = AssertSqlSafe(format!("RELEASE {0}; {0}", savepoint.as_str()));
        sqlx::raw_sql(release_and_set)
            .execute(&mut *connection)
            .await?;
        Manager::<Self>::start_rollback(connection);
        let release = AssertSqlSafe(format!("RELEASE {}", savepoint.as_str()));
        sqlx::raw_sql(release).execute(connection).await?;
        Ok(())
    }
}
