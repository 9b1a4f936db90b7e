//! The default handle for calls that name no store: one for the process, or one for a task in tests.

use std::sync::{Arc, OnceLock};

use super::{Engine, Idem};
use crate::error::{AlreadyInstalled, Error};
use crate::store::Store;

static PROCESS: OnceLock<Idem> = OnceLock::new();

tokio::task_local! {
    static TASK: Idem;
}

impl<S: Store + ?Sized> Idem<S> {
    /// Makes this the handle of every annotated function that names no store, for the rest of the process.
    ///
    /// # Errors
    /// [`AlreadyInstalled`] if a default handle exists already. The existing one is kept.
    pub fn install(self) -> Result<(), AlreadyInstalled> {
        PROCESS.set(self.erased()).map_err(|_| AlreadyInstalled)
    }

    /// Makes this the handle of every annotated function that names no store, inside this future only. It overrides the
    /// process default; meant for tests. Tasks that the future spawns do not inherit it, except those of detached calls.
    ///
    /// # Cancel safety
    /// Cancel-safe if the future is.
    pub async fn with_default<F: Future>(&self, future: F) -> F::Output {
        TASK.scope(self.clone().erased(), future).await
    }
}

/// The handle that [`Idem::with_default`] has set for the current task.
pub(super) fn of_the_task() -> Option<Idem> {
    TASK.try_with(Clone::clone).ok()
}

/// The engine of calls that name no store.
pub(super) fn default_engine() -> Result<Arc<Engine>, Error> {
    TASK.try_with(|idem| Arc::clone(idem.engine()))
        .ok()
        .or_else(|| PROCESS.get().map(|idem| Arc::clone(idem.engine())))
        .ok_or(Error::NotInstalled)
}
