//! Messages that a network loses, and transactions that a database rolls back itself.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join;
use idem_runtime::advanced::RunOptions;
use idem_runtime::{Attempt, Call, Error, Idem, MySqlStore, PostgresStore};
use idem_servers::{Options, Server};
use idem_tests::proxy::{Loss, Proxy};
use idem_tests::sql::{AnyPool, Sql as _};
use idem_tests::{on_stores, places};
use sqlx::migrate::Migrator;
use sqlx::mysql::MySqlPoolOptions;
use sqlx::postgres::PgPoolOptions;
use sqlx::{Executor as _, PgPool};
use tokio::sync::Barrier;

use super::Failure;
use super::places::{Database, Orders, TABLE};

on_stores! { [versions] Database::open: the_applications_migrations_create_the_tables }

fn call(key: &str) -> Call {
    Call::new("shop.order", key, &5, Duration::from_secs(600))
}

/// A store behind a proxy, on one connection.
struct Line<S: Orders> {
    server: Server,
    proxy: Arc<Proxy>,
    idem: Idem<S>,
    /// The table of orders, qualified with the database in the URL.
    table: &'static str,
}

impl<S: Orders> Line<S> {
    /// Makes an order, and loses this message of the commit. The completion, which precedes the commit, is not lost.
    async fn order(&self, key: &str, loss: Loss) -> Result<u64, Failure> {
        let body = async |tx: &mut S::Connection, _| {
            S::order(tx, key, 5).await?;
            self.proxy.lose_later(loss, 1);
            Ok(7)
        };
        self.idem
            .run_in_transaction(call(key), RunOptions::new(), body)
            .await
    }

    /// Makes an order in a step of a leased call, and loses this message of its commit. The statement that saves the
    /// step, which precedes the commit, is not lost.
    async fn step(&self, key: &str, loss: Loss) -> Result<u64, Failure> {
        let body = async |attempt: Attempt| {
            let step = attempt.step_tx(&self.idem, "order", async |tx: &mut S::Connection| {
                S::order(tx, key, 5).await?;
                self.proxy.lose_later(loss, 1);
                Ok::<_, Failure>(7)
            });
            step.await
        };
        self.idem.run_with(call(key), RunOptions::new(), body).await
    }

    async fn the_outcome_of_a_lost_step_commit_is_determined(&self) {
        assert_eq!(self.step("step-warm", Loss::None).await.unwrap(), 7);

        // When the commit was done and its acknowledgement is lost, then the step is done, and its value is saved.
        assert_eq!(self.step("step-reply", Loss::Reply).await.unwrap(), 7);
        assert!(self.proxy.has_lost());
        assert_eq!(self.orders("step-reply"), "1");

        // When the commit never arrived, then the step has not happened, and nothing is unknown: the key is free.
        assert_eq!(self.step("step-again", Loss::None).await.unwrap(), 7);
        let error = super::idempotency(self.step("step-request", Loss::Request).await);
        assert!(self.proxy.has_lost());
        assert!(error.is_retryable(), "{error:?}");
        assert_eq!(self.orders("step-request"), "0");
        assert_eq!(self.step("step-request", Loss::None).await.unwrap(), 7);
        assert_eq!(self.orders("step-request"), "1");
    }

    fn orders(&self, key: &str) -> String {
        let count = format!("SELECT count(*) FROM {} WHERE id = '{key}'", self.table);
        let said = self.server.query(&count).unwrap();
        said.lines().last().unwrap_or_default().trim().to_owned()
    }

    async fn the_outcome_of_a_lost_commit_is_determined(&self) {
        // From now on the statements are prepared, so that each is one message.
        assert_eq!(self.order("warm", Loss::None).await.unwrap(), 7);

        // When the commit was done and its acknowledgement is lost, then the caller gets its value.
        assert_eq!(self.order("reply", Loss::Reply).await.unwrap(), 7);
        assert!(self.proxy.has_lost());
        assert_eq!(self.orders("reply"), "1");

        // When the commit never arrived, then nothing has happened, and the caller may retry.
        assert_eq!(self.order("again", Loss::None).await.unwrap(), 7);
        let error = super::idempotency(self.order("request", Loss::Request).await);
        assert!(self.proxy.has_lost());
        assert!(error.is_retryable(), "{error:?}");
        let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
        loop {
            // The server may not have noticed yet that the connection is gone.
            match self.order("request", Loss::None).await {
                Err(Failure::Idempotency(error)) if error.is_retryable() => {
                    assert!(tokio::time::Instant::now() < deadline, "{error:?}");
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                answer => break assert_eq!(answer.unwrap(), 7),
            }
        }
        assert_eq!(self.orders("request"), "1");
    }
}

async fn through_proxy(server: &Server) -> (Arc<Proxy>, String) {
    let address = SocketAddr::from(([127, 0, 0, 1], server.port()));
    let proxy = Proxy::start(address).await.unwrap();
    let [from, to] = [address.port(), proxy.address().port()].map(|port| format!(":{port}"));
    (Arc::new(proxy), server.url().replace(&from, &to))
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn the_outcome_of_a_lost_commit_is_determined_on_postgres() {
    let server = Server::postgres(&Options::fast()).unwrap();
    let (proxy, url) = through_proxy(&server).await;
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .test_before_acquire(false)
        .connect(&url)
        .await
        .unwrap();
    pool.execute(TABLE).await.unwrap();
    let store = PostgresStore::new(pool);
    store.migrate().await.unwrap();
    let idem = Idem::new(store);
    let line = Line {
        server,
        proxy,
        idem,
        table: "public.orders",
    };
    line.the_outcome_of_a_lost_commit_is_determined().await;
    line.the_outcome_of_a_lost_step_commit_is_determined().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MariaDB: cargo xtask test runs it"]
async fn the_outcome_of_a_lost_commit_is_determined_on_maria_db() {
    outcomes_are_determined_on(Server::maria_db(&Options::fast()).unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MySQL: cargo xtask test runs it"]
async fn on_mysql_the_outcome_of_a_lost_commit_is_determined() {
    outcomes_are_determined_on(Server::my_sql(&Options::fast()).unwrap()).await;
}

/// On MariaDB or MySQL.
async fn outcomes_are_determined_on(server: Server) {
    let (proxy, url) = through_proxy(&server).await;
    let pool = MySqlPoolOptions::new()
        .max_connections(1)
        .test_before_acquire(false)
        .connect(&url)
        .await
        .unwrap();
    pool.execute(TABLE).await.unwrap();
    let store = MySqlStore::new(pool);
    store.migrate().await.unwrap();
    let idem = Idem::new(store);
    let line = Line {
        server,
        proxy,
        idem,
        table: "mysql.orders",
    };
    line.the_outcome_of_a_lost_commit_is_determined().await;
    line.the_outcome_of_a_lost_step_commit_is_determined().await;
}

/// Makes an order, but only if there are fewer than two.
async fn order_within_stock(
    idem: &Idem<PostgresStore>,
    key: &str,
    together: Option<&Barrier>,
) -> Result<i64, Failure> {
    let body = async |tx: &mut sqlx::PgConnection, _| {
        let taken: i64 = sqlx::query_scalar("SELECT count(*) FROM orders")
            .fetch_one(&mut *tx)
            .await?;
        PostgresStore::order(tx, key, 5).await?;
        if let Some(together) = together {
            together.wait().await;
        }
        Ok(taken)
    };
    idem.run_in_transaction(call(key), RunOptions::new(), body)
        .await
}

/// Two transactions read rows that the other writes: the database lets one of them commit. It chooses the statement at
/// which the other one fails, and each of these statements belongs to the runtime or to the body.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn a_serialization_failure_rolls_back_the_claim() {
    rolls_back_the_claim(Database::open(places::postgres()).await).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn a_serialization_failure_rolls_back_the_claim_in_the_portable_form() {
    rolls_back_the_claim(Database::open(places::postgres_portable()).await).await;
}

async fn rolls_back_the_claim(place: Database<PostgresStore>) {
    let serializable = PgPoolOptions::new().after_connect(|connection, _| {
        Box::pin(async move {
            let set = "SET default_transaction_isolation = 'serializable'";
            connection.execute(set).await.map(drop)
        })
    });
    let options = PostgresStore::options(&place.pool);
    let pool: PgPool = serializable.connect_with(options).await.unwrap();
    let idem = Idem::new(PostgresStore::new(pool));
    idem.store().migrate().await.unwrap();
    order_within_stock(&idem, "warm", None).await.unwrap();

    let together = Barrier::new(2);
    let (a, b) = join(
        order_within_stock(&idem, "a", Some(&together)),
        order_within_stock(&idem, "b", Some(&together)),
    )
    .await;
    let (key, lost) = match (a, b) {
        (Err(lost), Ok(1)) => ("a", lost),
        (Ok(1), Err(lost)) => ("b", lost),
        both => panic!("one of them cannot be: {both:?}"),
    };
    let Failure::Idempotency(Error::Store(error)) = lost else {
        panic!("{lost:?}");
    };
    assert!(error.is_retryable(), "{error:?}");
    assert_eq!(place.orders(key).await, 0);
    assert_eq!(order_within_stock(&idem, key, None).await.unwrap(), 2);
    assert_eq!(place.orders(key).await, 1);
}

/// The application runs this crate's SQL among its own migrations. The store is used before it has checked its tables
/// itself, and afterwards.
async fn the_applications_migrations_create_the_tables<S: Orders>(place: Database<S>) {
    let dialect = match S::any(&place.pool) {
        AnyPool::Sqlite(_) => "sqlite",
        AnyPool::Postgres(_) => "postgres",
        AnyPool::MySql(_) => "mysql",
    };
    let migrations = Path::new(env!("CARGO_MANIFEST_DIR")).join("../idem-runtime/migrations");
    let migrator = Migrator::new(migrations.join(dialect)).await.unwrap();
    match S::any(&place.pool) {
        AnyPool::Sqlite(pool) => migrator.run(&pool).await.unwrap(),
        AnyPool::Postgres(pool) => migrator.run(&pool).await.unwrap(),
        AnyPool::MySql(pool) => migrator.run(&pool).await.unwrap(),
    }
    let idem = Idem::new(place.store());
    for key in ["a", "b"] {
        let ordered: Result<u64, Failure> = idem
            .run_in_transaction(call(key), RunOptions::new(), async |tx, _| {
                S::order(tx, key, 5).await?;
                Ok(1)
            })
            .await;
        assert_eq!(ordered.unwrap(), 1);
        let stepped: Result<u64, Failure> = idem
            .run_with(
                call("leased"),
                RunOptions::new(),
                async |attempt: Attempt| attempt.step("one", async || Ok(2)).await,
            )
            .await;
        assert_eq!(stepped.unwrap(), 2);
        idem.store().create_tables().await.unwrap();
        assert_eq!(place.orders(key).await, 1);
    }
}
