//! Settings of the sessions: what the store says under them is true, or it refuses them at its first statement.

use idem_runtime::advanced::RunOptions;
use idem_runtime::error::StoreErrorKind;
use idem_runtime::{Error, Idem, MySqlStore, OnCrash, Store as _};
use sqlx::AssertSqlSafe;
use sqlx::mysql::{MySqlPool, MySqlPoolOptions};

use super::Database;
use crate::purging::purge_at_once;
use crate::records::{claim, outcome, own};

/// A pool whose connections begin with this statement.
async fn pool(database: &Database, set: &'static str) -> MySqlPool {
    MySqlPoolOptions::new()
        .after_connect(move |connection, _| {
            Box::pin(async move {
                let set = sqlx::raw_sql(AssertSqlSafe(set));
                set.execute(connection).await.map(drop)
            })
        })
        .connect_with(database.options())
        .await
        .unwrap()
}

fn call(key: &str) -> idem_runtime::Call {
    idem_runtime::Call::new("mysql.settings", key, &1, crate::records::HOUR)
}

#[tokio::test]
#[ignore = "needs MySQL or MariaDB: cargo xtask test runs it"]
async fn settings_that_void_what_the_store_says_are_refused_at_the_first_call() {
    for database in Database::each().await {
        MySqlStore::new(database.pool(1).await)
            .migrate()
            .await
            .unwrap();
        for (set, names) in [
            ("SET autocommit = 0", "autocommit"),
            ("SET completion_type = 1", "completion_type"),
            ("SET completion_type = 2", "completion_type"),
            (
                "SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED",
                "READ-UNCOMMITTED",
            ),
            (
                "/*M! SET sql_mode = CONCAT(@@sql_mode, ',EMPTY_STRING_IS_NULL') */",
                "EMPTY_STRING_IS_NULL",
            ),
            ("/*M! SET sql_mode = ORACLE */", "ORACLE"),
            ("SET NAMES latin1", "character_set"),
            ("SET sql_select_limit = 100", "sql_select_limit"),
            ("SET sql_big_selects = 0", "max_join_size"),
        ] {
            if set.starts_with("/*M!") && !database.is_mariadb().await {
                continue;
            }
            let idem = Idem::new(MySqlStore::new(pool(&database, set).await));
            let refused = |error: Error| {
                let Error::Store(error) = error else {
                    panic!("{set}: {error:?}");
                };
                assert_eq!(error.kind(), StoreErrorKind::Other, "{set}: {error}");
                assert!(error.to_string().contains(names), "{set}: {error}");
            };
            let leased = call(set).on_crash(OnCrash::Refuse);
            let leased = idem.run(leased, async || -> Result<u64, Error> { panic!("{set}") });
            refused(leased.await.unwrap_err());
            let transactional = idem.run_in_transaction(
                call(set),
                RunOptions::new(),
                async |_, _| -> Result<u64, Error> { panic!("{set}") },
            );
            refused(transactional.await.unwrap_err());
            let migrated = idem.store().migrate().await.unwrap_err();
            assert!(migrated.to_string().contains(names), "{set}: {migrated}");
        }
        database.drop().await;
    }
}

#[tokio::test]
#[ignore = "needs MySQL or MariaDB: cargo xtask test runs it"]
async fn safe_updates_keep_nobody_from_purging() {
    for database in Database::each().await {
        let pool = pool(&database, "SET sql_safe_updates = 1").await;
        let store = MySqlStore::new(pool.clone());
        store.migrate().await.unwrap();
        for key in ["a", "b"] {
            let owner = own(&store, &claim(key)).await;
            store.complete(&owner, &outcome(b"1")).await.unwrap();
        }
        let name = &database.name;
        let expire = format!("UPDATE {name}.idem_records SET retention = 1, purge_after = 1");
        super::execute(&database.admin, &expire).await;
        purge_at_once(&store).await;
        let left: i64 = sqlx::query_scalar("SELECT count(*) FROM idem_records")
            .fetch_one(&pool)
            .await
            .unwrap();
        assert_eq!(left, 0);
        // The application keeps its setting.
        let on: i64 = sqlx::query_scalar("SELECT @@sql_safe_updates")
            .fetch_one(&pool)
            .await
            .unwrap();
        assert_eq!(on, 1);
        database.drop().await;
    }
}
