//! Properties that only the PostgreSQL store has: its tables, its errors, its isolation and the cost of a transition.

use std::sync::Arc;

use idem_runtime::error::{StoreError, StoreErrorKind};
use idem_runtime::record::{FencingToken, RecordState, Timestamp};
use idem_runtime::store::postgres::PostgresForm;
use idem_runtime::store::{ClaimOutcome, FencedWrite, Filter, PageRequest, Resolution};
use idem_runtime::{PostgresStore, Store, conformance};
use idem_tests::{backends, until};
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions};
use tokio::task::JoinSet;

use crate::records::{HOUR, claim, full_text, outcome, own};

mod clock;
mod costs;
mod demotion;
mod errors;
mod kept;
mod pooling;
mod portable;
mod privileges;
mod purging;
mod reservations;
mod settings;
mod statements;

/// A dedicated database for one test.
struct Database {
    /// Pool on the database that existed before.
    server: PgPool,
    name: String,
    options: PgConnectOptions,
}

impl Database {
    async fn new() -> Self {
        let made = backends::postgres().await.unwrap();
        let options = PgConnectOptions::clone(&made.connect_options());
        made.close().await;
        let name = options.get_database().unwrap().to_owned();
        let server = backends::variable(backends::POSTGRES).unwrap();
        let server = PgPoolOptions::new()
            .max_connections(2)
            .connect(&server)
            .await
            .unwrap();
        Self {
            server,
            name,
            options,
        }
    }

    fn url(&self) -> String {
        self.options.to_url_lossy().to_string()
    }

    async fn pool(&self, connections: u32) -> PgPool {
        pool(self.options.clone(), connections).await
    }

    async fn store(&self) -> PostgresStore {
        let store = PostgresStore::new(self.pool(8).await);
        store.migrate().await.unwrap();
        store
    }

    /// Not in `Drop`, which cannot await; a test that fails leaves its database for inspection.
    async fn drop(self) {
        let drop = format!("DROP DATABASE {} WITH (FORCE)", self.name);
        execute(&self.server, &drop).await;
    }
}

async fn pool(options: PgConnectOptions, connections: u32) -> PgPool {
    PgPoolOptions::new()
        .max_connections(connections)
        .test_before_acquire(false)
        .connect_with(options)
        .await
        .unwrap()
}

async fn execute(pool: &PgPool, statement: &str) {
    sqlx::raw_sql(AssertSqlSafe(statement.to_owned()))
        .execute(pool)
        .await
        .unwrap();
}

async fn number(pool: &PgPool, statement: &str) -> i64 {
    sqlx::query_scalar(AssertSqlSafe(statement.to_owned()))
        .fetch_one(pool)
        .await
        .unwrap()
}

fn assert_error(error: &StoreError, kind: StoreErrorKind, says: &str) {
    assert_eq!(error.kind(), kind, "{}", full_text(error));
    assert!(error.to_string().contains(says), "{error}");
    assert!(
        std::error::Error::source(error).is_some(),
        "{error} hides what caused it"
    );
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn every_conformance_case_holds() {
    let database = Database::new().await;
    let store = database.store().await;
    let report = conformance::run_all(Arc::new(store)).await.unwrap();
    assert_eq!(report.passed, conformance::cases().len());
    database.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn every_conformance_case_holds_where_the_default_isolation_is_serializable() {
    let database = Database::new().await;
    let set = format!(
        "ALTER DATABASE {} SET default_transaction_isolation = 'serializable'",
        database.name
    );
    execute(&database.server, &set).await;
    let store = database.store().await;
    every_case_holds_despite_conflicts(&store, PostgresForm::Standard).await;
    database.drop().await;
}

/// Runs every case where the server rolls back statements that conflict. It locks whole pages of a small table, and a
/// long write would conflict at each try with short ones of other cases. So the cases that run at the same time have
/// tables of their own, with names that SQL reserves.
async fn every_case_holds_despite_conflicts(store: &PostgresStore, form: PostgresForm) {
    const TABLES: [&str; 8] = [
        "order", "user", "table", "group", "select", "from", "where", "check",
    ];
    let mut running = JoinSet::new();
    for (first, table) in TABLES.into_iter().enumerate() {
        let store = store.clone().with_table(table).unwrap();
        store.migrate().await.unwrap();
        assert_eq!(store.form().await.unwrap(), Some(form));
        let store = Arc::new(store);
        running.spawn(async move {
            for case in conformance::cases()
                .iter()
                .skip(first)
                .step_by(TABLES.len())
            {
                assert!(case.applies_to(&*store), "{}", case.name());
                case.run(store.clone()).await.unwrap();
            }
        });
    }
    running.join_all().await;
}

/// The row of a claim is inserted before its commit, and the commit may fail: a claim that was rolled back is not
/// granted.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn a_claim_whose_commit_fails_is_an_error() {
    let database = Database::new().await;
    let store = database.store().await;
    let pool = database.pool(1).await;
    execute(
        &pool,
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not today'; END $$; \
         CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON idem_records DEFERRABLE INITIALLY DEFERRED \
         FOR EACH ROW EXECUTE FUNCTION refuse()",
    )
    .await;
    let refused = store.claim(&claim("k")).await.unwrap_err();
    assert!(
        full_text(&refused).contains("not today"),
        "{}",
        full_text(&refused)
    );
    assert_eq!(store.get(&claim("k").id).await.unwrap(), None);
    execute(&pool, "DROP TRIGGER refuse ON idem_records").await;
    own(&store, &claim("k")).await;
    database.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn of_concurrent_claims_one_is_granted_at_any_isolation() {
    for form in [PostgresForm::Standard, PostgresForm::Portable] {
        one_is_granted_at_any_isolation(form).await;
    }
}

async fn one_is_granted_at_any_isolation(form: PostgresForm) {
    let database = Database::new().await;
    let store = PostgresStore::new(database.pool(1).await).with_form(form);
    store.migrate().await.unwrap();
    for isolation in ["read committed", "repeatable read", "serializable"] {
        let options = database
            .options
            .clone()
            .options([("default_transaction_isolation", isolation)]);
        let store = PostgresStore::new(pool(options, 8).await);
        let mut claims = JoinSet::new();
        for key in 0..20 {
            for _ in 0..8 {
                let store = store.clone();
                let key = format!("{}-{key}", isolation.replace(' ', "-"));
                claims.spawn(async move {
                    let answer = store.claim(&claim(&key)).await;
                    let answer = answer.map_err(|error| full_text(&error)).unwrap();
                    u32::from(matches!(answer, ClaimOutcome::Granted(_)))
                });
            }
        }
        let granted: u32 = claims.join_all().await.into_iter().sum();
        assert_eq!(granted, 20, "{isolation}, {form:?}");
    }
    database.drop().await;
}

/// The claim must wait for the concurrent insert and then read again, because its own snapshot is older.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn a_claim_that_waited_for_a_concurrent_insert_finds_its_record() {
    let database = Database::new().await;
    let store = database.store().await;
    let pool = database.pool(2).await;
    let first = claim("k");
    own(&store, &first).await;
    execute(
        &pool,
        "CREATE TABLE kept AS TABLE idem_records; DELETE FROM idem_records",
    )
    .await;
    let mut inserting = pool.begin().await.unwrap();
    sqlx::query("INSERT INTO idem_records SELECT * FROM kept")
        .execute(&mut *inserting)
        .await
        .unwrap();
    let waiting = tokio::spawn(async move { store.claim(&claim("k")).await });
    until(async || number(&pool, WAITING).await == 1).await;
    inserting.commit().await.unwrap();
    let answer = waiting.await.unwrap().unwrap();
    assert!(
        matches!(&answer, ClaimOutcome::Existing(record) if record.claim_id == Some(first.claim_id)),
        "{answer:?}"
    );
    database.drop().await;
}

const WAITING: &str = "SELECT count(*) FROM pg_stat_activity \
     WHERE wait_event_type = 'Lock' AND datname = current_database()";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn ten_stores_migrate_concurrently() {
    let database = Database::new().await;
    let mut migrating = JoinSet::new();
    for number in 0..10 {
        let url = database.url();
        migrating.spawn(async move {
            let store = PostgresStore::connect(&url).await?;
            store.migrate().await?;
            store.claim(&claim(&format!("k{number}"))).await?;
            Ok::<_, StoreError>(())
        });
    }
    for migrated in migrating.join_all().await {
        migrated.map_err(|error| full_text(&error)).unwrap();
    }
    let store = PostgresStore::connect(&database.url()).await.unwrap();
    let page = PageRequest {
        limit: 100,
        after: None,
    };
    let listed = store.list(&Filter::default(), &page).await.unwrap();
    assert_eq!(listed.records.len(), 10);
    let pool = database.pool(1).await;
    let versions = "SELECT count(*) FROM idem_records_migrations";
    assert_eq!(number(&pool, versions).await, 7);
    database.drop().await;
}

#[tokio::test]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn tables_of_other_names_and_schemas_share_a_database() {
    let database = Database::new().await;
    let store = database.store().await;
    let other = store.clone().with_table("order").unwrap();
    let error = other.claim(&claim("k")).await.unwrap_err();
    assert_error(&error, StoreErrorKind::Schema, "run `migrate()`");
    other.migrate().await.unwrap();
    let apart = store.clone().with_schema("Apart").unwrap();
    let error = apart.migrate().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Schema);
    assert!(error.to_string().contains("`Apart`"), "{error}");
    let pool = database.pool(1).await;
    execute(&pool, "CREATE SCHEMA \"Apart\"").await;
    apart.migrate().await.unwrap();

    own(&store, &claim("k")).await;
    for another in [&other, &apart] {
        assert_eq!(another.get(&claim("k").id).await.unwrap(), None);
        own(another, &claim("k")).await;
    }
    execute(&pool, "DELETE FROM \"Apart\".idem_records").await;
    for (expected, table) in [
        (0, "idem_records"),
        (0, "order"),
        (1, "Apart\".\"idem_records"),
    ] {
        let rows = format!("SELECT count(*) FROM \"{table}_fencing_floor\"");
        assert_eq!(number(&pool, &rows).await, expected, "{table}");
    }
    for name in ["", "1st", "a b", "a;b", "x\"", &"x".repeat(49)] {
        let error = store.clone().with_table(name).unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Schema, "{name:?}");
        assert!(store.clone().with_schema(name).is_err(), "{name:?}");
    }
    database.drop().await;
}

#[tokio::test]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn tables_of_a_later_release_are_not_changed() {
    let database = Database::new().await;
    let store = database.store().await;
    let pool = database.pool(1).await;
    execute(
        &pool,
        "INSERT INTO idem_records_migrations (version, applied_at) VALUES (98, 0), (99, 0)",
    )
    .await;
    let error = store.migrate().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Schema);
    assert!(error.to_string().contains("version 9"), "{error}");
    database.drop().await;
}

#[tokio::test]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn errors_of_opening_name_the_remedy() {
    let database = Database::new().await;
    let open = async |options: PgConnectOptions| {
        let url = options.to_url_lossy().to_string();
        PostgresStore::connect(&url).await.unwrap_err()
    };
    let options = || database.options.clone();
    let error = open(options().username("idem_nobody")).await;
    assert_error(&error, StoreErrorKind::Denied, "check user name");
    let error = open(options().database("idem_nowhere")).await;
    assert_error(&error, StoreErrorKind::Schema, "no such database");
    // The port of a service that no longer exists, on which an ordinary user cannot listen.
    let error = open(options().host("127.0.0.1").port(1)).await;
    assert_error(&error, StoreErrorKind::Unavailable, "connection");
    assert!(error.is_retryable());
    let error = PostgresStore::connect("no url").await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Other);
    assert!(
        error.to_string().contains("begins with `postgres://`"),
        "{error}"
    );

    let store = PostgresStore::new(database.pool(1).await);
    let error = store.claim(&claim("k")).await.unwrap_err();
    assert_error(&error, StoreErrorKind::Schema, "run `migrate()`");
    assert!(!error.is_retryable());
    let error = store.purge(10, Timestamp::MAX).await.unwrap_err();
    assert_error(&error, StoreErrorKind::Schema, "run `migrate()`");

    store.migrate().await.unwrap();
    let role = format!("{}_role", database.name);
    let pool = database.pool(1).await;
    execute(&pool, &format!("CREATE ROLE {role}")).await;
    execute(&pool, &format!("SET ROLE {role}")).await;
    let error = PostgresStore::new(pool.clone())
        .claim(&claim("k"))
        .await
        .unwrap_err();
    assert_error(&error, StoreErrorKind::Denied, "lacks a privilege");
    execute(&pool, &format!("RESET ROLE; DROP ROLE {role}")).await;

    let options = options().options([("statement_timeout", "50")]);
    let impatient = PostgresStore::new(self::pool(options, 1).await);
    let mut locking = pool.begin().await.unwrap();
    sqlx::query("LOCK TABLE idem_records")
        .execute(&mut *locking)
        .await
        .unwrap();
    let error = impatient.claim(&claim("k")).await.unwrap_err();
    assert_error(&error, StoreErrorKind::Timeout, "statement_timeout");
    locking.rollback().await.unwrap();
    database.drop().await;
}

#[tokio::test]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn a_read_only_database_replays_and_claims_nothing() {
    let database = Database::new().await;
    let store = database.store().await;
    let done = claim("done");
    let owner = own(&store, &done).await;
    store.complete(&owner, &outcome(b"1")).await.unwrap();

    let options = database
        .options
        .clone()
        .options([("default_transaction_read_only", "on")]);
    let reader = PostgresStore::new(pool(options, 1).await);
    reader.migrate().await.unwrap();
    let answer = reader.claim(&claim("done")).await.unwrap();
    assert!(
        matches!(answer, ClaimOutcome::Existing(record) if record.outcome() == Some(outcome(b"1")))
    );
    let error = reader.claim(&claim("new")).await.unwrap_err();
    assert_error(&error, StoreErrorKind::ReadOnly, "connect to the primary");
    database.drop().await;
}

#[tokio::test]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn a_row_that_no_store_wrote_is_an_error_and_never_a_panic() {
    let database = Database::new().await;
    let store = database.store().await;
    let pool = database.pool(1).await;
    for (number, change) in [
        "state = 'done'",
        "state = 'completed', ended_at = 9000000000000000",
        "state = 'released', ended_at = 9000000000000000",
        "claim_id = '\\x00'",
        "claim_id = NULL",
        "fingerprint = '\\x01'",
        "operation = ''",
        "idempotency_key = 'ä'",
        "idempotency_key = 'another'",
        "scope = 'another'",
        "attempt = 0",
        "attempt = 4294967296",
        "retention = -1, lease_until = 9000000000000000",
        "on_crash = 'explode'",
        "payload = '\\x00'",
        "codec = 'json/1'",
        "ended_at = 1",
    ]
    .into_iter()
    .enumerate()
    {
        let claim = claim(&format!("k{number}"));
        own(&store, &claim).await;
        let change =
            format!("UPDATE idem_records SET {change} WHERE idempotency_key = 'k{number}'");
        execute(&pool, &change).await;
        for error in [
            store.get(&claim.id).await.unwrap_err(),
            store.claim(&claim).await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{change}: {error}");
            assert!(!error.is_retryable());
        }
        execute(&pool, "DELETE FROM idem_records").await;
    }
    database.drop().await;
}

#[tokio::test]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn a_large_outcome_is_read_back_unchanged() {
    let database = Database::new().await;
    let store = database.store().await;
    let bytes: Vec<u8> = (0..1_048_576_u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let owner = own(&store, &claim("k")).await;
    store.complete(&owner, &outcome(&bytes)).await.unwrap();
    let answer = store.claim(&claim("k")).await.unwrap();
    assert!(
        matches!(answer, ClaimOutcome::Existing(record) if record.outcome() == Some(outcome(&bytes)))
    );
    database.drop().await;
}

#[tokio::test]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn fencing_tokens_never_decrease_with_the_clock_or_a_deletion() {
    let database = Database::new().await;
    let store = database.store().await;
    let pool = database.pool(1).await;
    own(&store, &claim("k")).await;
    // As if the clock had been an hour ahead at the time of the claim.
    execute(
        &pool,
        "UPDATE idem_records SET fencing_token = fencing_token + 3600000000",
    )
    .await;
    let before = store.get(&claim("k").id).await.unwrap().unwrap();
    execute(&pool, "DELETE FROM idem_records").await;
    let after = own(&store, &claim("k")).await;
    assert!(after.fencing_token > before.fencing_token);

    // A lower token that is deleted later does not lower it.
    let other = own(&store, &claim("other")).await;
    execute(
        &pool,
        "UPDATE idem_records SET fencing_token = 1 WHERE idempotency_key = 'other'; \
         DELETE FROM idem_records WHERE idempotency_key = 'other'",
    )
    .await;
    let again = own(&store, &claim("other")).await;
    assert!(
        again.fencing_token > before.fencing_token
            && other.fencing_token > FencingToken::from_number(1)
    );
    database.drop().await;
}

#[tokio::test]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn a_cut_connection_fails_only_one_transition() {
    let database = Database::new().await;
    let pool = database.pool(1).await;
    let store = PostgresStore::new(pool.clone());
    store.migrate().await.unwrap();
    let owner = own(&store, &claim("k")).await;
    // A connection that is cut before it is back in the pool is not used again.
    until(async || pool.num_idle() == 1).await;
    let connections = async |counted: &str| {
        let of_database = format!("WHERE datname = '{}'", database.name);
        let count = format!("SELECT count({counted}) FROM pg_stat_activity {of_database}");
        number(&database.server, &count).await
    };
    // The connections that the migration closed may still be ending.
    until(async || connections("pid").await == 1).await;
    assert_eq!(connections("pg_terminate_backend(pid)").await, 1);
    // The server signals the connection, which ends later.
    until(async || connections("pid").await == 0).await;
    let error = store.complete(&owner, &outcome(b"1")).await.unwrap_err();
    assert_eq!(
        error.kind(),
        StoreErrorKind::Unavailable,
        "{}",
        full_text(&error)
    );
    let done = store.complete(&owner, &outcome(b"1")).await.unwrap();
    assert_eq!(done, FencedWrite::Applied);
    database.drop().await;
}

#[tokio::test]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn an_erased_record_may_be_claimed_and_a_stale_observation_erases_nothing() {
    let database = Database::new().await;
    let store = database.store().await;
    let owner = own(&store, &claim("k")).await;
    store.complete(&owner, &outcome(b"1")).await.unwrap();
    let seen = store.get(&owner.id).await.unwrap().unwrap().observation();
    store.resolve(&seen, &Resolution::Erase).await.unwrap();
    let next = own(&store, &claim("k")).await;
    assert!(next.fencing_token > owner.fencing_token);
    store.resolve(&seen, &Resolution::Erase).await.unwrap();
    let record = store.get(&owner.id).await.unwrap().unwrap();
    assert_eq!(record.state, RecordState::Running);
    store.renew(&next, HOUR).await.unwrap();
    database.drop().await;
}

/// A schema that is renamed, or copied under another name, keeps working with its own records.
#[tokio::test]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn a_schema_may_be_renamed_and_copied() {
    let database = Database::new().await;
    let pool = database.pool(2).await;
    execute(&pool, "CREATE SCHEMA prod").await;
    let store = |schema| {
        PostgresStore::new(pool.clone())
            .with_schema(schema)
            .unwrap()
    };
    store("prod").migrate().await.unwrap();
    own(&store("prod"), &claim("before")).await;

    // When it is renamed, and another schema is created from its definitions, with the function bound to a schema of
    // the old name.
    execute(&pool, "ALTER SCHEMA prod RENAME TO shop").await;
    own(&store("shop"), &claim("renamed")).await;
    execute(&pool, "CREATE SCHEMA staging").await;
    store("staging").migrate().await.unwrap();
    execute(
        &pool,
        "ALTER FUNCTION staging.idem_records_begin SET search_path TO shop; \
         ALTER FUNCTION staging.idem_records_reserve SET search_path TO shop",
    )
    .await;
    own(&store("staging"), &claim("copied")).await;

    // Then each schema has its own records, and completes them.
    for (schema, records) in [("shop", 2), ("staging", 1)] {
        let count = format!("SELECT count(*) FROM {schema}.idem_records");
        assert_eq!(number(&pool, &count).await, records, "{schema}");
        let owner = own(&store(schema), &claim("more")).await;
        let completed = store(schema).complete(&owner, &outcome(b"1")).await;
        assert_eq!(completed.unwrap(), FencedWrite::Applied);
        reservations::run(&store(schema), &claim("transaction")).await;
        assert_eq!(number(&pool, &count).await, records + 2, "{schema}");
    }
    database.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn a_locked_record_does_not_block_other_records() {
    let database = Database::new().await;
    crate::batches::a_locked_record_does_not_block_other_records(&database.store().await).await;
    database.drop().await;
}
