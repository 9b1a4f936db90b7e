//! The places that stores are tested in: the one list of them, and the macro that makes a test of a case and a place.
//!
//! A place is a store in one of its forms, on one kind of server. A place that is added to [`places!`](crate::places) gets
//! the tests of everything that it can do. [`suites`] adds the wrappers of stores, and servers behind others. These have
//! the case table of stores alone.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Context as _;
use idem_runtime::conformance::Needs;
use idem_runtime::conformance::faults::FaultStore;
use idem_runtime::store::postgres::PostgresForm;
use idem_runtime::{
    Cached, MemoryStore, Moving, MySqlStore, PostgresStore, RedisStore, SqliteStore, Store,
};
use idem_servers::{GaleraCluster, GroupReplication, Options, Primaries, RedisSentinels, Server};
use idem_store::cas::CasStore;
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::cluster::ClusterClient;
use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions};
use sqlx::sqlite::{SqlitePool, SqlitePoolOptions, SqliteSynchronous};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::backends::{
    self, ETCD, Keys, MARIADB, MYSQL, OTHER_POSTGRES, POSTGRES, PoolMode, REDIS, REDIS_CLUSTER,
};
use crate::cas::{self, Shelf, Shown};
use crate::clocked::ClockedStore;
use crate::proxy::Proxy;
use crate::sql::{CONNECTED_WITHIN, Sql};

/// The list of places. A place has its name, the type of its store, the reason for which a plain `cargo test` ignores its
/// tests, the variables with the addresses of its servers, the function that creates a home for its records, and what it
/// can do:
///
/// - `transactions`: the records are in an SQL database, with `tx`, saved steps and an outbox
/// - `server`: the database has a server, so that several processes can wait for each other
/// - `versions`: there were earlier versions of the tables
/// - `cascades`: the database deletes the steps of a record that another program deletes
/// - `recovery`: the store keeps recovery inputs
/// - `forgetting`: the store drops payloads before their records expire
/// - `operators`: the store is one for the command and the console
/// - `alone`: the store notices a transaction that other code has left open on a connection of its pool, or its driver lets
///   none be left open
/// - `clients`: HTTP clients in other languages are tried here
///
/// [`on_stores!`](crate::on_stores) and [`each_place!`](crate::each_place) read the list.
#[doc(hidden)]
#[macro_export]
macro_rules! places {
    ($reader:ident $arguments:tt) => {
        $crate::$reader! { $arguments memory, Arc<MemoryStore>, [], [], memory_home(), [forgetting] }
        $crate::$reader! { $arguments sqlite, SqliteStore, [], [], file(),
            [transactions versions cascades recovery forgetting operators alone clients] }
        $crate::$reader! { $arguments postgres, PostgresStore,
            ["needs PostgreSQL: cargo xtask test runs it"], [POSTGRES], database(backends::postgres),
            [transactions server versions cascades recovery forgetting operators alone clients] }
        $crate::$reader! { $arguments postgres_portable, PostgresStore,
            ["needs PostgreSQL: cargo xtask test runs it"], [POSTGRES], database(backends::postgres_portable),
            [transactions server recovery forgetting operators] }
        $crate::$reader! { $arguments mariadb, MySqlStore,
            ["needs MariaDB: cargo xtask test runs it"], [MARIADB], database(backends::mariadb),
            [transactions server versions recovery forgetting operators alone] }
        $crate::$reader! { $arguments mysql, MySqlStore,
            ["needs MySQL: cargo xtask test runs it"], [MYSQL], database(backends::mysql),
            [transactions server versions recovery forgetting operators] }
        $crate::$reader! { $arguments redis, RedisStore,
            ["needs Redis: cargo xtask test runs it"], [REDIS], database(redis_keys), [operators] }
        $crate::$reader! { $arguments redis_cluster, RedisStore,
            ["needs a Redis Cluster: cargo xtask test runs it"], [REDIS_CLUSTER], database(redis_cluster_keys),
            [operators] }
    };
}

/// Makes a test of each case in each place that can do all of these things.
///
/// The test opens the place with the given function, and gives the result to the case. Its name is that of the place and
/// that of the case, such as `postgres_portable::a_replay_runs_nothing`.
///
/// ```ignore
/// on_stores! { [transactions server] Shop::open: a_replay_runs_nothing, an_error_rolls_back }
/// ```
///
/// `#[ignore = "..."]` before the function marks the tests in places that have no server.
#[macro_export]
macro_rules! on_stores {
    ([$($word:ident)*] $(#[ignore = $also:literal])? $open:path: $($case:ident),+ $(,)?) => {
        $crate::places! { on_store { [$($word)*] [$($also)?] $open: $($case)+ } }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! on_store {
    ({ $words:tt [$also:literal] $($test:tt)* } $place:ident, $store:ty, [], $($rest:tt)*) => {
        $crate::on_store! { { $words [] $($test)* } $place, $store, [$also], $($rest)* }
    };
    (
        { [$($word:ident)*] $also:tt $open:path: $($case:ident)+ }
        $place:ident, $store:ty, $reason:tt, $needs:tt, $home:expr, $can:tt
    ) => {
        $crate::where_it_can! { [$($word)*] $can $can
            mod $place {
                use super::*;

                $($crate::test_in_place! { $place $case $open, $reason })+
            }
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! test_in_place {
    ($place:ident $case:ident $open:path, [$($reason:literal)?]) => {
        #[tokio::test(flavor = "multi_thread")]
        $(#[ignore = $reason])?
        async fn $case() {
            // The place owns the files of the store.
            let place = $crate::places::$place();
            super::$case($open(place.clone()).await).await;
        }
    };
}

/// Runs statements for each place that can do all of these things.
///
/// ```ignore
/// each_place! { [transactions] place => trials.extend(of_database(place)); }
/// ```
#[macro_export]
macro_rules! each_place {
    ([$($word:ident)*] $place:ident => $($then:tt)*) => {
        $crate::places! { in_place { [$($word)*] $place $($then)* } }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! in_place {
    (
        { [$($word:ident)*] $it:ident $($then:tt)* }
        $place:ident, $store:ty, $reason:tt, $needs:tt, $home:expr, $can:tt
    ) => {
        $crate::where_it_can! { [$($word)*] $can $can {
            let $it = $crate::places::$place();
            $($then)*
        } }
    };
}

/// Keeps the code if each of the first words is among the second ones. `macro_rules!` compares a word only with one that
/// is written here.
#[doc(hidden)]
#[macro_export]
macro_rules! where_it_can {
    ([] $can:tt $all:tt $($then:tt)*) => { $($then)* };
    ([transactions $($word:ident)*] [transactions $($can:ident)*] $all:tt $($then:tt)*) => {
        $crate::where_it_can! { [$($word)*] $all $all $($then)* }
    };
    ([server $($word:ident)*] [server $($can:ident)*] $all:tt $($then:tt)*) => {
        $crate::where_it_can! { [$($word)*] $all $all $($then)* }
    };
    ([versions $($word:ident)*] [versions $($can:ident)*] $all:tt $($then:tt)*) => {
        $crate::where_it_can! { [$($word)*] $all $all $($then)* }
    };
    ([forgetting $($word:ident)*] [forgetting $($can:ident)*] $all:tt $($then:tt)*) => {
        $crate::where_it_can! { [$($word)*] $all $all $($then)* }
    };
    ([recovery $($word:ident)*] [recovery $($can:ident)*] $all:tt $($then:tt)*) => {
        $crate::where_it_can! { [$($word)*] $all $all $($then)* }
    };
    ([operators $($word:ident)*] [operators $($can:ident)*] $all:tt $($then:tt)*) => {
        $crate::where_it_can! { [$($word)*] $all $all $($then)* }
    };
    ([clients $($word:ident)*] [clients $($can:ident)*] $all:tt $($then:tt)*) => {
        $crate::where_it_can! { [$($word)*] $all $all $($then)* }
    };
    ([$($word:ident)+] [] $all:tt $($then:tt)*) => {};
    ([$($word:ident)+] [$other:ident $($can:ident)*] $all:tt $($then:tt)*) => {
        $crate::where_it_can! { [$($word)+] [$($can)*] $all $($then)* }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! declare_place {
    (
        {} $place:ident, $store:ty, [$($reason:literal)?], [$($variable:ident)?], $home:expr, [$($can:ident)*]
    ) => {
        #[doc = concat!("The place `", stringify!($place), "`.")]
        pub fn $place() -> Place<$store> {
            Place {
                name: stringify!($place),
                needs: &[$($variable)?],
                can: &[$(stringify!($can)),*],
                create: $home,
                files: Files::default(),
            }
        }
    };
}

places! { declare_place {} }

/// A store in one of its forms, on one kind of server. It owns the files of its stores.
pub struct Place<S: Backend> {
    name: &'static str,
    needs: &'static [&'static str],
    can: &'static [&'static str],
    create: Create<S::Home>,
    files: Files,
}

impl<S: Backend> Clone for Place<S> {
    fn clone(&self) -> Self {
        Self {
            create: Arc::clone(&self.create),
            files: self.files.clone(),
            ..*self
        }
    }
}

/// The files of a place, which are deleted with the last copy of this value.
#[derive(Debug, Clone, Default)]
pub struct Files(Arc<OnceLock<TempDir>>);

type Create<H> =
    Arc<dyn Fn(PathBuf) -> Pin<Box<dyn Future<Output = anyhow::Result<H>> + Send>> + Send + Sync>;

impl<S: Backend> Place<S> {
    /// Name of the place in the names of tests.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Variables of [`backends`] with the addresses of its servers.
    pub fn needs(&self) -> &'static [&'static str] {
        self.needs
    }

    /// Returns true if the list says that the place can do this.
    pub fn can(&self, word: &str) -> bool {
        self.can.contains(&word)
    }

    /// The files of its stores.
    pub fn files(&self) -> Files {
        self.files.clone()
    }

    /// Puts the files of its stores among these.
    pub fn among(self, files: &Files) -> Self {
        Self {
            files: files.clone(),
            ..self
        }
    }

    /// Creates an empty home for records: a file, a database or a prefix of keys.
    ///
    /// # Errors
    ///
    /// A variable is not set, or a server cannot be reached.
    pub async fn home(&self) -> anyhow::Result<S::Home> {
        let folder = match self.files.0.get() {
            Some(folder) => folder,
            None => {
                let folder = tempfile::tempdir()?;
                self.files.0.get_or_init(|| folder)
            }
        };
        let home = (self.create)(folder.path().join(backends::unique_name())).await;
        home.with_context(|| format!("the place {}", self.name))
    }

    /// Opens an empty store.
    ///
    /// # Errors
    ///
    /// A variable is not set, a server cannot be reached, or the tables cannot be created.
    pub async fn open(&self) -> anyhow::Result<S> {
        S::open(&self.home().await?).await
    }
}

/// Opens the store of a place.
///
/// # Panics
///
/// Panics if it cannot be opened.
pub async fn shared<S: Backend>(place: Place<S>) -> Arc<dyn Store> {
    match place.open().await {
        Ok(store) => Arc::new(store),
        Err(error) => panic!("{error:#}"),
    }
}

/// A type of store that has places.
pub trait Backend: Store + Sized + 'static {
    /// Connections to a home for records.
    type Home: Clone + Send + Sync + 'static;

    /// URL of the home, which may contain a password. It does not name the prefix of keys.
    ///
    /// # Errors
    ///
    /// A variable is not set.
    fn address(home: &Self::Home) -> anyhow::Result<String>;

    /// Opens the store in this home, and creates its tables.
    fn open(home: &Self::Home) -> impl Future<Output = anyhow::Result<Self>> + Send;
}

impl<S: Sql> Backend for S {
    type Home = S::Pool;

    fn address(pool: &S::Pool) -> anyhow::Result<String> {
        Ok(S::any(pool).url())
    }

    async fn open(pool: &S::Pool) -> anyhow::Result<Self> {
        let store = S::over(pool);
        store.create_tables().await?;
        Ok(store)
    }
}

impl Backend for Arc<MemoryStore> {
    type Home = Self;

    fn address(_: &Self) -> anyhow::Result<String> {
        anyhow::bail!("other processes cannot reach this memory")
    }

    async fn open(home: &Self) -> anyhow::Result<Self> {
        Ok(Self::clone(home))
    }
}

/// Keys of a store in Redis.
#[derive(Clone)]
#[expect(
    clippy::large_enum_variant,
    reason = "a test has few of them, and they are not moved"
)]
pub enum RedisKeys {
    /// On one server.
    One(Keys<redis::Client>),
    /// In a cluster.
    Cluster(Box<Keys<ClusterClient>>),
}

impl Backend for RedisStore {
    type Home = RedisKeys;

    fn address(keys: &RedisKeys) -> anyhow::Result<String> {
        backends::variable(match keys {
            RedisKeys::One(_) => REDIS,
            RedisKeys::Cluster(_) => REDIS_CLUSTER,
        })
    }

    async fn open(keys: &RedisKeys) -> anyhow::Result<Self> {
        let address = Self::address(keys)?;
        let (store, prefix) = match keys {
            RedisKeys::One(keys) => (Self::connect(&address).await?, &keys.prefix),
            RedisKeys::Cluster(keys) => {
                let nodes = address.split(',').map(str::trim);
                (Self::connect_cluster(nodes).await?, &keys.prefix)
            }
        };
        Ok(store.with_prefix(prefix)?)
    }
}

fn memory_home() -> Create<Arc<MemoryStore>> {
    Arc::new(|_| Box::pin(async { Ok(Arc::new(MemoryStore::new())) }))
}

fn file() -> Create<SqlitePool> {
    Arc::new(|path| {
        Box::pin(async move {
            let pool = SqlitePoolOptions::new()
                .max_connections(8)
                .acquire_timeout(CONNECTED_WITHIN);
            // As the servers of the tests, it flushes nothing.
            let options = SqliteStore::connect_options(path.with_extension("db"))
                .synchronous(SqliteSynchronous::Off);
            Ok(pool.connect_with(options).await?)
        })
    })
}

/// The home that a function creates on a server.
fn database<H, F>(create: fn() -> F) -> Create<H>
where
    H: 'static,
    F: Future<Output = anyhow::Result<H>> + Send + 'static,
{
    Arc::new(move |_| Box::pin(create()))
}

async fn redis_keys() -> anyhow::Result<RedisKeys> {
    Ok(RedisKeys::One(backends::redis().await?))
}

async fn redis_cluster_keys() -> anyhow::Result<RedisKeys> {
    Ok(RedisKeys::Cluster(Box::new(
        backends::redis_cluster().await?,
    )))
}

/// A store for the case table.
pub struct Suite {
    /// Name of the store in the names of trials.
    pub name: &'static str,
    /// Variables of [`backends`] with the addresses of its servers.
    pub needs: &'static [&'static str],
    /// Parts that the store does not have.
    pub lacks: &'static [Needs],
    /// Opens the store.
    pub open: OpenSuite,
}

/// Opens a store on a runtime.
pub type OpenSuite = Box<dyn FnOnce(&Runtime) -> anyhow::Result<Arc<dyn Store>> + Send>;

const NO_RECOVERY: &[Needs] = &[Needs::Recovery];
/// Parts that a store in Redis does not have.
const OF_REDIS: &[Needs] = &[Needs::Recovery, Needs::Forgetting];

impl Suite {
    /// A store that has every part.
    pub fn new<S: Store + 'static>(
        name: &'static str,
        needs: &'static [&'static str],
        open: impl AsyncFnOnce() -> anyhow::Result<S> + Send + 'static,
    ) -> Self {
        let open = Box::new(move |runtime: &Runtime| {
            let store = runtime.block_on(open())?;
            Ok(Arc::new(store) as Arc<dyn Store>)
        });
        Self {
            name,
            needs,
            lacks: &[],
            open,
        }
    }

    fn of<S: Backend>(place: Place<S>) -> Self {
        let lacks = match (place.can("recovery"), place.can("forgetting")) {
            (true, true) => &[],
            (false, true) => NO_RECOVERY,
            (_, false) => OF_REDIS,
        };
        Self::new(place.name, place.needs, async move || place.open().await).lacking(lacks)
    }

    fn lacking(self, lacks: &'static [Needs]) -> Self {
        Self { lacks, ..self }
    }
}

/// Every place, every wrapper of a store, and servers behind others, for the case table. Their files are among these.
pub fn suites(files: &Files) -> Vec<Suite> {
    let memory = || anyhow::Ok(Arc::new(MemoryStore::new()));
    let [table, faults, cached, old, new, last] = std::array::from_fn(|_| sqlite().among(files));
    let mut suites = Vec::new();
    each_place! { [] place => suites.push(Suite::of(place.among(files))); }
    suites.extend([
        Suite::new("dyn", &[], async || {
            let erased: Arc<dyn Store> = Arc::new(MemoryStore::new());
            Ok(erased)
        })
        .lacking(NO_RECOVERY),
        // The name is a reserved word of SQL.
        Suite::new("sqlite_other_table", &[], async move || {
            let store = table.open().await?.with_table("order")?;
            store.migrate().await?;
            Ok(store)
        }),
        Suite::new("faults::memory", &[], async move || {
            Ok(FaultStore::new(memory()?))
        })
        .lacking(NO_RECOVERY),
        Suite::new("faults::sqlite", &[], async move || {
            Ok(FaultStore::new(faults.open().await?))
        }),
        Suite::new("cached::memory", &[], async move || {
            Ok(Cached::new(memory()?))
        })
        .lacking(NO_RECOVERY),
        Suite::new("cached::sqlite", &[], async move || {
            Ok(Cached::new(cached.open().await?))
        }),
        // An address with a closed port. The leases of the cases are short.
        Suite::new("cached_in_lost_redis::memory", &[], async move || {
            let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
            let client = redis::Client::open(format!("redis://{address}/"))?;
            let connection =
                ConnectionManager::new_lazy_with_config(client, ConnectionManagerConfig::new())?;
            let cached = Cached::in_redis(memory()?, connection, "idem-conformance");
            Ok(cached.timeout(Duration::from_millis(2)))
        })
        .lacking(NO_RECOVERY),
        Suite::new("cached_in_redis::memory", &[REDIS], async move || {
            in_redis(memory()?).await
        })
        .lacking(NO_RECOVERY),
        Suite::new(
            "cached_in_redis::postgres",
            &[POSTGRES, REDIS],
            async || in_redis(postgres().open().await?).await,
        ),
        Suite::new("moving_in_old::memory", &[], async move || {
            Ok(Moving::claims_in_old(memory()?, memory()?))
        })
        .lacking(&[Needs::Recovery, Needs::Audit]),
        Suite::new("moving_in_new::memory", &[], async move || {
            Ok(Moving::claims_in_new(memory()?, memory()?))
        })
        .lacking(&[Needs::Recovery, Needs::Audit]),
        Suite::new("moving_in_old::sqlite", &[], async move || {
            Ok(Moving::claims_in_old(old.open().await?, new.open().await?))
        })
        .lacking(&[Needs::Audit]),
        Suite::new(
            "moving_in_new::sqlite_to_postgres",
            &[POSTGRES],
            async move || {
                let new = postgres().open().await?;
                Ok(Moving::claims_in_new(last.open().await?, new))
            },
        )
        .lacking(&[Needs::Audit]),
        Suite::new("postgres_portable_unprepared", &[POSTGRES], async || {
            let store = postgres_portable().open().await?;
            Ok(store.without_prepared_statements())
        }),
        Suite::new("pg_bouncer", &[POSTGRES], async || {
            behind_pg_bouncer(
                PoolMode::Transaction,
                PostgresStore::without_prepared_statements,
            )
            .await
        }),
        Suite::new("pg_bouncer_portable", &[POSTGRES], async || {
            behind_pg_bouncer(PoolMode::Transaction, |store| {
                store
                    .without_prepared_statements()
                    .with_form(PostgresForm::Portable)
            })
            .await
        }),
        Suite::new("pg_bouncer_session", &[POSTGRES], async || {
            behind_pg_bouncer(PoolMode::Session, std::convert::identity).await
        }),
        Suite::new("on_galera", &[MARIADB], galera),
        Suite::new("on_group", &[MYSQL], group),
        Suite::new("redis_sentinel", &[REDIS], async || {
            let sentinels =
                tokio::task::block_in_place(|| RedisSentinels::start(&Options::fast()))?;
            let urls = Vec::leak(vec![sentinels])[0].urls();
            let primary = format!("redis://{}/", RedisSentinels::NAME);
            let store = RedisStore::connect_sentinel(urls.iter().map(String::as_str), &primary);
            Ok(store.await?)
        })
        .lacking(OF_REDIS),
    ]);
    let shelf = |shown| CasStore::new(Shelf::new(shown));
    suites.extend([
        Suite::new("cas", &[], async move || Ok(shelf(Shown::Exactly))),
        // The only time that the store sees is in whole seconds.
        Suite::new("cas_in_seconds", &[], async move || {
            Ok(shelf(Shown::InSeconds(Box::default())))
        }),
        Suite::new("etcd", &[ETCD], async || cas::etcd()),
        // Its backend deletes expired records itself.
        Suite::new("expiring", &[], async || Ok(ClockedStore::open_expiring())).lacking(&[
            Needs::Steps,
            Needs::Attempts,
            Needs::Audit,
            Needs::Recovery,
            Needs::Forgetting,
        ]),
    ]);
    // A database that speaks PostgreSQL, such as CockroachDB. No test starts one.
    if std::env::var_os(OTHER_POSTGRES).is_some() {
        suites.push(Suite::new("other_postgres", &[], async || {
            backends::other_postgres().await
        }));
    }
    suites
}

async fn in_redis<S: Store>(store: S) -> anyhow::Result<Cached<S>> {
    let keys = backends::redis().await?;
    let connection = keys.client.get_connection_manager().await?;
    Ok(Cached::in_redis(store, connection, &keys.prefix))
}

async fn behind_pg_bouncer(
    mode: PoolMode,
    settings: impl FnOnce(PostgresStore) -> PostgresStore,
) -> anyhow::Result<PostgresStore> {
    let store = settings(PostgresStore::new(backends::pg_bouncer(mode).await?));
    store.migrate().await?;
    Ok(store)
}

/// Three nodes of Galera. The servers run until this process ends.
async fn galera() -> anyhow::Result<MySqlStore> {
    let cluster = tokio::task::block_in_place(|| GaleraCluster::start(&Options::fast()))?;
    let nodes = Vec::leak(vec![cluster])[0].nodes();
    nodes[0].query("CREATE DATABASE idem")?;
    spread_over(nodes, MySqlConnectOptions::new().username("root")).await
}

/// Three primaries of a group. The servers run until this process ends.
async fn group() -> anyhow::Result<MySqlStore> {
    let start = || GroupReplication::start(Primaries::All, &Options::fast());
    let group = tokio::task::block_in_place(start)?;
    let members = Vec::leak(vec![group])[0].members();
    members[0].query("CREATE DATABASE idem")?;
    let user = MySqlConnectOptions::new()
        .username("idem")
        .password("secret");
    spread_over(members, user).await
}

/// A store of which each connection leads to another server.
async fn spread_over(servers: &[Server], user: MySqlConnectOptions) -> anyhow::Result<MySqlStore> {
    let address = |server: &Server| SocketAddr::from(([127, 0, 0, 1], server.port()));
    let proxy = Proxy::start(address(&servers[0])).await?;
    proxy.spread_over(servers.iter().map(address).collect());
    let options = user
        .host("127.0.0.1")
        .port(proxy.address().port())
        .database("idem");
    let pool = MySqlPoolOptions::new()
        .min_connections(6)
        .max_connections(18)
        .connect_with(options)
        .await?;
    Box::leak(Box::new(proxy));
    let store = MySqlStore::new(pool);
    store.migrate().await?;
    Ok(store)
}
