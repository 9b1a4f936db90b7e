//! Several runtimes share a handle, as the workers of some web servers do, and one of them stands still.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use idem_runtime::{Call, Error, Idem, RedisStore, Store};
use idem_tests::backends::{self, REDIS};
use idem_tests::on_stores;
use idem_tests::places::shared;
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, sleep, timeout};

const TTL: Duration = Duration::from_secs(600);
/// Time in which a call is answered, in any case.
const ANSWERED: Duration = Duration::from_secs(60);
/// Largest number of calls of each kind: more than a pool has connections.
const CALLS: usize = 32;

/// Way in which a runtime stands still.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Still {
    /// Its only thread does something else.
    Blocked,
    /// Nobody polls it.
    Idle,
    /// It has ended.
    Dropped,
}

type Shared = Idem<Arc<dyn Store>>;

async fn call(idem: &Shared, key: &str) -> Result<u32, Error> {
    let call = Call::new("runtimes.call", key, "request", TTL);
    idem.run(call, async || Ok::<_, Error>(7)).await
}

/// Repeats a call like a client, until it is answered.
async fn answered(idem: &Shared, key: &str) {
    let begun = Instant::now();
    while let Err(error) = call(idem, key).await {
        assert!(
            error.is_retryable() && begun.elapsed() < ANSWERED,
            "{key}: {error:?}"
        );
        sleep(Duration::from_millis(50)).await;
    }
}

/// Makes calls while another runtime stands still in the middle of its own ones. Connections were opened there, claims are
/// under way or wait, batches are being flushed, claims are given back, and keys have their leaders.
async fn goes_on(idem: Shared, still: Still) {
    // The store learns whether its server lets claims share statements.
    let keys: Vec<_> = (0..CALLS).map(|it| format!("learns-{it}")).collect();
    join_all(keys.iter().map(|key| answered(&idem, key))).await;
    // Where each claim has a connection, some must be left for the others.
    let calls = CALLS.min(idem.store().claim_concurrency() / 4);
    let (ready, is_ready) = oneshot::channel();
    let (end, ended) = channel::<()>();
    let handle = idem.clone();
    let other = thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let under_way = runtime.block_on(async {
            let keys: Vec<_> = (0..calls)
                .map(|number| format!("before-{number}"))
                .collect();
            for answer in join_all(keys.iter().map(|key| call(&handle, key))).await {
                answer.unwrap();
            }
            // Their connections return to the pool. What a blocked runtime holds of a pool is lost to the others, as with
            // any pool: here, those of the calls that follow.
            sleep(Duration::from_secs(1)).await;
            let mut under_way = JoinSet::new();
            for number in 0..calls {
                let handle = handle.clone();
                under_way.spawn(async move { call(&handle, &format!("under-way-{number}")).await });
            }
            for number in 0..calls {
                let key = format!("left-{number}");
                let leaves = call(&handle, &key).now_or_never();
                assert!(leaves.is_none_or(|answer| answer.is_ok()));
            }
            for _ in 0..8 {
                yield_now().await;
            }
            if still == Still::Blocked {
                ready.send(()).unwrap();
                let _ = ended.recv();
                return None;
            }
            Some((ready, under_way))
        });
        match (still, under_way) {
            (Still::Idle, Some((ready, _under_way))) => {
                ready.send(()).unwrap();
                let _ = ended.recv();
            }
            (_, Some((ready, under_way))) => {
                drop((under_way, runtime));
                ready.send(()).unwrap();
            }
            (_, None) => {}
        }
    });
    is_ready.await.unwrap();
    for round in ["first", "second"] {
        let keys: Vec<_> = (0..calls).map(|it| format!("{round}-{it}")).collect();
        join_all(keys.iter().map(|key| answered(&idem, key))).await;
    }
    // Calls of the keys that are under way there are answered, too, in one way or another.
    let keys: Vec<_> = (0..calls)
        .flat_map(|it| [format!("under-way-{it}"), format!("left-{it}")])
        .collect();
    let duplicates = join_all(keys.iter().map(|key| call(&idem, key)));
    for answer in timeout(ANSWERED, duplicates).await.unwrap() {
        assert!(
            answer
                .as_ref()
                .map_or_else(Error::is_retryable, |it| *it == 7),
            "{answer:?}"
        );
    }
    // By now nothing waits for the other runtime any more.
    call(&idem, "last").await.unwrap();
    drop(end);
    other.join().unwrap();
}

async fn calls_go_on_beside_a_blocked_runtime(store: Arc<dyn Store>) {
    goes_on(Idem::new(store), Still::Blocked).await;
}

async fn calls_go_on_beside_an_idle_runtime(store: Arc<dyn Store>) {
    goes_on(Idem::new(store), Still::Idle).await;
}

async fn calls_go_on_after_a_runtime_was_dropped(store: Arc<dyn Store>) {
    goes_on(Idem::new(store), Still::Dropped).await;
}

on_stores! { [transactions server] shared:
    calls_go_on_beside_a_blocked_runtime,
    calls_go_on_beside_an_idle_runtime,
    calls_go_on_after_a_runtime_was_dropped,
}

/// The connection to Redis was made in a runtime that stands still now.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn calls_go_on_beside_the_runtime_of_the_connection_to_redis() {
    let url = backends::variable(REDIS).unwrap();
    let prefix = format!("runtimes-{:032x}:", rand::random::<u128>());
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let idem = thread::spawn(move || {
        let store = runtime.block_on(async {
            let store = RedisStore::connect(&url).await.unwrap();
            let store: Arc<dyn Store> = Arc::new(store.with_prefix(&prefix).unwrap());
            let idem = Idem::new(store);
            call(&idem, "before").await.unwrap();
            idem
        });
        (store, runtime)
    });
    let (idem, idle) = idem.join().unwrap();
    answered(&idem, "first").await;
    call(&idem, "second").await.unwrap();
    thread::spawn(move || drop(idle)).join().unwrap();
}
