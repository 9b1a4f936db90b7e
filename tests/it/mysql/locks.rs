//! Rows that other sessions have locked, and transactions that the server rolls back because of them.

use std::time::Duration;

use idem_runtime::{Call, Error, Idem, MySqlStore, RunOptions, Store as _, StoreErrorKind};
use idem_servers::{Options, Server};
use sqlx::mysql::{MySqlConnection, MySqlPool};
use sqlx::{AssertSqlSafe, Connection as _};

use super::{Database, execute};
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

/// Two purges read the same due records, and one of them finds all of them gone. It leaves the rest to the other one: if
/// both went on, each would lock what the other one deletes.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MySQL or MariaDB: cargo xtask test runs it"]
async fn a_purge_that_meets_another_one_leaves_the_rest_to_it() {
    for database in Database::each().await {
        let store = database.store().await;
        for key in ["a", "b", "c"] {
            own(&store, &claim(key)).await;
        }
        let pool = database.pool(2).await;
        let expire = "UPDATE idem_records SET state = 'completed', codec = 'json/1', payload = '1', ended_at = 1, \
                      lease_until = 1, retention = 1, \
                      purge_after = CASE idempotency_key WHEN 'a' THEN 1 WHEN 'b' THEN 2 ELSE 3 END";
        execute(&pool, expire).await;

        // Given another purge that has deleted the first two records, and has not committed.
        let mut other = pool.begin().await.unwrap();
        sqlx::raw_sql("DELETE FROM idem_records WHERE purge_after < 3")
            .execute(&mut *other)
            .await
            .unwrap();

        // When this one has read them and waits for their locks.
        let purging = tokio::spawn({
            let store = store.clone();
            async move { store.purge(2).await }
        });
        let waiting = format!(
            "SELECT count(*) FROM information_schema.innodb_trx JOIN information_schema.processlist AS p \
             ON p.id = trx_mysql_thread_id WHERE trx_state = 'LOCK WAIT' AND p.db = '{}'",
            database.name
        );
        loop {
            let query = sqlx::query_scalar::<_, i64>(AssertSqlSafe(waiting.as_str()));
            if query.fetch_one(&database.admin).await.unwrap() > 0 {
                break;
            }
            assert!(!purging.is_finished(), "it waits for the other purge");
            // InnoDB renews this table only if nobody has read it for 100 ms.
            tokio::time::sleep(Duration::from_millis(120)).await;
        }
        other.commit().await.unwrap();

        // Then it says that nothing is left to do, and the third record is there for the next purge.
        let met = purging.await.unwrap().unwrap();
        assert_eq!((met.removed, met.more), (0, false));
        let next = store.purge(2).await.unwrap();
        assert_eq!((next.removed, next.more), (1, false));
        database.drop().await;
    }
}
