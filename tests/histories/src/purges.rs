//! Purges of all records while clients contend for some. A purge belongs to the history of every record that was in use
//! meanwhile, if it interrupted any. What it deleted had expired, and nobody can tell if a record has expired or is gone.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use idem_store::Timestamp;
use idem_store::store::Store;
use tokio::sync::watch;

use crate::history::{Clock, History, Moment, What};
use crate::request::Request;

/// Most records that one purge deletes.
const LIMIT: u32 = 100;
/// Pause between two purges.
const PAUSE: Duration = Duration::from_millis(40);

/// The purges of a store.
#[derive(Debug, Clone, Default)]
pub struct Purges(Arc<Mutex<Vec<Purge>>>);

/// One purge: its beginning and, unless it still runs, its end.
#[derive(Debug, Clone, Copy)]
struct Purge {
    from: Moment,
    to: Option<Moment>,
    /// True if it may have interrupted a record.
    interrupts: bool,
}

impl Purges {
    /// Purges the store again and again.
    ///
    /// # Errors
    /// An error that does not come from a server that is down.
    ///
    /// # Cancel safety
    /// If the future is dropped, the last purge counts as still running.
    pub async fn run(
        self,
        store: Arc<dyn Store>,
        clock: Clock,
        mut is_up: watch::Receiver<bool>,
    ) -> anyhow::Result<()> {
        while is_up.wait_for(|is_up| *is_up).await.is_ok() {
            let number = self.lock().len();
            self.lock().push(Purge {
                from: clock.now(),
                to: None,
                interrupts: true,
            });
            match store.purge(LIMIT, Timestamp::MAX).await {
                Ok(purged) => self.lock()[number].interrupts = purged.interrupted > 0,
                Err(error) if !error.is_retryable() => return Err(error.into()),
                // A server that was killed no longer purges once it is up again.
                Err(_) if is_up.wait_for(|is_up| *is_up).await.is_err() => return Ok(()),
                Err(_) => {}
            }
            self.lock()[number].to = Some(clock.now());
            tokio::time::sleep(PAUSE).await;
        }
        Ok(())
    }

    /// Adds the purges that ran during a history to it.
    pub fn add_to(&self, history: &mut History) {
        let begun = history.begun();
        for purge in self.lock().iter().rev() {
            match purge.to {
                Some(to) if to.order < begun => break,
                to if purge.interrupts => {
                    history.mark(What::Request(Request::Purge(LIMIT)), purge.from, to);
                }
                _ => {}
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Purge>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
