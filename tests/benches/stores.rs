//! What a call costs on each store that keeps its records outside of the process, against the same statements written by
//! hand through the same connections. Each row is a wave of calls at once, with keys of their own.
//!
//! `cargo bench -p idem-tests --bench stores -- redis` measures the stores whose names contain a word.
#![expect(
    clippy::unwrap_used,
    reason = "a benchmark that cannot run has nothing to say"
)]

use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use idem_runtime::{Error, Idem, MySqlStore, PostgresStore, RedisStore, SqliteStore, idempotent};
use idem_servers::{Options, Server};
use idem_tests::ratio::{Effort, Limits, Table};
use sqlx::mysql::MySqlPoolOptions;
use sqlx::postgres::PgPoolOptions;
use sqlx::sqlite::SqlitePoolOptions;
use tokio::runtime::Runtime;

/// How many calls are under way at a time.
const WAVES: [usize; 3] = [1, 16, 64];
/// How many connections a pool has.
const CONNECTIONS: u32 = 16;
const FIRST_CALL: Limits = Limits::ratio(1.10, 1.05);
/// Where the statement that claims is the one that replays.
const REPLAY_BY_CLAIM: Limits = Limits::ratio(1.30, 1.10);
/// Where a read comes first.
const REPLAY_BY_READ: Limits = Limits::ratio(1.10, 1.05);
/// What an empty result is stored as.
const RESULT: &[u8] = b"34";

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

#[idempotent(key = key, ttl = "24h", name = "bench.operation", store = idem)]
async fn annotated(idem: &Idem, key: &str, request: &str) -> Result<u64, Error> {
    Ok(request.len() as u64)
}

/// A store, and what somebody would write without it.
struct Bed {
    name: &'static str,
    idem: Idem,
    replay: Limits,
    /// Claims this key, and completes it.
    by_hand: Box<dyn Fn(i64) -> Work>,
    /// Reads what this key was completed with.
    read: Box<dyn Fn(i64) -> Work>,
    /// The same two through the least that a step of the store can be, where that is more.
    floor: Option<Floor>,
}

struct Floor {
    name: &'static str,
    by_hand: Box<dyn Fn(i64) -> Work>,
    read: Box<dyn Fn(i64) -> Work>,
}

fn main() {
    let effort = Effort::from_arguments();
    let runtime = Runtime::new().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let options = Options::durable();
    let postgres = Server::postgres(&options).unwrap();
    let maria_db = Server::maria_db(&options).unwrap();
    let redis = Server::redis(&options).unwrap();
    let beds = [
        runtime.block_on(on_sqlite(&dir.path().join("bench.sqlite"))),
        runtime.block_on(on_postgres(&postgres.url())),
        runtime.block_on(on_maria_db(&maria_db.url())),
        runtime.block_on(on_redis(&redis.url())),
    ];
    let words: Vec<_> = std::env::args()
        .skip(1)
        .filter(|it| !it.starts_with('-'))
        .map(|it| it.to_lowercase())
        .collect();
    for bed in &beds {
        let name = bed.name.to_lowercase();
        if !words.is_empty() && !words.iter().any(|word| name.contains(word)) {
            continue;
        }
        for tasks in WAVES {
            measure(&runtime, bed, tasks, effort);
        }
    }
}

fn measure(runtime: &Runtime, bed: &Bed, tasks: usize, effort: Effort) {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let fresh = || NEXT.fetch_add(1, Ordering::Relaxed);
    let wave = |work: &dyn Fn() -> Work| {
        runtime.block_on(async {
            let running: Vec<_> = (0..tasks).map(|_| tokio::spawn(work())).collect();
            for task in running {
                task.await.unwrap();
            }
        });
    };
    let call = |key: String| -> Work {
        let idem = bed.idem.clone();
        Box::pin(async move {
            annotated(&idem, &key, "a request of some thirty-odd bytes")
                .await
                .unwrap();
        })
    };
    let title = format!("{}, first calls, {tasks} at once", bed.name);
    let mut table = Table::against(&title, "insert and update by hand", || {
        wave(&|| (bed.by_hand)(fresh() as i64));
    });
    if let Some(floor) = &bed.floor {
        table = table.with(floor.name, None, || {
            wave(&|| (floor.by_hand)(fresh() as i64));
        });
    }
    table
        .with("annotated", Some(FIRST_CALL), || {
            wave(&|| call(format!("first-{}", fresh())));
        })
        .print(effort);

    let done = fresh();
    runtime.block_on((bed.by_hand)(done as i64));
    // One key a task: replays of one key in one process are one read.
    let keys: Vec<_> = (0..tasks).map(|_| format!("done-{}", fresh())).collect();
    for key in &keys {
        runtime.block_on(call(key.clone()));
    }
    let turn = AtomicU64::new(0);
    let title = format!("{}, replays, {tasks} at once", bed.name);
    let mut table = Table::against(&title, "primary-key read by hand", || {
        wave(&|| (bed.read)(done as i64));
    });
    if let Some(floor) = &bed.floor {
        table = table.with(floor.name, None, || wave(&|| (floor.read)(done as i64)));
    }
    table
        .with("annotated", Some(bed.replay), || {
            wave(&|| {
                let turn = turn.fetch_add(1, Ordering::Relaxed) as usize;
                call(keys[turn % tasks].clone())
            });
        })
        .print(effort);
}

/// 32 bytes in no order, as the ids of records are.
fn id(number: i64) -> Vec<u8> {
    use sha2::Digest as _;
    sha2::Sha256::digest(number.to_le_bytes()).to_vec()
}

macro_rules! by_hand {
    ($pool:ident, $insert:literal, $update:literal) => {{
        let pool = $pool.clone();
        Box::new(move |number| -> Work {
            let pool = pool.clone();
            Box::pin(async move {
                sqlx::query($insert)
                    .bind(id(number))
                    .bind(number)
                    .execute(&pool)
                    .await
                    .unwrap();
                sqlx::query($update)
                    .bind(RESULT)
                    .bind(id(number))
                    .bind(number)
                    .execute(&pool)
                    .await
                    .unwrap();
            })
        })
    }};
}

macro_rules! read {
    ($pool:ident, $select:literal) => {{
        let pool = $pool.clone();
        Box::new(move |number| -> Work {
            let pool = pool.clone();
            Box::pin(async move {
                sqlx::query($select)
                    .bind(id(number))
                    .fetch_one(&pool)
                    .await
                    .unwrap();
            })
        })
    }};
}

async fn on_sqlite(file: &Path) -> Bed {
    let pool = SqlitePoolOptions::new()
        .max_connections(5)
        .test_before_acquire(false)
        // Writers by hand find the database locked by one another; the store's take turns.
        .connect_with(SqliteStore::connect_options(file).busy_timeout(Duration::from_secs(60)))
        .await
        .unwrap();
    let store = SqliteStore::new(pool.clone());
    store.migrate().await.unwrap();
    sqlx::query(
        "CREATE TABLE by_hand (id BLOB PRIMARY KEY, token INTEGER, state TEXT, payload BLOB)",
    )
    .execute(&pool)
    .await
    .unwrap();
    Bed {
        name: "SQLite",
        idem: Idem::new(store).erased(),
        replay: REPLAY_BY_READ,
        by_hand: by_hand!(
            pool,
            "INSERT INTO by_hand (id, token, state) VALUES (?, ?, 'running') ON CONFLICT DO NOTHING",
            "UPDATE by_hand SET state = 'completed', payload = ? WHERE id = ? AND token = ?"
        ),
        read: read!(pool, "SELECT state, payload FROM by_hand WHERE id = ?"),
        floor: None,
    }
}

async fn on_postgres(url: &str) -> Bed {
    let pool = PgPoolOptions::new()
        .max_connections(CONNECTIONS)
        .test_before_acquire(false)
        .connect(url)
        .await
        .unwrap();
    let store = PostgresStore::new(pool.clone());
    store.migrate().await.unwrap();
    sqlx::query(
        "CREATE TABLE by_hand (id BYTEA PRIMARY KEY, token BIGINT, state TEXT, payload BYTEA)",
    )
    .execute(&pool)
    .await
    .unwrap();
    Bed {
        name: "PostgreSQL",
        idem: Idem::new(store).erased(),
        replay: REPLAY_BY_CLAIM,
        by_hand: by_hand!(
            pool,
            "INSERT INTO by_hand (id, token, state) VALUES ($1, $2, 'running') ON CONFLICT DO NOTHING",
            "UPDATE by_hand SET state = 'completed', payload = $1 WHERE id = $2 AND token = $3"
        ),
        read: read!(pool, "SELECT state, payload FROM by_hand WHERE id = $1"),
        floor: None,
    }
}

async fn on_maria_db(url: &str) -> Bed {
    let pool = MySqlPoolOptions::new()
        .max_connections(CONNECTIONS)
        .test_before_acquire(false)
        .connect(url)
        .await
        .unwrap();
    let store = MySqlStore::new(pool.clone());
    store.migrate().await.unwrap();
    sqlx::query(
        "CREATE TABLE by_hand (id BINARY(32) PRIMARY KEY, token BIGINT, state VARCHAR(16), payload LONGBLOB)",
    )
    .execute(&pool)
    .await
    .unwrap();
    Bed {
        name: "MariaDB",
        idem: Idem::new(store).erased(),
        replay: REPLAY_BY_CLAIM,
        by_hand: by_hand!(
            pool,
            "INSERT IGNORE INTO by_hand (id, token, state) VALUES (?, ?, 'running')",
            "UPDATE by_hand SET state = 'completed', payload = ? WHERE id = ? AND token = ?"
        ),
        read: read!(pool, "SELECT state, payload FROM by_hand WHERE id = ?"),
        floor: None,
    }
}

async fn on_redis(url: &str) -> Bed {
    let client = redis::Client::open(url).unwrap();
    let connection = client.get_connection_manager().await.unwrap();
    let store = RedisStore::open(url).await.unwrap();
    let (to_write, to_read) = (connection.clone(), Arc::new(connection.clone()));
    let script = |text| (redis::Script::new(text), connection.clone());
    let set = script("redis.call('SET', KEYS[1], ARGV[1], 'EX', 86400) return 1");
    let get = script("return redis.call('GET', KEYS[1])");
    let run = |(script, connection): (redis::Script, redis::aio::ConnectionManager), times| {
        Box::new(move |number| -> Work {
            let (script, mut connection) = (script.clone(), connection.clone());
            Box::pin(async move {
                for _ in 0..times {
                    let mut step = script.key(id(number));
                    let _: redis::Value = step
                        .arg(RESULT)
                        .invoke_async(&mut connection)
                        .await
                        .unwrap();
                }
            })
        })
    };
    Bed {
        name: "Redis",
        idem: Idem::new(store).erased(),
        replay: REPLAY_BY_CLAIM,
        floor: Some(Floor {
            name: "scripts of one command",
            by_hand: run(set, 2),
            read: run(get, 1),
        }),
        by_hand: Box::new(move |number| {
            let mut connection = to_write.clone();
            Box::pin(async move {
                for options in [&["NX"][..], &["XX"]] {
                    redis::cmd("SET")
                        .arg(id(number))
                        .arg(RESULT)
                        .arg("EX")
                        .arg(86_400)
                        .arg(options)
                        .exec_async(&mut connection)
                        .await
                        .unwrap();
                }
            })
        }),
        read: Box::new(move |number| {
            let mut connection = redis::aio::ConnectionManager::clone(&to_read);
            Box::pin(async move {
                let _: Vec<u8> = redis::cmd("GET")
                    .arg(id(number))
                    .query_async(&mut connection)
                    .await
                    .unwrap();
            })
        }),
    }
}
