//! Checks a key before its first claim: without a record, it may have been used before.

use std::sync::Arc;

use crate::engine::key_age::KeyChecks;
use crate::engine::prepared::Prepared;
use crate::error::{Error, StoreError, StoreErrorKind};
use crate::record::{OnCrash, Owner};
use crate::store::{ClaimOutcome, ClaimRequest, FencedWrite};
use crate::timing::bounded;

/// Refuses the call if its key may have been used before, and there is no record of it.
///
/// # Cancel safety
/// The reads write nothing. The record of a restored key is created in a task, which the caller does not cut off.
pub(super) async fn check_key(checks: KeyChecks, call: &Arc<Prepared>) -> Result<(), Error> {
    let (engine, id) = (&call.engine, &call.request.id);
    if engine.retry(|| engine.store.get(id)).await?.is_some() {
        return Ok(());
    }
    let now = engine.retry(|| engine.store.now()).await?;
    if checks.too_old_from.is_some_and(|from| from <= now) {
        return Err(Error::Expired);
    }
    match checks.lacks_until {
        Some(until) if now < until => {
            let interrupted = call.runtime.spawn(interrupt(Arc::clone(call)));
            interrupted.await.unwrap_or_else(|_| Err(lost().into()))
        }
        _ => Ok(()),
    }
}

/// Creates the record of a call as INTERRUPTED, because the record may have been lost with the restored store. Under
/// `refuse` and in a transaction an operator then decides, and under `reconcile` the call asks what became of the work.
async fn interrupt(call: Arc<Prepared>) -> Result<(), Error> {
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
