//! The servers that a test of a store talks to, found by the variables that `cargo xtask test` sets.
//!
//! A test that needs one is marked `#[ignore = "needs PostgreSQL: cargo xtask test runs it"]`, and fails where its
//! variable is not set or what it names cannot be reached. Every caller is given a place of its own, so that tests run
//! side by side: a database, or a prefix for its keys. Its name begins with `idem_test_`, and it stays where it is until
//! the server goes, which a private one does after the tests.

use std::str::FromStr as _;
use std::time::Duration;

use anyhow::{Context as _, bail};
use idem_runtime::{Idem, MySqlStore, PostgresStore, RedisStore, SqliteStore};
use redis::aio::MultiplexedConnection;
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _, MySqlPool, PgPool};

/// Where PostgreSQL is, for a user who may make databases.
pub const POSTGRES: &str = "IDEM_TEST_POSTGRES_URL";
/// Where MySQL or MariaDB is, for a user who may make databases.
pub const MYSQL: &str = "IDEM_TEST_MYSQL_URL";
/// Where Redis or Valkey is.
pub const REDIS: &str = "IDEM_TEST_REDIS_URL";
/// Where nodes of a Redis Cluster are, separated by commas.
pub const REDIS_CLUSTER: &str = "IDEM_TEST_REDIS_CLUSTER_URLS";

/// Where RabbitMQ is, for a user who may make queues.
pub const AMQP: &str = "IDEM_TEST_AMQP_URL";
/// Where NATS with JetStream is.
pub const NATS: &str = "IDEM_TEST_NATS_URL";

/// The most connections of a pool: fewer than the tasks of the busiest test, so that they queue as they would in a
/// service.
const CONNECTIONS: u32 = 20;
const CONNECTED_WITHIN: Duration = Duration::from_secs(30);

/// A client of Redis, and what the caller's keys begin with.
#[derive(Debug, Clone)]
pub struct Keys<C> {
    /// The client, or the cluster's.
    pub client: C,
    /// Nobody else's keys begin with it.
    pub prefix: String,
}

/// What a variable says.
///
/// # Errors
///
/// It is not set.
pub fn variable(name: &str) -> anyhow::Result<String> {
    std::env::var(name).with_context(|| {
        format!("{name}: `cargo xtask test` sets it, or set it to the URL of a server of yours")
    })
}

/// An empty database of the caller's own in PostgreSQL.
///
/// # Errors
///
/// The variable is not set, or the server cannot be reached.
pub async fn postgres() -> anyhow::Result<PgPool> {
    let url = variable(POSTGRES)?;
    let database = unique_name();
    let made = async {
        let options = PgConnectOptions::from_str(&url)?;
        let mut connection = options.connect().await?;
        let create = format!("CREATE DATABASE {database}");
        connection.execute(AssertSqlSafe(create)).await?;
        connection.close().await?;
        PgPoolOptions::new()
            .max_connections(CONNECTIONS)
            .acquire_timeout(CONNECTED_WITHIN)
            .connect_with(options.database(&database))
            .await
    };
    within(POSTGRES, made).await
}

/// An empty database of the caller's own in MySQL or MariaDB.
///
/// # Errors
///
/// The variable is not set, or the server cannot be reached.
pub async fn mysql() -> anyhow::Result<MySqlPool> {
    let url = variable(MYSQL)?;
    let database = unique_name();
    let made = async {
        let options = MySqlConnectOptions::from_str(&url)?;
        let mut connection = options.connect().await?;
        let create = format!("CREATE DATABASE {database}");
        connection.execute(AssertSqlSafe(create)).await?;
        connection.close().await?;
        MySqlPoolOptions::new()
            .max_connections(CONNECTIONS)
            .acquire_timeout(CONNECTED_WITHIN)
            .connect_with(options.database(&database))
            .await
    };
    within(MYSQL, made).await
}

/// A client of Redis, which has answered, and a prefix of the caller's own.
///
/// # Errors
///
/// The variable is not set, or the server cannot be reached.
pub async fn redis() -> anyhow::Result<Keys<redis::Client>> {
    let url = variable(REDIS)?;
    let made = async {
        let client = redis::Client::open(url)?;
        let mut connection: MultiplexedConnection =
            client.get_multiplexed_async_connection().await?;
        redis::cmd("PING")
            .query_async::<()>(&mut connection)
            .await?;
        redis::RedisResult::Ok(client)
    };
    let client = within(REDIS, made).await?;
    let prefix = unique_name();
    Ok(Keys { client, prefix })
}

/// A client of a Redis Cluster, which has answered, and a prefix of the caller's own.
///
/// # Errors
///
/// The variable is not set, or the cluster cannot be reached.
pub async fn redis_cluster() -> anyhow::Result<Keys<ClusterClient>> {
    let urls = variable(REDIS_CLUSTER)?;
    let made = async {
        let nodes: Vec<&str> = urls.split(',').map(str::trim).collect();
        let client = ClusterClient::new(nodes)?;
        let mut connection: ClusterConnection = client.get_async_connection().await?;
        redis::cmd("PING")
            .query_async::<()>(&mut connection)
            .await?;
        redis::RedisResult::Ok(client)
    };
    let client = within(REDIS_CLUSTER, made).await?;
    let prefix = unique_name();
    Ok(Keys { client, prefix })
}

/// The operation that the process `caller` calls.
pub const OPERATION: &str = "tests.caller";

/// The store at this address, migrated: `sqlite://` and the path of a file, or the URL of a server.
///
/// # Errors
///
/// It is the address of no store, or the store cannot be opened or migrated.
pub async fn open(address: &str) -> anyhow::Result<Idem> {
    let (scheme, rest) = address
        .split_once("://")
        .with_context(|| format!("{address} is not the address of a store"))?;
    Ok(match scheme {
        "sqlite" => Idem::new(SqliteStore::open(rest).await?).erased(),
        "postgres" => {
            let store = PostgresStore::open(address).await?;
            store.migrate().await?;
            Idem::new(store).erased()
        }
        "mysql" => {
            let store = MySqlStore::open(address).await?;
            store.migrate().await?;
            Idem::new(store).erased()
        }
        "redis" => Idem::new(RedisStore::open(address).await?).erased(),
        _ => bail!("there is no store for {address}"),
    })
}

/// Names the variable, but not the URL in it, which may have a password.
async fn within<T, E>(name: &str, made: impl Future<Output = Result<T, E>>) -> anyhow::Result<T>
where
    E: std::error::Error + Send + Sync + 'static,
{
    tokio::time::timeout(CONNECTED_WITHIN, made)
        .await
        .with_context(|| format!("the server that {name} names does not answer"))?
        .with_context(|| format!("the server that {name} names"))
}

/// A name that nobody else has, for a database, a queue or keys: a plain identifier in each SQL.
pub fn unique_name() -> String {
    format!("idem_test_{:032x}", rand::random::<u128>())
}
