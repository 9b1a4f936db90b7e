//! Idempotency key: the caller gives its request a key, and sends the same key with each retry. The order is in the database
//! of the records, so one transaction (`tx`) commits both.

use anyhow::ensure;
use idem_runtime::{Error, Fingerprint, Idem, SqliteStore, idempotent};
use serde::{Deserialize, Serialize};
use sqlx::SqlitePool;

use crate::Proof;
use crate::fifty::fifty;

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

pub(crate) async fn run(db: SqlitePool) -> anyhow::Result<Proof> {
    sqlx::raw_sql("CREATE TABLE orders (customer TEXT, article TEXT, pieces INTEGER)")
        .execute(&db)
        .await?;
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
