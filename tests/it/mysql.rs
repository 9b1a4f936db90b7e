//! What only the MySQL store promises: its tables, its errors and what a step costs the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use idem_runtime::{MySqlStore, conformance};
use sqlx::AssertSqlSafe;
use sqlx::mysql::MySqlPool;

/// A database of its own, dropped at the end of a test that passes.
struct Database {
    name: String,
    admin: MySqlPool,
    url: String,
}

impl Database {
    /// On the server of each URL that is given.
    async fn each() -> Vec<Self> {
        let mariadb = std::env::var("IDEM_TEST_MYSQL_URL").expect("`cargo xtask test` sets it");
        let mut databases = vec![Self::at(&mariadb).await];
        if let Ok(mysql) = std::env::var("IDEM_TEST_MYSQL8_URL") {
            databases.push(Self::at(&mysql).await);
        }
        databases
    }

    async fn at(url: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("idem_it_{}_{count}", std::process::id());
        let admin = MySqlPool::connect(url).await.unwrap();
        execute(&admin, &format!("DROP DATABASE IF EXISTS {name}")).await;
        execute(&admin, &format!("CREATE DATABASE {name}")).await;
        let mut of_it = url::Url::parse(url).unwrap();
        of_it.set_path(&name);
        let url = of_it.into();
        Self { name, admin, url }
    }

    async fn store(&self) -> MySqlStore {
        let store = MySqlStore::open(&self.url).await.unwrap();
        store.migrate().await.unwrap();
        store
    }

    async fn drop(self) {
        execute(&self.admin, &format!("DROP DATABASE {}", self.name)).await;
    }
}

async fn execute(pool: &MySqlPool, statement: &str) {
    sqlx::raw_sql(AssertSqlSafe(statement.to_owned()))
        .execute(pool)
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MariaDB: cargo xtask test runs it"]
async fn the_case_table_holds() {
    for database in Database::each().await {
        let store = Arc::new(database.store().await);
        let passed = conformance::run_all(store).await.unwrap();
        assert_eq!(passed, conformance::cases().len());
        database.drop().await;
    }
}
