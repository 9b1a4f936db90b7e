//! Rows that other sessions have locked, and transactions that the server rolls back because of them.

use std::time::Duration;

use idem_runtime::advanced::RunOptions;
use idem_runtime::error::StoreErrorKind;
use idem_runtime::record::Timestamp;
use idem_runtime::{Call, Error, Idem, MySqlStore, Store as _};
use idem_servers::{Options, Server};
use sqlx::Connection as _;
use sqlx::mysql::{MySqlConnection, MySqlPool};

use super::{Database, execute};
use crate::purging::purge_at_once;
use crate::records::{claim, own};

fn call(key: &str) -> Call {
    Call::new("mysql.locks", key, &1, Duration::from_secs(3600))
}

/// Under `innodb_rollback_on_timeout`, a lock wait that times out rolls back the whole transaction. After that, each
/// statement of the caller would commit on its own.
#[tokio::test]
#[ignore = "needs MariaDB: cargo xtask test runs it"]
async fn a_transaction_that_the_server_rolled_back_cannot_commit() {
    let options = Options::fast()
        .set("innodb_rollback_on_timeout", "ON")
        .set("innodb_lock_wait_timeout", "1");
    let server = Server::maria_db(&options).unwrap();
    let admin = MySqlPool::connect(&server.url()).await.unwrap();
    for statement in [
        "CREATE DATABASE shop",
        "CREATE TABLE shop.orders (id VARCHAR(64) NOT NULL) ENGINE = InnoDB",
    ] {
        sqlx::raw_sql(statement).execute(&admin).await.unwrap();
    }
    let url = server.url().replace("/mysql", "/shop");
    let pool = MySqlPool::connect(&url).await.unwrap();
    let idem = Idem::new(MySqlStore::new(pool.clone()));
    idem.store().migrate().await.unwrap();
    let ended = idem.run(call("k"), async || Ok::<_, Error>(1)).await;
    assert_eq!(ended.unwrap(), 1);

    // Given a record that another session has locked, as if it had taken the lock after the pre-check outside of the
    // transaction.
    let mut other = MySqlConnection::connect(&url).await.unwrap();
    sqlx::raw_sql(
        "UPDATE idem_records SET state = 'released', codec = NULL, payload = NULL, claim_id = NULL",
    )
    .execute(&mut other)
    .await
    .unwrap();
    let mut holding = other.begin().await.unwrap();
    sqlx::raw_sql("SELECT * FROM idem_records FOR UPDATE")
        .execute(&mut *holding)
        .await
        .unwrap();
    // A pool of one has no second connection for the pre-check, so the call does not see the lock in advance.
    let one = sqlx::mysql::MySqlPoolOptions::new()
        .max_connections(1)
        .connect(&url)
        .await
        .unwrap();
    let joining = Idem::new(MySqlStore::new(one.clone()));
    let mut outer = one.begin().await.unwrap();
    sqlx::raw_sql("INSERT INTO orders VALUES ('before')")
        .execute(&mut *outer)
        .await
        .unwrap();
    let joined = joining
        .join_transaction(&mut outer, call("k"), RunOptions::new(), async |_, _| {
            Ok::<_, Error>(2)
        })
        .await;
    let Err(Error::Store(error)) = joined else {
        panic!("the record is locked: {joined:?}");
    };
    assert_eq!(error.kind(), StoreErrorKind::Conflict, "{error}");

    // When the caller continues anyway, then its statements do not commit on their own.
    let after = sqlx::raw_sql("INSERT INTO orders VALUES ('after')")
        .execute(&mut *outer)
        .await;
    assert!(after.is_err(), "{after:?}");
    let _ = outer.commit().await;
    let orders: i64 = sqlx::query_scalar("SELECT count(*) FROM orders")
        .fetch_one(&pool)
        .await
        .unwrap();
    assert_eq!(orders, 0, "both or none");
    // The next transaction on the connection is an ordinary one.
    let mut next = one.begin().await.unwrap();
    sqlx::raw_sql("INSERT INTO orders VALUES ('next')")
        .execute(&mut *next)
        .await
        .unwrap();
    next.commit().await.unwrap();
    drop(holding);
}

/// A store rejects connections that never commit before it relies on a write.
#[tokio::test]
#[ignore = "needs MySQL or MariaDB: cargo xtask test runs it"]
async fn connections_without_autocommit_are_refused() {
    for database in Database::each().await {
        let pool = sqlx::mysql::MySqlPoolOptions::new()
            .after_connect(|connection, _| {
                Box::pin(async move {
                    let off = sqlx::raw_sql("SET autocommit = 0");
                    off.execute(connection).await.map(drop)
                })
            })
            .connect_with(database.options())
            .await
            .unwrap();
        let error = MySqlStore::new(pool).migrate().await.unwrap_err();
        assert!(error.to_string().contains("autocommit"), "{error}");
        database.drop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MySQL or MariaDB: cargo xtask test runs it"]
async fn a_locked_record_does_not_block_other_records() {
    for database in Database::each().await {
        crate::batches::a_locked_record_does_not_block_other_records(&database.store().await).await;
        database.drop().await;
    }
}

/// Claims these keys, and makes their records due: they are completed, and have expired.
async fn due(store: &MySqlStore, pool: &MySqlPool, keys: impl IntoIterator<Item = String>) {
    for key in keys {
        own(store, &claim(&key)).await;
    }
    let expire = "UPDATE idem_records SET state = 'completed', codec = 'json/1', payload = '1', ended_at = 1, \
                  lease_until = 1, retention = 1, purge_after = 1";
    execute(pool, expire).await;
}

/// A transaction may hold a record for long, and the records after it must not wait.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MySQL or MariaDB: cargo xtask test runs it"]
async fn a_purge_leaves_a_locked_record_and_deletes_the_others() {
    for database in Database::each().await {
        let store = database.store().await;
        let pool = database.pool(2).await;
        due(&store, &pool, ["a", "b", "c"].map(str::to_owned)).await;
        // At any higher level it would lock the rows that it reads on its way to this one.
        let mut other = pool.acquire().await.unwrap();
        sqlx::raw_sql("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
            .execute(&mut *other)
            .await
            .unwrap();
        let mut other = other.begin().await.unwrap();
        sqlx::raw_sql("SELECT * FROM idem_records WHERE idempotency_key = 'b' FOR UPDATE")
            .execute(&mut *other)
            .await
            .unwrap();

        let purged = store.purge(10, Timestamp::MAX).await.unwrap();
        assert_eq!((purged.removed, purged.more), (2, false));

        other.rollback().await.unwrap();
        let purged = store.purge(10, Timestamp::MAX).await.unwrap();
        assert_eq!((purged.removed, purged.more), (1, false));
        database.drop().await;
    }
}

/// Many purges find the same due records. None waits for a lock of another one, and together they delete each record
/// once.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MariaDB: cargo xtask test runs it"]
async fn purges_of_many_processes_do_not_wait_for_each_other() {
    const RECORDS: u64 = 1_000;
    let server = Server::maria_db(&Options::fast()).unwrap();
    let pool = MySqlPool::connect(&server.url()).await.unwrap();
    let store = MySqlStore::new(pool.clone());
    store.migrate().await.unwrap();
    due(&store, &pool, (0..RECORDS).map(|n| n.to_string())).await;
    let waits = lock_waits(&pool).await;

    assert_eq!(purge_at_once(&store).await, RECORDS);
    assert_eq!(lock_waits(&pool).await, waits);
}

/// A transaction that claims shares the lock of the fencing floor until it ends. If a purge waited for that row, the claims
/// of all others would wait behind the purge.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MySQL or MariaDB: cargo xtask test runs it"]
async fn a_purge_does_not_wait_for_a_transaction_that_claims() {
    let mut servers = vec![Server::maria_db(&Options::fast()).unwrap()];
    servers.extend(Server::installed_my_sql(&Options::fast()).unwrap());
    for server in &servers {
        let pool = MySqlPool::connect(&server.url()).await.unwrap();
        let store = MySqlStore::new(pool.clone());
        store.migrate().await.unwrap();
        due(&store, &pool, ["a", "b", "c"].map(str::to_owned)).await;
        let mut claiming = pool.begin().await.unwrap();
        sqlx::raw_sql("SELECT * FROM idem_records_fencing_floor LOCK IN SHARE MODE")
            .execute(&mut *claiming)
            .await
            .unwrap();
        let waits = lock_waits(&pool).await;

        let error = store.purge(10, Timestamp::MAX).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Conflict, "{error}");
        assert_eq!(lock_waits(&pool).await, waits);

        claiming.rollback().await.unwrap();
        assert_eq!(store.purge(10, Timestamp::MAX).await.unwrap().removed, 3);
    }
}

/// Number of times that a statement has waited for a row, on a server that only one test uses.
async fn lock_waits(pool: &MySqlPool) -> u64 {
    let query = "SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_waits'";
    let row: (String, String) = sqlx::query_as(query).fetch_one(pool).await.unwrap();
    row.1.parse().unwrap()
}
