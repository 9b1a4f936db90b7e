//! A large table in MariaDB or MySQL, which count the rows that a session has read.

use std::cell::Cell;

use idem_runtime::MySqlStore;
use idem_tests::backends;
use sqlx::mysql::{MySqlPool, MySqlPoolOptions};
use sqlx::{AssertSqlSafe, Executor as _, Row as _};

use super::{COPIED, batches, look, look_for_stuck, search, templates};

async fn examined(pool: &MySqlPool) -> u64 {
    let show = "SHOW SESSION STATUS LIKE 'Handler_read%'";
    let rows = pool.fetch_all(show).await.unwrap();
    rows.iter()
        .map(|row| {
            let number = String::from_utf8(row.get_unchecked(1)).unwrap();
            number.parse::<u64>().unwrap()
        })
        .sum()
}

#[tokio::test]
#[ignore = "needs MariaDB: cargo xtask test runs it"]
async fn a_look_reads_a_bounded_part_of_mariadb() {
    a_look_reads_a_bounded_part_of(backends::mariadb().await.unwrap()).await;
}

mod mysql {
    use super::*;

    #[tokio::test]
    #[ignore = "needs MySQL: cargo xtask test runs it"]
    async fn a_look_reads_a_bounded_part() {
        a_look_reads_a_bounded_part_of(backends::mysql().await.unwrap()).await;
    }
}

async fn a_look_reads_a_bounded_part_of(database: MySqlPool) {
    // One connection, since the counters belong to the session.
    let pool = MySqlPoolOptions::new()
        .max_connections(1)
        .connect_with((*database.connect_options()).clone())
        .await
        .unwrap();
    let store = MySqlStore::new(pool.clone());
    store.migrate().await.unwrap();
    let copy = format!(
        "INSERT INTO idem_records (id, idempotency_key, {COPIED})
         SELECT UNHEX(c.id), c.k, {COPIED}
         FROM JSON_TABLE(?, '$[*]' COLUMNS (
             id CHAR(64) PATH '$[0]', k VARCHAR(255) PATH '$[1]', template CHAR(64) PATH '$[2]'
         )) AS c JOIN idem_records AS t ON t.id = UNHEX(c.template)"
    );
    for batch in batches(&templates(&store).await) {
        let copy = sqlx::query(AssertSqlSafe(&*copy)).bind(batch);
        copy.execute(&pool).await.unwrap();
    }
    pool.execute("ANALYZE TABLE idem_records").await.unwrap();
    // The server counts what it reads for the counters, too.
    let first = examined(&pool).await;
    let before = Cell::new(examined(&pool).await);
    let own = before.get() - first;
    let rows = async |what: &str, at_most: u64| {
        let now = examined(&pool).await;
        let spent = now - before.replace(now) - own;
        println!("{what}: {spent} rows");
        assert!(spent <= at_most, "{what}: {spent} rows");
    };
    look(&store, &rows).await;
    look_for_stuck(&store, &rows).await;
    search(&store, &rows).await;
    pool.close().await;
}
