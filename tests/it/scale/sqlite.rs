//! A large SQLite file. SQLite counts the steps of its virtual machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use idem_runtime::SqliteStore;
use sqlx::AssertSqlSafe;
use sqlx::sqlite::SqlitePoolOptions;

use super::{COPIED, batches, look, look_for_stuck, search, templates};

/// Number of steps between two reports.
const STEPS: i32 = 100;
/// Largest number of steps for a row that is examined. A row that is counted takes about 30, and one that only bounds a
/// page 2.
const STEPS_PER_ROW: u64 = 20;

#[tokio::test]
async fn a_look_reads_a_bounded_part_of_sqlite() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("idem.db");
    let steps = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&steps);
    let pool = SqlitePoolOptions::new()
        .max_connections(1)
        .after_connect(move |connection, _| {
            let counted = Arc::clone(&counted);
            Box::pin(async move {
                let mut handle = connection.lock_handle().await?;
                handle.set_progress_handler(STEPS, move || {
                    counted.fetch_add(STEPS as u64, Ordering::Relaxed);
                    true
                });
                Ok(())
            })
        })
        .connect_with(SqliteStore::connect_options(path))
        .await
        .unwrap();
    let store = SqliteStore::new(pool.clone());
    store.migrate().await.unwrap();
    let copy = format!(
        "INSERT INTO idem_records (id, idempotency_key, {COPIED})
         SELECT unhex(c.value ->> 0), c.value ->> 1, {COPIED}
         FROM json_each(?1) AS c CROSS JOIN idem_records AS t ON t.id = unhex(c.value ->> 2)"
    );
    for batch in batches(&templates(&store).await) {
        let copy = sqlx::query(AssertSqlSafe(&*copy)).bind(batch);
        copy.execute(&pool).await.unwrap();
    }
    steps.store(0, Ordering::Relaxed);
    let rows = async |what: &str, at_most: u64| {
        let spent = steps.swap(0, Ordering::Relaxed);
        println!("{what}: {spent} steps");
        assert!(spent / STEPS_PER_ROW <= at_most, "{what}: {spent} steps");
    };
    look(&store, &rows).await;
    look_for_stuck(&store, &rows).await;
    search(&store, &rows).await;
}
