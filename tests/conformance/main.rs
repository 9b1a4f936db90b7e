//! The case table, run on each store and on what may stand in front of one, and the proof that each case can fail.
#![expect(
    clippy::unwrap_used,
    reason = "a panic fails the case that it happens in"
)]

use std::net::TcpListener;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use idem_runtime::conformance::{self, faults::FaultStore};
use idem_runtime::{Cached, MemoryStore, SqliteStore, Store};
use libtest_mimic::{Arguments, Trial};
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use tokio::runtime::Runtime;

mod mutants;
mod toy;

fn main() -> anyhow::Result<ExitCode> {
    let mut arguments = Arguments::from_args();
    // The cases wait for leases most of their time, so there is room for more of them than there are processors.
    arguments.test_threads.get_or_insert(16);
    let runtime = Arc::new(Runtime::new()?);
    let files = tempfile::tempdir()?;
    let open = |name: &str| runtime.block_on(SqliteStore::open(files.path().join(name)));

    // One store serves all the cases of a suite at once, as the table promises.
    let erased: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let suites: Vec<(&str, Arc<dyn Store>)> = vec![
        ("memory", Arc::new(MemoryStore::new())),
        ("dyn", Arc::new(erased)),
        ("sqlite", Arc::new(open("cases.db")?)),
        (
            "sqlite_other_table",
            Arc::new(other_table(&runtime, &open("table.db")?)?),
        ),
        (
            "faults::memory",
            Arc::new(FaultStore::new(MemoryStore::new())),
        ),
        (
            "faults::sqlite",
            Arc::new(FaultStore::new(open("faults.db")?)),
        ),
        ("cached::memory", Arc::new(Cached::new(MemoryStore::new()))),
        ("cached::sqlite", Arc::new(Cached::new(open("cached.db")?))),
        (
            "cached_in_lost_redis::memory",
            Arc::new(in_lost_redis(&runtime, MemoryStore::new())?),
        ),
        ("toy", Arc::new(toy::ToyStore::new(None))),
    ];

    let mut trials = Vec::new();
    for (suite, store) in suites {
        for case in conformance::cases() {
            let (store, runtime) = (Arc::clone(&store), Arc::clone(&runtime));
            trials.push(Trial::test(
                format!("{suite}::{}", case.name()),
                move || Ok(runtime.block_on(case.run(store))?),
            ));
        }
    }
    trials.extend(in_redis(&runtime)?);
    trials.extend(mutants::trials(&runtime));
    Ok(libtest_mimic::run(&arguments, trials).exit_code())
}

/// A store on a table whose name is a word of SQL.
fn other_table(runtime: &Runtime, store: &SqliteStore) -> anyhow::Result<SqliteStore> {
    let store = store.clone().with_table("order")?;
    runtime.block_on(store.migrate())?;
    Ok(store)
}

/// A cache in a Redis that is not there: an address where somebody listened a moment ago.
fn in_lost_redis<S: Store>(runtime: &Runtime, store: S) -> anyhow::Result<Cached<S>> {
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let client = redis::Client::open(format!("redis://{address}/"))?;
    let _guard = runtime.enter();
    let connection =
        ConnectionManager::new_lazy_with_config(client, ConnectionManagerConfig::new())?;
    // The leases of the cases are short.
    let cached = Cached::in_redis(store, connection, "idem-conformance");
    Ok(cached.timeout(Duration::from_millis(2)))
}

/// The table on a cache in the Redis that `IDEM_TEST_REDIS_URL` names; listed as ignored where it names none.
fn in_redis(runtime: &Arc<Runtime>) -> anyhow::Result<Vec<Trial>> {
    let store = match std::env::var("IDEM_TEST_REDIS_URL") {
        Err(_) => None,
        Ok(url) => {
            let _guard = runtime.enter();
            let connection = ConnectionManager::new_lazy_with_config(
                redis::Client::open(url)?,
                ConnectionManagerConfig::new(),
            )?;
            let name = format!("idem-conformance-{:016x}", rand::random::<u64>());
            let cached = Cached::in_redis(MemoryStore::new(), connection, &name);
            Some(Arc::new(cached) as Arc<dyn Store>)
        }
    };
    let trials = conformance::cases().iter().map(|case| {
        let (store, runtime) = (store.clone(), Arc::clone(runtime));
        let ignored = store.is_none();
        let run = move || {
            let store = store.ok_or("needs Redis: cargo xtask test runs it")?;
            Ok(runtime.block_on(case.run(store))?)
        };
        Trial::test(format!("cached_in_redis::memory::{}", case.name()), run)
            .with_ignored_flag(ignored)
    });
    Ok(trials.collect())
}
