//! Cost of a call by the number of live records in its table: PostgreSQL, MariaDB, MySQL if it is installed, and SQLite.
//!
//! The tables of all sizes are in one database, filled with copies of records that the store itself wrote. Rounds rotate
//! among the sizes, so that the ratio to the smallest is one of neighbouring moments. A second table has what the server
//! counts per call, on a quiet server. Then come first calls beside a purge, and many purgers. The last table has the
//! sizes before and after a turnover: as many records as live are purged, and as many are written.
//!
//! `cargo bench -p idem-benches --bench size -- postgres 20000000` measures one store and one size against 10,000
//! records. The default is all stores, and 1,000,000 records. Further words are:
//!
//! - `purging` measures only first calls beside a purge, and many purgers.
//! - `outbox` measures outboxes instead: the number is that of the waiting messages, and ten times as many are delivered.
//! - `small-memory` then measures the calls once more with a buffer pool of 256 MB, so that MariaDB or MySQL reads
//!   larger tables from the disk. Nothing else follows.
#![expect(
    clippy::unwrap_used,
    reason = "a benchmark that cannot run has nothing to say"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use idem_report::{Limits, Measured, Report};
use idem_runtime::key::RecordId;
use idem_runtime::record::{ClaimId, Outcome, Owner, Payload, Timestamp};
use idem_runtime::store::{ClaimOutcome, ClaimRequest, Filter, PageRequest};
use idem_tests::claims::{claim_of, identity};
use idem_tests::copies::{self, Pool};
use idem_tests::ratio::Effort;
use sqlx::{AssertSqlSafe, Executor as _};
use tokio::runtime::Runtime;

use crate::database::{Database, Open, Store, open};

mod database;
mod outbox;
mod purging;

/// Number of live records that the larger tables are compared with.
const BASE: u64 = 10_000;
const DEFAULT: u64 = 1_000_000;
/// Most records that are turned over.
const MOST_TURNED_OVER: u64 = 2_000_000;
/// Number of lapsed records that are taken over in turn.
const LAPSED: u64 = 1_000;
/// Number of records that one purge removes.
const PURGED: u64 = 1_000;
/// Number of calls for each count.
const COUNTED: u64 = 50;
const ROUNDS: usize = 25;
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);
/// Lease of a record that lapses at once.
const BRIEF: Duration = Duration::from_millis(1);

#[derive(Clone, Copy)]
enum Work {
    /// First calls by this number of tasks.
    FirstCalls(u64),
    Replay,
    TakeOver,
    Page,
    Purge,
}

const WORKS: [(&str, Work); 7] = [
    ("first call, 1 task", Work::FirstCalls(1)),
    ("first call, 16 tasks", Work::FirstCalls(16)),
    ("first call, 64 tasks", Work::FirstCalls(64)),
    ("replay of a random record", Work::Replay),
    ("takeover of a lapsed record", Work::TakeOver),
    ("page of 100 records", Work::Page),
    ("purge of a batch of 1,000", Work::Purge),
];

/// A table of records.
struct Sized {
    records: u64,
    table: String,
    store: Store,
    /// The same table, on the connection whose work is counted.
    counted: Store,
    database: Arc<Database>,
    /// Number of the next copy that is due.
    next_due: AtomicU64,
}

fn main() {
    let effort = Effort::from_arguments();
    let words: Vec<_> = std::env::args()
        .skip(1)
        .filter(|it| !it.starts_with('-'))
        .collect();
    let (numbers, mut names): (Vec<_>, Vec<_>) =
        words.into_iter().partition(|it| it.parse::<u64>().is_ok());
    let mut take = |word: &str| {
        let before = names.len();
        names.retain(|it| it != word);
        names.len() < before
    };
    let parts = Parts {
        only_purging: take("purging"),
        small_memory: take("small-memory"),
    };
    let outboxes = take("outbox");
    let mut sizes: Vec<u64> = numbers.iter().map(|it| it.parse().unwrap()).collect();
    match effort {
        Effort::Measure if sizes.is_empty() => sizes.push(DEFAULT),
        Effort::Measure => {}
        Effort::Check => sizes = vec![300],
    }
    let base = match effort {
        Effort::Measure if outboxes => outbox::BASE,
        Effort::Measure => BASE,
        Effort::Check => 100,
    };
    sizes.retain(|it| *it != base);
    sizes.insert(0, base);
    if parts.only_purging {
        sizes.truncate(1);
    }
    let runtime = Runtime::new().unwrap();
    let directory = tempfile::tempdir().unwrap();
    for name in ["SQLite", "PostgreSQL", "MariaDB", "MySQL"] {
        let is_asked_for = |word: &String| name.to_lowercase().contains(&word.to_lowercase());
        // A check is brief: it starts a server only if it is asked for.
        let is_checked = matches!(effort, Effort::Measure) || name == "SQLite";
        if names.is_empty() && is_checked || names.iter().any(is_asked_for) {
            runtime.block_on(async {
                let Some((database, open)) = open(name, directory.path()).await else {
                    println!("{name} is not installed");
                    return;
                };
                let database = Arc::new(database);
                match effort {
                    Effort::Check => outbox::measure(&database, &[outbox::BASE], effort).await,
                    Effort::Measure if outboxes => {
                        outbox::measure(&database, &sizes, effort).await;
                    }
                    Effort::Measure => {}
                }
                if !outboxes {
                    measure(&database, &open, &sizes, parts, effort).await;
                }
            });
        }
    }
}

/// What is measured of tables of records.
#[derive(Clone, Copy)]
struct Parts {
    only_purging: bool,
    small_memory: bool,
}

async fn measure(
    database: &Arc<Database>,
    open: &Open,
    sizes: &[u64],
    parts: Parts,
    effort: Effort,
) {
    let name = database.name;
    let mut tables = Vec::new();
    for records in sizes {
        let table = format!("size_{records}");
        let (store, counted) = open(&table);
        let sized = Sized {
            records: *records,
            table,
            store,
            counted,
            database: Arc::clone(database),
            next_due: AtomicU64::new(0),
        };
        let began = Instant::now();
        let empty = sized.bytes().await;
        sized.store.apply_migrations().await.unwrap();
        sized.fill().await;
        let (table, indexes) = sized.bytes().await;
        println!(
            "{name}, {records} records: filled in {:.0} s, per record {} bytes in the table and {} in indexes",
            began.elapsed().as_secs_f64(),
            (table - empty.0) / records.cast_signed(),
            (indexes - empty.1) / records.cast_signed(),
        );
        tables.push(sized);
    }
    if !parts.only_purging {
        time(name, &tables, effort).await;
        count(name, &tables).await;
    }
    if parts.small_memory {
        database.shrink_memory().await;
        time(&format!("{name} with 256 MB"), &tables, effort).await;
        return;
    }
    purging::measure(&tables[0], effort).await;
    for table in &tables {
        if table.records <= MOST_TURNED_OVER && !parts.only_purging {
            turn_over(table, &open(&format!("turned_{}", table.records))).await;
        }
    }
}

impl Sized {
    /// Fills the empty table: completed records, and some that lapsed.
    async fn fill(&self) {
        finish(&self.store, &done()).await;
        own(&self.store, &lapsed()).await;
        // The templates are two of the records.
        let live = 0..self.records - 1;
        self.copy(&done(), live, Duration::ZERO).await;
        self.copy(&lapsed(), 0..LAPSED.min(self.records), Duration::ZERO)
            .await;
        self.database.tidy(&self.table).await;
    }

    async fn copy(&self, template: &ClaimRequest, numbers: std::ops::Range<u64>, age: Duration) {
        let Self {
            database, table, ..
        } = self;
        copies::copy(&database.pool, table, &template.identity, numbers, age)
            .await
            .unwrap();
    }

    /// Adds records that are due, so that a purge has something to remove.
    async fn add_due(&self, number: u64) {
        let first = self.next_due.fetch_add(number, Ordering::Relaxed) + self.records;
        self.copy(&done(), first..first + number, 2 * DAY).await;
    }

    /// Bytes of the table and of its indexes. InnoDB and SQLite keep a table in its primary key. SQLite's file has all
    /// tables and indexes: its pages that are in use are counted as one table.
    async fn bytes(&self) -> (i64, i64) {
        let table = &self.table;
        match &self.database.pool {
            Pool::Postgres(pool) => {
                let sizes = format!(
                    "SELECT coalesce(pg_table_size(to_regclass('{table}')), 0),
                            coalesce(pg_indexes_size(to_regclass('{table}')), 0)"
                );
                sqlx::query_as(AssertSqlSafe(sizes))
                    .fetch_one(pool)
                    .await
                    .unwrap()
            }
            Pool::MariaDb(pool) | Pool::MySql(pool) => {
                // The sizes are as old as the statistics, and the table may not exist yet.
                let analyze = AssertSqlSafe(format!("ANALYZE TABLE {table}"));
                pool.execute(analyze).await.unwrap();
                let sizes = format!(
                    "SELECT CAST(data_length AS SIGNED), CAST(index_length AS SIGNED) FROM information_schema.tables
                     WHERE table_schema = database() AND table_name = '{table}'"
                );
                let sizes = sqlx::query_as(AssertSqlSafe(sizes));
                sizes.fetch_optional(pool).await.unwrap().unwrap_or((0, 0))
            }
            Pool::Sqlite(pool) => {
                let size = "SELECT (page_count - freelist_count) * page_size
                            FROM pragma_page_count, pragma_freelist_count, pragma_page_size";
                let size = sqlx::query_scalar(size).fetch_one(pool).await.unwrap();
                (size, 0)
            }
        }
    }

    /// Prepares a slice of the work. Not part of the measurement.
    async fn prepare(&self, work: Work) {
        if matches!(work, Work::Purge) {
            self.add_due(PURGED).await;
        }
    }

    /// Runs a slice of the work, and returns the number of calls.
    async fn run(&self, work: Work, store: &Store, times: u64) -> u64 {
        match work {
            Work::FirstCalls(1) => {
                for _ in 0..times {
                    finish(store, &fresh()).await;
                }
                times
            }
            Work::FirstCalls(tasks) => {
                let running: Vec<_> = (0..tasks)
                    .map(|_| {
                        let store = Arc::clone(store);
                        tokio::spawn(async move {
                            for _ in 0..times {
                                finish(&store, &fresh()).await;
                            }
                        })
                    })
                    .collect();
                for task in running {
                    task.await.unwrap();
                }
                tasks * times
            }
            Work::Replay => {
                for _ in 0..times {
                    let number = scattered() % (self.records - 1);
                    let claim = copy_of(&done(), number);
                    match store.claim(&claim).await.unwrap() {
                        ClaimOutcome::Existing(record) => assert!(record.outcome().is_some()),
                        ClaimOutcome::Granted(_) => panic!("{number} has no record"),
                    }
                }
                times
            }
            Work::TakeOver => {
                for _ in 0..times {
                    let number = scattered() % LAPSED.min(self.records);
                    let claim = copy_of(&lapsed(), number);
                    let ClaimOutcome::Existing(record) = store.claim(&claim).await.unwrap() else {
                        panic!("{number} has no record");
                    };
                    // It lapses again after a millisecond, and the same number seldom comes within that time.
                    let taken = store.take_over(&record.observation(), &claim).await;
                    assert!(matches!(taken.unwrap(), ClaimOutcome::Granted(_)));
                }
                times
            }
            Work::Page => {
                for _ in 0..times {
                    let (all, first) = (Filter::default(), PageRequest::default());
                    let page = store.list(&all, &first).await.unwrap();
                    assert!(page.records.len() > 50);
                }
                times
            }
            Work::Purge => {
                let purged = store.purge(PURGED as u32, Timestamp::MAX).await.unwrap();
                assert_eq!(purged.removed, PURGED);
                1
            }
        }
    }
}

async fn time(name: &str, tables: &[Sized], effort: Effort) {
    let rounds = match effort {
        Effort::Check => 1,
        Effort::Measure => ROUNDS,
    };
    for (title, work) in WORKS {
        let slice = match (effort, work) {
            (Effort::Check, _) => 2,
            (_, Work::FirstCalls(1) | Work::TakeOver) => 30,
            (_, Work::FirstCalls(_) | Work::Page) => 10,
            (_, Work::Replay | Work::Purge) => 200,
        };
        let mut times = vec![Vec::new(); tables.len()];
        // Round 0 warms up: it fills caches, and plans statements.
        for round in 0..=rounds {
            for turn in 0..tables.len() {
                // The order rotates, so that no size always runs after the same one.
                let who = (turn + round) % tables.len();
                let table = &tables[who];
                table.prepare(work).await;
                let began = Instant::now();
                let calls = table.run(work, &table.store, slice).await;
                if round > 0 {
                    times[who].push(began.elapsed().as_secs_f64() * 1e9 / calls as f64);
                }
            }
        }
        let measured = tables.iter().zip(times).map(|(table, times)| Measured {
            name: format!("{} records", table.records),
            times,
            limits: Some(Limits::ratio(1.3, 1.3)),
            ..Measured::default()
        });
        let title = format!("{name}, {title}");
        let report = Report::new(&title, measured.collect()).unwrap();
        report.publish().unwrap();
    }
}

async fn count(name: &str, tables: &[Sized]) {
    for table in tables {
        table.database.stop_upkeep(&table.table).await;
    }
    println!("\n{name}: what the server counts for a call, on one connection");
    for (title, work) in WORKS {
        if matches!(work, Work::FirstCalls(2..)) {
            continue;
        }
        for table in tables {
            // The first call prepares statements.
            table.prepare(work).await;
            table.run(work, &table.counted, 1).await;
            table.prepare(work).await;
            table.database.tidy(&table.table).await;
            // Counting is counted, too.
            let first = table.database.counts().await;
            let before = table.database.counts().await;
            let calls = table.run(work, &table.counted, COUNTED).await;
            let after = table.database.counts().await;
            let counts: Vec<_> = (0..after.len())
                .map(|it| {
                    let counting = before[it].1 - first[it].1;
                    let spent = after[it].1 - before[it].1 - counting;
                    format!("{} {:.1}", after[it].0, spent as f64 / calls as f64)
                })
                .collect();
            println!(
                "  {title:<30} {:>10} records: {}",
                table.records,
                counts.join(", ")
            );
        }
    }
}

/// Purges as many records as live, while as many are written, and compares the sizes.
async fn turn_over(sized: &Sized, (store, counted): &(Store, Store)) {
    let turned = Sized {
        records: sized.records,
        table: format!("turned_{}", sized.records),
        store: Arc::clone(store),
        counted: Arc::clone(counted),
        database: Arc::clone(&sized.database),
        next_due: AtomicU64::new(0),
    };
    let empty = turned.bytes().await;
    turned.store.apply_migrations().await.unwrap();
    finish(&turned.store, &done()).await;
    turned.add_due(turned.records).await;
    turned.database.tidy(&turned.table).await;
    let filled = turned.bytes().await;
    let batches = (turned.records / PURGED).max(1);
    let batch = turned.records / batches;
    let began = Instant::now();
    let mut purging = Duration::ZERO;
    for number in 0..batches {
        let first = number * batch;
        turned
            .copy(&done(), first..first + batch, Duration::ZERO)
            .await;
        let purge = Instant::now();
        let purged = turned
            .store
            .purge(batch as u32, Timestamp::MAX)
            .await
            .unwrap();
        purging += purge.elapsed();
        assert_eq!(purged.removed, batch);
    }
    let after = turned.bytes().await;
    turned.database.tidy(&turned.table).await;
    let tidied = turned.bytes().await;
    let grown = |now: (i64, i64)| {
        let ratio = |now: i64, before: i64, empty: i64| {
            (now - empty) as f64 / (before - empty).max(1) as f64
        };
        format!(
            "table {:.2}x, indexes {:.2}x",
            ratio(now.0, filled.0, empty.0),
            ratio(now.1, filled.1, empty.1)
        )
    };
    println!(
        "{}, {} records: after a turnover in {:.0} s, {:.0} of them purging: {}; tidied: {}",
        turned.database.name,
        turned.records,
        began.elapsed().as_secs_f64(),
        purging.as_secs_f64(),
        grown(after),
        grown(tidied),
    );
}

fn claim(operation: &str, key: &str) -> ClaimRequest {
    ClaimRequest {
        retention: DAY,
        ..claim_of(identity("", operation, key))
    }
}

/// Claim of the completed record that is copied.
fn done() -> ClaimRequest {
    claim("orders.place", "order")
}

/// Claim of the lapsed record that is copied.
fn lapsed() -> ClaimRequest {
    ClaimRequest {
        lease: BRIEF,
        ..claim("orders.cancel", "lapsed")
    }
}

/// Claim of a new record.
fn fresh() -> ClaimRequest {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    claim("orders.place", &format!("fresh-{number:010}"))
}

fn copy_of(template: &ClaimRequest, number: u64) -> ClaimRequest {
    let identity = copies::identity_of_copy(&template.identity, number).unwrap();
    ClaimRequest {
        id: RecordId::of(&identity),
        identity,
        claim_id: ClaimId::random(),
        ..template.clone()
    }
}

/// Numbers that jump over the whole range, the same in each run.
fn scattered() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20
}

async fn own(store: &Store, claim: &ClaimRequest) -> Owner {
    let ClaimOutcome::Granted(granted) = store.claim(claim).await.unwrap() else {
        panic!("the key is in use");
    };
    Owner {
        id: claim.id,
        claim_id: claim.claim_id,
        fencing_token: granted.fencing_token,
    }
}

/// Claims and completes a record.
async fn finish(store: &Store, claim: &ClaimRequest) {
    let owner = own(store, claim).await;
    let outcome = Outcome::Completed(Payload {
        codec: "json/1".into(),
        bytes: Arc::from(&[b'x'; 200][..]),
    });
    store.complete(&owner, &outcome).await.unwrap();
}

fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}
