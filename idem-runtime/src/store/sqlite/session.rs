//! Transactions of a connection that the database may end by itself.
//!
//! SQLite rolls a whole transaction back if the disk is full or fails, if a statement that writes is interrupted, and if a
//! statement says so (`ON CONFLICT ROLLBACK`, `RAISE(ROLLBACK)`). The connection goes on, and each later statement would
//! commit on its own.
//!
//! - A connection that the store has opened itself therefore refuses to commit while a transaction of the store is open on
//!   it, until the store commits. SQLite has one commit hook for each connection, so a pool of the application's keeps its
//!   own.
//! - The guard is checked before the outcome is written.
//! - A rollback outside of a transaction is an error, after which sqlx would count a transaction for ever. The connection
//!   therefore begins another one, which is rolled back.
//! - The caller's own connection is put into a transaction that cannot be committed, because it breaks a foreign key. If
//!   the connection has turned foreign keys off, the caller has to roll back by itself.

use std::fmt::Write as _;

use futures_util::FutureExt as _;
use sqlx::sqlite::SqliteConnection;
use sqlx::{AssertSqlSafe, SqlSafeStr as _, SqlStr, Sqlite};
use sqlx_core::transaction::{
    TransactionManager as _, begin_ansi_transaction_sql, rollback_ansi_transaction_sql,
};

use crate::store::sql::{Cancellation, Manager, ended, guard};

/// Depth of a transaction of the store's own.
const OWN: usize = 1;
const BEGIN: &str = "BEGIN";

impl Cancellation for Sqlite {
    const GETS_OUT_OF_STEP: bool = false;
    const TEARS_SAVEPOINTS: bool = false;
    const AWAITS_ROLLBACK: bool = true;
    const CLOSES_IF_BEGIN_FAILS: bool = false;

    fn begin(begin: Option<SqlStr>) -> Option<SqlStr> {
        let begin = begin.as_ref().map_or(BEGIN, SqlStr::as_str);
        let guarded = format!("{begin}; SAVEPOINT {}", guard(OWN));
        Some(AssertSqlSafe(guarded).into_sql_str())
    }

    /// Outside of a transaction the savepoint would begin one, which ends with the call.
    async fn before_join(connection: &mut SqliteConnection) -> Result<(), sqlx::Error> {
        // An error says that a transaction is open.
        if run(connection, SqlStr::from_static(BEGIN)).await.is_err() {
            return Ok(());
        }
        let depth = Manager::<Self>::get_transaction_depth(connection);
        run(connection, uncommittable(String::new(), depth)).await?;
        Err(ended())
    }

    async fn set_guard(connection: &mut SqliteConnection, depth: usize) -> Result<(), sqlx::Error> {
        let set = format!("SAVEPOINT {}", guard(depth));
        run(connection, AssertSqlSafe(set).into_sql_str()).await
    }

    async fn prove(connection: &mut SqliteConnection, depth: usize) -> Result<(), sqlx::Error> {
        let guard = guard(depth);
        let prove = format!("RELEASE {guard}; SAVEPOINT {guard}");
        match run(connection, AssertSqlSafe(prove).into_sql_str()).await {
            Err(error) if is_ended(&error) => {
                if depth > OWN {
                    begin_uncommittable(connection, depth).await?;
                }
                Err(ended())
            }
            done => done,
        }
    }

    /// If SQLite has rolled back instead, sqlx counts the transaction for ever, and its rollback would fail. The connection
    /// therefore begins another one, which is rolled back when it is dropped.
    async fn commit(connection: &mut SqliteConnection) -> Result<(), sqlx::Error> {
        let committed = Manager::<Self>::commit(connection).await;
        if committed.is_err() {
            // An error says that the transaction is open.
            let _ = run(connection, SqlStr::from_static(BEGIN)).await;
        }
        committed
    }

    async fn roll_back(connection: &mut SqliteConnection) -> Result<bool, sqlx::Error> {
        if Manager::<Self>::rollback(connection).await.is_ok() {
            return Ok(true);
        }
        // An error says that a transaction is open after all.
        let _ = run(connection, SqlStr::from_static(BEGIN)).await;
        Manager::<Self>::rollback(connection).await?;
        Ok(false)
    }

    /// The savepoint is released after the rollback, because savepoints would nest: each call would add a level. sqlx stops
    /// counting the savepoint when it has released it. If the future is dropped before that, the late rollback to the
    /// savepoint changes nothing, and one level remains.
    async fn roll_back_joined(
        connection: &mut SqliteConnection,
        depth: usize,
    ) -> Result<bool, sqlx::Error> {
        let was_held = match run(connection, rollback_ansi_transaction_sql(depth)).await {
            Err(error) if is_ended(&error) => {
                begin_uncommittable(connection, depth).await?;
                false
            }
            done => done.map(|()| true)?,
        };
        Manager::<Self>::commit(connection).await?;
        Ok(was_held)
    }

    async fn roll_back_by(
        connection: &mut SqliteConnection,
        statement: SqlStr,
    ) -> Result<(), sqlx::Error> {
        run(connection, statement).await
    }

    /// The driver gives a statement to the connection's thread in the first poll. `BEGIN` fails if the transaction is
    /// open, and otherwise begins one for the rollback.
    fn before_late_rollback(connection: &mut SqliteConnection) {
        let _ = sqlx::raw_sql(BEGIN).execute(connection).now_or_never();
    }
}

async fn run(connection: &mut SqliteConnection, statements: SqlStr) -> Result<(), sqlx::Error> {
    let done = sqlx::raw_sql(statements).execute(connection).await;
    done.map(drop)
}

/// Returns true for the message of an error about a savepoint that ended with its transaction.
pub(super) fn is_without_savepoint(message: &str) -> bool {
    message.contains("no such savepoint")
}

fn is_ended(error: &sqlx::Error) -> bool {
    let answer = error.as_database_error();
    answer.is_some_and(|answer| is_without_savepoint(answer.message()))
}

/// Begins a transaction of this nesting depth that cannot be committed.
async fn begin_uncommittable(
    connection: &mut SqliteConnection,
    depth: usize,
) -> Result<(), sqlx::Error> {
    run(connection, uncommittable("BEGIN; ".to_owned(), depth)).await
}

/// Adds statements to this text that make the open transaction uncommittable, and set savepoints up to this depth.
fn uncommittable(mut text: String, depth: usize) -> SqlStr {
    text.push_str(
        "CREATE TEMP TABLE IF NOT EXISTS idem_ended (id INTEGER PRIMARY KEY, \
         parent INTEGER REFERENCES idem_ended (id) DEFERRABLE INITIALLY DEFERRED); \
         INSERT OR REPLACE INTO temp.idem_ended VALUES (1, 2)",
    );
    for depth in 1..depth {
        // Writing to a string cannot fail.
        let _ = write!(text, "; {}", begin_ansi_transaction_sql(depth).as_str());
    }
    AssertSqlSafe(text).into_sql_str()
}
