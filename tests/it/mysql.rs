//! Properties that only the MySQL store has: its tables, its errors and the server's cost of a transition.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use idem_runtime::error::{StoreError, StoreErrorKind};
use idem_runtime::key::{Identity, Operation, RecordId};
use idem_runtime::outbox::Outbox;
use idem_runtime::record::{FencingToken, RecordState, Timestamp};
use idem_runtime::store::{
    ClaimOutcome, ClaimRequest, FencedWrite, Filter, PageRequest, Resolution, Resolved,
};
use idem_runtime::{Key, MySqlStore, OnCrash, Store, conformance};
use sqlx::AssertSqlSafe;
use sqlx::mysql::{MySqlConnectOptions, MySqlPool, MySqlPoolOptions};
use tokio::task::JoinSet;

use crate::records::{HOUR, claim, full_text, outcome, own};

mod costs;
mod ended;
mod errors;
mod locks;
mod packets;
mod primaries;
mod privileges;
mod settings;

/// A dedicated database, dropped at the end of a test that passes.
struct Database {
    name: String,
    admin: MySqlPool,
    url: String,
}

impl Database {
    /// Creates a database on the server of each configured URL.
    async fn each() -> Vec<Self> {
        let mariadb = std::env::var("IDEM_TEST_MARIADB_URL").expect("`cargo xtask test` sets it");
        let mut databases = vec![Self::at(&mariadb).await];
        if let Ok(mysql) = std::env::var("IDEM_TEST_MYSQL_URL") {
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

    fn options(&self) -> MySqlConnectOptions {
        self.url.parse().unwrap()
    }

    async fn pool(&self, connections: u32) -> MySqlPool {
        MySqlPoolOptions::new()
            .max_connections(connections)
            .test_before_acquire(false)
            .connect_with(self.options())
            .await
            .unwrap()
    }

    async fn store(&self) -> MySqlStore {
        let store = MySqlStore::connect(&self.url).await.unwrap();
        store.migrate().await.unwrap();
        store
    }

    async fn is_mariadb(&self) -> bool {
        let version: String = sqlx::query_scalar("SELECT VERSION()")
            .fetch_one(&self.admin)
            .await
            .unwrap();
        version.contains("MariaDB")
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

fn assert_error(error: &StoreError, kind: StoreErrorKind, says: &str) {
    assert_eq!(error.kind(), kind, "{}", full_text(error));
    assert!(error.to_string().contains(says), "{}", full_text(error));
    assert!(
        std::error::Error::source(error).is_some(),
        "{error} hides what caused it"
    );
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MariaDB: cargo xtask test runs it"]
async fn the_case_table_holds() {
    for database in Database::each().await {
        let store = Arc::new(database.store().await);
        let report = conformance::run_all(store).await.unwrap();
        assert_eq!(report.passed, conformance::cases().len());
        database.drop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MariaDB: cargo xtask test runs it"]
async fn ten_stores_migrate_one_database_concurrently() {
    for database in Database::each().await {
        let mut migrating = JoinSet::new();
        for number in 0..10 {
            let url = database.url.clone();
            migrating.spawn(async move {
                let store = MySqlStore::connect(&url).await?;
                store.migrate().await?;
                store.claim(&claim(&format!("k{number}"))).await?;
                Ok::<_, StoreError>(())
            });
        }
        for migrated in migrating.join_all().await {
            migrated.map_err(|error| full_text(&error)).unwrap();
        }
        let pool = database.pool(1).await;
        let applied: i64 = sqlx::query_scalar("SELECT count(*) FROM idem_records_migrations")
            .fetch_one(&pool)
            .await
            .unwrap();
        assert_eq!(applied, 6);

        execute(
            &pool,
            "INSERT INTO idem_records_migrations (version, applied_at) VALUES (98, 0), (99, 0)",
        )
        .await;
        let error = MySqlStore::new(pool).migrate().await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Schema);
        assert!(error.to_string().contains("version 8"), "{error}");
        database.drop().await;
    }
}

/// Members of Group Replication that all accept writes refuse to write any other table, if
/// `group_replication_enforce_update_everywhere_checks` is on.
#[tokio::test]
#[ignore = "needs MariaDB: cargo xtask test runs it"]
async fn each_table_has_a_primary_key_and_no_foreign_key() {
    for database in Database::each().await {
        let store = database.store().await;
        Outbox::new(store.pool().clone()).migrate().await.unwrap();
        let names = |having: &str| {
            let query = format!(
                "SELECT CAST(table_name AS CHAR) AS name
                 FROM information_schema.tables LEFT JOIN information_schema.table_constraints
                     USING (table_schema, table_name)
                 WHERE table_schema = DATABASE() GROUP BY table_name HAVING {having}"
            );
            let pool = store.pool().clone();
            async move {
                let names = sqlx::query_scalar::<_, String>(AssertSqlSafe(query));
                names.fetch_all(&pool).await.unwrap()
            }
        };
        let keys = |kind: &str| format!("COALESCE(SUM(constraint_type = '{kind} KEY'), 0)");
        let all = names("TRUE").await;
        let has_table = |name: &str| all.iter().any(|it| it == name);
        assert!(
            has_table("idem_records") && has_table("idem_outbox"),
            "{all:?}"
        );
        let without_key = names(&format!("{} = 0", keys("PRIMARY"))).await;
        assert_eq!(without_key, [""; 0]);
        let with_foreign_key = names(&format!("{} > 0", keys("FOREIGN"))).await;
        assert_eq!(with_foreign_key, [""; 0]);
        database.drop().await;
    }
}

#[tokio::test]
#[ignore = "needs MariaDB: cargo xtask test runs it"]
async fn tables_of_other_names_and_databases_share_no_records() {
    for database in Database::each().await {
        let other_database = format!("{}_order", database.name);
        execute(
            &database.admin,
            &format!("CREATE DATABASE {other_database}"),
        )
        .await;
        let store = database.store().await;
        let elsewhere = store.clone().with_schema(&other_database).unwrap();
        for other in [
            store.clone().with_table("order").unwrap(),
            elsewhere.clone(),
            elsewhere.with_table("by").unwrap(),
        ] {
            let error = other.claim(&claim("k")).await.unwrap_err();
            assert_error(&error, StoreErrorKind::Schema, "run `migrate()`");
            other.migrate().await.unwrap();
            assert_eq!(other.get(&claim("k").id).await.unwrap(), None);
            own(&other, &claim("k")).await;
        }
        assert_eq!(store.get(&claim("k").id).await.unwrap(), None);
        for name in ["", "1st", "a b", "a`b", &"x".repeat(49)] {
            for refused in [
                store.clone().with_table(name),
                store.clone().with_schema(name),
            ] {
                assert_eq!(refused.unwrap_err().kind(), StoreErrorKind::Schema);
            }
        }
        execute(&database.admin, &format!("DROP DATABASE {other_database}")).await;
        database.drop().await;
    }
}

#[tokio::test]
#[ignore = "needs MariaDB: cargo xtask test runs it"]
async fn errors_of_the_server_name_the_remedy() {
    for database in Database::each().await {
        database.store().await;
        let refused = |edit: fn(&mut url::Url)| {
            let mut url = url::Url::parse(&database.url).unwrap();
            edit(&mut url);
            async move { MySqlStore::connect(url.as_str()).await.unwrap_err() }
        };
        let error = MySqlStore::connect("no url").await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Other, "{}", full_text(&error));
        let error = refused(|url| url.set_port(Some(1)).unwrap()).await;
        assert_eq!(
            error.kind(),
            StoreErrorKind::Unavailable,
            "{}",
            full_text(&error)
        );
        let error = refused(|url| url.set_password(Some("wrong")).unwrap()).await;
        assert_error(&error, StoreErrorKind::Denied, "password");
        let error = refused(|url| url.set_path("idem_it_nowhere")).await;
        assert_error(&error, StoreErrorKind::Schema, "no such database");

        let reader = format!("{}_r", database.name);
        execute(
            &database.admin,
            &format!(
                "CREATE USER {reader} IDENTIFIED BY 'pass'; GRANT SELECT ON {}.* TO {reader}",
                database.name
            ),
        )
        .await;
        let options = database.options().username(&reader).password("pass");
        let store = MySqlStore::new(MySqlPool::connect_with(options).await.unwrap());
        store.migrate().await.unwrap();
        assert_eq!(store.get(&claim("k").id).await.unwrap(), None);
        let error = store.claim(&claim("k")).await.unwrap_err();
        assert_error(&error, StoreErrorKind::Denied, "privilege");
        execute(&database.admin, &format!("DROP USER {reader}")).await;
        database.drop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MariaDB: cargo xtask test runs it"]
async fn of_concurrent_claims_one_is_granted_and_none_fails() {
    for database in Database::each().await {
        let stores = [database.store().await, database.store().await];
        for round in 0..20 {
            let key = format!("k{round}");
            // Absent the first time, then released each time.
            for _ in 0..3 {
                let mut claims = JoinSet::new();
                for task in 0..16 {
                    let (store, claim) = (stores[task % 2].clone(), claim(&key));
                    claims.spawn(async move {
                        match store.claim(&claim).await {
                            Ok(ClaimOutcome::Granted(granted)) => {
                                Some((claim, granted.fencing_token))
                            }
                            Ok(ClaimOutcome::Existing(_)) => None,
                            Err(error) => panic!("{}", full_text(&error)),
                        }
                    });
                }
                let granted: Vec<_> = claims.join_all().await.into_iter().flatten().collect();
                assert_eq!(granted.len(), 1);
                let (claim, fencing_token) = &granted[0];
                let owner = idem_runtime::record::Owner {
                    id: claim.id,
                    claim_id: claim.claim_id,
                    fencing_token: *fencing_token,
                };
                let released = stores[0].release(&owner).await.unwrap();
                assert_eq!(released, FencedWrite::Applied);
            }
        }
        database.drop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MariaDB: cargo xtask test runs it"]
async fn purging_counts_exactly_during_claims() {
    const RECORDS: u64 = 1500;
    for database in Database::each().await {
        let store = database.store().await;
        let brief = |key: String| ClaimRequest {
            lease: Duration::ZERO,
            retention: Duration::ZERO,
            ..claim(&key)
        };
        for key in 0..RECORDS {
            own(&store, &brief(format!("old{key}"))).await;
        }
        let claims = {
            let store = store.clone();
            tokio::spawn(async move {
                for key in 0..300 {
                    own(&store, &claim(&format!("new{key}"))).await;
                }
            })
        };
        let mut purging = JoinSet::new();
        for _ in 0..3 {
            let store = store.clone();
            purging.spawn(async move {
                let mut removed = 0;
                loop {
                    let purged = store.purge(200, Timestamp::MAX).await.unwrap();
                    assert_eq!(purged.removed, purged.abandoned);
                    removed += purged.removed;
                    if !purged.more {
                        return removed;
                    }
                }
            });
        }
        let removed: u64 = purging.join_all().await.into_iter().sum();
        claims.await.unwrap();
        assert_eq!(removed, RECORDS);
        database.drop().await;
    }
}

#[tokio::test]
#[ignore = "needs MariaDB: cargo xtask test runs it"]
async fn a_connection_that_was_killed_is_replaced() {
    for database in Database::each().await {
        let pool = database.pool(1).await;
        let store = MySqlStore::new(pool.clone());
        store.migrate().await.unwrap();
        let id: u64 = sqlx::query_scalar("SELECT CAST(CONNECTION_ID() AS UNSIGNED)")
            .fetch_one(&pool)
            .await
            .unwrap();
        execute(&database.admin, &format!("KILL CONNECTION {id}")).await;
        let claim = claim("k");
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            match store.claim(&claim).await {
                Ok(answer) => {
                    assert!(matches!(answer, ClaimOutcome::Granted(_)));
                    break;
                }
                Err(error) => {
                    assert_eq!(
                        error.kind(),
                        StoreErrorKind::Unavailable,
                        "{}",
                        full_text(&error)
                    );
                    assert!(Instant::now() < deadline, "{}", full_text(&error));
                }
            }
        }
        database.drop().await;
    }
}

#[tokio::test]
#[ignore = "needs MariaDB: cargo xtask test runs it"]
async fn every_byte_of_a_key_and_of_a_large_result_is_stored() {
    for database in Database::each().await {
        let store = database.store().await;
        let mut keys: Vec<String> = ["k", "K", "k ", "k  ", " k", "kk"].map(String::from).into();
        keys.extend((0x20_u8..=0x7e).map(|byte| format!("a{}z", char::from(byte))));
        for key in keys.iter().filter(|key| Key::new(key.as_str()).is_ok()) {
            let claim = claim(key);
            own(&store, &claim).await;
            let record = store.get(&claim.id).await.unwrap().unwrap();
            assert_eq!(record.identity.key.as_str(), key);
        }
        let large: Vec<u8> = (0..1 << 20).map(|at: u32| (at % 251) as u8).collect();
        let owner = own(&store, &claim("large")).await;
        store.complete(&owner, &outcome(&large)).await.unwrap();
        let record = store.get(&owner.id).await.unwrap().unwrap();
        assert_eq!(record.outcome(), Some(outcome(&large)));

        let identity = Identity {
            operation: Operation::new("Tests ").unwrap(),
            ..claim("k").identity
        };
        let other = ClaimRequest {
            id: RecordId::of(&identity),
            identity,
            ..claim("k")
        };
        own(&store, &other).await;
        let filter = Filter {
            operation: Some("Tests".into()),
            ..Filter::default()
        };
        let page = PageRequest {
            limit: 10,
            after: None,
        };
        let listed = store.list(&filter, &page).await.unwrap();
        assert_eq!(listed.records, []);
        database.drop().await;
    }
}

#[tokio::test]
#[ignore = "needs MariaDB: cargo xtask test runs it"]
async fn a_row_that_no_store_wrote_is_an_error_and_never_a_panic() {
    for database in Database::each().await {
        let store = database.store().await;
        let pool = database.pool(1).await;
        for (number, change) in [
            "state = 'done', ended_at = 9000000000000000",
            "state = 'completed', ended_at = 9000000000000000",
            "claim_id = x'00'",
            "claim_id = NULL",
            "fingerprint = x'01'",
            "operation = ''",
            "idempotency_key = 'ä'",
            "scope = 'another'",
            "attempt = 0",
            "retention = -1, lease_until = 9000000000000000",
            "on_crash = 'explode'",
            "payload = x'00'",
            "ended_at = 1",
        ]
        .into_iter()
        .enumerate()
        {
            let claim = claim(&format!("k{number}"));
            own(&store, &claim).await;
            execute(&pool, &format!("UPDATE idem_records SET {change}")).await;
            for error in [
                store.get(&claim.id).await.unwrap_err(),
                store.claim(&claim).await.unwrap_err(),
            ] {
                assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{change}: {error}");
            }
            execute(&pool, "DELETE FROM idem_records").await;
        }
        database.drop().await;
    }
}

/// A paused owner must not find its fencing token on another owner's record, even if the clock moves back.
#[tokio::test]
#[ignore = "needs MariaDB: cargo xtask test runs it"]
async fn fencing_tokens_increase_after_records_were_deleted() {
    for database in Database::each().await {
        let store = database.store().await;
        let pool = database.pool(1).await;
        let refused = ClaimRequest {
            on_crash: OnCrash::Refuse,
            ..claim("k")
        };
        let owner = own(&store, &refused).await;
        store.complete(&owner, &outcome(b"1")).await.unwrap();
        let ahead = owner.fencing_token.number() + HOUR.as_micros() as i64;
        execute(
            &pool,
            &format!("UPDATE idem_records SET fencing_token = {ahead}"),
        )
        .await;
        let record = store.get(&owner.id).await.unwrap().unwrap();
        assert_eq!(record.state, RecordState::Completed);
        let erased = store
            .resolve(&record.observation(), &Resolution::Erase)
            .await
            .unwrap();
        assert_eq!(erased, Resolved::Done);
        let next = own(&store, &claim("k")).await;
        assert!(
            next.fencing_token > FencingToken::from_number(ahead),
            "{next:?}"
        );
        let stored = store.get(&owner.id).await.unwrap().unwrap();
        assert_eq!(
            (stored.fencing_token, stored.attempt),
            (next.fencing_token, 1)
        );

        // Purged, not erased.
        execute(
            &pool,
            &format!(
                "UPDATE idem_records SET fencing_token = {}, lease_until = 1, retention = 1, purge_after = 2",
                ahead * 2
            ),
        )
        .await;
        assert_eq!(store.purge(10, Timestamp::MAX).await.unwrap().removed, 1);
        let next = own(&store, &claim("k")).await;
        assert!(
            next.fencing_token > FencingToken::from_number(ahead * 2),
            "{next:?}"
        );
        database.drop().await;
    }
}
