//! Messages behind a parked message cost nothing: the tests use the database's counts of the rows that it reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use idem_runtime::Error;
use idem_runtime::outbox::{self, Message, Outbox, Relay, RelayGuard};
use idem_tests::on_stores;
use sqlx::mysql::MySqlPoolOptions;
use sqlx::postgres::PgPoolOptions;
use sqlx::sqlite::SqlitePoolOptions;
use sqlx::{MySqlPool, Row};

use super::{Database, Log, Pool, TOPIC, until};

on_stores! { [transactions] Database::open:
    a_poll_does_not_read_messages_behind_a_parked_one,
    every_ordering_key_is_delivered_even_if_many_others_are_blocked,
    a_message_does_not_wait_until_everything_is_purged,
    a_relay_that_always_has_messages_purges,
}

/// Number of messages behind the parked one.
const BEHIND: i64 = 200_000;

/// Inserts a number of messages in one statement, without enqueuing each. The payload of a message is its number.
async fn insert(database: &Database, count: i64, first: i64, key: &str, state: &str, due_at: &str) {
    let text = match &database.pool {
        Pool::Sqlite(_) | Pool::Postgres(_) => "text",
        Pool::MySql(_) => "char(20)",
    };
    let digits = "(SELECT 0 AS d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 \
                  UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)";
    let places: Vec<_> = (0..6)
        .map(|it| 10_i64.pow(it))
        .take_while(|it| *it < count.max(2))
        .collect();
    let sum: Vec<_> = places.iter().map(|it| format!("p{it}.d * {it}")).collect();
    let from: Vec<_> = places
        .iter()
        .map(|it| format!("{digits} AS p{it}"))
        .collect();
    let numbers = format!(
        "(SELECT {first} + {} AS n FROM {}) AS numbers",
        sum.join(" + "),
        from.join(" CROSS JOIN ")
    );
    let number = format!("CAST(n AS {text})");
    let key = key.replace("{n}", &number);
    database
        .execute(&format!(
            "INSERT INTO idem_outbox \
             (message_key, topic, ordering_key, payload, state, attempt, due_at, enqueued_at, parked_at) \
             SELECT {number}, '{TOPIC}', {key}, {number}, '{state}', 0, {due_at}, 1, \
               CASE WHEN '{state}' = 'parked' THEN 1 END \
             FROM {numbers} WHERE n < {first} + {count} ORDER BY numbers.n"
        ))
        .await;
}

/// Counts the reads of a database for one outbox.
enum Meter {
    /// Operations of SQLite's virtual machine: about ten for each row.
    Sqlite(Arc<AtomicU64>),
    Postgres(sqlx::PgPool),
    /// Counters of its only connection.
    MySql(MySqlPool),
}

impl Meter {
    async fn of(database: &Database) -> (Outbox, Self) {
        match &database.pool {
            Pool::Sqlite(pool) => {
                let steps = Arc::new(AtomicU64::new(0));
                let counter = Arc::clone(&steps);
                let pool = SqlitePoolOptions::new()
                    .after_connect(move |connection, _| {
                        let counter = Arc::clone(&counter);
                        Box::pin(async move {
                            let mut handle = connection.lock_handle().await?;
                            handle.set_progress_handler(100, move || {
                                counter.fetch_add(100, Ordering::Relaxed);
                                true
                            });
                            Ok(())
                        })
                    })
                    .connect_with((*pool.connect_options()).clone())
                    .await
                    .unwrap();
                (Outbox::new(pool), Self::Sqlite(steps))
            }
            Pool::Postgres(pool) => {
                let pool = PgPoolOptions::new()
                    .connect_with((*pool.connect_options()).clone())
                    .await
                    .unwrap();
                (Outbox::new(pool.clone()), Self::Postgres(pool))
            }
            Pool::MySql(pool) => {
                let pool = MySqlPoolOptions::new()
                    .max_connections(1)
                    .connect_with((*pool.connect_options()).clone())
                    .await
                    .unwrap();
                (Outbox::new(pool.clone()), Self::MySql(pool))
            }
        }
    }

    /// Number of rows or index entries that were read, or of operations that were run.
    async fn read(self, database: &Database) -> u64 {
        match self {
            Self::Sqlite(steps) => steps.load(Ordering::Relaxed),
            Self::Postgres(pool) => {
                // PostgreSQL has a connection's counts for certain once it is closed.
                pool.close().await;
                let read = "SELECT ((SELECT sum(seq_tup_read) FROM pg_stat_user_tables) \
                            + (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes))::bigint";
                let busy = "SELECT count(*) FROM pg_stat_user_indexes WHERE idx_scan > 0 \
                            AND indexrelname = 'idem_outbox_order'";
                until(async || database.number(busy).await > 0).await;
                database.number(read).await.cast_unsigned()
            }
            Self::MySql(pool) => {
                let rows = sqlx::query("SHOW SESSION STATUS LIKE 'Handler_read%'");
                let rows = rows.fetch_all(&pool).await.unwrap();
                let counts = rows.iter().map(|row| row.get::<String, _>(1));
                counts.map(|count| count.parse::<u64>().unwrap()).sum()
            }
        }
    }
}

async fn a_poll_does_not_read_messages_behind_a_parked_one(database: Database) {
    insert(&database, 1, 1, "'blocked'", "parked", "NULL").await;
    insert(&database, BEHIND, 2, "'blocked'", "waiting", "2").await;
    // These messages were due last: one is ordered and one is not.
    insert(&database, 1, 300_001, "'other'", "waiting", "3").await;
    insert(&database, 1, 300_002, "NULL", "waiting", "3").await;
    let analyze = match &database.pool {
        Pool::Sqlite(_) | Pool::Postgres(_) => "ANALYZE",
        Pool::MySql(_) => "ANALYZE TABLE idem_outbox",
    };
    database.execute(analyze).await;
    if let Pool::Postgres(_) = &database.pool {
        database.execute("SELECT pg_stat_reset()").await;
    }
    let (outbox, meter) = Meter::of(&database).await;
    let handled = Log::new();
    let start = |outbox: &Outbox| {
        let log = handled.clone();
        Relay::new(outbox)
            .poll_interval(Duration::from_secs(60 * 60))
            .on(TOPIC, move |message: Message<i64>| {
                log.push(message.payload);
                async { Ok::<_, Error>(()) }
            })
            .start()
            .unwrap()
    };
    let relay = start(&outbox);
    until(async || relay.stats().delivered == 2).await;
    relay.stop().await;
    let mut first = handled.entries();
    first.sort_unstable();
    assert_eq!(first, [300_001, 300_002]);
    let most = match &meter {
        Meter::Sqlite(_) => 200_000,
        // A poll that searched the index for each message of a window would read 1,089 rows and entries.
        Meter::Postgres(_) => 600,
        Meter::MySql(_) => 5_000,
    };
    let read = meter.read(&database).await;
    assert!(read < most, "{read} of {BEHIND}");

    // Once no message is ahead of them, they are delivered in order.
    let parked = database.outbox.parked(None, 10).await.unwrap().messages;
    assert_eq!(parked.len(), 1);
    assert!(database.manually().discard(parked[0].key()).await.unwrap());
    let relay = start(&database.outbox);
    let all = handled.reached(2 + 250).await;
    relay.stop().await;
    let ordered: Vec<i64> = (2..252).collect();
    assert_eq!(all[2..252], ordered);
}

async fn every_ordering_key_is_delivered_even_if_many_others_are_blocked(database: Database) {
    // More keys than one poll examines, each with a parked message and one behind it,
    let blocked = 300;
    insert(&database, blocked, 1, "{n}", "parked", "NULL").await;
    database
        .execute(&format!(
            "INSERT INTO idem_outbox (message_key, topic, ordering_key, payload, state, attempt, due_at, enqueued_at) \
             SELECT {}, topic, ordering_key, payload, 'waiting', 0, 2, 1 FROM idem_outbox WHERE state = 'parked'",
            match &database.pool {
                Pool::Sqlite(_) | Pool::Postgres(_) => "'again' || message_key",
                Pool::MySql(_) => "concat('again', message_key)",
            }
        ))
        .await;
    // and some unblocked messages before, between and behind them.
    for (number, key) in [(1_000, "'!'"), (1_001, "'150a'"), (1_002, "'z'")] {
        insert(&database, 1, number, key, "waiting", "3").await;
    }
    let handled = Log::new();
    let log = handled.clone();
    let relay = database
        .relay()
        .on(TOPIC, move |message: Message<i64>| {
            log.push(message.payload);
            async { Ok::<_, Error>(()) }
        })
        .start()
        .unwrap();
    let mut all = handled.reached(3).await;
    relay.stop().await;
    all.sort_unstable();
    assert_eq!(all, [1_000, 1_001, 1_002]);
    let waiting = database.outbox.backlog().await.unwrap().waiting;
    assert_eq!(i64::try_from(waiting).unwrap(), blocked);
}

/// Number of the inserted messages that are due to be purged and still exist.
async fn unpurged(database: &Database) -> i64 {
    let unpurged = "SELECT count(*) FROM idem_outbox WHERE purge_after = 1";
    database.number(unpurged).await
}

/// Starts a relay that handles one message at a time and purges often.
fn purging_relay(database: &Database) -> RelayGuard {
    let relay = Relay::new(&database.outbox).concurrency(1);
    relay
        .keep_delivered(Duration::from_millis(10))
        .poll_interval(Duration::from_millis(20))
        .on(TOPIC, |_: Message<i64>| async { Ok::<_, Error>(()) })
        .start()
        .unwrap()
}

async fn a_message_does_not_wait_until_everything_is_purged(database: Database) {
    let all = 50_000;
    insert(&database, all, 1, "NULL", "delivered", "NULL").await;
    let due = "UPDATE idem_outbox SET purge_after = 1";
    database.execute(due).await;
    let relay = purging_relay(&database);
    until(async || unpurged(&database).await < all).await;
    database.enqueue(outbox::message(TOPIC, &1)).await;
    until(async || relay.stats().delivered == 1).await;
    assert!(unpurged(&database).await > 0);
    relay.stop().await;
}

async fn a_relay_that_always_has_messages_purges(database: Database) {
    insert(&database, 3_000, 1, "NULL", "delivered", "NULL").await;
    let due = "UPDATE idem_outbox SET purge_after = 1";
    database.execute(due).await;
    insert(&database, 50_000, 100_000, "NULL", "waiting", "2").await;
    let relay = purging_relay(&database);
    until(async || unpurged(&database).await == 0).await;
    assert!(database.outbox.backlog().await.unwrap().waiting > 0);
    relay.stop().await;
}
