//! The task that removes what is past its retention.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle as Runtime;
use tokio::task::AbortHandle;

use super::Engine;
use super::timing::{DECADES, bounded};
use crate::error::{Error, StoreError};
use crate::store::Purged;

/// How many records one batch looks at: small enough that a claim behind it waits for milliseconds.
const BATCH: u32 = 1_000;

/// The pause between two batches, so that claims come through on stores with one writer.
const BETWEEN_BATCHES: Duration = Duration::from_millis(5);

/// A task that purges a store. It stops when this is dropped.
#[derive(Debug)]
#[must_use = "the purger stops when this is dropped"]
pub struct PurgerGuard(Option<AbortHandle>);

impl PurgerGuard {
    pub(super) fn start(engine: Arc<Engine>, interval: Duration) -> Result<Self, Error> {
        let runtime = Runtime::try_current().map_err(|_| Error::NoRuntime)?;
        let task = runtime.spawn(async move {
            let interval = interval.min(DECADES);
            // Somewhere in the first interval, and jittered from then on: the processes of a service do not purge in
            // step, and one that is restarted often still purges now and then.
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

/// Purges batch by batch until nothing more is due.
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
