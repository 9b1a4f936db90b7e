//! A large table in PostgreSQL, whose statistics count the entries and rows that a scan has read.

use std::cell::Cell;

use idem_runtime::PostgresStore;
use idem_tests::backends;
use sqlx::postgres::{PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, Executor as _};

use super::{COPIED, batches, look, look_for_stuck, search, templates};

async fn examined(pool: &PgPool) -> u64 {
    // A session reports its counts after a while, or when it is told to.
    pool.execute("SELECT pg_stat_force_next_flush()")
        .await
        .unwrap();
    let counted: i64 = sqlx::query_scalar(
        "SELECT (seq_tup_read + (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes AS i WHERE i.relid = t.relid))::bigint
         FROM pg_stat_user_tables AS t WHERE relname = 'idem_records'",
    )
    .fetch_one(pool)
    .await
    .unwrap();
    counted.cast_unsigned()
}

#[tokio::test]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn a_look_reads_a_bounded_part_of_postgres() {
    let database = backends::postgres().await.unwrap();
    // One connection, since a session reports its own counts.
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .connect_with((*database.connect_options()).clone())
        .await
        .unwrap();
    let store = PostgresStore::new(pool.clone());
    store.migrate().await.unwrap();
    let copy = format!(
        "INSERT INTO idem_records (id, idempotency_key, {COPIED})
         SELECT decode(c ->> 0, 'hex'), c ->> 1, {COPIED}
         FROM jsonb_array_elements($1::jsonb) AS c JOIN idem_records AS t ON t.id = decode(c ->> 2, 'hex')"
    );
    for batch in batches(&templates(&store).await) {
        let copy = sqlx::query(AssertSqlSafe(&*copy)).bind(batch);
        copy.execute(&pool).await.unwrap();
    }
    pool.execute("VACUUM ANALYZE idem_records").await.unwrap();
    let before = Cell::new(examined(&pool).await);
    let rows = async |what: &str, at_most: u64| {
        let now = examined(&pool).await;
        let spent = now - before.replace(now);
        println!("{what}: {spent} rows");
        assert!(spent <= at_most, "{what}: {spent} rows");
    };
    look(&store, &rows).await;
    look_for_stuck(&store, &rows).await;
    search(&store, &rows).await;
    pool.close().await;
}
