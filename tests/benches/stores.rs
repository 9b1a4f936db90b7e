//! What a call costs on each store that keeps its records outside of the process, against what somebody would write by
//! hand, through the same connections: on SQL an insert and a fenced update of the same row, and a read of it by its
//! primary key; on Redis two scripts, and `GET`. Each row is a wave of calls at once, with keys of their own.
//!
//! `cargo bench -p idem-tests --bench stores -- redis` measures the stores whose names contain a word, and
//! `--fsync=1ms` does so on a disk whose flushes take a millisecond longer.
#![expect(
    clippy::unwrap_used,
    reason = "a benchmark that cannot run has nothing to say"
)]

use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use idem_runtime::{Error, Idem, MySqlStore, PostgresStore, RedisStore, SqliteStore, idempotent};
use idem_servers::{Options, Server};
use idem_tests::ratio::{Effort, Limits, Table, is_asked_for};
use idem_tests::slow_disk;
use sqlx::mysql::MySqlPoolOptions;
use sqlx::postgres::PgPoolOptions;
use sqlx::query::Query;
use sqlx::sqlite::SqlitePoolOptions;
use sqlx::{Encode, Type};
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
    first_call: Contestant,
    /// Reads what this key was completed with.
    read: Contestant,
    /// The same two where less is promised, or by other means: how much of the rest is owed to that.
    others: (Contestant, Contestant),
}

/// What it is, and its work on a key.
struct Contestant(&'static str, Box<dyn Fn(i64) -> Work>);

fn main() {
    slow_disk::from_arguments(Path::new(env!("CARGO_TARGET_TMPDIR"))).unwrap();
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
    for bed in beds.iter().filter(|bed| is_asked_for(bed.name)) {
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
    let Contestant(name, by_hand) = &bed.first_call;
    let Contestant(other_name, other) = &bed.others.0;
    Table::against(&title, name, || wave(&|| by_hand(fresh() as i64)))
        .with(other_name, None, || wave(&|| other(fresh() as i64)))
        .with("annotated", Some(FIRST_CALL), || {
            wave(&|| call(format!("first-{}", fresh())));
        })
        .print(effort);

    let done = fresh();
    runtime.block_on(by_hand(done as i64));
    runtime.block_on(other(done as i64));
    // One key a task: replays of one key in one process are one read.
    let keys: Vec<_> = (0..tasks).map(|_| format!("done-{}", fresh())).collect();
    for key in &keys {
        runtime.block_on(call(key.clone()));
    }
    let turn = AtomicU64::new(0);
    let title = format!("{}, replays, {tasks} at once", bed.name);
    let Contestant(name, read) = &bed.read;
    let Contestant(other_name, other) = &bed.others.1;
    Table::against(&title, name, || wave(&|| read(done as i64)))
        .with(other_name, None, || wave(&|| other(done as i64)))
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

/// The work of a statement or two. They are written for each store, as somebody would who wants what the store gives:
/// one row of the same columns and indexes a key, claimed by whoever inserts it, and completed by nobody else.
macro_rules! work {
    ($pool:ident, |$number:ident| $($query:expr => $run:ident),+) => {{
        let pool = $pool.clone();
        Box::new(move |$number| -> Work {
            let pool = pool.clone();
            Box::pin(async move {
                $($query.$run(&pool).await.unwrap();)+
            })
        })
    }};
}

macro_rules! contestants {
    ($pool:ident, $insert:literal, $update:literal, $read:literal, $small:literal, $end:literal, $get:literal) => {
        (
            Contestant(
                "insert and update by hand",
                work!($pool, |number|
                    insert(sqlx::query($insert), number) => execute,
                    sqlx::query($update)
                        .bind(RESULT)
                        .bind(now())
                        .bind(id(number))
                        .bind(token(number)) => execute
                ),
            ),
            Contestant(
                "primary-key read by hand",
                work!($pool, |number| sqlx::query($read).bind(id(number)) => fetch_one),
            ),
            (
                Contestant(
                    "the same on a row of four columns",
                    work!($pool, |number|
                        sqlx::query($small).bind(id(number)).bind(number) => execute,
                        sqlx::query($end).bind(RESULT).bind(id(number)).bind(number) => execute
                    ),
                ),
                Contestant(
                    "the same on a row of four columns",
                    work!($pool, |number| sqlx::query($get).bind(id(number)) => fetch_one),
                ),
            ),
        )
    };
}

/// The row of this key.
fn insert<'q, DB: sqlx::Database>(
    query: Query<'q, DB, DB::Arguments>,
    number: i64,
) -> Query<'q, DB, DB::Arguments>
where
    Vec<u8>: Encode<'q, DB> + Type<DB>,
    String: Encode<'q, DB> + Type<DB>,
    i64: Encode<'q, DB> + Type<DB>,
{
    const LEASE: i64 = 30_000_000;
    const RETENTION: i64 = 24 * 3_600_000_000;
    let mut fingerprint = vec![0; 5];
    fingerprint.extend(id(-number));
    query
        .bind(id(number))
        .bind("bench.operation".to_owned())
        .bind(format!("first-{number}"))
        .bind(fingerprint)
        .bind(token(number))
        .bind(now())
        .bind(now() + LEASE)
        .bind(RETENTION)
        .bind(now())
        .bind(now() + LEASE + RETENTION)
}

fn token(number: i64) -> Vec<u8> {
    i128::from(number).to_le_bytes().to_vec()
}

/// Microseconds, by the clock of the process.
fn now() -> i64 {
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap();
    now.as_micros().try_into().unwrap()
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
    let by_hand = store.clone().with_table("by_hand").unwrap();
    by_hand.migrate().await.unwrap();
    sqlx::query(
        "CREATE TABLE small (id BLOB PRIMARY KEY, token INTEGER, state TEXT, payload BLOB)",
    )
    .execute(&pool)
    .await
    .unwrap();
    let (first_call, read, others) = contestants!(
        pool,
        "INSERT INTO by_hand (id, scope, operation, idempotency_key, fingerprint, state, token, grant_number, attempt, \
           lease_until, retention, on_crash, first_claimed_at, purge_after) \
         VALUES (?, '', ?, ?, ?, 'running', ?, ?, 1, ?, ?, 'rerun', ?, ?) ON CONFLICT DO NOTHING",
        "UPDATE by_hand SET state = 'completed', codec = 'json', payload = ?, ended_at = ? \
         WHERE id = ? AND token = ? AND state = 'running'",
        "SELECT fingerprint, state, payload FROM by_hand WHERE id = ?",
        "INSERT INTO small (id, token, state) VALUES (?, ?, 'running') ON CONFLICT DO NOTHING",
        "UPDATE small SET state = 'completed', payload = ? WHERE id = ? AND token = ?",
        "SELECT state, payload FROM small WHERE id = ?"
    );
    Bed {
        name: "SQLite",
        idem: Idem::new(store).erased(),
        replay: REPLAY_BY_READ,
        first_call,
        read,
        others,
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
    let by_hand = store.clone().with_table("by_hand").unwrap();
    by_hand.migrate().await.unwrap();
    sqlx::query(
        "CREATE TABLE small (id BYTEA PRIMARY KEY, token BIGINT, state TEXT, payload BYTEA)",
    )
    .execute(&pool)
    .await
    .unwrap();
    let (first_call, read, others) = contestants!(
        pool,
        "INSERT INTO by_hand (id, scope, operation, idempotency_key, fingerprint, state, token, grant_number, attempt, \
           lease_until, retention, on_crash, first_claimed_at, purge_after) \
         VALUES ($1, '', $2, $3, $4, 'running', $5, $6, 1, $7, $8, 'rerun', $9, $10) ON CONFLICT DO NOTHING",
        "UPDATE by_hand SET state = 'completed', codec = 'json', payload = $1, ended_at = $2 \
         WHERE id = $3 AND token = $4 AND state = 'running'",
        "SELECT fingerprint, state, payload FROM by_hand WHERE id = $1",
        "INSERT INTO small (id, token, state) VALUES ($1, $2, 'running') ON CONFLICT DO NOTHING",
        "UPDATE small SET state = 'completed', payload = $1 WHERE id = $2 AND token = $3",
        "SELECT state, payload FROM small WHERE id = $1"
    );
    Bed {
        name: "PostgreSQL",
        idem: Idem::new(store).erased(),
        replay: REPLAY_BY_CLAIM,
        first_call,
        read,
        others,
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
    let by_hand = store.clone().with_table("by_hand").unwrap();
    by_hand.migrate().await.unwrap();
    sqlx::query(
        "CREATE TABLE small (id BINARY(32) PRIMARY KEY, token BIGINT, state VARCHAR(16), payload LONGBLOB)",
    )
    .execute(&pool)
    .await
    .unwrap();
    let (first_call, read, others) = contestants!(
        pool,
        "INSERT IGNORE INTO by_hand (id, scope, operation, idempotency_key, fingerprint, state, token, grant_number, \
           attempt, lease_until, retention, on_crash, first_claimed_at, purge_after) \
         VALUES (?, '', ?, ?, ?, 'running', ?, ?, 1, ?, ?, 'rerun', ?, ?)",
        "UPDATE by_hand SET state = 'completed', codec = 'json', payload = ?, ended_at = ? \
         WHERE id = ? AND token = ? AND state = 'running'",
        "SELECT fingerprint, state, payload FROM by_hand WHERE id = ?",
        "INSERT IGNORE INTO small (id, token, state) VALUES (?, ?, 'running')",
        "UPDATE small SET state = 'completed', payload = ? WHERE id = ? AND token = ?",
        "SELECT state, payload FROM small WHERE id = ?"
    );
    Bed {
        name: "MariaDB",
        idem: Idem::new(store).erased(),
        replay: REPLAY_BY_CLAIM,
        first_call,
        read,
        others,
    }
}

/// What a claim by hand must do in one step: tell what is there, or write that it is taken.
const CLAIM: &str = "local there = redis.call('GET', KEYS[1]) if there then return there end \
    redis.call('SET', KEYS[1], 'running ' .. ARGV[1] .. ' ' .. ARGV[2], 'PX', 86400000) return 'claimed'";
/// And a completion: write, where nobody else has claimed meanwhile.
const COMPLETE: &str = "local there = redis.call('GET', KEYS[1]) \
    if there ~= 'running ' .. ARGV[1] .. ' ' .. ARGV[2] then return 0 end \
    redis.call('SET', KEYS[1], 'completed ' .. ARGV[2] .. ARGV[3], 'PX', 86400000) return 1";

async fn on_redis(url: &str) -> Bed {
    let client = redis::Client::open(url).unwrap();
    let connection = client.get_connection_manager().await.unwrap();
    let store = RedisStore::open(url).await.unwrap();
    let run = |scripts: &[&'static str]| -> Box<dyn Fn(i64) -> Work> {
        let scripts: Vec<_> = scripts
            .iter()
            .map(|text| redis::Script::new(text))
            .collect();
        let connection = connection.clone();
        Box::new(move |number| {
            let (scripts, mut connection) = (scripts.clone(), connection.clone());
            Box::pin(async move {
                for script in &scripts {
                    let mut step = script.key(id(number));
                    let _: redis::Value = step
                        .arg(token(number))
                        .arg(id(-number))
                        .arg(RESULT)
                        .invoke_async(&mut connection)
                        .await
                        .unwrap();
                }
            })
        })
    };
    let plain = |commands: &[&[&'static str]]| -> Box<dyn Fn(i64) -> Work> {
        let commands: Vec<Vec<_>> = commands.iter().map(|it| it.to_vec()).collect();
        let connection = connection.clone();
        Box::new(move |number| {
            let (commands, mut connection) = (commands.clone(), connection.clone());
            Box::pin(async move {
                for words in &commands {
                    let _: redis::Value = redis::cmd(words[0])
                        .arg(id(number))
                        .arg(&words[1..])
                        .query_async(&mut connection)
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
        first_call: Contestant("two scripts by hand", run(&[CLAIM, COMPLETE])),
        read: Contestant("GET", plain(&[&["GET"]])),
        others: (
            Contestant(
                "SET NX and SET XX, which compare nothing",
                plain(&[
                    &["SET", "34", "EX", "86400", "NX"],
                    &["SET", "34", "EX", "86400", "XX"],
                ]),
            ),
            Contestant("the script that claims by hand", run(&[CLAIM])),
        ),
    }
}
