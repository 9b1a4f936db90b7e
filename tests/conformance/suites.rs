//! The stores that the case table is run on.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use idem_runtime::conformance::{self, Needs, faults::FaultStore};
use idem_runtime::{
    Cached, MemoryStore, Moving, MySqlStore, PostgresForm, PostgresStore, RedisStore, SqliteStore,
    Store,
};
use idem_servers::{GaleraCluster, Options, RedisSentinels, Server};
use idem_tests::backends::{
    self, MARIADB, OTHER_POSTGRES, POSTGRES, PoolMode, REDIS, REDIS_CLUSTER,
};
use idem_tests::proxy::Proxy;
use libtest_mimic::{Failed, Trial};
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions};
use tokio::runtime::Runtime;

use crate::toy::ToyStore;

/// Every store: the name that its trials begin with, the variables of [`idem_tests::backends`] that it needs if it
/// needs servers, and the function that creates it with its table. All cases of a suite share one store concurrently,
/// as the table promises.
fn suites(files: &Path) -> Vec<Suite> {
    let file = |name: &str| SqliteStore::open(files.join(name));
    let (cases, table) = (file("cases.db"), file("table.db"));
    let (faults, cached) = (file("faults.db"), file("cached.db"));
    let moved = (file("moved_old.db"), file("moved_new.db"));
    let last = file("moved.db");
    let erased: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let mut suites = vec![
        Suite::new("memory", &[], async || Ok(MemoryStore::new())).lacking(&[Needs::Recovery]),
        Suite::new("dyn", &[], async || Ok(erased)).lacking(&[Needs::Recovery]),
        Suite::new("sqlite", &[], async || Ok(cases.await?)),
        // The name is a reserved word of SQL.
        Suite::new("sqlite_other_table", &[], async || {
            let store = table.await?.with_table("order")?;
            store.migrate().await?;
            Ok(store)
        }),
        Suite::new("faults::memory", &[], async || {
            Ok(FaultStore::new(MemoryStore::new()))
        })
        .lacking(&[Needs::Recovery]),
        Suite::new("faults::sqlite", &[], async || {
            Ok(FaultStore::new(faults.await?))
        }),
        Suite::new("cached::memory", &[], async || {
            Ok(Cached::new(MemoryStore::new()))
        })
        .lacking(&[Needs::Recovery]),
        Suite::new("cached::sqlite", &[], async || {
            Ok(Cached::new(cached.await?))
        }),
        // An address with a closed port. The leases of the cases are short.
        Suite::new("cached_in_lost_redis::memory", &[], async || {
            let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
            let client = redis::Client::open(format!("redis://{address}/"))?;
            let connection =
                ConnectionManager::new_lazy_with_config(client, ConnectionManagerConfig::new())?;
            let cached = Cached::in_redis(MemoryStore::new(), connection, "idem-conformance");
            Ok(cached.timeout(Duration::from_millis(2)))
        })
        .lacking(&[Needs::Recovery]),
        Suite::new("cached_in_redis::memory", &[REDIS], async || {
            let keys = backends::redis().await?;
            let connection = keys.client.get_connection_manager().await?;
            Ok(Cached::in_redis(
                MemoryStore::new(),
                connection,
                &keys.prefix,
            ))
        })
        .lacking(&[Needs::Recovery]),
        Suite::new("moving_in_old::memory", &[], async || {
            Ok(Moving::claims_in_old(
                MemoryStore::new(),
                MemoryStore::new(),
            ))
        })
        .lacking(&[Needs::Recovery, Needs::Audit]),
        Suite::new("moving_in_new::memory", &[], async || {
            Ok(Moving::claims_in_new(
                MemoryStore::new(),
                MemoryStore::new(),
            ))
        })
        .lacking(&[Needs::Recovery, Needs::Audit]),
        Suite::new("moving_in_old::sqlite", &[], async || {
            Ok(Moving::claims_in_old(moved.0.await?, moved.1.await?))
        })
        .lacking(&[Needs::Audit]),
        Suite::new(
            "moving_in_new::sqlite_to_postgres",
            &[POSTGRES],
            async || {
                let new = PostgresStore::new(backends::postgres().await?);
                new.migrate().await?;
                Ok(Moving::claims_in_new(last.await?, new))
            },
        )
        .lacking(&[Needs::Audit]),
        Suite::new("postgres", &[POSTGRES], async || {
            let store = PostgresStore::new(backends::postgres().await?);
            store.migrate().await?;
            Ok(store)
        }),
        Suite::new("postgres_portable", &[POSTGRES], async || {
            let store = PostgresStore::new(backends::postgres_portable().await?);
            store.migrate().await?;
            Ok(store)
        }),
        Suite::new("postgres_portable_unprepared", &[POSTGRES], async || {
            let store = PostgresStore::new(backends::postgres_portable().await?);
            let store = store.without_prepared_statements();
            store.migrate().await?;
            Ok(store)
        }),
        Suite::new("pg_bouncer", &[POSTGRES], async || {
            let pool = backends::pg_bouncer(PoolMode::Transaction).await?;
            let store = PostgresStore::new(pool).without_prepared_statements();
            store.migrate().await?;
            Ok(store)
        }),
        Suite::new("pg_bouncer_portable", &[POSTGRES], async || {
            let pool = backends::pg_bouncer(PoolMode::Transaction).await?;
            let store = PostgresStore::new(pool).without_prepared_statements();
            let store = store.with_form(PostgresForm::Portable);
            store.migrate().await?;
            Ok(store)
        }),
        Suite::new("pg_bouncer_session", &[POSTGRES], async || {
            let store = PostgresStore::new(backends::pg_bouncer(PoolMode::Session).await?);
            store.migrate().await?;
            Ok(store)
        }),
        Suite::new("mysql", &[MARIADB], async || {
            let store = MySqlStore::new(backends::mariadb().await?);
            store.migrate().await?;
            Ok(store)
        }),
        // Each connection of the pool leads to another node. The servers run until this process ends.
        Suite::new("galera", &[MARIADB], async || {
            let cluster = tokio::task::block_in_place(|| GaleraCluster::start(&Options::fast()))?;
            let nodes = Vec::leak(vec![cluster])[0].nodes();
            nodes[0].query("CREATE DATABASE idem")?;
            let address = |node: &Server| SocketAddr::from(([127, 0, 0, 1], node.port()));
            let proxy = Proxy::start(address(&nodes[0])).await?;
            proxy.spread_over(nodes.iter().map(address).collect());
            let options = MySqlConnectOptions::new()
                .host("127.0.0.1")
                .port(proxy.address().port())
                .username("root")
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
        }),
        Suite::new("redis_sentinel", &[REDIS], async || {
            let sentinels =
                tokio::task::block_in_place(|| RedisSentinels::start(&Options::fast()))?;
            let urls = Vec::leak(vec![sentinels])[0].urls();
            let primary = format!("redis://{}/", RedisSentinels::NAME);
            let store = RedisStore::connect_sentinel(urls.iter().map(String::as_str), &primary);
            Ok(store.await?)
        })
        .lacking(&[Needs::Recovery]),
        Suite::new("redis", &[REDIS], async || {
            let keys = backends::redis().await?;
            let connection = keys.client.get_connection_manager().await?;
            Ok(RedisStore::new(connection).with_prefix(&keys.prefix)?)
        })
        .lacking(&[Needs::Recovery]),
        Suite::new("redis_cluster", &[REDIS_CLUSTER], async || {
            let keys = backends::redis_cluster().await?;
            let connection = keys.client.get_async_connection().await?;
            Ok(RedisStore::new(connection).with_prefix(&keys.prefix)?)
        })
        .lacking(&[Needs::Recovery]),
        Suite::new(
            "cached_in_redis::postgres",
            &[POSTGRES, REDIS],
            async || {
                let keys = backends::redis().await?;
                let connection = keys.client.get_connection_manager().await?;
                let store = PostgresStore::new(backends::postgres().await?);
                store.migrate().await?;
                Ok(Cached::in_redis(store, connection, &keys.prefix))
            },
        ),
        Suite::new("toy", &[], async || Ok(ToyStore::new(None))),
    ];
    // A database that speaks PostgreSQL, such as CockroachDB. No test starts one.
    if std::env::var_os(OTHER_POSTGRES).is_some() {
        suites.push(Suite::new("other_postgres", &[], async || {
            backends::other_postgres().await
        }));
    }
    suites
}

/// Creates a trial for each case on each store. A trial whose server variable is not set is ignored, after a line that
/// says so, and fails if it is run anyway. A server that cannot be reached fails its trials.
pub(crate) fn trials(runtime: &Arc<Runtime>, files: &Path) -> Vec<Trial> {
    let mut trials = Vec::new();
    for suite in suites(files) {
        let Suite {
            name,
            needs,
            lacks,
            open,
        } = suite;
        let unset = needs.iter().find(|it| std::env::var_os(it).is_none());
        if let Some(variable) = unset {
            eprintln!("{name} needs {variable}, which is not set: cargo xtask test runs it");
        }
        // Opened by the first case that runs, so that listing the cases, or running a few, needs no server.
        let runtime = Arc::clone(runtime);
        let store: Arc<LazyLock<Opened, _>> = Arc::new(LazyLock::new({
            let runtime = Arc::clone(&runtime);
            move || open(&runtime).map_err(|error| format!("{error:#}"))
        }));
        for case in conformance::cases() {
            let is_left_out = lacks.contains(&case.needs());
            let (store, runtime) = (Arc::clone(&store), Arc::clone(&runtime));
            let trial = Trial::test(format!("{name}::{}", case.name()), move || {
                let store = LazyLock::force(&store).as_ref().map_err(Failed::from)?;
                match is_left_out {
                    false => Ok(runtime.block_on(case.run(Arc::clone(store)))?),
                    true if case.applies_to(&**store) => {
                        Err("the case applies and is left out".into())
                    }
                    true => Ok(()),
                }
            });
            trials.push(trial.with_ignored_flag(unset.is_some()));
        }
    }
    trials
}

struct Suite {
    name: &'static str,
    needs: &'static [&'static str],
    /// Parts that the store does not have. The cases that need one of them only check that it is missing.
    lacks: &'static [Needs],
    open: Open,
}

impl Suite {
    fn new<S: Store + 'static>(
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

    fn lacking(self, lacks: &'static [Needs]) -> Self {
        Self { lacks, ..self }
    }
}

type Open = Box<dyn FnOnce(&Runtime) -> anyhow::Result<Arc<dyn Store>> + Send>;

/// The store, or the error of opening it.
type Opened = Result<Arc<dyn Store>, String>;
