//! Names of the operations of a handle, which the store remembers for operators.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::runtime::Handle as Runtime;
use tokio::time::{Instant, sleep};

use crate::error::StoreError;
use crate::key::Operation;
use crate::store::{OperationStore, Store};
use crate::timing::bounded;

/// Number of names that a handle notes. More of them are names that depend on the call.
const MAX_NAMES: usize = 1_000;
/// Time between the first call of an operation and the note of its name: the write delays no call that waits for the first
/// one, and a process that is stopped right after its claim holds no lock for it.
const DELAY: Duration = Duration::from_secs(10);
/// Time after which a name is noted again that could not be noted.
const RETRY_AFTER: Duration = Duration::from_secs(60);

/// Names that a handle has noted.
#[derive(Debug)]
pub(super) struct OperationNames {
    /// False if the store does not remember names.
    is_on: bool,
    noted: Noted,
}

/// Names, with the time of the last try; `None` for those that need no other.
type Noted = Arc<RwLock<BTreeMap<String, Option<Instant>>>>;

impl OperationNames {
    pub(super) fn new(is_on: bool) -> Self {
        Self {
            is_on,
            noted: Arc::default(),
        }
    }

    /// Notes this operation, if that was not done yet. The store writes it in the background: no call waits.
    pub(super) fn notice(
        &self,
        operation: &Operation,
        store: &Arc<dyn Store>,
        limit: Duration,
        runtime: &Runtime,
    ) {
        if self.is_on && !self.is_noted(operation.as_str()) {
            self.note(operation.clone(), store, limit, runtime);
        }
    }

    /// Writes the names that are not noted yet.
    pub(super) async fn note_now(
        &self,
        store: &dyn OperationStore,
        limit: Duration,
    ) -> Result<(), StoreError> {
        for name in self.open() {
            // The name of an operation that was called.
            let Ok(operation) = Operation::new(name) else {
                continue;
            };
            bounded(limit, store.note_operation(&operation)).await?;
            set(&self.noted, &operation, None);
        }
        Ok(())
    }

    fn open(&self) -> Vec<String> {
        let noted = self.noted.read().unwrap_or_else(PoisonError::into_inner);
        let open = noted.iter().filter(|(_, tried_at)| tried_at.is_some());
        open.map(|(name, _)| name.clone()).collect()
    }

    fn is_noted(&self, name: &str) -> bool {
        let noted = self.noted.read().unwrap_or_else(PoisonError::into_inner);
        match noted.get(name) {
            None => noted.len() >= MAX_NAMES,
            Some(None) => true,
            Some(Some(tried_at)) => tried_at.elapsed() < RETRY_AFTER,
        }
    }

    #[cold]
    fn note(
        &self,
        operation: Operation,
        store: &Arc<dyn Store>,
        limit: Duration,
        runtime: &Runtime,
    ) {
        set(&self.noted, &operation, Some(Instant::now()));
        let (noted, store) = (Arc::clone(&self.noted), Arc::downgrade(store));
        runtime.spawn(async move {
            sleep(DELAY).await;
            let Some(store) = store.upgrade() else { return };
            let Some(names) = store.operations() else {
                return;
            };
            match bounded(limit, names.note_operation(&operation)).await {
                Ok(()) => set(&noted, &operation, None),
                Err(error) => tracing::debug!(
                    target: "idem",
                    operation = operation.as_str(),
                    error = ?error.kind(),
                    "the name of an operation could not be noted; a later call tries again",
                ),
            }
        });
    }
}

fn set(noted: &Noted, operation: &Operation, tried_at: Option<Instant>) {
    let mut noted = noted.write().unwrap_or_else(PoisonError::into_inner);
    noted.insert(operation.as_str().to_owned(), tried_at);
}
