//! Where a function is checked: the store that its handle has.

use std::fmt::{self, Debug};
use std::rc::Rc;
use std::sync::Arc;

use idem_runtime::MemoryStore;
use idem_runtime::store::Store;

use crate::call::LocalBox;

/// Store of a check. Each schedule opens an empty one.
pub trait Place {
    /// Type of the store, as the function sees it.
    type Store: Store + ?Sized + 'static;

    /// Opens an empty store. Returns the reason if it cannot.
    #[doc(hidden)]
    fn open(&self) -> LocalBox<'_, Result<Opened<Self::Store>, String>>;

    /// True if time is paused: the store needs no time of its own.
    #[doc(hidden)]
    fn is_paused(&self) -> bool;

    /// True if the place counts effects itself.
    #[doc(hidden)]
    fn counts(&self) -> bool {
        false
    }
}

/// An empty store.
#[doc(hidden)]
pub struct Opened<S: Store + ?Sized> {
    pub(crate) seen: Arc<S>,
    pub(crate) any: Arc<dyn Store>,
    /// Counts the effects in the database of the store.
    pub(crate) count: Option<Counter>,
}

/// Counts effects by a query.
pub(crate) type Counter = Box<dyn Fn() -> LocalBox<'static, Result<u64, String>>>;

impl<S: Store + ?Sized> Debug for Opened<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opened").finish_non_exhaustive()
    }
}

/// The store in memory, for functions that take `&Idem`, an `&Idem<S>` for any `S`, or no handle. Time is paused.
#[derive(Debug, Clone, Copy, Default)]
pub struct Memory;

/// The store in memory, for functions that take `&Idem<MemoryStore>`. Time is paused.
#[derive(Debug, Clone, Copy, Default)]
pub struct TypedMemory;

impl Place for Memory {
    type Store = dyn Store;

    fn open(&self) -> LocalBox<'_, Result<Opened<dyn Store>, String>> {
        Box::pin(async {
            let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
            Ok(Opened {
                seen: Arc::clone(&store),
                any: store,
                count: None,
            })
        })
    }

    fn is_paused(&self) -> bool {
        true
    }
}

impl Place for TypedMemory {
    type Store = MemoryStore;

    fn open(&self) -> LocalBox<'_, Result<Opened<MemoryStore>, String>> {
        Box::pin(async {
            let store = Arc::new(MemoryStore::new());
            Ok(Opened {
                any: Arc::clone(&store) as _,
                seen: store,
                count: None,
            })
        })
    }

    fn is_paused(&self) -> bool {
        true
    }
}

type Error = Box<dyn std::error::Error + Send + Sync>;
type Open<S> = Box<dyn Fn() -> LocalBox<'static, Result<S, Error>>>;
type Count<S> = Rc<dyn Fn(Arc<S>) -> LocalBox<'static, Result<u64, Error>>>;

/// A store of your own choice: PostgreSQL, MySQL, MariaDB, Redis. A function opens an empty one for each schedule. Time is
/// not paused.
///
/// ```no_run
/// use idem_runtime::SqliteStore;
/// use idem_testing::Fresh;
///
/// # let _ =
/// Fresh::new(async || {
///     let store = SqliteStore::open("test.sqlite").await?; // or a schema of `PostgresStore`
///     sqlx::raw_sql("DELETE FROM orders").execute(store.pool()).await?;
///     // And the records of earlier schedules.
///     sqlx::raw_sql("DELETE FROM idem").execute(store.pool()).await?;
///     Ok(store)
/// })
/// .effects(async |store: &SqliteStore| {
///     let orders: i64 = sqlx::query_scalar("SELECT count(*) FROM orders").fetch_one(store.pool()).await?;
///     Ok(orders.unsigned_abs())
/// });
/// ```
pub struct Fresh<S> {
    open: Open<S>,
    count: Option<Count<S>>,
}

impl<S: Store> Fresh<S> {
    /// Opens the store of each schedule with this function. It must contain no record, and nothing that an earlier
    /// schedule wrote.
    pub fn new(open: impl AsyncFn() -> Result<S, Error> + 'static) -> Self {
        let open = Rc::new(open);
        Self {
            open: Box::new(move || {
                let open = Rc::clone(&open);
                Box::pin(async move { open().await })
            }),
            count: None,
        }
    }

    /// Counts the effects with this function.
    #[must_use]
    pub fn effects(mut self, count: impl AsyncFn(&S) -> Result<u64, Error> + 'static) -> Self {
        let count = Rc::new(count);
        self.count = Some(Rc::new(move |store| {
            let count = Rc::clone(&count);
            Box::pin(async move { count(&store).await })
        }));
        self
    }
}

impl<S> Debug for Fresh<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fresh").finish_non_exhaustive()
    }
}

impl<S: Store> Place for Fresh<S> {
    type Store = S;

    fn open(&self) -> LocalBox<'_, Result<Opened<S>, String>> {
        Box::pin(async {
            let store = (self.open)().await;
            let store = store.map_err(|error| format!("the store cannot be opened: {error}"))?;
            let store = Arc::new(store);
            let counted = Arc::clone(&store);
            Ok(Opened {
                count: self.count.clone().map(|count| -> Counter {
                    Box::new(move || {
                        let counted = count(Arc::clone(&counted));
                        Box::pin(async move {
                            let counted = counted.await;
                            counted
                                .map_err(|error| format!("the effects cannot be counted: {error}"))
                        })
                    })
                }),
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
