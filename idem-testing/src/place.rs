//! Where a function is checked: the store that its handle has.

use std::fmt::Debug;
use std::sync::Arc;

use idem_runtime::store::Store;
use idem_runtime::{Builder, Idem, MemoryStore};

use crate::call::LocalBox;
use crate::store::TestStore;

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
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
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

/// Handle of one process on an opened store. A function of the erased type sees the recording store itself.
pub(crate) fn handle<S: Store + ?Sized>(
    opened: &Opened<S>,
    builder: Builder<TestStore>,
) -> Idem<S> {
    builder.build_seen_as(Arc::clone(&opened.seen))
}
