//! Transactional outbox: the order and its message are committed together, and the parcel is sent once.
//!
//! A shop takes an order and has to notify the warehouse. Placing the order is one transaction (`tx = tx`). It commits
//! the order, its message in the outbox and the record of the call together, so a caller may retry. A relay delivers
//! the message to a consumer until the consumer succeeds. The consumer sends parcels and deduplicates by the message's
//! key, also in one transaction. After each action the program counts the rows of the tables. The tables have no
//! constraint against a second parcel, so the counts prove that there was none. The program fails if a count is wrong.
//!
//! Run it with `cargo run --bin outbox`.

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use idem_examples::Table;
use idem_runtime::outbox::{self, Message, Outbox, Relay, RelayGuard};
use idem_runtime::store::ManualChange;
use idem_runtime::{Error, Fingerprint, Idem, Key, SqliteStore, idempotent};
use serde::{Deserialize, Serialize};
use sqlx::SqlitePool;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;
use tokio::task::JoinSet;

/// Payload of the message.
#[derive(Clone, Fingerprint, Serialize, Deserialize)]
struct OrderPlaced {
    order: i64,
    customer: String,
}

const ORDER_PLACED: &str = "order.placed";

// ------------------------------------------------------------------------------------------------------ the producer

struct Shop {
    idem: Idem<SqliteStore>,
}

#[derive(Debug, thiserror::Error)]
enum OrderError {
    #[error("the card of {0} was declined")]
    Declined(String),
    #[error("the database failed")]
    Database(#[from] sqlx::Error),
    #[error(transparent)]
    Idempotency(#[from] Error),
}

impl Shop {
    /// Takes an order: commits the order, its message and the record of the call together or not at all.
    #[idempotent(key = key, ttl = "24h", wait = "10s", name = "orders.place", store = self.idem, tx = tx)]
    async fn place_order(&self, key: &str, customer: &str) -> Result<i64, OrderError> {
        let row = sqlx::query("INSERT INTO orders (customer) VALUES (?)")
            .bind(customer)
            .execute(&mut *tx)
            .await?;
        let placed = OrderPlaced {
            order: row.last_insert_rowid(),
            customer: customer.to_owned(),
        };
        outbox::message(ORDER_PLACED, &placed)
            // The parcels of one customer are sent in the order in which the orders were placed.
            .ordered_by(customer)
            .enqueue(tx)
            .await?;
        if customer == "mallory" {
            return Err(OrderError::Declined(customer.to_owned()));
        }
        Ok(placed.order)
    }
}

// ------------------------------------------------------------------------------------------------------ the consumer

struct Warehouse {
    idem: Idem<SqliteStore>,
    db: SqlitePool,
    /// Number of requests that it still rejects.
    closed_for: AtomicU32,
    knows_all_addresses: AtomicBool,
}

#[derive(Debug, thiserror::Error)]
enum ParcelError {
    #[error("the warehouse is closed")]
    Closed,
    #[error("the customer has no address")]
    NoAddress,
    #[error("the database failed")]
    Database(#[from] sqlx::Error),
    #[error(transparent)]
    Idempotency(#[from] Error),
}

impl Warehouse {
    /// Handler of the relay, called for each delivery of a message.
    async fn on_order_placed(&self, message: Message<OrderPlaced>) -> Result<(), ParcelError> {
        sqlx::query("INSERT INTO deliveries VALUES (?)")
            .bind(message.key().as_str())
            .execute(&self.db)
            .await?;
        self.send_parcel(message.key(), &message.payload).await
    }

    /// Sends a parcel once per key. The `ttl` is longer than the delivery of a message can take.
    #[idempotent(key = key, ttl = "7d", name = "parcels.send", store = self.idem, tx = tx)]
    async fn send_parcel(&self, key: &Key, placed: &OrderPlaced) -> Result<(), ParcelError> {
        let one_less = |closed_for: u32| closed_for.checked_sub(1);
        let relaxed = Ordering::Relaxed;
        if self
            .closed_for
            .try_update(relaxed, relaxed, one_less)
            .is_ok()
        {
            return Err(ParcelError::Closed);
        }
        if placed.customer == "eve" && !self.knows_all_addresses.load(Ordering::Relaxed) {
            return Err(ParcelError::NoAddress);
        }
        sqlx::query("INSERT INTO parcels (order_number, customer) VALUES (?, ?)")
            .bind(placed.order)
            .bind(&placed.customer)
            .execute(&mut *tx)
            .await?;
        Ok(())
    }
}

/// Starts a relay, with shorter times than outside of an example.
fn start_relay(outbox: &Outbox, warehouse: &Arc<Warehouse>) -> Result<RelayGuard, Error> {
    let warehouse = Arc::clone(warehouse);
    Relay::new(outbox)
        .max_attempts(4)
        .backoff(Duration::from_millis(5), Duration::from_millis(50))
        .poll_interval(Duration::from_millis(50))
        .on(ORDER_PLACED, move |message| {
            let warehouse = Arc::clone(&warehouse);
            async move { warehouse.on_order_placed(message).await }
        })
        .start()
}

// ------------------------------------------------------------------------------------------------------- the story

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // The program starts itself once more, to kill that process.
    if let [_, argument, file] = &std::env::args().collect::<Vec<_>>()[..] {
        ensure!(argument == DOOMED, "`outbox` takes no arguments");
        return relay_until_killed(Path::new(file)).await;
    }
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("shop.sqlite");
    let Setup {
        db,
        outbox,
        shop,
        warehouse,
    } = open(&file).await?;
    println!(
        "Orders, their messages and the parcels are in one SQLite file. \"waiting\" counts the"
    );
    println!("messages that are not handled yet, \"deliveries\" the calls of the consumer.\n");
    let story = Story::begin(&db);

    // The order, its message and the record of the call are committed in one transaction.
    order(&shop, &["ann-1"]).await?;
    story.line("an order", 1, 1, 0, 0).await?;
    let mut clicks = JoinSet::new();
    for _ in 0..50 {
        let shop = Arc::clone(&shop);
        clicks.spawn(async move { shop.place_order("ann-1", "ann").await });
    }
    while let Some(answer) = clicks.join_next().await {
        ensure!(answer?? == 1, "two clicks made two orders");
    }
    story
        .line("the same click, 50 times more", 1, 1, 0, 0)
        .await?;
    let declined = shop.place_order("mallory-1", "mallory").await;
    ensure!(matches!(declined, Err(OrderError::Declined(_))));
    story
        .line("a card that is declined at the end", 1, 1, 0, 0)
        .await?;
    let relay = start_relay(&outbox, &warehouse)?;
    story.until_waiting(0).await?;
    story.line("a relay is started", 1, 0, 1, 1).await?;

    // Several messages are delivered concurrently, those of one customer in order.
    order(&shop, &["ann-2", "bob-1", "ann-3", "bob-2", "ann-4"]).await?;
    story.until_waiting(0).await?;
    story
        .line("five orders of two customers", 6, 0, 6, 6)
        .await?;
    let disorder = "SELECT count(*) FROM parcels AS a JOIN parcels AS b USING (customer) \
                    WHERE a.rowid < b.rowid AND a.order_number > b.order_number";
    let disorder: i64 = sqlx::query_scalar(disorder).fetch_one(&db).await?;
    ensure!(disorder == 0, "a customer's parcels are out of order");

    // While the consumer fails, the relay delivers the message again.
    warehouse.closed_for.store(2, Ordering::Relaxed);
    order(&shop, &["bob-3"]).await?;
    story.until_waiting(0).await?;
    story
        .line("the warehouse was closed at first", 7, 0, 9, 7)
        .await?;
    relay.stop().await;

    // A relay is killed after the parcel was sent and before the message is acknowledged. The next relay delivers the
    // message again, and the key shows the consumer that this parcel was sent.
    order(&shop, &["ann-5"]).await?;
    kill_a_relay_before_it_acknowledges(&file).await?;
    story
        .line("kill -9 after the parcel was sent", 8, 1, 10, 8)
        .await?;
    let relay = start_relay(&outbox, &warehouse)?;
    story.until_waiting(0).await?;
    story
        .line("another relay: the message again", 8, 0, 11, 8)
        .await?;

    // A message that cannot be handled is parked for an operator, who corrects the cause and requeues the message.
    order(&shop, &["eve-1"]).await?;
    story.until(async || relay.stats().parked == 1).await?;
    story
        .line("no address: parked after four tries", 9, 0, 15, 8)
        .await?;
    let parked = outbox.parked(None, 10).await?.messages;
    let [message] = &parked[..] else {
        anyhow::bail!("{} messages are parked, not 1", parked.len());
    };
    ensure!(message.last_error() == "the customer has no address");
    warehouse.knows_all_addresses.store(true, Ordering::Relaxed);
    let change = ManualChange::new("ann", "corrected the address")?;
    ensure!(outbox.by(&change).requeue(message.key()).await?);
    story.until_waiting(0).await?;
    story
        .line("the address is corrected: requeued", 9, 0, 16, 9)
        .await?;
    relay.stop().await;

    let distinct = count(&db, "(SELECT DISTINCT order_number FROM parcels)").await?;
    let messages = count(&db, "(SELECT DISTINCT * FROM deliveries)").await?;
    let deliveries = count(&db, "deliveries").await?;
    println!(
        "\n{messages} messages were delivered {deliveries} times, for {distinct} parcels of 9 orders."
    );
    ensure!((messages, distinct) == (9, 9));
    Ok(())
}

/// Tables of the shop and of the warehouse.
const TABLES: &str = "CREATE TABLE IF NOT EXISTS orders (customer TEXT);
     CREATE TABLE IF NOT EXISTS deliveries (message_key TEXT);
     CREATE TABLE IF NOT EXISTS parcels (order_number INTEGER, customer TEXT);";

/// Handles and services that share one file.
struct Setup {
    db: SqlitePool,
    outbox: Outbox,
    shop: Arc<Shop>,
    warehouse: Arc<Warehouse>,
}

async fn open(file: &Path) -> anyhow::Result<Setup> {
    let db = SqlitePool::connect_with(SqliteStore::connect_options(file)).await?;
    sqlx::raw_sql(TABLES).execute(&db).await?;
    let store = SqliteStore::new(db.clone());
    store.migrate().await?;
    let outbox = Outbox::new(db.clone());
    outbox.migrate().await?;
    let idem = Idem::new(store);
    let shop = Shop { idem: idem.clone() };
    let warehouse = Warehouse {
        idem,
        db: db.clone(),
        closed_for: AtomicU32::new(0),
        knows_all_addresses: AtomicBool::new(false),
    };
    Ok(Setup {
        db,
        outbox,
        shop: Arc::new(shop),
        warehouse: Arc::new(warehouse),
    })
}

/// Places orders under these keys, one after the other. The part of a key before the number is the customer.
async fn order(shop: &Shop, keys: &[&str]) -> anyhow::Result<()> {
    for key in keys {
        let (customer, _) = key.split_once('-').context("the key has no customer")?;
        shop.place_order(key, customer).await?;
    }
    Ok(())
}

// --------------------------------------------------------------------------------------------- helpers of the story

/// Argument of the process that is started to be killed.
const DOOMED: &str = "--relay-until-killed";
/// Line that this process prints when the parent may kill it.
const PARCEL_SENT: &str = "the parcel was sent";

async fn relay_until_killed(file: &Path) -> anyhow::Result<()> {
    let Setup {
        outbox, warehouse, ..
    } = open(file).await?;
    let relay = Relay::new(&outbox)
        // After this time another relay may take the message.
        .lease(Duration::from_secs(2))
        .on(ORDER_PLACED, move |message| {
            let warehouse = Arc::clone(&warehouse);
            async move {
                warehouse.on_order_placed(message).await?;
                println!("{PARCEL_SENT}");
                std::future::pending::<Result<(), ParcelError>>().await
            }
        })
        .start()?;
    std::future::pending::<()>().await;
    drop(relay);
    Ok(())
}

async fn kill_a_relay_before_it_acknowledges(file: &Path) -> anyhow::Result<()> {
    let mut child = Command::new(std::env::current_exe()?)
        .arg(DOOMED)
        .arg(file)
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut said = String::new();
    let stdout = child
        .stdout
        .take()
        .context("the process has no piped output")?;
    BufReader::new(stdout).read_line(&mut said).await?;
    ensure!(said.trim() == PARCEL_SENT, "the process said {said:?}");
    // SIGKILL runs no destructors and no clean-up.
    child.kill().await?;
    Ok(())
}

/// The table, with the counts that each line must have.
struct Story<'a> {
    db: &'a SqlitePool,
    table: Table<5>,
}

impl<'a> Story<'a> {
    fn begin(db: &'a SqlitePool) -> Self {
        Self {
            db,
            table: Table::new([
                ("what was done", 36),
                ("orders", 6),
                ("waiting", 7),
                ("deliveries", 10),
                ("parcels", 7),
            ]),
        }
    }

    async fn line(
        &self,
        did: &str,
        orders: u64,
        waiting: u64,
        deliveries: u64,
        parcels: u64,
    ) -> anyhow::Result<()> {
        let counted = [
            count(self.db, "orders").await?,
            count(self.db, WAITING).await?,
            count(self.db, "deliveries").await?,
            count(self.db, "parcels").await?,
        ];
        let [a, b, c, d] = counted.map(|it| it.to_string());
        self.table.line([did, &a, &b, &c, &d]);
        let expected = [orders, waiting, deliveries, parcels];
        ensure!(counted == expected, "{did}: {counted:?}, not {expected:?}");
        Ok(())
    }

    async fn until_waiting(&self, waiting: u64) -> anyhow::Result<()> {
        self.until(async || count(self.db, WAITING).await.ok() == Some(waiting))
            .await
    }

    async fn until(&self, mut holds: impl AsyncFnMut() -> bool) -> anyhow::Result<()> {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !holds().await {
            ensure!(
                Instant::now() < deadline,
                "the expected count was not reached in time"
            );
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }
}

const WAITING: &str = "idem_outbox WHERE state = 'waiting'";

async fn count(db: &SqlitePool, table: &'static str) -> anyhow::Result<u64> {
    let query = sqlx::AssertSqlSafe(format!("SELECT count(*) FROM {table}"));
    let count: i64 = sqlx::query_scalar(query).fetch_one(db).await?;
    Ok(count.try_into()?)
}

#[cfg(test)]
mod checked {
    use idem_testing::{Fresh, check_on};

    use super::*;

    /// A database with all tables. The number that the query returns is the number of effects.
    fn database(effects: &'static str) -> Fresh<SqliteStore> {
        let database = Fresh::new(async || {
            let store = SqliteStore::in_memory().await?;
            sqlx::raw_sql(TABLES).execute(store.pool()).await?;
            Outbox::new(store.pool().clone()).migrate().await?;
            Ok(store)
        });
        database.effects(async move |store: &SqliteStore| {
            let rows = sqlx::query_scalar::<_, i64>(effects);
            Ok(rows.fetch_one(store.pool()).await?.unsigned_abs())
        })
    }

    #[test]
    fn an_order_and_its_message_are_written_exactly_once() {
        let place = async |idem, key, customer| Shop { idem }.place_order(key, customer).await;
        let rows = "SELECT (SELECT count(*) FROM orders) + (SELECT count(*) FROM idem_outbox)";
        check_on(database(rows), async |idem| {
            place(idem, "ann-1", "ann").await
        })
        .other_request(async |idem| place(idem, "ann-1", "bob").await)
        .other_call(async |idem| place(idem, "ann-2", "ann").await)
        .assert_exactly_once();
    }

    #[test]
    fn a_parcel_is_sent_exactly_once() {
        let send = async |idem: Idem<SqliteStore>, key: &Key, order| {
            let warehouse = Warehouse {
                db: idem.store().pool().clone(),
                idem,
                closed_for: AtomicU32::new(0),
                knows_all_addresses: AtomicBool::new(true),
            };
            let customer = "ann".to_owned();
            warehouse
                .send_parcel(key, &OrderPlaced { order, customer })
                .await
        };
        let (key, other) = (Key::generate(), Key::generate());
        check_on(database("SELECT count(*) FROM parcels"), async |idem| {
            send(idem, &key, 1).await
        })
        .other_request(async |idem| send(idem, &key, 2).await)
        .other_call(async |idem| send(idem, &other, 1).await)
        .assert_exactly_once();
    }
}
