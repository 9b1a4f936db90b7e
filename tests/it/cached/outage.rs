//! The Redis server of a cache is killed and restarted while calls run: no call fails or gets a wrong answer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use idem_runtime::store::Resolution;
use idem_runtime::{Cached, Call, Error, Idem, PostgresStore, SqliteStore, Store};
use idem_servers::{Options, Server};
use idem_tests::{backends, until};
use redis::aio::{ConnectionManager, ConnectionManagerConfig};

use crate::records::HOUR;

const TASKS: u64 = 8;
const KEYS: u64 = 40;
const KILLS: u32 = 5;
/// Longer than a call takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// State shared by all tasks.
#[derive(Default)]
struct Witness {
    over: AtomicBool,
    /// Number of runs of each body; a result is the number of its run.
    runs: AtomicU64,
    answers: std::sync::Mutex<BTreeMap<u64, u64>>,
    calls: AtomicU64,
}

async fn calls_continue<S: Store>(store: S) {
    let server = Server::redis(&Options::fast()).unwrap();
    let store = Arc::new(store);
    // Two processes of a service.
    let processes = [(); 2].map(|()| {
        let client = redis::Client::open(server.url()).unwrap();
        let config = ConnectionManagerConfig::new().set_max_delay(Duration::from_millis(50));
        let connection = ConnectionManager::new_lazy_with_config(client, config).unwrap();
        Arc::new(Cached::in_redis(Arc::clone(&store), connection, "outage"))
    });
    let witness = Arc::new(Witness::default());
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let cached = Arc::clone(&processes[task as usize % 2]);
            let idem = Idem::builder(cached)
                .store_timeout(PATIENCE)
                .store_patience(PATIENCE)
                .build();
            let witness = Arc::clone(&witness);
            tokio::spawn(async move {
                let mut turn = task;
                while !witness.over.load(Ordering::SeqCst) {
                    turn += 1;
                    call(&idem, &witness, turn * 7 % KEYS).await;
                }
            })
        })
        .collect();

    for _ in 0..KILLS {
        goes_from_cache(&processes).await;
        server.kill().unwrap();
        let calls = witness.calls.load(Ordering::SeqCst);
        until(async || witness.calls.load(Ordering::SeqCst) > calls + 200).await;
        server.restart().unwrap();
    }
    goes_from_cache(&processes).await;
    witness.over.store(true, Ordering::SeqCst);
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(
        witness.runs.load(Ordering::SeqCst),
        KEYS,
        "a body ran twice"
    );
    erasures_are_heeded(&processes).await;
}

/// Makes a call, which returns the result of the first call with its key.
async fn call<S: Store>(idem: &Idem<S>, witness: &Witness, key: u64) {
    let call = Call::new("outage.call", &key, &key, HOUR);
    let body = async || Ok::<_, Error>(witness.runs.fetch_add(1, Ordering::SeqCst));
    let answer = match idem.run(call, body).await {
        Ok(answer) => answer,
        Err(Error::InFlight { .. }) => return,
        Err(other) => panic!("{key}: {other:?}"),
    };
    let first = *witness.answers.lock().unwrap().entry(key).or_insert(answer);
    assert_eq!(answer, first, "{key} has two answers");
    witness.calls.fetch_add(1, Ordering::SeqCst);
}

/// Waits until replays come from Redis, in each process.
async fn goes_from_cache<S: Store>(processes: &[Arc<Cached<S>>]) {
    for process in processes {
        let hits = process.stats().hits;
        until(async || process.stats().hits > hits + 50).await;
        assert!(process.stats().misses > 0);
    }
}

async fn erasures_are_heeded<S: Store>(processes: &[Arc<Cached<S>>; 2]) {
    let idem = Idem::new(Arc::clone(&processes[0]));
    let other = Idem::new(Arc::clone(&processes[1]));
    let scope = idem_runtime::Scope::none();
    let record = idem
        .records()
        .find_scoped("outage.call", "1", &scope)
        .await
        .unwrap()
        .unwrap();
    let seen = record.observation();
    processes[0]
        .resolve(&seen, &Resolution::Erase)
        .await
        .unwrap();
    let call = Call::new("outage.call", &1_u64, &1_u64, HOUR);
    let answer = other.run(call, async || Ok::<_, Error>(u64::MAX)).await;
    assert_eq!(answer.unwrap(), u64::MAX);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn redis_stops_and_restarts_in_front_of_sqlite() {
    let dir = tempfile::tempdir().unwrap();
    calls_continue(
        SqliteStore::open(dir.path().join("outage.sqlite"))
            .await
            .unwrap(),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL and Redis: cargo xtask test runs it"]
async fn redis_stops_and_restarts_in_front_of_postgres() {
    let store = PostgresStore::new(backends::postgres().await.unwrap());
    store.migrate().await.unwrap();
    calls_continue(store).await;
}
