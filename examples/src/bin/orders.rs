//! Exactly-once orders: the order, the stock that it takes and the record of its key are in one database, and one
//! transaction commits all of them.
//!
//! The program places orders and provokes failures: a lost reply, a double click, an error in the middle, a caller that
//! disconnects, and a process that dies between the effect and the commit. In each case the order takes the stock once,
//! and a failed call leaves no trace.
//!
//! Run it with `cargo run --bin orders`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use idem_examples::Table;
use idem_runtime::{Error, Fingerprint, Idem, SqliteStore, idempotent};
use sqlx::SqlitePool;
use sqlx::sqlite::SqlitePoolOptions;
use tokio::time::{sleep, timeout};

/// Number of pieces in stock at the beginning.
const STOCK: i64 = 10;

/// Tables of the shop.
const TABLES: &str = "CREATE TABLE IF NOT EXISTS stock (pieces INTEGER NOT NULL) STRICT; \
     CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, customer TEXT NOT NULL, pieces INTEGER NOT NULL) STRICT";

/// Environment variable that is set for the process that must die.
const DOOMED: &str = "IDEM_ORDERS_DOOMED";

/// Request of a customer.
#[derive(Debug, Clone, Fingerprint)]
struct Order {
    customer: String,
    pieces: i64,
}

#[derive(Debug, thiserror::Error)]
enum OrderError {
    #[error("only {0} left")]
    SoldOut(i64),
    #[error(transparent)]
    Idempotency(#[from] Error),
    #[error(transparent)]
    Database(#[from] sqlx::Error),
}

/// Failure between the last statement and the commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mishap {
    None,
    /// The body never returns.
    Hang,
    /// The process aborts.
    Die,
}

struct Shop {
    idem: Idem<SqliteStore>,
    pool: SqlitePool,
}

impl Shop {
    /// Opens the database of the shop, which also holds the records.
    async fn open(file: &Path) -> anyhow::Result<Self> {
        let pool = SqlitePoolOptions::new()
            .connect_with(SqliteStore::connect_options(file))
            .await?;
        let store = SqliteStore::new(pool.clone());
        store.migrate().await?;
        sqlx::raw_sql(TABLES).execute(&pool).await?;
        Ok(Self {
            idem: Idem::new(store),
            pool,
        })
    }

    /// Takes the pieces from stock, inserts the order and returns its number.
    #[idempotent(key = key, ttl = "24h", name = "orders.place", store = self.idem, wait = "10s", tx = tx, skip(mishap))]
    async fn place(&self, key: &str, order: Order, mishap: Mishap) -> Result<i64, OrderError> {
        let left: i64 =
            sqlx::query_scalar("UPDATE stock SET pieces = pieces - ?1 RETURNING pieces")
                .bind(order.pieces)
                .fetch_one(&mut *tx)
                .await?;
        if left < 0 {
            // The pieces return to the stock: a failed call commits nothing.
            return Err(OrderError::SoldOut(left + order.pieces));
        }
        let entered = sqlx::query("INSERT INTO orders (customer, pieces) VALUES (?1, ?2)")
            .bind(order.customer)
            .bind(order.pieces)
            .execute(&mut *tx)
            .await?;
        match mishap {
            Mishap::None => {}
            Mishap::Hang => std::future::pending().await,
            Mishap::Die => std::process::abort(),
        }
        Ok(entered.last_insert_rowid())
    }

    async fn count(&self, what: &'static str) -> Result<i64, sqlx::Error> {
        sqlx::query_scalar(what).fetch_one(&self.pool).await
    }

    async fn orders(&self) -> Result<i64, sqlx::Error> {
        self.count("SELECT count(*) FROM orders").await
    }

    async fn stock(&self) -> Result<i64, sqlx::Error> {
        self.count("SELECT pieces FROM stock").await
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    if let Some(file) = std::env::var_os(DOOMED) {
        let shop = Shop::open(&PathBuf::from(file)).await?;
        shop.place("carl-1", order("carl", 3), Mishap::Die).await?;
        anyhow::bail!("the process did not abort");
    }
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("shop.db");
    let shop = Arc::new(Shop::open(&file).await?);
    sqlx::query("INSERT INTO stock VALUES (?1)")
        .bind(STOCK)
        .execute(&shop.pool)
        .await?;
    let story = Story::begin(Arc::clone(&shop));

    let number = shop.place("ann-1", order("ann", 2), Mishap::None).await?;
    story.line("ann orders 2", 1, 8).await?;
    let again = shop.place("ann-1", order("ann", 2), Mishap::None).await?;
    ensure!(number == again, "a retry got another number");
    story
        .line("her reply is lost, she tries again", 1, 8)
        .await?;
    let other = shop.place("ann-1", order("ann", 9), Mishap::None).await;
    ensure!(matches!(
        other,
        Err(OrderError::Idempotency(Error::KeyReused))
    ));
    story.line("her key comes with another order", 1, 8).await?;

    let mut clicks = Vec::new();
    for _ in 0..20 {
        let shop = Arc::clone(&shop);
        clicks.push(tokio::spawn(async move {
            shop.place("bob-1", order("bob", 3), Mishap::None).await
        }));
    }
    for click in clicks {
        ensure!(click.await?? == number + 1, "two clicks made two orders");
    }
    story.line("bob clicks 20 times for 3", 2, 5).await?;

    let sold_out = shop.place("dora-1", order("dora", 6), Mishap::None).await;
    ensure!(
        matches!(sold_out, Err(OrderError::SoldOut(5))),
        "{sold_out:?}"
    );
    story.line("dora wants 6 and gets an error", 2, 5).await?;

    let call = shop.place("eve-1", order("eve", 1), Mishap::Hang);
    ensure!(timeout(Duration::from_millis(200), call).await.is_err());
    story.line("eve disconnects in the middle", 2, 5).await?;

    let died = Command::new(std::env::current_exe()?)
        .env(DOOMED, &file)
        .stderr(Stdio::null())
        .status()
        .context("cannot start the process that aborts")?;
    ensure!(!died.success(), "the process did not abort");
    story
        .line("the process crashes during carl's 3", 2, 5)
        .await?;

    for (customer, pieces) in [("eve", 1), ("carl", 3)] {
        let key = format!("{customer}-1");
        // The locks of the dropped call are released when its connection is next used.
        while let Err(error) = shop
            .place(&key, order(customer, pieces), Mishap::None)
            .await
        {
            ensure!(matches!(&error, OrderError::Idempotency(error) if error.is_retryable()));
            sleep(Duration::from_millis(20)).await;
        }
    }
    story.line("eve and carl try again", 4, 1).await?;

    println!();
    println!(
        "Every order once: of {STOCK} pieces in stock {} is left.",
        shop.stock().await?
    );
    Ok(())
}

fn order(customer: &str, pieces: i64) -> Order {
    Order {
        customer: customer.to_owned(),
        pieces,
    }
}

/// The table, with the counts that each line must have.
struct Story {
    table: Table<3>,
    shop: Arc<Shop>,
}

impl Story {
    fn begin(shop: Arc<Shop>) -> Self {
        Self {
            table: Table::new([("what happens", 38), ("orders", 6), ("in stock", 8)]),
            shop,
        }
    }

    /// Prints what happened and checks the number of orders and the stock.
    async fn line(&self, what: &str, orders: i64, stock: i64) -> anyhow::Result<()> {
        let found = (self.shop.orders().await?, self.shop.stock().await?);
        let (found_orders, found_stock) = (found.0.to_string(), found.1.to_string());
        self.table.line([what, &found_orders, &found_stock]);
        ensure!(found == (orders, stock), "{what}: {found:?}");
        Ok(())
    }
}

#[cfg(test)]
mod checked {
    use idem_testing::{Sqlite, check_on};

    use super::*;

    #[test]
    fn an_order_takes_the_stock_exactly_once() {
        let place = async |idem: Idem<SqliteStore>, key, pieces| {
            let pool = idem.store().pool().clone();
            let shop = Shop { idem, pool };
            shop.place(key, order("ann", pieces), Mishap::None).await
        };
        let database = || Sqlite::new(&format!("{TABLES}; INSERT INTO stock VALUES ({STOCK})"));
        for effects in [
            "SELECT count(*) FROM orders",
            "SELECT 10 - pieces FROM stock",
        ] {
            check_on(database().effects(effects), async |idem| {
                place(idem, "ann-1", 2).await
            })
            .other_request(async |idem| place(idem, "ann-1", 9).await)
            .other_call(async |idem| place(idem, "ann-2", 2).await)
            .assert_exactly_once();
        }
    }
}
