//! Optimistic lock: the request names the version that it was made for, and the change applies to that version only. Of
//! two concurrent requests, the second finds a newer version.
//!
//! No lock is held while a user decides. A conflict may be caused by an earlier try of the same request whose answer
//! was lost, so the row stores the name of the request that wrote it.

use anyhow::ensure;
use sqlx::SqlitePool;

use super::Proof;
use super::fifty::{FIFTY, fifty};

#[derive(Debug, Clone, Copy, PartialEq)]
enum Answer {
    Written,
    /// An earlier try of this request has written it.
    WrittenBefore,
    /// Another request has changed it: the caller must read the row again and decide again.
    Conflict,
}

async fn set_price(
    db: &SqlitePool,
    request: &str,
    version: i64,
    cents: i64,
) -> sqlx::Result<Answer> {
    let written = sqlx::query(
        "UPDATE prices SET cents = ?, version = version + 1, written_by = ? WHERE article = 1 AND version = ?",
    )
    .bind(cents)
    .bind(request)
    .bind(version)
    .execute(db)
    .await?;
    if written.rows_affected() > 0 {
        return Ok(Answer::Written);
    }
    let (now, writer): (i64, String) =
        sqlx::query_as("SELECT version, written_by FROM prices WHERE article = 1")
            .fetch_one(db)
            .await?;
    Ok(if (now, writer.as_str()) == (version + 1, request) {
        Answer::WrittenBefore
    } else {
        Answer::Conflict
    })
}

const TABLES: &str =
    "CREATE TABLE prices (article INTEGER PRIMARY KEY, cents INTEGER, version INTEGER, written_by TEXT);
         INSERT INTO prices VALUES (1, 900, 7, 'import');";

pub(crate) async fn run(db: SqlitePool) -> anyhow::Result<Proof> {
    sqlx::raw_sql(TABLES).execute(&db).await?;

    let answers = fifty(|_| {
        let db = db.clone();
        async move { Ok(set_price(&db, "ann-1", 7, 950).await?) }
    })
    .await?;
    let count = |answer| answers.iter().filter(|it| **it == answer).count();
    ensure!(count(Answer::Written) == 1 && count(Answer::WrittenBefore) == FIFTY - 1);
    ensure!(set_price(&db, "bob-1", 7, 880).await? == Answer::Conflict);

    let (cents, version): (i64, i64) = sqlx::query_as("SELECT cents, version FROM prices")
        .fetch_one(&db)
        .await?;
    ensure!((cents, version) == (950, 8));
    Ok(Proof {
        effects: (version - 7) as u64,
        answers: "1 × written now, 49 × written before; another: conflict".to_owned(),
    })
}

#[cfg(test)]
mod checked {
    use idem_testing::{Sqlite, check_on};

    use super::super::checked::as_body;
    use super::*;

    #[test]
    fn a_price_is_set_once_by_a_body_that_runs_again() {
        let database = Sqlite::new(TABLES).effects("SELECT version - 7 FROM prices");
        check_on(database, async |idem| {
            as_body(&idem, async |db| {
                let answer = set_price(&db, "ann-1", 7, 950).await?;
                ensure!(answer != Answer::Conflict);
                Ok(())
            })
            .await
        })
        .assert_promised();
    }
}
