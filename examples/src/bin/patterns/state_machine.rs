//! State machine: an order moves from state to state. Each transition names the state that it leaves, so it happens
//! once.
//!
//! The effect is in the same statement or the same transaction as the transition. An effect outside of the database
//! needs an idempotency key: a crash between the effect and the transition would leave one without the other.

use anyhow::{bail, ensure};
use sqlx::SqlitePool;

use super::Proof;
use super::fifty::{FIFTY, fifty};

/// Pays an order. Returns true if this call paid it.
async fn pay(db: &SqlitePool, order: i64) -> anyhow::Result<bool> {
    let paid = sqlx::query(
        "UPDATE orders SET state = 'paid', paid_times = paid_times + 1 WHERE id = ? AND state = 'placed'",
    )
    .bind(order)
    .execute(db)
    .await?;
    if paid.rows_affected() > 0 {
        return Ok(true);
    }
    let state: Option<String> = sqlx::query_scalar("SELECT state FROM orders WHERE id = ?")
        .bind(order)
        .fetch_optional(db)
        .await?;
    match state.as_deref() {
        // A paid order may have been shipped since.
        Some("paid" | "shipped") => Ok(false),
        Some(state) => bail!("the order is {state} and cannot be paid"),
        None => bail!("the order does not exist"),
    }
}

const TABLES: &str = "CREATE TABLE orders (id INTEGER PRIMARY KEY, state TEXT, paid_times INTEGER);
         INSERT INTO orders VALUES (1, 'placed', 0), (2, 'cancelled', 0);";

pub(crate) async fn run(db: SqlitePool) -> anyhow::Result<Proof> {
    sqlx::raw_sql(TABLES).execute(&db).await?;

    let answers = fifty(|_| {
        let db = db.clone();
        async move { pay(&db, 1).await }
    })
    .await?;
    ensure!(answers.iter().filter(|it| **it).count() == 1);
    ensure!(pay(&db, 2).await.is_err());

    let effects = sqlx::query_scalar("SELECT sum(paid_times) FROM orders")
        .fetch_one(&db)
        .await?;
    ensure!(effects == 1);
    Ok(Proof {
        effects,
        answers: format!("1 × paid now, {} × paid before", FIFTY - 1),
    })
}

#[cfg(test)]
mod checked {
    use idem_testing::{Sqlite, check_on};

    use super::super::checked::as_body;
    use super::*;

    #[test]
    fn an_order_is_paid_once_by_a_body_that_runs_again() {
        let database = Sqlite::new(TABLES).effects("SELECT sum(paid_times) FROM orders");
        check_on(database, async |idem| {
            as_body(&idem, async |db| pay(&db, 1).await).await
        })
        .assert_promised();
    }
}
