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
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use idem_runtime::{Error, Idem, PostgresStore, idempotent};
use idem_servers::{Options, Server};
use idem_tests::ledger::Database as _;
use idem_tests::ratio::{Effort, is_asked_for};
use idem_tests::slow_disk;
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

/// Number of tasks that make calls.
const TASKS: [usize; 4] = [1, 16, 64, 256];
/// Number of connections of a pool.
const CONNECTIONS: u32 = 16;
const ROUNDS: usize = 9;
/// Time for which one contestant runs in one round.
const SLICE: Duration = Duration::from_millis(300);

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Idempotency(#[from] Error),
    #[error(transparent)]
    Ledger(#[from] sqlx::Error),
}

#[idempotent(key = key, ttl = "24h", name = "bench.call", store = idem)]
async fn call(idem: &Idem, key: &str) -> Result<u64, Failure> {
    Ok(key.len() as u64)
}

#[idempotent(key = key, ttl = "24h", name = "bench.step", store = idem, attempt = attempt)]
async fn call_with_step(idem: &Idem, key: &str) -> Result<u64, Failure> {
    attempt
        .step("step", async || Ok::<_, Failure>(key.len() as u64))
        .await
}

#[idempotent(key = key, ttl = "24h", name = "bench.charge", store = idem, tx = tx)]
async fn charge(idem: &Idem<PostgresStore>, key: &str) -> Result<u64, Failure> {
    PostgresStore::charge(tx, key, "a receipt").await?;
    Ok(34)
}

/// A name, and the work of one call with a number of its own.
struct Contestant(&'static str, Box<dyn Fn(u64) -> Work + Send + Sync>);

/// Sums of one contestant.
#[derive(Default)]
struct Measured {
    /// Microseconds per call, by round.
    times: Vec<f64>,
    calls: u64,
    transactions: i64,
    bytes: i64,
}

fn main() {
    slow_disk::from_arguments(Path::new(env!("CARGO_TARGET_TMPDIR"))).unwrap();
    let effort = Effort::from_arguments();
    let runtime = Runtime::new().unwrap();
    let postgres = Server::postgres(&Options::durable()).unwrap();
    let (contestants, counters) = runtime.block_on(contestants(&postgres.url()));
    for tasks in TASKS {
        if is_asked_for(&tasks.to_string()) {
            runtime.block_on(measure(&contestants, &counters, tasks, effort));
        }
    }
}

async fn pool(url: &str, connections: u32) -> PgPool {
    PgPoolOptions::new()
        .max_connections(connections)
        .min_connections(connections)
        .test_before_acquire(false)
        .connect(url)
        .await
        .unwrap()
}

/// The contestants, the baseline first, and a connection that reads the server's counters.
async fn contestants(url: &str) -> (Vec<Arc<Contestant>>, PgPool) {
    let pool = pool(url, CONNECTIONS).await;
    let store = PostgresStore::new(pool.clone());
    store.make_ledger(&pool).await.unwrap();
    sqlx::query(
        "CREATE TABLE small (id text PRIMARY KEY, token bigint, state text, payload bytea)",
    )
    .execute(&pool)
    .await
    .unwrap();
    let idem = Idem::new(store.clone()).erased();
    let in_transaction = Idem::new(store);
    // Keys for replays.
    for number in 0..REPLAYED {
        call(&idem, &format!("done-{number}")).await.unwrap();
        by_hand(&pool, &format!("done-{number}")).await;
    }
    macro_rules! contestant {
        ($name:literal, |$with:ident, $number:ident| $work:expr) => {{
            let $with = $with.clone();
            Arc::new(Contestant(
                $name,
                Box::new(move |$number| {
                    let $with = $with.clone();
                    Box::pin(async move { $work })
                }),
            ))
        }};
    }
    let contestants = vec![
        contestant!("insert and update by hand", |pool, number| {
            by_hand(&pool, &format!("hand-{number}")).await;
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
        contestant!("read by hand", |pool, number| {
            sqlx::query("SELECT state, payload FROM small WHERE id = $1")
                .bind(format!("done-{}", number % REPLAYED))
                .fetch_one(&pool)
                .await
                .unwrap();
        }),
        contestant!("replay", |idem, number| {
            call(&idem, &format!("done-{}", number % REPLAYED))
                .await
                .unwrap();
        }),
    ];
    (contestants, self::pool(url, 1).await)
}

/// Number of keys for replays: more than tasks, because concurrent replays of one key share a read.
const REPLAYED: u64 = 1000;

async fn by_hand(pool: &PgPool, key: &str) {
    sqlx::query(
        "INSERT INTO small (id, token, state) VALUES ($1, $2, 'running') ON CONFLICT DO NOTHING",
    )
    .bind(key)
    .bind(7_i64)
    .execute(pool)
    .await
    .unwrap();
    sqlx::query("UPDATE small SET state = 'completed', payload = $1 WHERE id = $2 AND token = $3")
        .bind(&b"34"[..])
        .bind(key)
        .bind(7_i64)
        .execute(pool)
        .await
        .unwrap();
}

/// Number of transactions that wrote, and of bytes in the log.
async fn read(counters: &PgPool) -> (i64, i64) {
    sqlx::query_as(
        "SELECT txid_snapshot_xmax(txid_current_snapshot()), pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint",
    )
    .fetch_one(counters)
    .await
    .unwrap()
}

async fn measure(contestants: &[Arc<Contestant>], counters: &PgPool, tasks: usize, effort: Effort) {
    let (rounds, slice) = match effort {
        Effort::Check => (1, Duration::from_millis(5)),
        Effort::Measure => (ROUNDS, SLICE),
    };
    let mut all: Vec<_> = contestants.iter().map(|_| Measured::default()).collect();
    for round in 0..rounds {
        for turn in 0..contestants.len() {
            // The order rotates, so that no contestant always runs after the same one.
            let who = (turn + round) % contestants.len();
            let before = read(counters).await;
            let (time, calls) = run(&contestants[who], tasks, slice).await;
            let after = read(counters).await;
            let measured = &mut all[who];
            measured
                .times
                .push(time.as_secs_f64() * 1e6 / calls.max(1) as f64);
            measured.calls += calls;
            measured.transactions += after.0 - before.0;
            measured.bytes += after.1 - before.1;
        }
    }
    println!("\nPostgreSQL, {tasks} tasks");
    println!(
        "  {:<40} {:>10} {:>8} {:>8} {:>8} {:>8} {:>8}",
        "", "calls/s", "ratio", "lowest", "highest", "commits", "bytes"
    );
    for (contestant, measured) in contestants.iter().zip(&all) {
        let ratios = measured.times.iter().zip(&all[0].times);
        let ratios = sorted(ratios.map(|(own, base)| own / base).collect());
        let times = sorted(measured.times.clone());
        println!(
            "  {:<40} {:>10.0} {:>7.2}x {:>7.2}x {:>7.2}x {:>8.2} {:>8}",
            contestant.0,
            1e6 / times[times.len() / 2],
            ratios[ratios.len() / 2],
            ratios[0],
            ratios[ratios.len() - 1],
            measured.transactions as f64 / measured.calls as f64,
            measured.bytes / measured.calls as i64,
        );
    }
}

/// Runs calls until the time is over. Returns how long they took, and their number.
async fn run(contestant: &Arc<Contestant>, tasks: usize, slice: Duration) -> (Duration, u64) {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let began = Instant::now();
    let mut running = JoinSet::new();
    for _ in 0..tasks {
        let contestant = Arc::clone(contestant);
        running.spawn(async move {
            let mut calls = 0;
            loop {
                contestant.1(NEXT.fetch_add(1, Ordering::Relaxed)).await;
                calls += 1;
                if began.elapsed() > slice {
                    return calls;
                }
            }
        });
    }
    let calls = running.join_all().await.iter().sum();
    (began.elapsed(), calls)
}

fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}
