//! A service of four processes that moves from one store to another, deployed one process at a time, under load.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use idem_runtime::{
    Call, Error, Idem, MemoryStore, Moving, PostgresStore, RedisStore, SqliteStore, Store,
};
use idem_tests::backends;
use tokio::sync::RwLock;
use tokio::task::JoinSet;

use crate::records::HOUR;

const PROCESSES: usize = 4;
const KEYS: usize = 60;
/// Concurrent callers, and the calls of each in a phase.
const CALLERS: usize = 8;
const CALLS: usize = 40;

/// A process: the handle that its calls use. A deployment waits until the calls of the old handle have ended.
type Process = RwLock<Idem<Arc<dyn Store>>>;

struct Service {
    processes: Vec<Process>,
    /// Runs of the body, by key.
    ledger: Vec<AtomicU32>,
    /// Value of the run, by key.
    values: Vec<AtomicUsize>,
}

impl Service {
    fn new(store: &Arc<dyn Store>) -> Self {
        let process = |_| RwLock::new(Idem::new(Arc::clone(store)));
        Self {
            processes: (0..PROCESSES).map(process).collect(),
            ledger: (0..KEYS).map(|_| AtomicU32::new(0)).collect(),
            values: (0..KEYS).map(|_| AtomicUsize::new(0)).collect(),
        }
    }

    /// Calls once, through one process, with retries until there is an answer.
    async fn call(&self, process: usize, key: usize, value: usize) -> usize {
        let idem = self.processes[process].read().await;
        loop {
            let call = Call::new("tests.moving", &format!("key {key}"), &key, HOUR);
            let answer = idem.run(call.wait(Duration::from_secs(5)), async || {
                self.ledger[key].fetch_add(1, Ordering::Relaxed);
                self.values[key].store(value, Ordering::Relaxed);
                // Other callers get a chance to run the body as well.
                tokio::task::yield_now().await;
                Ok::<_, Error>(value)
            });
            match answer.await {
                Ok(value) => return value,
                Err(error) => assert!(error.is_retryable(), "{error}"),
            }
        }
    }

    async fn deploy(&self, process: usize, store: &Arc<dyn Store>) {
        *self.processes[process].write().await = Idem::new(Arc::clone(store));
    }
}

/// Deploys each phase to one process after the other, while all processes are called. No body runs twice, and each call
/// of a key gets the value of the one run.
async fn moves(old: Arc<dyn Store>, new: Arc<dyn Store>) {
    let phases: [(Arc<dyn Store>, usize); 3] = [
        (
            Arc::new(Moving::claims_in_old(Arc::clone(&old), Arc::clone(&new))),
            0,
        ),
        (
            Arc::new(Moving::claims_in_new(Arc::clone(&old), Arc::clone(&new))),
            0,
        ),
        // The old store is out of use when its records have expired: here, no key of it is used again.
        (Arc::clone(&new), KEYS / 2),
    ];
    let service = Arc::new(Service::new(&old));
    for (phase, (store, first_key)) in phases.into_iter().enumerate() {
        // Before the last phase, the first half of the keys is used. Their records are in either store.
        let keys = match first_key {
            0 => 0..KEYS / 2,
            first => first..KEYS,
        };
        let ready = Arc::new(tokio::sync::Barrier::new(CALLERS + 1));
        let mut callers = JoinSet::new();
        for caller in 0..CALLERS {
            let (service, ready, keys) = (Arc::clone(&service), Arc::clone(&ready), keys.clone());
            callers.spawn(async move {
                ready.wait().await;
                for n in 0..CALLS {
                    let value = 1 + (phase * CALLERS + caller) * CALLS + n;
                    // Neighbouring callers use a key at the same time, in different processes.
                    let key = keys.start + (n + caller / 4) % keys.len();
                    let answer = service.call((caller + n) % PROCESSES, key, value).await;
                    assert_eq!(answer, service.values[key].load(Ordering::Relaxed));
                }
            });
        }
        ready.wait().await;
        for process in 0..PROCESSES {
            service.deploy(process, &store).await;
        }
        while let Some(caller) = callers.join_next().await {
            caller.unwrap();
        }
    }
    let mut runs = BTreeMap::new();
    for count in &service.ledger {
        *runs.entry(count.load(Ordering::Relaxed)).or_insert(0) += 1;
    }
    assert_eq!(runs, BTreeMap::from([(1, KEYS)]), "runs of the body by key");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_runs_twice_between_two_memory_stores() {
    moves(Arc::new(MemoryStore::new()), Arc::new(MemoryStore::new())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_runs_twice_from_sqlite_to_another_file() {
    let folder = tempfile::tempdir().unwrap();
    let open = |name: &str| SqliteStore::open(folder.path().join(name));
    let (old, new) = (open("old.db").await.unwrap(), open("new.db").await.unwrap());
    moves(Arc::new(old), Arc::new(new)).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs IDEM_TEST_POSTGRES_URL and IDEM_TEST_REDIS_URL"]
async fn nothing_runs_twice_from_redis_to_postgres() {
    let postgres = PostgresStore::new(backends::postgres().await.unwrap());
    postgres.migrate().await.unwrap();
    moves(Arc::new(redis().await), Arc::new(postgres)).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs IDEM_TEST_POSTGRES_URL and IDEM_TEST_REDIS_URL"]
async fn nothing_runs_twice_from_postgres_to_redis() {
    let postgres = PostgresStore::new(backends::postgres().await.unwrap());
    postgres.migrate().await.unwrap();
    moves(Arc::new(postgres), Arc::new(redis().await)).await;
}

async fn redis() -> RedisStore {
    let keys = backends::redis().await.unwrap();
    let connection = keys.client.get_connection_manager().await.unwrap();
    RedisStore::new(connection)
        .with_prefix(&keys.prefix)
        .unwrap()
}
