//! Functions with `tx = tx`, on a database.

use std::sync::Arc;

use sqlx::AssertSqlSafe;

use crate::call::LocalBox;
use crate::place::{Opened, Place};

macro_rules! counts {
    ($pool:expr, $query:expr) => {{
        let (pool, query) = ($pool, $query);
        Box::new(move || -> LocalBox<'static, Result<u64, String>> {
            let (pool, query) = (pool.clone(), query.clone());
            Box::pin(async move {
                let count = sqlx::query_scalar::<_, i64>(AssertSqlSafe(query));
                let count = count.fetch_one(&pool).await;
                let count =
                    count.map_err(|error| format!("the effects cannot be counted: {error}"))?;
                Ok(count.unsigned_abs())
            })
        })
    }};
}

/// SQLite in memory, for functions that take `&Idem<SqliteStore>`, such as those with `tx = tx`. Time is not paused.
///
/// ```
/// use idem_runtime::{Idem, SqliteStore, idempotent};
/// use idem_testing::{Sqlite, check_on};
///
/// #[idempotent(key = order, ttl = "24h", name = "orders.place", store = idem, tx = tx)]
/// async fn place(idem: &Idem<SqliteStore>, order: &str) -> Result<u64, Box<dyn std::error::Error + Send + Sync>> {
///     let insert = sqlx::query("INSERT INTO orders VALUES (?)").bind(order);
///     Ok(insert.execute(&mut *tx).await?.rows_affected())
/// }
///
/// // In a `#[test]`:
/// let database = Sqlite::new("CREATE TABLE orders (id TEXT)").effects("SELECT count(*) FROM orders");
/// check_on(database, async |idem| place(&idem, "order-1").await).assert_exactly_once();
/// ```
#[cfg(feature = "sqlite")]
#[derive(Debug, Clone)]
pub struct Sqlite {
    schema: String,
    count: Option<String>,
}

#[cfg(feature = "sqlite")]
impl Sqlite {
    /// An empty database in which these statements have created the tables of the application.
    pub fn new(schema: &str) -> Self {
        Self {
            schema: schema.to_owned(),
            count: None,
        }
    }

    /// Counts the effects with this query, which returns one integer.
    #[must_use]
    pub fn effects(mut self, query: &str) -> Self {
        self.count = Some(query.to_owned());
        self
    }
}

#[cfg(feature = "sqlite")]
impl Place for Sqlite {
    type Store = idem_runtime::SqliteStore;

    fn open(&self) -> LocalBox<'_, Result<Opened<Self::Store>, String>> {
        Box::pin(async {
            let store = idem_runtime::SqliteStore::in_memory().await;
            let store =
                Arc::new(store.map_err(|error| format!("SQLite cannot be opened: {error}"))?);
            let pool = store.pool().clone();
            let schema = sqlx::raw_sql(AssertSqlSafe(self.schema.clone()));
            let created = schema.execute(&pool).await;
            created.map_err(|error| format!("the tables cannot be created: {error}"))?;
            Ok(Opened {
                count: self.count.clone().map(|query| counts!(pool, query) as _),
                any: Arc::clone(&store) as _,
                seen: store,
            })
        })
    }

    fn is_paused(&self) -> bool {
        false
    }

    fn counts(&self) -> bool {
        self.count.is_some()
    }
}
