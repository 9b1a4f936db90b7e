//! Another connection, which is asked after each acknowledgement: what a store acknowledges, others see, and it is still
//! there when the connections of the store are closed.
//!
//! What the witness reads belongs to the history of the record. A read that does not see an acknowledged write contradicts
//! the order of the two, and the checker rejects the history. All reads of the store itself may agree with each other,
//! for instance on a connection with a transaction that nobody commits.

use std::sync::Arc;
use std::time::Duration;

use idem_store::StoreError;
use idem_store::key::RecordId;
use idem_store::record::{Record, Timestamp};
use idem_store::store::Store;
use tokio::sync::watch;

use crate::history::{Clock, Moment};
use crate::possible::Window;

/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(20);
/// Pause before the next try.
const PAUSE: Duration = Duration::from_millis(5);

/// A store on the same records, with connections of its own.
#[derive(Debug, Clone)]
pub struct Witness {
    store: Arc<dyn Store>,
    clock: Clock,
    is_up: watch::Receiver<bool>,
}

/// What the witness read, between two moments.
pub(crate) struct Seen {
    pub(crate) from: Moment,
    pub(crate) to: Moment,
    pub(crate) record: Option<Record>,
}

impl Witness {
    /// A witness that reads through this store, while its server is up.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, clock: Clock, is_up: watch::Receiver<bool>) -> Self {
        Self {
            store,
            clock,
            is_up,
        }
    }

    /// Uncertainty of the store's clock.
    pub(crate) fn uncertainty(&self) -> Duration {
        self.store.time_uncertainty()
    }

    /// Reads a record. If the server is killed meanwhile, reads it once the server is up again. None if the round ends.
    ///
    /// # Errors
    /// An error that does not come from a server that is down.
    pub(crate) async fn read(&self, id: &RecordId) -> Result<Option<Seen>, StoreError> {
        let mut is_up = self.is_up.clone();
        while is_up.wait_for(|is_up| *is_up).await.is_ok() {
            let from = self.clock.now();
            match tokio::time::timeout(PATIENCE, self.store.get(id)).await {
                Ok(Ok(record)) => {
                    let to = self.clock.now();
                    return Ok(Some(Seen { from, to, record }));
                }
                Ok(Err(error)) if !error.is_retryable() => return Err(error),
                _ => tokio::time::sleep(PAUSE).await,
            }
        }
        Ok(None)
    }

    /// Reads the records again that it has seen at the ends of their histories. Returns the ones that are no longer there,
    /// as texts.
    ///
    /// # Errors
    /// An error that does not come from a server that is down.
    pub(crate) async fn missing(&self, ends: &[Record]) -> Result<Vec<String>, StoreError> {
        let mut missing = Vec::new();
        for end in ends {
            let Some(seen) = self.read(&end.id).await? else {
                break;
            };
            let now = Window::between(seen.from, seen.to, Duration::ZERO).to;
            let found = seen.record;
            if !is_still_there(end, found.as_ref(), now) {
                missing.push(format!(
                    "acknowledged, and gone when the connections of the store were closed: {end:?}\nnow: {found:?}"
                ));
            }
        }
        Ok(missing)
    }
}

/// Returns true if a record that nobody has used since may have become this one: it may have expired, or a purge may have
/// interrupted it.
fn is_still_there(end: &Record, found: Option<&Record>, now: Timestamp) -> bool {
    match found {
        None => end.expires_at().is_some_and(|at| at <= now),
        Some(found) => {
            let has_outcome = end.outcome().is_none_or(|it| found.outcome() == Some(it));
            found.fencing_token >= end.fencing_token && has_outcome
        }
    }
}

#[cfg(test)]
mod tests {
    use idem_runtime::MemoryStore;
    use idem_store::record::{Outcome, RecordState};
    use idem_tests::claims::{HOUR, claim, own};

    use super::*;

    #[tokio::test]
    async fn a_record_that_is_gone_or_older_is_missing() {
        let store = MemoryStore::new();
        let claim = claim("k");
        let read = async || store.get(&claim.id).await.unwrap().unwrap();
        let owner = own(&store, &claim).await;
        let claimed = read().await;
        store.complete(&owner, &Outcome::Unrecorded).await.unwrap();
        let completed = read().await;
        let now = completed.read_at;
        assert!(is_still_there(&claimed, Some(&completed), now));
        assert!(is_still_there(&completed, Some(&completed), now));
        assert!(!is_still_there(&completed, Some(&claimed), now));
        assert!(!is_still_there(&completed, None, now.after(HOUR / 2)));
        assert!(is_still_there(&completed, None, now.after(2 * HOUR)));
        let interrupted = Record {
            state: RecordState::Interrupted,
            ..claimed.clone()
        };
        assert!(is_still_there(&claimed, Some(&interrupted), now));
        let earlier = Record {
            fencing_token: idem_store::record::FencingToken::from_number(1),
            ..claimed.clone()
        };
        assert!(!is_still_there(&claimed, Some(&earlier), now));
    }
}
