//! Servers for the tests of stores, found through the variables that `cargo xtask test` sets.
//!
//! A test that needs a server is marked `#[ignore = "needs PostgreSQL: cargo xtask test runs it"]`. It fails if the
//! variable is not set or the server cannot be reached. Every caller gets its own database, or its own prefix for keys,
//! so that tests can run concurrently. The name of the database or prefix begins with `idem_test_`. The data stays
//! until the server is removed; a private server is removed after the tests.

use std::str::FromStr as _;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, bail};
use idem_runtime::operator::OperatorStore;
use idem_runtime::{Idem, MySqlStore, PostgresStore, RedisStore, SqliteStore, Store};
use idem_servers::{Options, Server};
use redis::aio::MultiplexedConnection;
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _, MySqlPool, PgPool};

use crate::sql::{AnyPool, CONNECTED_WITHIN};

/// Variable with the URL of PostgreSQL, for a user who may create databases.
pub const POSTGRES: &str = "IDEM_TEST_POSTGRES_URL";
/// Variable with the URL of another database that speaks PostgreSQL, for a user who may create tables.
pub const OTHER_POSTGRES: &str = "IDEM_TEST_OTHER_POSTGRES_URL";
/// Variable with the URL of MariaDB, for a user who may create databases.
pub const MARIADB: &str = "IDEM_TEST_MARIADB_URL";
/// Variable with the URL of MySQL, for a user who may create databases.
pub const MYSQL: &str = "IDEM_TEST_MYSQL_URL";
/// Variable with the URL of Redis or Valkey.
pub const REDIS: &str = "IDEM_TEST_REDIS_URL";
/// Variable with the URLs of nodes of a Redis Cluster, separated by commas.
pub const REDIS_CLUSTER: &str = "IDEM_TEST_REDIS_CLUSTER_URLS";
/// Variable with the URLs of the nodes of an etcd, separated by commas.
pub const ETCD: &str = "IDEM_TEST_ETCD_URLS";

/// Variable with the URL of RabbitMQ, for a user who may create queues.
pub const AMQP: &str = "IDEM_TEST_AMQP_URL";
/// Variable with the URL of NATS with JetStream.
pub const NATS: &str = "IDEM_TEST_NATS_URL";

/// Maximum of connections in a pool: fewer than the tasks of the busiest test, so that they queue as in a service.
const CONNECTIONS: u32 = 20;

/// A client of Redis, and the prefix of the caller's keys.
#[derive(Debug, Clone)]
pub struct Keys<C> {
    /// Client of the server or of the cluster.
    pub client: C,
    /// Unique prefix of the caller's keys.
    pub prefix: String,
}

/// Value of a variable.
///
/// # Errors
///
/// The variable is not set.
pub fn variable(name: &str) -> anyhow::Result<String> {
    std::env::var(name).with_context(|| {
        format!("{name}: `cargo xtask test` sets it, or set it to the URL of a server of yours")
    })
}

/// Creates an empty database in PostgreSQL for the caller.
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

/// Time for which PgBouncer gives a connection of the server to a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PoolMode {
    /// A connection belongs to a client until the client disconnects.
    Session,
    /// A connection belongs to a client until its transaction ends.
    Transaction,
}

/// Creates an empty database in PostgreSQL for the caller, and connects through a PgBouncer of this test program.
///
/// # Errors
///
/// The variable is not set or names another machine, or a server cannot be reached.
pub async fn pg_bouncer(mode: PoolMode) -> anyhow::Result<PgPool> {
    let direct = postgres().await?;
    let options = direct.connect_options().as_ref().clone();
    direct.close().await;
    anyhow::ensure!(
        ["127.0.0.1", "localhost"].contains(&options.get_host()),
        "PgBouncer is started in front of a server on 127.0.0.1 only"
    );
    let server = options.get_port();
    let port = tokio::task::spawn_blocking(move || pg_bouncer_port(mode, server)).await??;
    let options = options.port(port).extra_float_digits(None);
    let connected = PgPoolOptions::new()
        .max_connections(CONNECTIONS)
        .acquire_timeout(CONNECTED_WITHIN)
        .connect_with(options);
    within(POSTGRES, connected).await
}

/// Port of this program's PgBouncer of this mode, which is started on first use. It ends with this process.
fn pg_bouncer_port(mode: PoolMode, server: u16) -> anyhow::Result<u16> {
    static STARTED: Mutex<Vec<(PoolMode, Server)>> = Mutex::new(Vec::new());
    let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, there)) = started.iter().find(|(it, _)| *it == mode) {
        return Ok(there.port());
    }
    let options = match mode {
        PoolMode::Session => Options::fast()
            .set("pool_mode", "session")
            .set("default_pool_size", "40"),
        PoolMode::Transaction => Options::fast(),
    };
    let server = Server::pg_bouncer(server, &options)?;
    let port = server.port();
    started.push((mode, server));
    Ok(port)
}

/// Creates an empty database in PostgreSQL for the caller that has no PL/pgSQL, and a user for it who may not call the
/// functions of advisory locks. A store has the portable form there.
///
/// # Errors
///
/// The variable is not set, the server cannot be reached, or the user may not create users.
pub async fn postgres_portable() -> anyhow::Result<PgPool> {
    let url = variable(POSTGRES)?;
    let database = unique_name();
    let password = unique_name();
    let made = async {
        let options = PgConnectOptions::from_str(&url)?;
        let mut server = options.connect().await?;
        // A user and a database may have the same name.
        for statement in [
            format!("CREATE USER {database} PASSWORD '{password}' NOSUPERUSER"),
            format!("CREATE DATABASE {database}"),
        ] {
            server.execute(AssertSqlSafe(statement)).await?;
        }
        server.close().await?;
        let options = options.database(&database);
        let mut inside = options.connect().await?;
        let functions: Vec<String> = sqlx::query_scalar(
            "SELECT oid::regprocedure::text FROM pg_proc WHERE proname LIKE 'pg\\_%advisory\\_%'",
        )
        .fetch_all(&mut inside)
        .await?;
        let revoked = functions.join(", ");
        for statement in [
            "DROP EXTENSION plpgsql".to_owned(),
            format!("REVOKE EXECUTE ON FUNCTION {revoked} FROM PUBLIC"),
            format!("GRANT CREATE ON DATABASE {database} TO {database}"),
            format!("GRANT ALL ON SCHEMA public TO {database}"),
            // For tests that count what a statement reads.
            format!("GRANT EXECUTE ON FUNCTION pg_stat_reset() TO {database}"),
        ] {
            inside.execute(AssertSqlSafe(statement)).await?;
        }
        inside.close().await?;
        PgPoolOptions::new()
            .max_connections(CONNECTIONS)
            .acquire_timeout(CONNECTED_WITHIN)
            .connect_with(options.username(&database).password(&password))
            .await
    };
    within(POSTGRES, made).await
}

/// Opens and migrates a store with tables of its own in another database that speaks PostgreSQL.
///
/// # Errors
///
/// The variable is not set, the server cannot be reached, or the tables cannot be created.
pub async fn other_postgres() -> anyhow::Result<PostgresStore> {
    let store = PostgresStore::connect(&variable(OTHER_POSTGRES)?).await?;
    let store = store.with_table(&unique_name())?;
    store.migrate().await?;
    Ok(store)
}

/// Creates an empty database in MariaDB for the caller.
///
/// # Errors
///
/// The variable is not set, or the server cannot be reached.
pub async fn mariadb() -> anyhow::Result<MySqlPool> {
    mysql_database(MARIADB).await
}

/// Creates an empty database in MySQL for the caller.
///
/// # Errors
///
/// The variable is not set, or the server cannot be reached.
pub async fn mysql() -> anyhow::Result<MySqlPool> {
    mysql_database(MYSQL).await
}

async fn mysql_database(name: &str) -> anyhow::Result<MySqlPool> {
    let url = variable(name)?;
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
    within(name, made).await
}

/// Connects to Redis, and returns the client with a unique key prefix.
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

/// Connects to a Redis Cluster, and returns the client with a unique key prefix.
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

/// Operation that the process `caller` calls.
pub const OPERATION: &str = "tests.caller";

/// Opens and migrates the store at this address: `sqlite://` and the path of a file, or the URL of a server. `pgbouncer://`
/// is the address of a PgBouncer in transaction mode, and URLs of nodes of a Redis Cluster are separated by commas.
///
/// # Errors
///
/// The address belongs to no store, or the store cannot be opened or migrated.
pub async fn open(address: &str) -> anyhow::Result<Idem> {
    let store: Arc<dyn Store> = open_named(address, "").await?;
    Ok(Idem::new(store).erased())
}

/// Opens and migrates the store with this table or prefix of keys at an [address](open). An empty name stands for the
/// default.
///
/// # Errors
///
/// The address belongs to no store, or the store cannot be opened or migrated.
pub async fn open_named(address: &str, name: &str) -> anyhow::Result<Arc<dyn OperatorStore>> {
    Ok(open_pooled(address, name).await?.0)
}

/// Like [`open_named`]. Returns the pool of the store as well, if its records are in an SQL database.
///
/// # Errors
///
/// As [`open_named`].
pub async fn open_pooled(
    address: &str,
    name: &str,
) -> anyhow::Result<(Arc<dyn OperatorStore>, Option<AnyPool>)> {
    let (scheme, rest) = address
        .split_once("://")
        .with_context(|| format!("{address} is not the address of a store"))?;
    macro_rules! named {
        ($store:expr, $with_name:ident $(, $database:ident)?) => {{
            let store = $store;
            let pools = [$(AnyPool::$database(store.pool().clone()))?];
            let store = Arc::new(match name {
                "" => store,
                name => store.$with_name(name)?,
            });
            (store as Arc<dyn OperatorStore>, pools.into_iter().next())
        }};
    }
    let (store, pool) = match scheme {
        "sqlite" => named!(SqliteStore::open(rest).await?, with_table, Sqlite),
        "postgres" => named!(PostgresStore::connect(address).await?, with_table, Postgres),
        // Behind a PgBouncer in transaction mode.
        "pgbouncer" => {
            let store = PostgresStore::connect(&format!("postgres://{rest}")).await?;
            named!(store.without_prepared_statements(), with_table, Postgres)
        }
        "mysql" => named!(MySqlStore::connect(address).await?, with_table, MySql),
        "redis" if address.contains(',') => named!(
            RedisStore::connect_cluster(address.split(',')).await?,
            with_prefix
        ),
        "redis" => named!(RedisStore::connect(address).await?, with_prefix),
        _ => bail!("there is no store for {address}"),
    };
    store.apply_migrations().await?;
    Ok((store, pool))
}

/// Names the variable in an error, but not the URL in it, which may contain a password.
async fn within<T, E>(name: &str, made: impl Future<Output = Result<T, E>>) -> anyhow::Result<T>
where
    E: std::error::Error + Send + Sync + 'static,
{
    tokio::time::timeout(CONNECTED_WITHIN, made)
        .await
        .with_context(|| format!("the server that {name} names does not answer"))?
        .with_context(|| format!("the server that {name} names"))
}

/// A unique name for a database, a queue or keys: a plain identifier in each SQL dialect.
pub fn unique_name() -> String {
    format!("idem_test_{:032x}", rand::random::<u128>())
}
