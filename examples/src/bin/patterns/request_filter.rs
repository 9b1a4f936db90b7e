//! Duplicate filter: callers send no key, so the key is derived from the request. An equal request within the `ttl` is
//! a duplicate.

use anyhow::ensure;
use idem_runtime::{Error, Fingerprint, Idem, SqliteStore, idempotent};
use sqlx::SqlitePool;

use super::Proof;
use super::fifty::fifty;

#[derive(Clone, Fingerprint)]
struct Alarm {
    sensor: String,
    /// Minute of the alarm. Without it, a later alarm of the same sensor would be a duplicate.
    minute: u64,
    /// Number of the repetition. It differs in each repetition, so it is not part of the fingerprint.
    #[fingerprint(skip)]
    repetition: usize,
}

#[derive(Debug, thiserror::Error)]
enum AlarmError {
    #[error("the database failed")]
    Database(#[from] sqlx::Error),
    #[error(transparent)]
    Idempotency(#[from] Error),
}

#[derive(Clone)]
struct Pager {
    idem: Idem<SqliteStore>,
}

impl Pager {
    /// Pages the engineer on duty.
    #[idempotent(
        key = fingerprint,
        ttl = "1h",
        wait = "1m",
        name = "alarms.page",
        store = self.idem,
        tx = tx,
    )]
    async fn page(&self, alarm: Alarm) -> Result<(), AlarmError> {
        sqlx::query("INSERT INTO pages (sensor, minute, repetition) VALUES (?, ?, ?)")
            .bind(alarm.sensor)
            .bind(alarm.minute as i64)
            .bind(alarm.repetition as i64)
            .execute(&mut *tx)
            .await?;
        Ok(())
    }
}

const TABLES: &str = "CREATE TABLE pages (sensor TEXT, minute INTEGER, repetition INTEGER)";

pub(crate) async fn run(db: SqlitePool) -> anyhow::Result<Proof> {
    sqlx::raw_sql(TABLES).execute(&db).await?;
    let store = SqliteStore::new(db.clone());
    store.migrate().await?;
    let pager = Pager {
        idem: Idem::new(store),
    };
    let alarm = |minute, repetition| Alarm {
        sensor: "boiler".to_owned(),
        minute,
        repetition,
    };

    fifty(|repetition| {
        let (pager, alarm) = (pager.clone(), alarm(600, repetition));
        async move { Ok(pager.page(alarm).await?) }
    })
    .await?;
    let effects = pages(&db).await?;
    ensure!(effects == 1);

    pager.page(alarm(601, 0)).await?;
    ensure!(pages(&db).await? == 2);
    Ok(Proof {
        effects,
        answers: "50 × done; the alarm of the next minute is another request".to_owned(),
    })
}

async fn pages(db: &SqlitePool) -> sqlx::Result<u64> {
    sqlx::query_scalar("SELECT count(*) FROM pages")
        .fetch_one(db)
        .await
}

#[cfg(test)]
mod checked {
    use std::cell::Cell;

    use idem_testing::{Sqlite, check_on};

    use super::*;

    #[test]
    fn an_alarm_is_paged_exactly_once_a_minute() {
        let repetitions = Cell::new(0);
        let alarm = |minute| Alarm {
            sensor: "boiler".to_owned(),
            minute,
            repetition: repetitions.replace(repetitions.get() + 1),
        };
        let database = Sqlite::new(TABLES).effects("SELECT count(*) FROM pages");
        check_on(database, async |idem| Pager { idem }.page(alarm(600)).await)
            .other_call(async |idem| Pager { idem }.page(alarm(601)).await)
            .assert_exactly_once();
    }
}
