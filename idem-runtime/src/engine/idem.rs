//! The handle on a store.

use std::fmt;
use std::sync::Arc;

use super::{Engine, Records};
#[cfg(feature = "http")]
use crate::metrics::OperationMetrics;
use crate::policy::Policy;
use crate::store::Store;

/// A handle on a store, with the policy for the calls made through it. Cheap to clone.
///
/// `Idem` without a parameter is a handle on any store; [`erased`](Self::erased) converts a typed handle into one.
///
/// Use **one** handle (and its clones) for a store in a process. A call that waits for another call is woken if both
/// use clones of one handle. Calls through unrelated handles poll the store.
///
/// ```
/// use idem_runtime::{Idem, MemoryStore};
///
/// let typed: Idem<MemoryStore> = Idem::new(MemoryStore::new()); // `tx` needs the store's type
/// let any: Idem = typed.clone().erased(); // for functions that take `&Idem`, and so any store
/// ```
pub struct Idem<S: Store + ?Sized = dyn Store> {
    pub(super) engine: Arc<Engine>,
    pub(super) store: Arc<S>,
}

impl<S: Store + ?Sized> Idem<S> {
    /// The store.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// The policy.
    pub fn policy(&self) -> &Policy {
        &self.engine.policy
    }

    /// Converts the handle into one with the store's type erased.
    pub fn erased(self) -> Idem {
        Idem {
            // Taken from the engine, where the store is already erased: a `dyn Store` cannot be erased again.
            store: Arc::clone(&self.engine.store),
            engine: self.engine,
        }
    }

    /// The store, shared: for a task or a service that outlives the handle.
    pub fn shared_store(&self) -> Arc<S> {
        Arc::clone(&self.store)
    }

    /// Returns true if the handle has a secret to sign with.
    #[cfg(feature = "http")]
    pub(crate) fn has_secret(&self) -> bool {
        !self.engine.secrets.is_empty()
    }

    /// Counts a request that an HTTP layer refused before its key was claimed.
    #[cfg(feature = "http")]
    pub(crate) fn count_refused(&self, operation: &str, problem: &'static str) {
        OperationMetrics::of(operation).count_refused(problem);
    }

    pub(super) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Administrative access to records: reads, lists, resolves and erases them.
    pub fn records(&self) -> Records<'_> {
        Records::new(&self.engine)
    }
}

impl<S: Store> From<Idem<S>> for Idem {
    fn from(idem: Idem<S>) -> Self {
        idem.erased()
    }
}

impl<S: Store + ?Sized> Clone for Idem<S> {
    fn clone(&self) -> Self {
        Self {
            engine: Arc::clone(&self.engine),
            store: Arc::clone(&self.store),
        }
    }
}

impl<S: Store + ?Sized> fmt::Debug for Idem<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Idem")
            .field("store", &self.store)
            .field("policy", &self.engine.policy)
            .finish_non_exhaustive()
    }
}
