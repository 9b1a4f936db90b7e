//! The background task that deletes expired records.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle as Runtime;
use tokio::task::AbortHandle;

use super::Engine;
use super::timing::{DECADES, bounded};
use crate::error::{Error, StoreError};
use crate::store::Purged;

/// Number of records that one batch examines. Small, so that a claim waits only milliseconds for a batch.
const BATCH: u32 = 1_000;

/// Pause between two batches, so that claims get a turn on stores with a single writer.
const BETWEEN_BATCHES: Duration = Duration::from_millis(5);

/// Guard of a task that purges a store. The task stops when the guard is dropped.
#[derive(Debug)]
#[must_use = "the purger stops when this is dropped"]
pub struct PurgerGuard(Option<AbortHandle>);

impl PurgerGuard {
    pub(super) fn start(engine: Arc<Engine>, interval: Duration) -> Result<Self, Error> {
        let runtime = Runtime::try_current().map_err(|_| Error::NoRuntime)?;
        let task = runtime.spawn(async move {
            let interval = interval.min(DECADES);
            // Starts at a random point of the first interval, then jitters. The processes of a service therefore do not
            // purge at the same time, and a process that is restarted often still purges now and then.
            let mut pause = interval.mul_f64(rand::random());
            loop {
                tokio::time::sleep(pause).await;
                pause = interval.mul_f64(0.8 + 0.4 * rand::random::<f64>());
                match purge(&engine).await {
                    Ok(purged) => report(&purged),
                    Err(error) => tracing::warn!(
                        target: "idem",
                        error = ?error.kind(),
                        "purging failed, trying again at the next interval",
                    ),
                }
            }
        });
        Ok(Self(Some(task.abort_handle())))
    }

    /// Leaves the task running until the runtime stops.
    pub fn detach(mut self) {
        self.0 = None;
    }
}

impl Drop for PurgerGuard {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

/// Purges batch by batch until no record is due.
async fn purge(engine: &Engine) -> Result<Purged, StoreError> {
    let mut total = Purged::default();
    loop {
        let purged = bounded(engine.policy.store_timeout, engine.store.purge(BATCH)).await?;
        total.removed += purged.removed;
        total.abandoned += purged.abandoned;
        total.interrupted += purged.interrupted;
        if !purged.more {
            return Ok(total);
        }
        tokio::time::sleep(BETWEEN_BATCHES).await;
    }
}

fn report(purged: &Purged) {
    if purged.abandoned > 0 || purged.interrupted > 0 {
        tracing::warn!(
            target: "idem",
            abandoned = purged.abandoned,
            interrupted = purged.interrupted,
            "records outlived their owners by more than their retention",
        );
    }
    if purged.removed > 0 {
        tracing::debug!(target: "idem", removed = purged.removed, "purged");
    }
}
