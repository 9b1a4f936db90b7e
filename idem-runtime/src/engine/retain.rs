//! Changes how long the record of a running attempt is kept.

use std::time::Duration;

use tokio::time::Instant;

use super::Attempt;
use crate::error::Error;
use crate::record::Owner;
use crate::store::{ClaimOutcome, ClaimRequest};
use crate::timing::{bounded, later};

impl Attempt {
    /// Sets the retention of this attempt's record, by a repeated claim.
    ///
    /// # Errors
    /// [`Error::LeaseLost`] if the record is no longer this attempt's, and [`Error::Store`] if the store could not be
    /// reached. The retention is then that of the claim.
    ///
    /// # Cancel safety
    /// Not cancel-safe: a record that was lost and is free again is claimed, and released by this future.
    pub(crate) async fn retain_for(&self, retention: Duration) -> Result<(), Error> {
        let Some(owner) = self.owner() else {
            // The body runs without a record.
            return Ok(());
        };
        let request = &self.call().request;
        if request.retention == retention {
            return Ok(());
        }
        let sent_at = Instant::now();
        let lease = self.call().lease_at(sent_at);
        let claim = ClaimRequest {
            lease,
            retention,
            ..request.clone()
        };
        let (store, limit) = (&self.engine().store, self.engine().policy.store_timeout);
        let granted = match bounded(limit, store.claim(&claim)).await? {
            ClaimOutcome::Granted(granted) => granted,
            ClaimOutcome::Existing(_) => return Err(Error::LeaseLost),
        };
        if granted.fencing_token == owner.fencing_token {
            self.call().retain_for(retention);
            let progress = &self.call().progress;
            progress.prolong(later(sent_at, lease));
            return Ok(());
        }
        // Another call took the record over and released it, or it was deleted, so this was the first claim of another
        // attempt. Nothing runs for it.
        let unused = Owner {
            fencing_token: granted.fencing_token,
            ..owner
        };
        bounded(limit, store.release(&unused)).await?;
        Err(Error::LeaseLost)
    }
}
