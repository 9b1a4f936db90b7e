//! Steady load on PostgreSQL: a number of tasks that make one call after the other, each with its own key. Unlike the
//! waves of `stores.rs`, calls begin and end at any time, so that claims, completions and steps share batches.
//!
//! The baseline is an insert and an update by hand of a table of four columns with a text key and no second index. All
//! contestants have a pool of 16 connections. The table shows time per call in ratio to the baseline of the same round
//! and, per call, the transactions that wrote and the bytes of the log, by the server's own counters.
//!
//! `cargo bench -p idem-benches --bench load -- 64` measures the numbers of tasks in the arguments, and `--fsync=1ms`
//! does so on a disk whose flushes take a millisecond longer.
#![expect(
    clippy::unwrap_used,
    reason = "a benchmark that cannot run has nothing to say"
)]

use std::path::Path;

use idem_runtime::{Idem, PostgresStore, idempotent};
use idem_servers::{Options, Server};
use idem_tests::by_hand::{self, ByHand, COMPLETED, CONNECTIONS, completed};
use idem_tests::ledger::{ChargeError, Database as _};
use idem_tests::ratio::{Effort, is_asked_for};
use idem_tests::slow_disk;
use idem_tests::steady::{self, Contestant};
use sqlx::PgPool;
use tokio::runtime::Runtime;

/// Number of tasks that make calls.
const TASKS: [usize; 4] = [1, 16, 64, 256];

#[idempotent(key = key, ttl = "24h", name = "bench.call", store = idem)]
async fn call(idem: &Idem, key: &str) -> Result<u64, ChargeError> {
    Ok(key.len() as u64)
}

#[idempotent(key = key, ttl = "24h", name = "bench.step", store = idem, attempt = attempt)]
async fn call_with_step(idem: &Idem, key: &str) -> Result<u64, ChargeError> {
    attempt
        .step("step", async || Ok::<_, ChargeError>(key.len() as u64))
        .await
}

#[idempotent(key = key, ttl = "24h", name = "bench.charge", store = idem, tx = tx)]
async fn charge(idem: &Idem<PostgresStore>, key: &str) -> Result<u64, ChargeError> {
    PostgresStore::charge(tx, key, "a receipt").await?;
    Ok(34)
}

fn main() {
    slow_disk::from_arguments(Path::new(env!("CARGO_TARGET_TMPDIR"))).unwrap();
    let effort = Effort::from_arguments();
    let runtime = Runtime::new().unwrap();
    let postgres = Server::postgres(&Options::durable()).unwrap();
    runtime.block_on(async {
        let (contestants, observer) = contestants(&postgres.url()).await;
        for tasks in TASKS {
            if is_asked_for(&tasks.to_string()) {
                let title = format!("PostgreSQL, concurrency {tasks}");
                let counters = async || by_hand::counters(&observer).await.unwrap();
                steady::measure(&title, &contestants, counters, tasks, effort).await;
            }
        }
    });
}

/// The contestants, the baseline first, and a connection that reads the server's counters.
async fn contestants(url: &str) -> (Vec<Contestant>, PgPool) {
    let pool = by_hand::pool(url, CONNECTIONS).await.unwrap();
    let store = PostgresStore::new(pool.clone());
    store.make_ledger(&pool).await.unwrap();
    let hand = ByHand::create(pool.clone()).await.unwrap();
    let idem = Idem::new(store.clone()).erased();
    let in_transaction = Idem::new(store);
    for number in 0..COMPLETED {
        call(&idem, &completed(number)).await.unwrap();
    }
    macro_rules! contestant {
        ($name:literal, |$with:ident, $number:ident| $work:expr) => {{
            let $with = $with.clone();
            Contestant::new($name, move |$number| {
                let $with = $with.clone();
                async move { $work }
            })
        }};
    }
    let contestants = vec![
        contestant!("insert and update by hand", |hand, number| {
            hand.call(&format!("hand-{number}")).await.unwrap();
        }),
        contestant!("annotated", |idem, number| {
            call(&idem, &format!("first-{number}")).await.unwrap();
        }),
        contestant!("annotated, one step", |idem, number| {
            call_with_step(&idem, &format!("step-{number}"))
                .await
                .unwrap();
        }),
        contestant!("business insert, its own transaction", |pool, number| {
            let mut transaction = pool.begin().await.unwrap();
            PostgresStore::charge(&mut transaction, &format!("hand-{number}"), "a receipt")
                .await
                .unwrap();
            transaction.commit().await.unwrap();
        }),
        contestant!("annotated, tx = tx", |in_transaction, number| {
            charge(&in_transaction, &format!("tx-{number}"))
                .await
                .unwrap();
        }),
        contestant!("read by hand", |hand, number| {
            hand.read(&completed(number)).await.unwrap();
        }),
        contestant!("replay", |idem, number| {
            call(&idem, &completed(number)).await.unwrap();
        }),
    ];
    (contestants, by_hand::pool(url, 1).await.unwrap())
}
