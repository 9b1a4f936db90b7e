//! Cost of a call on each store that keeps its records outside of the process. Each row is a wave of concurrent calls
//! with distinct keys.
//!
//! A first call is compared with the statements that it sends, sent by hand through the same pool; on Redis with its
//! commands. A further row shows the cost of handwritten statements. They have the same columns and indexes, but
//! they take the time from the process, may reuse the number of a deleted record, and return nothing. A replay is
//! compared with the shortest read of a record by its primary key, on Redis `GET`.
//!
//! `cargo bench -p idem-benches --bench stores -- redis` measures the stores whose names contain a word, and
//! `--fsync=1ms` does so on a disk whose flushes take a millisecond longer.
#![expect(
    clippy::unwrap_used,
    reason = "a benchmark that cannot run has nothing to say"
)]

use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use idem_runtime::{Error, Idem, PostgresStore, RedisStore, SqliteStore, Store, idempotent};
use idem_servers::{Options, Server};
use idem_tests::ratio::{Effort, Limits, Table, is_asked_for};
use idem_tests::slow_disk;
use idem_tests::statements::Statements;
use redis::aio::ConnectionManager;
use sqlx::postgres::PgPoolOptions;
use sqlx::query::Query;
use sqlx::sqlite::SqlitePoolOptions;
use sqlx::{Encode, Row as _, SqlitePool, Type};
use tokio::runtime::Runtime;

/// Number of concurrent calls.
const WAVES: [usize; 3] = [1, 16, 64];
/// Number of connections of a pool.
const CONNECTIONS: u32 = 16;
const FIRST_CALL: Limits = Limits::ratio(1.10, 1.05);
/// Limits of a replay's cost, relative to the bare read.
const POSTGRES_REPLAY: Limits = Limits::ratio(1.40, 1.10);
const SQLITE_REPLAY: Limits = Limits::ratio(1.30, 1.05);
const MARIADB_REPLAY: Limits = Limits::ratio(2.30, 1.10);
/// A replay on MySQL takes two round trips: the insert that finds a duplicate, and the read.
const MYSQL_REPLAY: Limits = Limits::ratio(3.50, 1.10);
/// Limits of the cost of a claim, relative to `GET`: for one call, and for many concurrent calls.
const REDIS_REPLAY: Limits = Limits::ratio(1.50, 1.10);
const REDIS_REPLAYS: Limits = Limits::ratio(3.00, 1.10);
/// Stored form of an empty result.
const RESULT: &[u8] = b"34";
/// Table of the stores.
const RECORDS: &str = "idem_records";

/// Lease in microseconds.
const LEASE: i64 = 30_000_000;
const RETENTION: i64 = 24 * 3_600_000_000;

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

#[idempotent(key = key, ttl = "24h", name = "bench.operation", store = idem)]
async fn annotated(idem: &Idem, key: &str, request: &str) -> Result<u64, Error> {
    Ok(request.len() as u64)
}

/// A store, and handwritten statements for the same work.
struct Bed {
    name: &'static str,
    idem: Idem,
    /// Limits for one caller, and for many.
    replay: [Limits; 2],
    /// Claims this key and completes it, with the store's statements.
    own: Contestant,
    /// Claims a completed key, with the store's statements.
    own_claim: Contestant,
    /// Claims this key and completes it, with handwritten statements.
    first_call: Contestant,
    /// Reads the outcome of this key.
    read: Contestant,
    /// The handwritten call and read with a weaker guarantee or another method: they show its share of the cost.
    others: (Contestant, Contestant),
}

/// Name of a contestant, and its work on a key.
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
    let heard = Statements::hear(RECORDS);
    let mut beds = vec![
        runtime.block_on(on_sqlite(&dir.path().join("bench.sqlite"), &heard)),
        runtime.block_on(on_postgres(&postgres.url(), &heard)),
        runtime.block_on(on_maria_db(&maria_db.url(), &heard)),
        runtime.block_on(on_redis(&redis.url())),
    ];
    let my_sql = Server::installed_my_sql(&options).unwrap();
    if let Some(server) = &my_sql {
        beds.push(runtime.block_on(on_my_sql(&server.url(), &heard)));
    }
    drop(heard);
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
    let Contestant(own_name, own) = &bed.own;
    let Contestant(name, by_hand) = &bed.first_call;
    let Contestant(other_name, other) = &bed.others.0;
    Table::against(&title, own_name, || wave(&|| own(fresh() as i64)))
        .with(name, None, || wave(&|| by_hand(fresh() as i64)))
        .with(other_name, None, || wave(&|| other(fresh() as i64)))
        .with("annotated", Some(FIRST_CALL), || {
            wave(&|| call(format!("first-{}", fresh())));
        })
        .print(effort);

    let done = fresh();
    for make in [own, by_hand, other] {
        runtime.block_on(make(done as i64));
    }
    // One key for each task: single-flight makes one read of concurrent replays of one key.
    let keys: Vec<_> = (0..tasks).map(|_| format!("done-{}", fresh())).collect();
    for key in &keys {
        runtime.block_on(call(key.clone()));
    }
    let turn = AtomicU64::new(0);
    let title = format!("{}, replays, {tasks} at once", bed.name);
    let Contestant(name, read) = &bed.read;
    let Contestant(other_name, other) = &bed.others.1;
    let Contestant(own_name, own) = &bed.own_claim;
    Table::against(&title, name, || wave(&|| read(done as i64)))
        .with(other_name, None, || wave(&|| other(done as i64)))
        .with(own_name, None, || wave(&|| own(done as i64)))
        .with(
            "annotated",
            Some(bed.replay[usize::from(tasks > 1)]),
            || {
                wave(&|| {
                    let turn = turn.fetch_add(1, Ordering::Relaxed) as usize;
                    call(keys[turn % tasks].clone())
                });
            },
        )
        .print(effort);
}

/// 32 bytes without order, like the ids of records.
fn id(number: i64) -> Vec<u8> {
    use sha2::Digest as _;
    sha2::Sha256::digest(number.to_le_bytes()).to_vec()
}

/// Work of one or two statements. They are written for each store with the guarantees of the store: one row for each
/// key, with the same columns and indexes. The inserter of a row claims it, and no other caller can complete it.
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

/// Text of a statement, and the order of its parameters.
type Worded = (&'static str, &'static [usize]);

/// Last statements that this store sends for a first call.
async fn last_of_a_call<const N: usize>(
    heard: &Statements,
    store: impl Store,
    close: impl AsyncFnOnce(),
) -> [&'static str; N] {
    let idem = Idem::new(store).erased();
    annotated(&idem, "heard", "").await.unwrap();
    close().await;
    let texts = heard.take();
    let last = texts.last_chunk::<N>().unwrap();
    last.clone().map(|text| &*text.leak())
}

fn worded<DB: sqlx::Database>(
    (text, order): Worded,
    parameters: &[Parameter],
) -> Query<'static, DB, DB::Arguments>
where
    Vec<u8>: Encode<'static, DB> + Type<DB>,
    String: Encode<'static, DB> + Type<DB>,
    Option<Vec<u8>>: Encode<'static, DB>,
    Option<String>: Encode<'static, DB>,
    i64: Encode<'static, DB> + Type<DB>,
{
    let next =
        |query: Query<'static, DB, DB::Arguments>, number: &usize| match &parameters[number - 1] {
            Parameter::Bytes(bytes) => query.bind(bytes.clone()),
            Parameter::Text(text) => query.bind(text.clone()),
            Parameter::Number(number) => query.bind(*number),
            Parameter::NoText => query.bind(None::<String>),
            Parameter::NoBytes => query.bind(None::<Vec<u8>>),
        };
    order.iter().fold(sqlx::query(text), next)
}

enum Parameter {
    Bytes(Vec<u8>),
    Text(String),
    Number(i64),
    NoText,
    NoBytes,
}

fn claim(number: i64) -> [Parameter; 11] {
    [
        Parameter::Bytes(id(number)),
        Parameter::Text(String::new()),
        Parameter::Text("bench.operation".to_owned()),
        Parameter::Text(key(number)),
        Parameter::Bytes(fingerprint(number)),
        Parameter::Bytes(claim_id(number)),
        Parameter::Number(LEASE),
        Parameter::Number(RETENTION),
        Parameter::Text("rerun".to_owned()),
        // The label of the owner, and the digests of members.
        Parameter::NoText,
        Parameter::NoBytes,
    ]
}

fn completion(number: i64, fencing_token: i64) -> [Parameter; 6] {
    [
        Parameter::Bytes(id(number)),
        Parameter::Bytes(claim_id(number)),
        Parameter::Number(fencing_token),
        Parameter::Text("completed".to_owned()),
        Parameter::Text("json".to_owned()),
        Parameter::Bytes(RESULT.to_vec()),
    ]
}

/// The statements that a store sends for a first call and for a replay, by hand: a read if the store reads first, the
/// claim, and the completion; and the column of the fencing token in the claim's row.
macro_rules! own {
    ($pool:ident, $read:expr, $claim:expr, $complete:expr, |$row:ident| $fencing_token:expr) => {{
        let (read, claims, completes): (Option<Worded>, Worded, Worded) =
            ($read, $claim, $complete);
        let pool = $pool.clone();
        let first: Box<dyn Fn(i64) -> Work> = Box::new(move |number| {
            let pool = pool.clone();
            Box::pin(async move {
                if let Some(read) = read {
                    let find = worded(read, &claim(number));
                    assert!(find.fetch_optional(&pool).await.unwrap().is_none());
                }
                let $row = worded(claims, &claim(number))
                    .fetch_one(&pool)
                    .await
                    .unwrap();
                let complete = worded(completes, &completion(number, $fencing_token));
                assert_eq!(complete.execute(&pool).await.unwrap().rows_affected(), 1);
            })
        });
        let pool = $pool.clone();
        let replay: Box<dyn Fn(i64) -> Work> = Box::new(move |number| {
            let pool = pool.clone();
            Box::pin(async move {
                let find = worded(read.unwrap_or(claims), &claim(number));
                find.fetch_one(&pool).await.unwrap();
            })
        });
        (
            Contestant("its own statements by hand", first),
            Contestant("its own statement by hand", replay),
        )
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
                        .bind(claim_id(number)) => execute
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

mod my_sql;

use self::my_sql::{on_maria_db, on_my_sql};

/// Inserts the row of this key.
fn insert<'q, DB: sqlx::Database>(
    query: Query<'q, DB, DB::Arguments>,
    number: i64,
) -> Query<'q, DB, DB::Arguments>
where
    Vec<u8>: Encode<'q, DB> + Type<DB>,
    String: Encode<'q, DB> + Type<DB>,
    i64: Encode<'q, DB> + Type<DB>,
{
    query
        .bind(id(number))
        .bind("bench.operation".to_owned())
        .bind(key(number))
        .bind(fingerprint(number))
        .bind(claim_id(number))
        .bind(now())
        .bind(now() + LEASE)
        .bind(RETENTION)
        .bind(now())
        .bind(now() + LEASE + RETENTION)
}

fn key(number: i64) -> String {
    format!("first-{number}")
}

fn fingerprint(number: i64) -> Vec<u8> {
    let mut fingerprint = vec![0; 5];
    fingerprint.extend(id(-number));
    fingerprint
}

fn claim_id(number: i64) -> Vec<u8> {
    i128::from(number).to_le_bytes().to_vec()
}

/// Microseconds by the clock of the process.
fn now() -> i64 {
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap();
    now.as_micros().try_into().unwrap()
}

async fn on_sqlite(file: &Path, heard: &Statements) -> Bed {
    let pool = SqlitePoolOptions::new()
        .max_connections(5)
        .test_before_acquire(false)
        // Handwritten writers block one another with the database's lock; those of the store queue.
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
        "INSERT INTO by_hand (id, scope, operation, idempotency_key, fingerprint, state, claim_id, fencing_token, attempt, \
           lease_until, retention, on_crash, first_claimed_at, purge_after) \
         VALUES (?, '', ?, ?, ?, 'running', ?, ?, 1, ?, ?, 'rerun', ?, ?) ON CONFLICT DO NOTHING",
        "UPDATE by_hand SET state = 'completed', codec = 'json', payload = ?, ended_at = ? \
         WHERE id = ? AND claim_id = ? AND state = 'running'",
        "SELECT fingerprint, state, payload FROM by_hand WHERE id = ?",
        "INSERT INTO small (id, token, state) VALUES (?, ?, 'running') ON CONFLICT DO NOTHING",
        "UPDATE small SET state = 'completed', payload = ? WHERE id = ? AND token = ?",
        "SELECT state, payload FROM small WHERE id = ?"
    );
    // Each thread of a pool reports its statements when it ends.
    let listened_to = SqlitePool::connect_with(SqliteStore::connect_options(file))
        .await
        .unwrap();
    let its = SqliteStore::new(listened_to.clone());
    let [find, claim, complete] =
        last_of_a_call(heard, its, async || listened_to.close().await).await;
    let (own, own_claim) = own!(
        pool,
        Some((find, &[1])),
        (claim, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]),
        (complete, &[1, 2, 3, 4, 5, 6]),
        |row| row.get("fencing_token")
    );
    Bed {
        name: "SQLite",
        idem: Idem::new(store).erased(),
        replay: [SQLITE_REPLAY; 2],
        own,
        own_claim,
        first_call,
        read,
        others,
    }
}

async fn on_postgres(url: &str, heard: &Statements) -> Bed {
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
        "INSERT INTO by_hand (id, scope, operation, idempotency_key, fingerprint, state, claim_id, fencing_token, attempt, \
           lease_until, retention, on_crash, first_claimed_at, purge_after) \
         VALUES ($1, '', $2, $3, $4, 'running', $5, $6, 1, $7, $8, 'rerun', $9, $10) ON CONFLICT DO NOTHING",
        "UPDATE by_hand SET state = 'completed', codec = 'json', payload = $1, ended_at = $2 \
         WHERE id = $3 AND claim_id = $4 AND state = 'running'",
        "SELECT fingerprint, state, payload FROM by_hand WHERE id = $1",
        "INSERT INTO small (id, token, state) VALUES ($1, $2, 'running') ON CONFLICT DO NOTHING",
        "UPDATE small SET state = 'completed', payload = $1 WHERE id = $2 AND token = $3",
        "SELECT state, payload FROM small WHERE id = $1"
    );
    let [claim, complete] = last_of_a_call(heard, store.clone(), async || {}).await;
    let (own, own_claim) = own!(
        pool,
        None,
        (claim, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]),
        (complete, &[1, 2, 3, 4, 5, 6]),
        // The last column, if the claim has created the record.
        |row| row.get(row.len() - 1)
    );
    Bed {
        name: "PostgreSQL",
        idem: Idem::new(store).erased(),
        replay: [POSTGRES_REPLAY; 2],
        own,
        own_claim,
        first_call,
        read,
        others,
    }
}

/// A handwritten claim in one atomic script: it returns the existing value, or writes the claim.
const CLAIM: &str = "local there = redis.call('GET', KEYS[1]) if there then return there end \
    redis.call('SET', KEYS[1], 'running ' .. ARGV[1] .. ' ' .. ARGV[2], 'PX', 86400000) return 'claimed'";
/// A handwritten completion: it writes only if the claim is unchanged (compare-and-swap).
const COMPLETE: &str = "local there = redis.call('GET', KEYS[1]) \
    if there ~= 'running ' .. ARGV[1] .. ' ' .. ARGV[2] then return 0 end \
    redis.call('SET', KEYS[1], 'completed ' .. ARGV[2] .. ARGV[3], 'PX', 86400000) return 1";

/// Script of the store for servers without `SET IFEQ`.
const COMPLETE_FIRST: &str = include_str!("../../../idem-runtime/src/store/redis/complete.lua");

/// Value of a first claim, as the store writes it.
fn first_claim(number: i64, key: &str) -> Vec<u8> {
    let mut request = fingerprint(number);
    // Other contestants write different values under the id.
    request.extend(format!("bench.operation\n{key}\n").as_bytes());
    let mut value = b"\xfe\x01rrf".to_vec();
    value.extend(i128::from(number).to_be_bytes());
    value.extend([0; 16]);
    value.extend(LEASE.to_be_bytes());
    value.extend(RETENTION.to_be_bytes());
    value.extend(1_u32.to_be_bytes());
    push_section(&mut value, b'q', &request);
    value
}

fn push_section(value: &mut Vec<u8>, tag: u8, content: &[u8]) {
    value.push(tag);
    value.extend(u32::try_from(content.len()).unwrap().to_be_bytes());
    value.extend(content);
}

/// Commands that the store sends for a first call and for a replay, by hand.
async fn own_commands(
    connection: &ConnectionManager,
    store: &RedisStore,
) -> (Contestant, Contestant) {
    let script = Arc::new(redis::Script::new(COMPLETE_FIRST));
    let idem = Idem::new(store.clone()).erased();
    annotated(&idem, "sent", "").await.unwrap();
    let [by_script]: [bool; 1] = redis::cmd("SCRIPT")
        .arg("EXISTS")
        .arg(script.get_hash())
        .query_async(&mut connection.clone())
        .await
        .unwrap();
    let run = |completes: bool| -> Box<dyn Fn(i64) -> Work> {
        let (script, connection) = (Arc::clone(&script), connection.clone());
        Box::new(move |number| {
            let (script, mut connection) = (Arc::clone(&script), connection.clone());
            Box::pin(async move {
                let key = key(number);
                let claim = first_claim(number, &key);
                let mut pipeline = redis::pipe();
                let set = pipeline.cmd("SET").arg(&key).arg(&claim);
                set.arg("NX").arg("GET").arg("PX");
                set.arg((LEASE + RETENTION) / 1000);
                pipeline.cmd("PEXPIRETIME").arg(&key);
                pipeline.cmd("PTTL").arg(&key);
                let claimed = pipeline.query_async(&mut connection).await;
                let (_, expiry, _): (Option<Vec<u8>>, i64, i64) = claimed.unwrap();
                if !completes {
                    return;
                }
                let claimed_at = expiry * 1000 - LEASE - RETENTION;
                let mut value = claim.clone();
                (value[2], value[4]) = (b'c', b'o');
                value[21..29].copy_from_slice(&claimed_at.to_be_bytes());
                value[29..37].copy_from_slice(&claimed_at.to_be_bytes());
                value[37..45].copy_from_slice(&(claimed_at + LEASE).to_be_bytes());
                push_section(&mut value, b'p', &[b"4:json", RESULT].concat());
                if by_script {
                    let mut step = script.key(&key);
                    let step = step.arg(&claim).arg(&value).arg(RETENTION / 1000);
                    let completed: i64 = step.invoke_async(&mut connection).await.unwrap();
                    assert_eq!(completed, 1);
                } else {
                    let mut set = redis::cmd("SET");
                    set.arg(&key).arg(&value).arg("IFEQ").arg(&claim);
                    set.arg("PX").arg(RETENTION / 1000);
                    let completed: String = set.query_async(&mut connection).await.unwrap();
                    assert_eq!(completed, "OK");
                }
            })
        })
    };
    (
        Contestant("its own commands by hand", run(true)),
        Contestant("its own claim by hand", run(false)),
    )
}

async fn on_redis(url: &str) -> Bed {
    let client = redis::Client::open(url).unwrap();
    let connection = client.get_connection_manager().await.unwrap();
    let store = RedisStore::connect(url).await.unwrap();
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
                        .arg(claim_id(number))
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
    let (own, own_claim) = own_commands(&connection, &store).await;
    Bed {
        name: "Redis",
        idem: Idem::new(store).erased(),
        replay: [REDIS_REPLAY, REDIS_REPLAYS],
        own,
        own_claim,
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
