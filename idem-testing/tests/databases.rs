//! Functions, services and consumers on each SQL database: right ones, in which a check must find nothing, and a wrong one,
//! which it must find. Servers are found through the variables that `cargo xtask servers` sets.

#![cfg(all(feature = "http", feature = "sqlite"))]
#![expect(
    clippy::unwrap_used,
    reason = "tests that cannot reach their server fail"
)]

use std::str::FromStr as _;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Request, StatusCode};
use axum::routing::post;
use idem_runtime::http::{IdempotencyKey, IdempotencyLayer, Unscoped, unscoped};
use idem_runtime::{
    Error, Idem, Key, MySqlStore, PostgresStore, Reconciled, Recovery, SqliteStore, idempotent,
};
use idem_testing::{
    Finding, Fresh, Provider, ProviderError, check_consumer_on, check_on, check_router_on,
};
use serde::{Deserialize, Serialize};
use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Executor as _};

#[derive(Debug, thiserror::Error, Serialize, Deserialize)]
enum Fail {
    #[error("the provider failed")]
    Provider,
    #[error("the database failed")]
    #[serde(skip)]
    Database(#[from] sqlx::Error),
    #[error(transparent)]
    #[serde(skip)]
    Idem(#[from] Error),
}

impl From<ProviderError> for Fail {
    fn from(_: ProviderError) -> Self {
        Self::Provider
    }
}

type AnyError = Box<dyn std::error::Error + Send + Sync>;

/// Removes what an earlier schedule has written.
const CLEAN: &str = "DELETE FROM idem_records; DELETE FROM idem_records_steps; DELETE FROM idem_records_recovery; \
                     CREATE TABLE IF NOT EXISTS orders (id VARCHAR(40)); DELETE FROM orders";

/// Name of a new database.
fn new_name() -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
    format!("idem_test_{}_{number}", since.as_nanos())
}

fn url(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| panic!("{variable}: `cargo xtask servers` sets it"))
}

fn wait<T>(future: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().unwrap().block_on(future)
}

fn fresh_sqlite() -> Fresh<SqliteStore> {
    Fresh::new(async || {
        let store = SqliteStore::in_memory().await?;
        store.pool().execute(CLEAN).await?;
        Ok(store)
    })
}

fn fresh_postgres() -> Fresh<PostgresStore> {
    let options = PgConnectOptions::from_str(&url("IDEM_TEST_POSTGRES_URL")).unwrap();
    let name = new_name();
    let create = AssertSqlSafe(format!("CREATE DATABASE {name}"));
    wait(async { options.connect().await.unwrap().execute(create).await }).unwrap();
    let options = options.database(&name);
    Fresh::new(async move || {
        let pool = PgPoolOptions::new().max_connections(8);
        let store = PostgresStore::new(pool.connect_with(options.clone()).await?);
        store.migrate().await?;
        store.pool().execute(CLEAN).await?;
        Ok(store)
    })
}

fn fresh_mysql(variable: &str) -> Fresh<MySqlStore> {
    let options = MySqlConnectOptions::from_str(&url(variable)).unwrap();
    let name = new_name();
    let create = AssertSqlSafe(format!("CREATE DATABASE {name}"));
    wait(async { options.connect().await.unwrap().execute(create).await }).unwrap();
    let options = options.database(&name);
    Fresh::new(async move || {
        let pool = MySqlPoolOptions::new().max_connections(8);
        let store = MySqlStore::new(pool.connect_with(options.clone()).await?);
        store.migrate().await?;
        store.pool().execute(CLEAN).await?;
        Ok(store)
    })
}

macro_rules! databases {
    ($($(#[$attribute:meta])* $name:ident: $store:ty = $fresh:expr, $insert:literal;)+) => {$(
        mod $name {
            use super::*;

            type Database = $store;
            const INSERT: &str = $insert;

            fn database() -> Fresh<Database> {
                let fresh: Fresh<Database> = $fresh;
                fresh.effects(async |store: &Database| {
                    let orders = sqlx::query_scalar::<_, i64>("SELECT count(*) FROM orders");
                    Ok::<_, AnyError>(orders.fetch_one(store.pool()).await?.unsigned_abs())
                })
            }

            #[idempotent(key = order, ttl = "24h", name = "d.place", store = idem, tx = tx)]
            async fn place(idem: &Idem<Database>, order: &str, cents: u64) -> Result<u64, Fail> {
                sqlx::query(INSERT).bind(order).execute(&mut *tx).await?;
                Ok(cents)
            }

            #[test]
            $(#[$attribute])*
            fn an_order_in_a_transaction() {
                check_on(database(), async |idem| place(&idem, "order-1", 500).await)
                    .other_request(async |idem| place(&idem, "order-1", 900).await)
                    .other_call(async |idem| place(&idem, "order-2", 500).await)
                    .same_result()
                    .assert_exactly_once();
            }

            #[idempotent(key = order, ttl = "24h", name = "d.checkout", store = idem, attempt = attempt, skip(bank),
                         recover_with = order)]
            async fn checkout(idem: &Idem<Database>, bank: &Provider, order: &str) -> Result<u64, Fail> {
                let key = attempt.step_downstream_key("charge");
                let charge = async || Ok::<_, Fail>(bank.send(key.as_str(), "charge").await?);
                let receipt = attempt.step("charge", charge).await?;
                let enter = async |tx: &mut <Database as idem_runtime::store::TransactionalStore>::Connection| {
                    sqlx::query(INSERT).bind(order).execute(&mut *tx).await?;
                    Ok::<_, Fail>(())
                };
                attempt.step_tx(idem, "enter", enter).await?;
                Ok(receipt)
            }

            #[test]
            $(#[$attribute])*
            fn a_checkout_in_steps_that_is_recovered() {
                let bank = Provider::new("bank");
                check_on(database(), async |idem| checkout(&idem, &bank, "order-1").await)
                    .provider(&bank)
                    .recovery(|idem| {
                        let (of, bank) = (idem.clone(), bank.clone());
                        Recovery::new(idem).on("d.checkout", move |order: String| {
                            let (idem, bank) = (of.clone(), bank.clone());
                            async move { checkout(&idem, &bank, &order).await }
                        })
                    })
                    .assert_at_least_once_with_downstream_key();
            }

            #[idempotent(key = order, ttl = "24h", name = "d.print", store = idem, on_crash = refuse, skip(printer))]
            async fn print(idem: &Idem<Database>, printer: &Provider, order: &str) -> Result<u64, Fail> {
                Ok(printer.send_without_key(format!("label for {order}")).await?)
            }

            #[test]
            $(#[$attribute])*
            fn a_label_at_most_once() {
                let printer = Provider::without_keys("printer");
                check_on(database(), async |idem| print(&idem, &printer, "order-1").await)
                    .provider(&printer)
                    .assert_at_most_once();
            }

            #[idempotent(key = order, ttl = "24h", name = "d.ask", store = idem, attempt = attempt, skip(printer),
                         on_crash = reconcile(ask(printer, order)))]
            async fn print_or_ask(idem: &Idem<Database>, printer: &Provider, order: &str) -> Result<u64, Fail> {
                if !attempt.is_live() {
                    return Err(Error::LeaseLost.into());
                }
                Ok(printer.record(None, format!("label for {order}"))?)
            }

            async fn ask(printer: &Provider, order: &str) -> Result<Reconciled<u64>, Fail> {
                let label = printer.find(&format!("label for {order}"));
                Ok(label.map_or(Reconciled::NotDone, Reconciled::Done))
            }

            #[test]
            $(#[$attribute])*
            fn a_label_that_looks_at_its_lease() {
                let printer = Provider::without_keys("printer");
                check_on(database(), async |idem| print_or_ask(&idem, &printer, "order-1").await)
                    .provider(&printer)
                    .assert_promised();
            }

            #[test]
            $(#[$attribute])*
            fn deposits_of_a_queue() {
                check_consumer_on(
                    database(),
                    async |idem, (id, cents)| place(&idem, id, cents).await,
                    [("message-1", 500), ("message-2", 700), ("message-3", 500)],
                )
                .assert_exactly_once();
            }

            async fn extracted(
                State(idem): State<Idem<Database>>,
                key: IdempotencyKey<Unscoped>,
                body: String,
            ) -> Result<String, StatusCode> {
                let key: &Key = &key;
                let placed = place(&idem, key.as_str(), body.len() as u64).await;
                let placed = placed.map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
                Ok(placed.to_string())
            }

            #[test]
            $(#[$attribute])*
            fn a_service_with_the_extractor() {
                let app = |idem| Router::new().route("/orders", post(extracted)).with_state(idem);
                check_router_on(database(), app, request).assert_exactly_once();
            }

            #[test]
            $(#[$attribute])*
            fn a_service_behind_the_layer() {
                let bank = Provider::new("bank");
                let app = |idem: Idem<Database>| {
                    let day = Duration::from_secs(24 * 3600);
                    let layer = IdempotencyLayer::builder(&idem, "orders", day, unscoped());
                    let router = Router::new().route("/orders", post(forwarded));
                    router.layer(layer.build().unwrap()).with_state(bank.clone())
                };
                check_router_on(database(), app, request)
                    .provider(&bank)
                    .assert_at_least_once_with_downstream_key();
            }

            #[idempotent(key = order, ttl = "24h", name = "d.outside", store = idem, tx = tx, skip(bank))]
            async fn place_and_charge(idem: &Idem<Database>, bank: &Provider, order: &str) -> Result<(), Fail> {
                bank.send_without_key("charge").await?; // a mistake
                sqlx::query(INSERT).bind(order).execute(&mut *tx).await?;
                Ok(())
            }

            #[test]
            $(#[$attribute])*
            fn a_request_in_a_transaction_is_found() {
                let bank = Provider::new("bank");
                let place = async |idem| place_and_charge(&idem, &bank, "order-1").await;
                let report = check_on(database(), place).provider(&bank).report();
                let found: Vec<_> = report.findings.iter().map(|it| it.finding).collect();
                assert_eq!(found, [Finding::EffectOutsideTransaction], "{report}");
                // One way to undo a transaction is enough to show the mistake.
                let undone = check_on(database(), place).provider(&bank);
                let undone = undone.only("transaction undone before store call 2").report();
                assert!(undone.has(Finding::EffectOutsideTransaction), "{undone}");
            }
        }
    )+};
}

databases! {
    sqlite: SqliteStore = fresh_sqlite(), "INSERT INTO orders VALUES (?)";
    #[ignore = "needs PostgreSQL: `cargo xtask test testing` runs it"]
    postgres: PostgresStore = fresh_postgres(), "INSERT INTO orders VALUES ($1)";
    #[ignore = "needs MySQL: `cargo xtask test testing` runs it"]
    mysql: MySqlStore = fresh_mysql("IDEM_TEST_MYSQL_URL"), "INSERT INTO orders VALUES (?)";
    #[ignore = "needs MariaDB: `cargo xtask test testing` runs it"]
    mariadb: MySqlStore = fresh_mysql("IDEM_TEST_MARIADB_URL"), "INSERT INTO orders VALUES (?)";
}

fn request() -> Request<Body> {
    let request = Request::post("/orders").header("Idempotency-Key", "\"order-1\"");
    request.body(Body::from("a lamp")).unwrap()
}

/// Charges with the key of the request, which is the same in each attempt.
async fn forwarded(State(bank): State<Provider>, headers: HeaderMap) -> Result<String, StatusCode> {
    let key = headers["idempotency-key"].to_str().unwrap_or_default();
    let receipt = bank.send(key, "charge").await;
    Ok(receipt.map_err(|_| StatusCode::BAD_GATEWAY)?.to_string())
}

#[idempotent(key = order, ttl = "24h", name = "d.late", store = idem, tx = tx)]
async fn place_slowly(idem: &Idem<PostgresStore>, order: &str) -> Result<(), Fail> {
    let insert = sqlx::query("INSERT INTO orders VALUES ($1)").bind(order);
    insert.execute(&mut *tx).await?;
    // If the call is dropped here, the server undoes its transaction when this has ended.
    sqlx::query("SELECT pg_sleep(0.3)")
        .execute(&mut *tx)
        .await?;
    Ok(())
}

#[test]
#[ignore = "needs PostgreSQL: `cargo xtask test testing` runs it"]
fn a_transaction_that_ends_late_is_waited_for() {
    let database = || {
        fresh_postgres().effects(async |store: &PostgresStore| {
            let orders = sqlx::query_scalar::<_, i64>("SELECT count(*) FROM orders");
            Ok::<_, AnyError>(orders.fetch_one(store.pool()).await?.unsigned_abs())
        })
    };
    for poll in 2..=6 {
        let check = check_on(database(), async |idem| {
            place_slowly(&idem, "order-1").await
        });
        let report = check.only(&format!("dropped after poll {poll}")).report();
        assert!(
            report.findings.is_empty() && report.problem.is_none(),
            "{report}"
        );
    }
}
