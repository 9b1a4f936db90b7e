//! The handle of calls that name none: one for the process, or one for a task in tests.

use std::sync::{Arc, OnceLock};

use super::{Engine, Idem};
use crate::error::Error;
use crate::store::Store;

static PROCESS: OnceLock<Idem> = OnceLock::new();

tokio::task_local! {
    static TASK: Idem;
}

/// A process default is there already, and stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a default handle is installed already")]
pub struct AlreadyInstalled;

impl<S: Store> Idem<S> {
    /// Makes this the handle of every annotated function that names none, for the whole process and for good.
    ///
    /// # Errors
    /// [`AlreadyInstalled`] where there is one: it stays.
    pub fn install(self) -> Result<(), AlreadyInstalled> {
        PROCESS.set(self.erased()).map_err(|_| AlreadyInstalled)
    }

    /// Makes this the handle of every annotated function that names none, inside of this future alone, whatever the
    /// process default is: for tests. Tasks that the future spawns do not inherit it.
    ///
    /// # Cancel safety
    /// That of the future.
    pub async fn with_default<F: Future>(&self, future: F) -> F::Output {
        TASK.scope(self.clone().erased(), future).await
    }
}

/// The engine of a call that names none.
pub(crate) fn default_engine() -> Result<Arc<Engine>, Error> {
    TASK.try_with(|idem| Arc::clone(idem.engine()))
        .ok()
        .or_else(|| PROCESS.get().map(|idem| Arc::clone(idem.engine())))
        .ok_or(Error::NotInstalled)
}
