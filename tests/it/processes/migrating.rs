//! Ten processes that start concurrently on an empty database, like the instances of a service after a deploy.

use std::time::Duration;

use idem_runtime::{Call, Error};
use idem_tests::backends::OPERATION;

use super::{Caller, Place};

async fn ten_migrate(place: &Place) {
    let mut processes: Vec<_> = (0..10)
        .map(|_| Caller::start(&["migrate", &place.address]))
        .collect();
    for process in &mut processes {
        assert_eq!(process.next_line().await, "ready");
    }
    // All processes wait, and start together.
    for process in &mut processes {
        process.proceed().await;
    }
    for process in &mut processes {
        assert_eq!(process.next_line().await, "migrated");
    }
    for process in processes {
        let Caller { mut process, .. } = process;
        assert!(process.wait().await.unwrap().success());
    }
    let idem = place.open().await;
    let call = Call::new(OPERATION, "k", "request", Duration::from_secs(600));
    let value = idem.run(call, async || Ok::<_, Error>(7)).await;
    assert_eq!(value.unwrap(), 7);
}

const APPLIED: &str = "SELECT version FROM idem_records_migrations ORDER BY version";

#[tokio::test]
async fn ten_processes_migrate_sqlite_concurrently() {
    let place = Place::sqlite();
    ten_migrate(&place).await;
    let pool = sqlx::SqlitePool::connect(&place.address).await.unwrap();
    let applied: Vec<i64> = sqlx::query_scalar(APPLIED).fetch_all(&pool).await.unwrap();
    assert_eq!(applied, [1, 2, 3]);
}

#[tokio::test]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn ten_processes_migrate_postgres_concurrently() {
    let place = Place::postgres().await;
    ten_migrate(&place).await;
    let pool = sqlx::PgPool::connect(&place.address).await.unwrap();
    let applied: Vec<i64> = sqlx::query_scalar(APPLIED).fetch_all(&pool).await.unwrap();
    assert_eq!(applied, [1, 2, 3, 4]);
}

#[tokio::test]
#[ignore = "needs MariaDB: cargo xtask test runs it"]
async fn ten_processes_migrate_maria_db_concurrently() {
    let place = Place::mysql().await;
    ten_migrate(&place).await;
    let pool = sqlx::MySqlPool::connect(&place.address).await.unwrap();
    let applied: Vec<i32> = sqlx::query_scalar(APPLIED).fetch_all(&pool).await.unwrap();
    assert_eq!(applied, [1, 2, 3]);
}
