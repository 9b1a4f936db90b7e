//! Transactional outbox: a change and its message are committed together, because the message is a row that the
//! transaction of the change inserts. A relay delivers the message until its consumer succeeds, and the consumer
//! deduplicates.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::ensure;
use idem_runtime::outbox::{self, Message, Outbox, Relay};
use idem_runtime::{Error, Fingerprint, Idem, Key, SqliteStore, idempotent};
use serde::{Deserialize, Serialize};
use sqlx::SqlitePool;

use super::Proof;
use super::fifty::fifty;

#[derive(Fingerprint, Serialize, Deserialize)]
struct OrderPlaced {
    order: i64,
}

#[derive(Debug, thiserror::Error)]
enum ShopError {
    #[error("the reply was lost")]
    ReplyLost,
    #[error("the database failed")]
    Database(#[from] sqlx::Error),
    #[error(transparent)]
    Idempotency(#[from] Error),
}

#[derive(Clone)]
struct Shop {
    idem: Idem<SqliteStore>,
    /// Number of deliveries of messages to the warehouse.
    deliveries: Arc<AtomicU32>,
}

impl Shop {
    /// Commits the order, its message and the record of the call in one transaction.
    #[idempotent(key = key, ttl = "24h", wait = "1m", name = "orders.place", store = self.idem, tx = tx)]
    async fn place(&self, key: &str, customer: &str) -> Result<i64, ShopError> {
        let row = sqlx::query("INSERT INTO orders (customer) VALUES (?)")
            .bind(customer)
            .execute(&mut *tx)
            .await?;
        let order = row.last_insert_rowid();
        outbox::enqueue(tx, "order.placed", &OrderPlaced { order }).await?;
        Ok(order)
    }

    /// Handler of the relay. Its first answer is lost, as may happen on a network.
    async fn on_order_placed(&self, message: Message<OrderPlaced>) -> Result<(), ShopError> {
        self.send_parcel(message.key(), &message.payload).await?;
        match self.deliveries.fetch_add(1, Ordering::Relaxed) {
            0 => Err(ShopError::ReplyLost),
            _ => Ok(()),
        }
    }

    /// Sends a parcel. The key of a message is the same in each delivery.
    #[idempotent(key = key, ttl = "7d", name = "parcels.send", store = self.idem, tx = tx)]
    async fn send_parcel(&self, key: &Key, placed: &OrderPlaced) -> Result<(), ShopError> {
        sqlx::query("INSERT INTO parcels (order_number) VALUES (?)")
            .bind(placed.order)
            .execute(&mut *tx)
            .await?;
        Ok(())
    }
}

const TABLES: &str = "CREATE TABLE orders (customer TEXT);
         CREATE TABLE parcels (order_number INTEGER);";

pub(crate) async fn run(db: SqlitePool) -> anyhow::Result<Proof> {
    sqlx::raw_sql(TABLES).execute(&db).await?;
    let store = SqliteStore::new(db.clone());
    store.migrate().await?;
    let outbox = Outbox::new(db.clone());
    outbox.migrate().await?;
    let shop = Shop {
        idem: Idem::new(store),
        deliveries: Arc::default(),
    };

    let answers = fifty(|_| {
        let shop = shop.clone();
        async move { Ok(shop.place("click-1", "ann").await?) }
    })
    .await?;
    ensure!(answers.iter().all(|it| *it == answers[0]));
    let counts: (u64, u64) =
        sqlx::query_as("SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM idem_outbox)")
            .fetch_one(&db)
            .await?;
    ensure!(counts == (1, 1));

    let relay = Relay::new(&outbox)
        .backoff(Duration::from_millis(5), Duration::from_millis(50))
        .poll_interval(Duration::from_millis(50))
        .on("order.placed", {
            let shop = shop.clone();
            move |message| {
                let shop = shop.clone();
                async move { shop.on_order_placed(message).await }
            }
        })
        .start()?;
    let deadline = Instant::now() + Duration::from_secs(30);
    while outbox.backlog().await?.waiting > 0 {
        ensure!(
            Instant::now() < deadline,
            "the message was not delivered in time"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    relay.stop().await;

    ensure!(shop.deliveries.load(Ordering::Relaxed) == 2);
    let effects = sqlx::query_scalar("SELECT count(*) FROM parcels")
        .fetch_one(&db)
        .await?;
    ensure!(effects == 1);
    Ok(Proof {
        effects,
        answers: "50 × the number of the order; 1 message, delivered twice".to_owned(),
    })
}

#[cfg(test)]
mod checked {
    use idem_testing::{Fresh, check_on};

    use super::*;

    /// A database with the tables of the shop and of the outbox. Rows of this query are effects.
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

    fn shop(idem: Idem<SqliteStore>) -> Shop {
        Shop {
            idem,
            deliveries: Arc::default(),
        }
    }

    #[test]
    fn an_order_and_its_message_are_written_exactly_once() {
        let rows = "SELECT (SELECT count(*) FROM orders) + (SELECT count(*) FROM idem_outbox)";
        check_on(database(rows), async |idem| {
            shop(idem).place("click-1", "ann").await
        })
        .other_request(async |idem| shop(idem).place("click-1", "bob").await)
        .other_call(async |idem| shop(idem).place("click-2", "ann").await)
        .assert_exactly_once();
    }

    #[test]
    fn a_parcel_is_sent_exactly_once() {
        let (key, other) = (Key::generate(), Key::generate());
        let placed = |order| OrderPlaced { order };
        check_on(database("SELECT count(*) FROM parcels"), async |idem| {
            shop(idem).send_parcel(&key, &placed(1)).await
        })
        .other_request(async |idem| shop(idem).send_parcel(&key, &placed(2)).await)
        .other_call(async |idem| shop(idem).send_parcel(&other, &placed(1)).await)
        .assert_exactly_once();
    }
}
