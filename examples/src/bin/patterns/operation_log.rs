//! Operation log: each operation is appended under its own name and never changed. The current state is computed from
//! the log.
//!
//! A duplicate finds its name in the log. The balance is summed up here. A stored balance must be changed in the
//! transaction that appends, and only if that transaction did append.

use anyhow::ensure;
use sqlx::SqlitePool;

use super::Proof;
use super::fifty::{FIFTY, fifty};

/// Appends an operation. Returns true if the operation was not in the log before.
async fn append(
    db: &SqlitePool,
    operation: &str,
    account: i64,
    cents: i64,
) -> anyhow::Result<bool> {
    let appended = sqlx::query(
        "INSERT INTO operations (operation, account, cents) VALUES (?, ?, ?) ON CONFLICT (operation) DO NOTHING",
    )
    .bind(operation)
    .bind(account)
    .bind(cents)
    .execute(db)
    .await?;
    if appended.rows_affected() > 0 {
        return Ok(true);
    }
    let original: (i64, i64) =
        sqlx::query_as("SELECT account, cents FROM operations WHERE operation = ?")
            .bind(operation)
            .fetch_one(db)
            .await?;
    ensure!(
        original == (account, cents),
        "another operation has this name already"
    );
    Ok(false)
}

async fn balance(db: &SqlitePool, account: i64) -> sqlx::Result<i64> {
    sqlx::query_scalar("SELECT coalesce(sum(cents), 0) FROM operations WHERE account = ?")
        .bind(account)
        .fetch_one(db)
        .await
}

const TABLES: &str = "CREATE TABLE operations (operation TEXT PRIMARY KEY, account INTEGER, cents INTEGER) WITHOUT ROWID";

pub(crate) async fn run(db: SqlitePool) -> anyhow::Result<Proof> {
    sqlx::raw_sql(TABLES).execute(&db).await?;
    append(&db, "deposit-1", 1, 10_000).await?;

    let answers = fifty(|_| {
        let db = db.clone();
        async move { append(&db, "withdrawal-1", 1, -2_500).await }
    })
    .await?;
    ensure!(answers.iter().filter(|it| **it).count() == 1);
    ensure!(append(&db, "withdrawal-1", 1, -9_000).await.is_err());
    ensure!(balance(&db, 1).await? == 7_500);
    let operations: u64 = sqlx::query_scalar("SELECT count(*) FROM operations")
        .fetch_one(&db)
        .await?;
    Ok(Proof {
        effects: operations - 1,
        answers: format!("1 × booked now, {} × booked before", FIFTY - 1),
    })
}

#[cfg(test)]
mod checked {
    use idem_testing::{Sqlite, check_on};

    use super::super::checked::as_body;
    use super::*;

    #[test]
    fn an_operation_is_appended_once_by_a_body_that_runs_again() {
        let database = Sqlite::new(TABLES).effects("SELECT count(*) FROM operations");
        check_on(database, async |idem| {
            as_body(&idem, async |db| {
                append(&db, "withdrawal-1", 1, -2_500).await
            })
            .await
        })
        .assert_promised();
    }
}
