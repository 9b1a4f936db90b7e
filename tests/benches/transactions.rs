//! Cost of a transactional call, compared with its business insert in a separate transaction, by hand and through the
//! same connections. Each row is a wave of concurrent calls with distinct keys.
//!
//! `cargo bench -p idem-benches --bench transactions -- postgres` measures the stores whose names contain a word, and
//! `--fsync=1ms` does so on a disk whose flushes take a millisecond longer.
//!
//! The limits are measurements of PostgreSQL with handwritten statements. The hard limit is a claim, the insert and a
//! completion in one transaction. The target is the insert and one insert of a completed record, which could not detect
//! a duplicate before the body ran.
#![expect(
    clippy::unwrap_used,
    reason = "a benchmark that cannot run has nothing to say"
)]

use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};

use idem_runtime::{Idem, MySqlStore, PostgresStore, SqliteStore, idempotent};
use idem_servers::{Options, Server};
use idem_tests::ledger::{ChargeError, Database};
use idem_tests::ratio::{Effort, Limits, Table, is_asked_for};
use idem_tests::slow_disk;
use sqlx::mysql::MySqlPoolOptions;
use sqlx::postgres::PgPoolOptions;
use sqlx::sqlite::SqlitePoolOptions;
use tokio::runtime::Runtime;

/// Number of concurrent calls.
const WAVES: [usize; 3] = [1, 16, 64];
/// Number of connections of a pool.
const CONNECTIONS: u32 = 16;

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

#[idempotent(key = key, ttl = "24h", name = "bench.charge", store = idem, tx = tx)]
async fn charge<S: Database>(idem: &Idem<S>, key: &str, receipt: &str) -> Result<u64, ChargeError> {
    S::charge(tx, key, receipt).await?;
    Ok(34)
}

/// A store, and handwritten statements for the same work.
struct Bed {
    name: &'static str,
    /// Limits for this number of tasks, if they were measured.
    limits: fn(usize) -> Option<Limits>,
    alone: Box<dyn Fn(String) -> Work>,
    call: Box<dyn Fn(String) -> Work>,
}

/// Generates the business insert in its own transaction, and the call that does the same.
macro_rules! bed {
    ($name:expr, $store:ident, $pool:ident, $limits:expr, $begin:expr) => {{
        let store = $store::new($pool.clone());
        store.make_ledger(&$pool).await.unwrap();
        let idem = Idem::new(store);
        Bed {
            name: $name,
            limits: $limits,
            alone: Box::new(move |key| {
                let pool = $pool.clone();
                Box::pin(async move {
                    let mut transaction = $begin(pool).await.unwrap();
                    $store::charge(&mut transaction, &key, "a receipt")
                        .await
                        .unwrap();
                    transaction.commit().await.unwrap();
                })
            }),
            call: Box::new(move |key| {
                let idem = idem.clone();
                Box::pin(async move {
                    charge(&idem, &key, "a receipt").await.unwrap();
                })
            }),
        }
    }};
}

fn main() {
    slow_disk::from_arguments(Path::new(env!("CARGO_TARGET_TMPDIR"))).unwrap();
    let effort = Effort::from_arguments();
    let runtime = Runtime::new().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let options = Options::durable();
    let postgres = Server::postgres(&options).unwrap();
    let maria_db = Server::maria_db(&options).unwrap();
    let mut beds = vec![
        runtime.block_on(on_sqlite(&dir.path().join("bench.sqlite"))),
        runtime.block_on(on_postgres(&postgres.url())),
        runtime.block_on(on_my_sql("MariaDB", &maria_db.url())),
    ];
    let my_sql = Server::installed_my_sql(&options).unwrap();
    if let Some(server) = &my_sql {
        beds.push(runtime.block_on(on_my_sql("MySQL", &server.url())));
    }
    for bed in beds.iter().filter(|bed| is_asked_for(bed.name)) {
        for tasks in WAVES {
            measure(&runtime, bed, tasks, effort);
        }
    }
}

fn measure(runtime: &Runtime, bed: &Bed, tasks: usize, effort: Effort) {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let wave = |work: &dyn Fn(String) -> Work| {
        runtime.block_on(async {
            let running: Vec<_> = (0..tasks)
                .map(|_| format!("key-{}", NEXT.fetch_add(1, Ordering::Relaxed)))
                .map(|key| tokio::spawn(work(key)))
                .collect();
            for task in running {
                task.await.unwrap();
            }
        });
    };
    let title = format!("{}, in a transaction, {tasks} at once", bed.name);
    Table::against(&title, "the insert alone", || {
        wave(&bed.alone);
    })
    .with("annotated, tx = tx", (bed.limits)(tasks), || {
        wave(&bed.call);
    })
    .print(effort);
}

async fn on_sqlite(file: &Path) -> Bed {
    let pool = SqlitePoolOptions::new()
        .max_connections(5)
        .test_before_acquire(false)
        .connect_with(SqliteStore::connect_options(file))
        .await
        .unwrap();
    bed!(
        "SQLite",
        SqliteStore,
        pool,
        |_| None,
        async |pool: sqlx::SqlitePool| { pool.begin_with("BEGIN IMMEDIATE").await }
    )
}

async fn on_postgres(url: &str) -> Bed {
    let pool = PgPoolOptions::new()
        .max_connections(CONNECTIONS)
        .test_before_acquire(false)
        .connect(url)
        .await
        .unwrap();
    let limits = |tasks| match tasks {
        1 => Some(Limits::ratio(1.07, 1.06)),
        64 => Some(Limits::ratio(1.42, 1.28)),
        _ => None,
    };
    bed!(
        "PostgreSQL",
        PostgresStore,
        pool,
        limits,
        async |pool: sqlx::PgPool| { pool.begin().await }
    )
}

async fn on_my_sql(name: &'static str, url: &str) -> Bed {
    let pool = MySqlPoolOptions::new()
        .max_connections(CONNECTIONS)
        .test_before_acquire(false)
        .connect(url)
        .await
        .unwrap();
    bed!(
        name,
        MySqlStore,
        pool,
        |_| None,
        async |pool: sqlx::MySqlPool| { pool.begin().await }
    )
}
