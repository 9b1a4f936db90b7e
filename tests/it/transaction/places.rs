//! Databases with a table of orders next to the records.

use idem_runtime::operator::OperatorStore;
use idem_tests::places::{Files, Place};
use idem_tests::sql::{Sql, Value};

pub(super) const TABLE: &str =
    "CREATE TABLE orders (id VARCHAR(40) NOT NULL, amount BIGINT NOT NULL)";
const INSERT: &str = "INSERT INTO orders (id, amount) VALUES (?, ?)";

/// A dedicated database with the table of orders.
#[derive(Clone)]
pub(super) struct Database<S: Sql> {
    pub(super) pool: S::Pool,
    pub(super) _files: Option<Files>,
}

impl<S: Orders> Database<S> {
    pub(super) async fn open(place: Place<S>) -> Self {
        let pool = place.home().await.unwrap();
        S::any(&pool).execute(TABLE).await.unwrap();
        Self {
            pool,
            _files: Some(place.files()),
        }
    }

    pub(super) fn store(&self) -> S {
        S::over(&self.pool)
    }

    /// Number of committed orders for a key.
    pub(super) async fn orders(&self, key: &str) -> i64 {
        let count = "SELECT count(*) FROM orders WHERE id = ?";
        S::number(&self.pool, count, &[key.into()]).await.unwrap()
    }

    /// Adds a unique index, so that statements find and lock single rows.
    pub(super) async fn make_ids_unique(&self) {
        let index = "CREATE UNIQUE INDEX orders_by_id ON orders (id)";
        S::any(&self.pool).execute(index).await.unwrap();
    }

    /// Begins a transaction of the caller.
    pub(super) async fn begin(&self) -> S::Outer {
        S::begin_outer(&self.pool).await.unwrap()
    }
}

/// A store whose database has the table of orders.
pub(super) trait Orders: Sql + OperatorStore {
    fn order(
        tx: &mut Self::Connection,
        key: &str,
        amount: i64,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send {
        async move { Self::run(tx, INSERT, &[key.into(), amount.into()]).await }
    }

    /// Runs a statement that the database rejects.
    fn order_nothing(
        tx: &mut Self::Connection,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send {
        async move { Self::run(tx, INSERT, &["nothing".into(), Value::Null]).await }
    }

    /// Changes orders, which locks them until the transaction ends.
    fn add(
        tx: &mut Self::Connection,
        key: &str,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send {
        let update = "UPDATE orders SET amount = amount + 1 WHERE id = ?";
        async move { Self::run(tx, update, &[key.into()]).await }
    }

    /// Closes the connection, as a crash of the server would.
    fn cut_off(tx: &mut Self::Connection) -> impl Future<Output = ()> + Send {
        let end = Self::END_SESSION.expect("there is a server to be cut off from");
        async move {
            Self::text(tx, end).await.unwrap_err();
        }
    }
}

impl<S: Sql + OperatorStore> Orders for S {}
