//! Pessimistic lock: read, decide and write under a lock. Concurrent requests wait, and then see what was written.
//!
//! This suits decisions that need several statements, such as a decision over many rows. The lock belongs to the
//! database transaction, so a crash releases the lock and rolls back the writes. SQLite has one lock for all writers,
//! which `BEGIN IMMEDIATE` takes. PostgreSQL and MySQL lock the rows that `SELECT ... FOR UPDATE` reads.

use anyhow::ensure;
use sqlx::SqlitePool;

use super::Proof;
use super::fifty::{FIFTY, fifty};

/// Books a seat for a request while one is free. Returns the seat of this request, or none.
async fn book(db: &SqlitePool, request: &str) -> sqlx::Result<Option<i64>> {
    let mut tx = db.begin_with("BEGIN IMMEDIATE").await?;
    let booked = sqlx::query_scalar("SELECT seat FROM bookings WHERE request = ?")
        .bind(request)
        .fetch_optional(&mut *tx)
        .await?;
    if booked.is_some() {
        return Ok(booked);
    }
    let (seats, taken): (i64, i64) =
        sqlx::query_as("SELECT seats, (SELECT count(*) FROM bookings) FROM halls")
            .fetch_one(&mut *tx)
            .await?;
    if taken == seats {
        return Ok(None);
    }
    sqlx::query("INSERT INTO bookings (request, seat) VALUES (?, ?)")
        .bind(request)
        .bind(taken + 1)
        .execute(&mut *tx)
        .await?;
    tx.commit().await?;
    Ok(Some(taken + 1))
}

const TABLES: &str = "CREATE TABLE halls (seats INTEGER);
         INSERT INTO halls VALUES (2);
         CREATE TABLE bookings (request TEXT, seat INTEGER);";

pub(crate) async fn run(db: SqlitePool) -> anyhow::Result<Proof> {
    // The tables have no constraint against a second booking: only the lock prevents it.
    sqlx::raw_sql(TABLES).execute(&db).await?;

    let seats = fifty(|_| {
        let db = db.clone();
        async move { Ok(book(&db, "ann-1").await?) }
    })
    .await?;
    ensure!(seats.iter().all(|seat| *seat == Some(1)));
    let effects = sqlx::query_scalar("SELECT count(*) FROM bookings")
        .fetch_one(&db)
        .await?;
    ensure!(effects == 1);

    // Fifty different requests compete for the last seat.
    let seats = fifty(|number| {
        let db = db.clone();
        async move { Ok(book(&db, &format!("guest-{number}")).await?) }
    })
    .await?;
    ensure!(seats.iter().filter(|seat| seat.is_some()).count() == 1);
    Ok(Proof {
        effects,
        answers: format!("50 × seat 1; of {FIFTY} other requests, 1 got the last seat"),
    })
}

#[cfg(test)]
mod checked {
    use idem_testing::{Sqlite, check_on};

    use super::super::checked::as_body;
    use super::*;

    #[test]
    fn a_seat_is_booked_once_by_a_body_that_runs_again() {
        let database = Sqlite::new(TABLES).effects("SELECT count(*) FROM bookings");
        check_on(database, async |idem| {
            as_body(&idem, async |db| Ok(book(&db, "ann-1").await?)).await
        })
        .assert_promised();
    }
}
