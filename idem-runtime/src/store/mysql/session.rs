//! Transactions of a session that the server may end by itself.
//!
//! The server rolls a whole transaction back to resolve a deadlock, after a lock wait time-out under
//! `innodb_rollback_on_timeout`, and for a record that changed since it was read under `innodb_snapshot_isolation`. A
//! statement that defines a table or another object commits it. The session goes on, and each later statement would
//! commit on its own.
//!
//! In a transaction of the store's own, `autocommit` is therefore off, so that later statements can still be rolled back,
//! and the guard is released by the text that commits. `SET autocommit = 1` commits an open transaction, so it follows a
//! `COMMIT` or `ROLLBACK` in the same text. A transaction that is dropped closes its connection.
//!
//! In a transaction of the caller's, the guard is checked before the outcome is written. If it is gone, later statements
//! have committed on their own. The connection is then put into a read-only transaction, which ends with the caller's
//! own.

use sqlx::mysql::MySqlConnection;
use sqlx::{AssertSqlSafe, MySql, SqlSafeStr as _, SqlStr};
use sqlx_core::transaction::TransactionManager as _;

use super::errors::{NO_SAVEPOINT, number};
use crate::store::sql::{Cancellation, Manager, ended, guard, innermost_savepoint};

/// Depth of a transaction of the store's own.
const OWN: usize = 1;

/// Settings of a session before a transaction of the store's own. `START TRANSACTION` would commit what other code has
/// left open on a connection of the pool. On MariaDB, two is no valid value then, so that the text fails with
/// [`NOT_ALONE`](super::errors::NOT_ALONE). To MySQL, which does not tell, this is a comment.
macro_rules! settings {
    () => {
        "SET autocommit = 0 /*M! + 2 * @@in_transaction */, completion_type = 0"
    };
}

impl Cancellation for MySql {
    const GETS_OUT_OF_STEP: bool = true;
    const TEARS_SAVEPOINTS: bool = false;
    const AWAITS_ROLLBACK: bool = false;
    const CLOSES_IF_BEGIN_FAILS: bool = true;

    /// `completion_type` would make each `COMMIT` begin another transaction. `BEGIN` begins no transaction under the
    /// `sql_mode` ORACLE.
    fn begin(begin: Option<SqlStr>) -> Option<SqlStr> {
        Some(match begin {
            None => SqlStr::from_static(concat!(
                settings!(),
                "; START TRANSACTION; SAVEPOINT idem_guard_1"
            )),
            Some(begin) => AssertSqlSafe(format!(
                concat!(settings!(), "; {}; SAVEPOINT {}"),
                begin.as_str(),
                guard(OWN)
            ))
            .into_sql_str(),
        })
    }

    /// Outside of a transaction sqlx does not find the one that a savepoint would be part of. If an earlier call was dropped
    /// there, the answer to its rollback comes first.
    async fn after_failed_join(
        connection: &mut MySqlConnection,
        failed: sqlx::Error,
    ) -> sqlx::Error {
        let is_without = matches!(failed, sqlx::Error::BeginFailed);
        if !is_without && number(&failed) != Some(NO_SAVEPOINT) {
            return failed;
        }
        match refuse_writes(connection).await {
            Ok(()) => ended(),
            Err(error) => error,
        }
    }

    /// Outside of a transaction a savepoint is set and gone immediately.
    async fn set_guard(connection: &mut MySqlConnection, depth: usize) -> Result<(), sqlx::Error> {
        let guard = guard(depth);
        let set = format!("SAVEPOINT {guard}; RELEASE SAVEPOINT {guard}; SAVEPOINT {guard}");
        refuse_unless_held(connection, AssertSqlSafe(set).into_sql_str()).await
    }

    async fn prove(connection: &mut MySqlConnection, depth: usize) -> Result<(), sqlx::Error> {
        if depth == OWN {
            return Ok(());
        }
        let guard = guard(depth);
        let prove = format!("RELEASE SAVEPOINT {guard}; SAVEPOINT {guard}");
        refuse_unless_held(connection, AssertSqlSafe(prove).into_sql_str()).await
    }

    async fn commit(connection: &mut MySqlConnection) -> Result<(), sqlx::Error> {
        let commit = "RELEASE SAVEPOINT idem_guard_1; COMMIT; SET autocommit = 1";
        match run(connection, SqlStr::from_static(commit)).await {
            Err(error) if number(&error) == Some(NO_SAVEPOINT) => {
                // The caller closes the connection, which rolls back as well, but at some later time.
                run(connection, SqlStr::from_static("ROLLBACK")).await?;
                Err(ended())
            }
            Err(error) => Err(error),
            Ok(()) => {
                forget_transaction(connection);
                Ok(())
            }
        }
    }

    async fn roll_back(connection: &mut MySqlConnection) -> Result<bool, sqlx::Error> {
        let rollback = "RELEASE SAVEPOINT idem_guard_1; ROLLBACK; SET autocommit = 1";
        let was_held = match run(connection, SqlStr::from_static(rollback)).await {
            Err(error) if number(&error) == Some(NO_SAVEPOINT) => {
                let rest = SqlStr::from_static("ROLLBACK; SET autocommit = 1");
                run(connection, rest).await?;
                false
            }
            done => done.map(|()| true)?,
        };
        forget_transaction(connection);
        Ok(was_held)
    }

    async fn roll_back_joined(
        connection: &mut MySqlConnection,
        _depth: usize,
    ) -> Result<bool, sqlx::Error> {
        match Manager::<Self>::rollback(connection).await {
            Err(error) if number(&error) == Some(NO_SAVEPOINT) => {
                refuse_writes(connection).await?;
                // The caller's next statement gets the error of this rollback.
                Manager::<Self>::start_rollback(connection);
                Ok(false)
            }
            done => done.map(|()| true),
        }
    }

    async fn roll_back_by(
        connection: &mut MySqlConnection,
        statement: SqlStr,
    ) -> Result<(), sqlx::Error> {
        run(connection, statement).await
    }

    /// After a rollback to a released savepoint, the error would be the answer to the caller's next statement. The
    /// savepoint is therefore set again at the current position. Rolling back to it then changes nothing.
    async fn release(connection: &mut MySqlConnection) -> Result<(), sqlx::Error> {
        let savepoint = innermost_savepoint::<Self>(connection);
        run(connection, savepoint).await?;
        Manager::<Self>::start_rollback(connection);
        Ok(())
    }
}

/// Runs statements as text: sqlx counts their answers when they are sent, and reads them before the next statement.
async fn run(connection: &mut MySqlConnection, statements: SqlStr) -> Result<(), sqlx::Error> {
    let done = sqlx::raw_sql(statements).execute(connection).await;
    done.map(drop)
}

/// Makes sqlx count no transaction any more. It sends a `ROLLBACK` together with the ping when the connection returns to
/// the pool; the server is in no transaction then.
fn forget_transaction(connection: &mut MySqlConnection) {
    while Manager::<MySql>::get_transaction_depth(connection) > 0 {
        Manager::<MySql>::start_rollback(connection);
    }
}

/// Runs statements that fail if the guard is gone.
async fn refuse_unless_held(
    connection: &mut MySqlConnection,
    statements: SqlStr,
) -> Result<(), sqlx::Error> {
    match run(connection, statements).await {
        Err(error) if number(&error) == Some(NO_SAVEPOINT) => {
            refuse_writes(connection).await?;
            Err(ended())
        }
        done => done,
    }
}

/// Rolls back whatever is open, and puts the connection into a transaction that writes nothing. The caller ends it with
/// its own.
pub(super) async fn refuse_writes(connection: &mut MySqlConnection) -> Result<(), sqlx::Error> {
    let refuse = "ROLLBACK AND NO CHAIN NO RELEASE; SET TRANSACTION READ ONLY; START TRANSACTION";
    run(connection, SqlStr::from_static(refuse)).await
}
