//! Keys that say when they were made: a UUID of version 7.
//!
//! The record of a key shows that the key was used. Without a record, its age can show that it may have been used: it is
//! older than records are kept ([`Call::refuse_old_keys`](super::Call::refuse_old_keys)), or older than the backup from
//! which the store was restored ([`restored_at`](super::IdemBuilder::restored_at)).
//!
//! The time in a key is that of its maker's clock. It is compared with the store's clock. This is the one exception to the
//! rule that times of different clocks are not compared, so both features are off by default. The clock of this process
//! only says which keys are worth the reads.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::Engine;
use super::prepared::Prepared;
use crate::error::{Error, StoreError, StoreErrorKind};
use crate::key::Key;
use crate::record::{OnCrash, Owner, Timestamp};
use crate::store::{ClaimOutcome, ClaimRequest, FencedWrite};
use crate::timing::bounded;

/// The latest time at which a record may have been claimed first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FirstClaimBy {
    /// Last time at which an issued key is valid.
    Issued(Timestamp),
    /// Time from which a key that was made by then is too old.
    Made(Timestamp),
}

impl FirstClaimBy {
    /// Time from which a key is older than the retention and this slack. None if the key does not say when it was made.
    pub(super) fn made(key: &Key, retention: Duration, slack: Duration) -> Option<Self> {
        Some(Self::Made(key.made_at()?.after(retention).after(slack)))
    }
}

/// Time of the backup from which the store was restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RestoredAt {
    pub(super) at: Timestamp,
    /// True for all keys, also for those that do not say when they were made, or were made later.
    pub(super) is_for_all_keys: bool,
}

impl RestoredAt {
    fn concerns(&self, key: &Key) -> bool {
        self.is_for_all_keys || key.made_at().is_some_and(|made_at| made_at < self.at)
    }
}

/// Checks before the first claim of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KeyChecks {
    /// Time from which the key is too old.
    too_old_from: Option<Timestamp>,
    /// Time until which the restored store may lack the record of the key.
    lacks_until: Option<Timestamp>,
}

impl KeyChecks {
    /// Checks for this key. None for a key that need not be checked.
    pub(super) fn of(
        key: &Key,
        retention: Duration,
        first_claim_by: Option<FirstClaimBy>,
        engine: &Engine,
    ) -> Option<Self> {
        let restored = engine.restored_at.filter(|it| it.concerns(key));
        let too_old_from = match first_claim_by {
            Some(FirstClaimBy::Made(from)) if from <= SystemTime::now().into() => Some(from),
            _ => None,
        };
        let checks = Self {
            too_old_from,
            lacks_until: restored.map(|it| it.at.after(retention)),
        };
        (too_old_from.is_some() || restored.is_some()).then_some(checks)
    }

    /// Refuses the call if its key may have been used before, and there is no record of it.
    ///
    /// # Cancel safety
    /// If the future is dropped, the record of a restored key is absent, claimed under `refuse` or `reconcile`, or
    /// INTERRUPTED. In each of these cases the next call decides again, and no body runs.
    pub(super) async fn run(self, call: &Arc<Prepared>) -> Result<(), Error> {
        let (engine, id) = (&call.engine, &call.request.id);
        if engine.retry(|| engine.store.get(id)).await?.is_some() {
            return Ok(());
        }
        let now = engine.retry(|| engine.store.now()).await?;
        if self.too_old_from.is_some_and(|from| from <= now) {
            return Err(Error::Expired);
        }
        match self.lacks_until {
            Some(until) if now < until => interrupt(call).await,
            _ => Ok(()),
        }
    }
}

/// Creates the record of a call as INTERRUPTED, because the record may have been lost with the restored store. Under
/// `refuse` and in a transaction an operator then decides, and under `reconcile` the call asks what became of the work.
async fn interrupt(call: &Arc<Prepared>) -> Result<(), Error> {
    let on_crash = match (call.transactional, call.request.on_crash) {
        (true, _) => OnCrash::Refuse,
        (false, OnCrash::Rerun) => return Err(lost().into()),
        (false, on_crash) => on_crash,
    };
    let (store, limit) = (&call.engine.store, call.engine.policy.store_timeout);
    let request = ClaimRequest {
        on_crash,
        ..call.request.clone()
    };
    let granted = match bounded(limit, store.claim(&request)).await? {
        ClaimOutcome::Granted(granted) => granted,
        ClaimOutcome::Existing(_) => return Ok(()),
    };
    let owner = Owner {
        id: request.id,
        claim_id: request.claim_id,
        fencing_token: granted.fencing_token,
    };
    if granted.attempt > 1 {
        // Another call has released the record meanwhile, so it was not lost.
        bounded(limit, store.release(&owner)).await?;
        return Ok(());
    }
    match bounded(limit, store.interrupt(&owner)).await? {
        FencedWrite::Applied => call.warn_interrupted(),
        FencedWrite::Fenced => return Ok(()),
    }
    match on_crash {
        OnCrash::Reconcile => Ok(()),
        OnCrash::Rerun | OnCrash::Refuse => Err(Error::Interrupted),
    }
}

/// Error of a call that would run its work again.
fn lost() -> StoreError {
    StoreError::new(
        StoreErrorKind::Unavailable,
        "the store was restored from a backup, and may lack the record of this key; try again after the retention, or let an \
         operator find out whether the work was done",
    )
}
