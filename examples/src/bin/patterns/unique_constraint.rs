//! Unique constraint: the created row has a natural key, and the database keeps that key unique. A second request with
//! the key gets the row that the first one created.
//!
//! A check followed by an insert is a race. Here the constraint decides, and a request whose insert conflicts reads the
//! row.

use anyhow::{Context as _, ensure};
use sqlx::SqlitePool;

use super::Proof;
use super::fifty::fifty;

/// An account: its number and its plan.
type Account = (i64, String);

/// Opens an account, or returns the account that an equal request has opened before. Returns none if the existing
/// account has another plan.
async fn open(db: &SqlitePool, email: &str, plan: &str) -> sqlx::Result<Option<Account>> {
    let opened = sqlx::query_as(
        "INSERT INTO accounts (email, plan) VALUES (?, ?) ON CONFLICT (email) DO NOTHING RETURNING id, plan",
    )
    .bind(email)
    .bind(plan)
    .fetch_optional(db)
    .await?;
    if opened.is_some() {
        return Ok(opened);
    }
    let original: Account = sqlx::query_as("SELECT id, plan FROM accounts WHERE email = ?")
        .bind(email)
        .fetch_one(db)
        .await?;
    // The returned account must answer the request: a request for another plan is no duplicate.
    Ok(Some(original).filter(|(_, original)| original == plan))
}

const TABLES: &str = "CREATE TABLE accounts (id INTEGER PRIMARY KEY, email TEXT UNIQUE, plan TEXT)";

pub(crate) async fn run(db: SqlitePool) -> anyhow::Result<Proof> {
    sqlx::raw_sql(TABLES).execute(&db).await?;

    let answers = fifty(|_| {
        let db = db.clone();
        async move {
            open(&db, "ann@shop.example", "basic")
                .await?
                .context("an equal request was refused")
        }
    })
    .await?;
    ensure!(answers.iter().all(|it| *it == answers[0]));
    ensure!(open(&db, "ann@shop.example", "gold").await?.is_none());

    let effects = sqlx::query_scalar("SELECT count(*) FROM accounts")
        .fetch_one(&db)
        .await?;
    ensure!(effects == 1);
    Ok(Proof {
        effects,
        answers: "50 × the account of the first request; another plan: conflict".to_owned(),
    })
}

#[cfg(test)]
mod checked {
    use idem_testing::{Sqlite, check_on};

    use super::super::checked::as_body;
    use super::*;

    #[test]
    fn an_account_is_opened_once_by_a_body_that_runs_again() {
        let database = Sqlite::new(TABLES).effects("SELECT count(*) FROM accounts");
        check_on(database, async |idem| {
            as_body(&idem, async |db| {
                Ok(open(&db, "ann@shop.example", "basic").await?)
            })
            .await
        })
        .assert_promised();
    }
}
