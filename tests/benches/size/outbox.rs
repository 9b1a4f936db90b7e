//! Cost of an outbox by the number of its messages.
//!
//! Of the waiting messages, two fifths have no ordering key, and two fifths have one of many. The last fifth, which was
//! is due first, has a single ordering key. Ten times as many messages are delivered and kept. A relay hands messages
//! to handlers that wait, so that the time until it has 32 of them is that of finding and claiming them, and the time
//! after that is that of marking them delivered. What was delivered is enqueued again.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use idem_report::{Limits, Measured, Report};
use idem_runtime::outbox::{Connection, Message, Outbox, Relay};
use idem_tests::copies::Pool;
use idem_tests::ratio::Effort;
use sqlx::AssertSqlSafe;
use tokio::sync::Semaphore;

use crate::database::{Counts, Database};
use crate::{DAY, HOUR};

/// Number of waiting messages that larger outboxes are compared with.
pub(crate) const BASE: u64 = 1_000;
const ROUNDS: usize = 15;
/// Number of delivered messages for each waiting one.
const DELIVERED: u64 = 10;
/// Number of messages that one insert of the filling makes.
const BATCH: u64 = 500_000;
/// Number of messages that a relay takes: as many as one statement claims.
const TAKEN: usize = 32;
/// Number of messages of the long ordering key that are delivered one after the other.
const IN_ORDER: usize = 32;
/// Number of messages that are purged.
const PURGED: u64 = 10_000;

const UNORDERED: &str = "mails.send";
const ORDERED: &str = "orders.place";
/// Topic without messages.
const NOTHING: &str = "nothing";
/// Number of the first message that is due after those with the long ordering key.
const OTHERS: u64 = 1_000_000_000;
/// Ordering key of a fifth of the waiting messages.
const LONG: &str = "account-long";

/// A kind of work, with the unit whose time is measured.
#[derive(Clone, Copy)]
#[repr(usize)]
enum Work {
    Fetch,
    Deliver,
    Insert,
    FetchOrdered,
    InsertOrdered,
    InOrder,
    Purge,
}

const WORKS: [(&str, Work); 7] = [
    ("fetch of 32 messages", Work::Fetch),
    ("mark a message delivered", Work::Deliver),
    ("insert of a message", Work::Insert),
    (
        "fetch of 32 messages with ordering keys",
        Work::FetchOrdered,
    ),
    (
        "insert of a message with an ordering key",
        Work::InsertOrdered,
    ),
    ("next message of the long ordering key", Work::InOrder),
    ("purge of a batch of 1,000", Work::Purge),
];

/// A table of messages.
struct Messages<'a> {
    waiting: u64,
    table: String,
    database: &'a Database,
    /// Number of the next message with the long ordering key.
    next_long: AtomicU64,
}

/// Messages that a relay takes.
#[derive(Clone, Copy)]
struct Take {
    topic: &'static str,
    /// Number of messages that are handled concurrently.
    concurrency: usize,
    number: usize,
}

const TAKE: Take = Take {
    topic: UNORDERED,
    concurrency: TAKEN,
    number: TAKEN,
};
const TAKE_ORDERED: Take = Take {
    topic: ORDERED,
    ..TAKE
};
/// One at a time, the relay begins with the oldest message, and goes on with its ordering key.
const TAKE_IN_ORDER: Take = Take {
    topic: ORDERED,
    concurrency: 1,
    number: IN_ORDER,
};

pub(crate) async fn measure(database: &Database, sizes: &[u64], effort: Effort) {
    let name = database.name;
    let mut tables = Vec::new();
    for waiting in sizes {
        let messages = Messages {
            waiting: *waiting,
            table: format!("outbox_{waiting}"),
            database,
            next_long: AtomicU64::new(0),
        };
        let began = Instant::now();
        messages.fill().await;
        println!(
            "{name}: an outbox with {} messages delivered and {waiting} waiting was filled in {:.0} s",
            waiting * DELIVERED,
            began.elapsed().as_secs_f64(),
        );
        tables.push(messages);
    }
    time(name, &tables, effort).await;
    count(name, &tables).await;
}

async fn time(name: &str, tables: &[Messages<'_>], effort: Effort) {
    let rounds = match effort {
        Effort::Check => 1,
        Effort::Measure => ROUNDS,
    };
    let mut times = [(); WORKS.len()].map(|()| vec![Vec::new(); tables.len()]);
    // Round 0 warms up.
    for round in 0..=rounds {
        for turn in 0..tables.len() {
            let who = (turn + round) % tables.len();
            for (work, time) in tables[who].round().await {
                if round > 0 {
                    times[work as usize][who].push(time.as_secs_f64() * 1e9);
                }
            }
        }
    }
    for ((title, _), times) in WORKS.into_iter().zip(times) {
        let measured = tables.iter().zip(times).map(|(table, times)| Measured {
            name: format!("{} waiting", table.waiting),
            times,
            limits: Some(Limits::ratio(1.3, 1.3)),
            ..Measured::default()
        });
        let title = format!("{name}, {title}");
        let report = Report::new(&title, measured.collect()).unwrap();
        report.publish().unwrap();
    }
}

async fn count(name: &str, tables: &[Messages<'_>]) {
    println!("\n{name}: what the server counts, on one connection");
    for table in tables {
        table.database.stop_upkeep(&table.table).await;
    }
    for table in tables {
        for (title, take) in [
            ("messages", TAKE),
            ("messages with ordering keys", TAKE_ORDERED),
        ] {
            let outbox = table.outbox(&table.database.outboxes.1);
            // The first relay prepares statements.
            table.take(&outbox, take).await;
            table.database.tidy(&table.table).await;
            let counting = table.counts().await;
            let counting = difference(&counting, &table.counts().await);
            let taken = table.take(&outbox, take).await;
            let [before, fetched, delivered] = taken.counts;
            for (what, from, to, number) in [
                ("fetch of 32", &before, &fetched, 1),
                ("delivery of one of the", &fetched, &delivered, take.number),
            ] {
                let spent = difference(&counting, &difference(from, to));
                let spent: Vec<_> = spent
                    .iter()
                    .map(|(name, count)| format!("{name} {:.1}", *count as f64 / number as f64))
                    .collect();
                println!(
                    "  {what} {title}, {} waiting: {}",
                    table.waiting,
                    spent.join(", ")
                );
            }
        }
    }
}

fn difference(before: &Counts, after: &Counts) -> Counts {
    let both = before.iter().zip(after);
    both.map(|(before, after)| (after.0, after.1 - before.1))
        .collect()
}

/// What a relay took.
struct Taken {
    fetch: Duration,
    deliver: Duration,
    /// Ordering keys of the messages.
    keys: Vec<Option<String>>,
    /// Counts before, after the fetch, and after the deliveries.
    counts: [Counts; 3],
}

impl Messages<'_> {
    fn outbox(&self, outbox: &Outbox) -> Outbox {
        outbox.clone().with_table(&self.table).unwrap()
    }

    async fn counts(&self) -> Counts {
        self.database.counts().await
    }

    async fn fill(&self) {
        let outbox = self.outbox(&self.database.outboxes.0);
        outbox.migrate().await.unwrap();
        let account = self.text(&format!("n % {}", self.waiting / 5));
        let account = self.joined("'account-'", &account);
        let delivered = self.waiting * DELIVERED / 2;
        let (ordered, unordered) = (format!("'{ORDERED}'"), format!("'{UNORDERED}'"));
        self.insert(0..delivered, &ordered, &account, Kind::Kept)
            .await;
        self.insert(0..delivered, &unordered, "NULL", Kind::Kept)
            .await;
        self.insert_long(self.waiting / 5).await;
        let others = OTHERS..OTHERS + self.waiting * 2 / 5;
        self.insert(others.clone(), &ordered, &account, Kind::Waiting)
            .await;
        self.insert(others, &unordered, "NULL", Kind::Waiting).await;
        self.database.tidy(&self.table).await;
    }

    /// Inserts messages by their numbers `n`, without enqueuing each.
    async fn insert(&self, all: std::ops::Range<u64>, topic: &str, key: &str, kind: Kind) {
        let table = &self.table;
        let payload = format!("'\"{}\"'", "x".repeat(200));
        // Times in 2023 and in 2096.
        let (past, future) = ("1700000000000000 + n", "4000000000000000 + n");
        let (state, due_at, purge_after) = match kind {
            Kind::Waiting => ("waiting", past, "NULL"),
            Kind::Kept => ("delivered", "NULL", future),
            Kind::Due => ("delivered", "NULL", "1"),
        };
        let mut first = all.start;
        while first < all.end {
            let end = all.end.min(first + BATCH);
            let numbers = self.database.pool.series(first, end - 1);
            let message_key = match &self.database.pool {
                Pool::Postgres(_) => "gen_random_uuid()::text",
                Pool::MariaDb(_) | Pool::MySql(_) => "lower(hex(random_bytes(16)))",
                Pool::Sqlite(_) => "lower(hex(randomblob(16)))",
            };
            self.database
                .execute(&format!(
                    "INSERT INTO {table} (
                        message_key, topic, ordering_key, payload, state, attempt, due_at, enqueued_at, purge_after
                     )
                     SELECT {message_key}, {topic}, {key}, {payload}, '{state}', 0, {due_at}, {past}, {purge_after}
                     FROM ({numbers}) AS numbers"
                ))
                .await;
            first = end;
        }
    }

    fn text(&self, number: &str) -> String {
        match &self.database.pool {
            Pool::MariaDb(_) | Pool::MySql(_) => format!("CAST({number} AS char)"),
            Pool::Postgres(_) | Pool::Sqlite(_) => format!("CAST({number} AS text)"),
        }
    }

    fn joined(&self, one: &str, other: &str) -> String {
        match &self.database.pool {
            Pool::MariaDb(_) | Pool::MySql(_) => format!("concat({one}, {other})"),
            Pool::Postgres(_) | Pool::Sqlite(_) => format!("{one} || {other}"),
        }
    }

    /// Inserts messages with the long ordering key, which are due before those with other keys.
    async fn insert_long(&self, number: u64) {
        let first = self.next_long.fetch_add(number, Ordering::Relaxed);
        let (topic, key) = (format!("'{ORDERED}'"), format!("'{LONG}'"));
        self.insert(first..first + number, &topic, &key, Kind::Waiting)
            .await;
    }

    /// Does each work once, and returns the time of each.
    async fn round(&self) -> [(Work, Duration); WORKS.len()] {
        let outbox = self.outbox(&self.database.outboxes.0);
        let unordered = self.take(&outbox, TAKE).await;
        let insert = self.enqueue(&outbox, UNORDERED, &unordered.keys).await;
        let mut ordered = self.take(&outbox, TAKE_ORDERED).await;
        ordered.keys.retain(|key| key.as_deref() != Some(LONG));
        let insert_ordered = self.enqueue(&outbox, ORDERED, &ordered.keys).await;
        let in_order = self.take(&outbox, TAKE_IN_ORDER).await;
        assert!(in_order.keys.iter().all(|key| key.as_deref() == Some(LONG)));
        let taken = TAKEN - ordered.keys.len() + IN_ORDER;
        self.insert_long(taken as u64).await;
        let purge = self.purge(&outbox).await;
        [
            (Work::Fetch, unordered.fetch),
            (Work::Deliver, unordered.deliver / TAKEN as u32),
            (Work::Insert, insert),
            (Work::FetchOrdered, ordered.fetch),
            (Work::InsertOrdered, insert_ordered),
            (Work::InOrder, in_order.fetch / IN_ORDER as u32),
            (Work::Purge, purge),
        ]
    }

    /// Lets a relay take messages, and marks them delivered.
    async fn take(&self, outbox: &Outbox, take: Take) -> Taken {
        let begun = Arc::new(AtomicUsize::new(0));
        let (all_begun, gate) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let (sent, mut taken) = tokio::sync::mpsc::unbounded_channel();
        let before = self.counts().await;
        let began = Instant::now();
        let handler = {
            let (all_begun, gate) = (Arc::clone(&all_begun), Arc::clone(&gate));
            move |message: Message<String>| {
                let number = begun.fetch_add(1, Ordering::Relaxed) + 1;
                sent.send(message.ordering_key().map(str::to_owned))
                    .unwrap();
                if number == take.number {
                    all_begun.add_permits(1);
                }
                let gate = Arc::clone(&gate);
                async move {
                    // The last ones wait, so that no other message is taken.
                    if number + take.concurrency > take.number {
                        drop(gate.acquire().await);
                    }
                    Ok::<_, Infallible>(())
                }
            }
        };
        let relay = Relay::new(outbox)
            .concurrency(take.concurrency)
            .poll_interval(HOUR)
            .keep_delivered(DAY)
            .on(take.topic, handler)
            .start()
            .unwrap();
        drop(all_begun.acquire().await);
        let fetch = began.elapsed();
        let fetched = self.counts().await;
        let mut stop = pin!(relay.stop());
        // The stop is requested before the first delivery ends.
        assert!(futures_util::poll!(&mut stop).is_pending());
        let began = Instant::now();
        gate.add_permits(take.concurrency);
        stop.await;
        let deliver = began.elapsed();
        let mut keys = Vec::new();
        taken.recv_many(&mut keys, take.number + 1).await;
        assert_eq!(keys.len(), take.number);
        let delivered = self.counts().await;
        Taken {
            fetch,
            deliver,
            keys,
            counts: [before, fetched, delivered],
        }
    }

    /// Enqueues a message for each ordering key in one transaction, and returns the time of one insert.
    async fn enqueue(&self, outbox: &Outbox, topic: &str, keys: &[Option<String>]) -> Duration {
        macro_rules! in_transaction {
            ($begin:expr) => {{
                let mut transaction = $begin.await.unwrap();
                let time = enqueue_each(outbox, topic, keys, &mut *transaction).await;
                transaction.commit().await.unwrap();
                time
            }};
        }
        match &self.database.pool {
            Pool::Postgres(pool) => in_transaction!(pool.begin()),
            Pool::MariaDb(pool) | Pool::MySql(pool) => in_transaction!(pool.begin()),
            Pool::Sqlite(pool) => in_transaction!(pool.begin_with("BEGIN IMMEDIATE")),
        }
    }

    /// Lets a relay purge, and returns the time of one batch of a thousand.
    async fn purge(&self, outbox: &Outbox) -> Duration {
        self.insert(0..PURGED, &format!("'{UNORDERED}'"), "NULL", Kind::Due)
            .await;
        let began = Instant::now();
        let relay = Relay::new(outbox)
            .poll_interval(Duration::from_millis(1))
            .keep_delivered(Duration::ZERO)
            .on(NOTHING, |_: Message<String>| async {
                Ok::<_, Infallible>(())
            })
            .start()
            .unwrap();
        while self.due().await > 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let taken = began.elapsed();
        relay.stop().await;
        taken / (PURGED / 1_000) as u32
    }

    /// Returns 1 if messages are due to be purged, or else 0.
    async fn due(&self) -> i64 {
        let due = format!(
            "SELECT count(*) FROM (SELECT 1 FROM {} WHERE purge_after <= 1 LIMIT 1) AS due",
            self.table
        );
        let due = AssertSqlSafe(due);
        match &self.database.pool {
            Pool::Postgres(pool) => sqlx::query_scalar(due).fetch_one(pool).await,
            Pool::MariaDb(pool) | Pool::MySql(pool) => {
                sqlx::query_scalar(due).fetch_one(pool).await
            }
            Pool::Sqlite(pool) => sqlx::query_scalar(due).fetch_one(pool).await,
        }
        .unwrap()
    }
}

/// State of the messages that are inserted.
#[derive(Clone, Copy)]
enum Kind {
    Waiting,
    /// Delivered, and kept for long.
    Kept,
    /// Delivered, and due to be purged.
    Due,
}

async fn enqueue_each<C: Connection>(
    outbox: &Outbox,
    topic: &str,
    keys: &[Option<String>],
    connection: &mut C,
) -> Duration {
    let payload = "x".repeat(200);
    let began = Instant::now();
    for key in keys {
        let message = outbox.message(topic, &payload);
        let message = match key {
            Some(key) => message.ordered_by(key),
            None => message,
        };
        message.enqueue(connection).await.unwrap();
    }
    began.elapsed() / keys.len() as u32
}
