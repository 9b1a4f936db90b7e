//! Upsert: the request states the new state instead of a change, so writing it twice has the same result as writing it
//! once.
//!
//! A late request must not overwrite a newer state, so each state has a sequence number, and the statement compares it.

use anyhow::ensure;
use sqlx::SqlitePool;

use super::Proof;
use super::fifty::{FIFTY, fifty};

/// Stores the newest position of a parcel. Returns true if this position is newer than the stored one.
async fn move_parcel(db: &SqlitePool, parcel: i64, seq: i64, place: &str) -> sqlx::Result<bool> {
    let written = sqlx::query(
        "INSERT INTO parcels (parcel, seq, place) VALUES (?, ?, ?)
         ON CONFLICT (parcel) DO UPDATE SET seq = excluded.seq, place = excluded.place
         WHERE excluded.seq > parcels.seq",
    )
    .bind(parcel)
    .bind(seq)
    .bind(place)
    .execute(db)
    .await?;
    Ok(written.rows_affected() > 0)
}

const TABLES: &str =
    "CREATE TABLE parcels (parcel INTEGER PRIMARY KEY, seq INTEGER, place TEXT);
         CREATE TABLE writes (parcel INTEGER);
         CREATE TRIGGER inserted AFTER INSERT ON parcels BEGIN INSERT INTO writes VALUES (NEW.parcel); END;
         CREATE TRIGGER updated AFTER UPDATE ON parcels BEGIN INSERT INTO writes VALUES (NEW.parcel); END;";

pub(crate) async fn run(db: SqlitePool) -> anyhow::Result<Proof> {
    sqlx::raw_sql(TABLES).execute(&db).await?;

    // The third scan arrives fifty times, and then the second scan, which was delayed.
    let written = fifty(|_| {
        let db = db.clone();
        async move { Ok(move_parcel(&db, 7, 3, "Utrecht").await?) }
    })
    .await?;
    ensure!(written.iter().filter(|it| **it).count() == 1);
    ensure!(!move_parcel(&db, 7, 2, "Antwerp").await?);

    let (seq, place): (i64, String) = sqlx::query_as("SELECT seq, place FROM parcels")
        .fetch_one(&db)
        .await?;
    ensure!((seq, place.as_str()) == (3, "Utrecht"));
    let effects = sqlx::query_scalar("SELECT count(*) FROM writes")
        .fetch_one(&db)
        .await?;
    ensure!(effects == 1);
    Ok(Proof {
        effects,
        answers: format!("1 × newer, {} × not newer", FIFTY - 1),
    })
}

#[cfg(test)]
mod checked {
    use idem_testing::{Sqlite, check_on};

    use super::super::checked::as_body;
    use super::*;

    #[test]
    fn a_position_is_written_once_by_a_body_that_runs_again() {
        let database = Sqlite::new(TABLES).effects("SELECT count(*) FROM writes");
        check_on(database, async |idem| {
            as_body(&idem, async |db| {
                Ok(move_parcel(&db, 7, 3, "Utrecht").await?)
            })
            .await
        })
        .assert_promised();
    }
}
