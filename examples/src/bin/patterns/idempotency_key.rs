//! Idempotency key: the caller gives its request a key, and sends the same key with each retry. The order is in the database
//! of the records, so one transaction (`tx`) commits both.

use anyhow::ensure;
use idem_runtime::{Error, Fingerprint, Idem, SqliteStore, idempotent};
use serde::{Deserialize, Serialize};
use sqlx::SqlitePool;

use super::Proof;
use super::fifty::fifty;

#[derive(Clone, Fingerprint)]
struct Order {
    article: String,
    pieces: u32,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Placed {
    number: i64,
}

#[derive(Debug, thiserror::Error)]
enum OrderError {
    #[error("the database failed")]
    Database(#[from] sqlx::Error),
    #[error(transparent)]
    Idempotency(#[from] Error),
}

#[derive(Clone)]
struct Orders {
    idem: Idem<SqliteStore>,
}

impl Orders {
    #[idempotent(
        key = key,
        scope = customer,
        ttl = "24h",
        wait = "1m",
        name = "orders.place",
        store = self.idem,
        tx = tx,
    )]
    async fn place(&self, customer: &str, key: &str, order: Order) -> Result<Placed, OrderError> {
        let row = sqlx::query("INSERT INTO orders (customer, article, pieces) VALUES (?, ?, ?)")
            .bind(customer)
            .bind(order.article)
            .bind(order.pieces)
            .execute(&mut *tx)
            .await?;
        Ok(Placed {
            number: row.last_insert_rowid(),
        })
    }
}

const TABLES: &str = "CREATE TABLE orders (customer TEXT, article TEXT, pieces INTEGER)";

pub(crate) async fn run(db: SqlitePool) -> anyhow::Result<Proof> {
    sqlx::raw_sql(TABLES).execute(&db).await?;
    let store = SqliteStore::new(db.clone());
    store.migrate().await?;
    let orders = Orders {
        idem: Idem::new(store),
    };
    let order = Order {
        article: "lamp".to_owned(),
        pieces: 1,
    };

    let answers = fifty(|_| {
        let (orders, order) = (orders.clone(), order.clone());
        async move { Ok(orders.place("ann", "click-1", order).await?) }
    })
    .await?;
    ensure!(answers.iter().all(|it| *it == answers[0]));

    let other = Order { pieces: 2, ..order };
    let reused = orders.place("ann", "click-1", other).await;
    ensure!(matches!(
        reused,
        Err(OrderError::Idempotency(Error::KeyReused))
    ));

    let effects = sqlx::query_scalar("SELECT count(*) FROM orders")
        .fetch_one(&db)
        .await?;
    ensure!(effects == 1);
    Ok(Proof {
        effects,
        answers: "50 × the number of the order; another order: key reused".to_owned(),
    })
}

#[cfg(test)]
mod checked {
    use idem_testing::{Sqlite, check_on};

    use super::*;

    #[test]
    fn an_order_is_placed_exactly_once() {
        let order = |pieces| Order {
            article: "lamp".to_owned(),
            pieces,
        };
        let place = async |idem, customer, pieces| {
            let orders = Orders { idem };
            orders.place(customer, "click-1", order(pieces)).await
        };
        let database = Sqlite::new(TABLES).effects("SELECT count(*) FROM orders");
        check_on(database, async |idem| place(idem, "ann", 1).await)
            .other_request(async |idem| place(idem, "ann", 2).await)
            .other_call(async |idem| place(idem, "bob", 1).await)
            .assert_exactly_once();
    }
}
