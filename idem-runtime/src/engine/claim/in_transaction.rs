//! Claims the record of a call in a transaction.

use std::pin::Pin;
use std::time::Duration;

use tokio::time::Instant;

use super::{ClaimStage, Claimer};
use crate::engine::prepared::Prepared;
use crate::error::{Error, StoreError};
use crate::metrics::Timed;
use crate::record::Observation;
use crate::store::{ClaimInTransaction, ClaimOutcome, ClaimRequest};
use crate::timing::{Retries, bounded, later};

/// Claims in a transaction. The transaction stays open if the claim is granted.
pub(in crate::engine) trait TransactionClaim: Send {
    /// Claims the record ([`Store::claim`](crate::Store::claim)), or takes over the observed record.
    fn claim<'a>(
        &'a mut self,
        observed: Option<&'a Observation>,
        request: &'a ClaimRequest,
    ) -> ClaimFuture<'a>;

    /// Rolls back a transaction of the call's own, after an answer that grants nothing. Takes no longer than `limit`.
    fn leave(&mut self, limit: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;

    /// True if the transaction is the caller's. An error may have undone the caller's earlier statements, and data read
    /// in the transaction may never be committed.
    fn joins(&self) -> bool;
}

/// Future of a claim in a transaction.
pub(in crate::engine) type ClaimFuture<'a> =
    Pin<Box<dyn Future<Output = Result<ClaimInTransaction, StoreError>> + Send + 'a>>;

impl Claimer<'_> {
    /// Claims in the call's transaction, and interprets the answer.
    pub(super) async fn claim_in_transaction(
        &mut self,
        observed: Option<&Observation>,
        request: &ClaimRequest,
    ) -> Result<ClaimStage, Error> {
        let Some(transaction) = self.transaction.as_deref_mut() else {
            return Ok(ClaimStage::Again);
        };
        let now = self.now.take();
        let timer = self.call.metrics.start(Timed::Claim);
        let (answer, sent_at) = send(transaction, &self.call, now, observed, request).await?;
        timer.stop();
        match answer {
            ClaimInTransaction::Granted(granted) => {
                self.act_on(ClaimOutcome::Granted(granted), sent_at).await
            }
            ClaimInTransaction::Existing(record) => {
                self.act_on(ClaimOutcome::Existing(record), sent_at).await
            }
            ClaimInTransaction::Locked { fingerprint } => Ok(ClaimStage::Locked(fingerprint)),
        }
    }
}

/// Claims until the store answers, patience runs out or the call's deadline comes. Returns the answer, and the time at which the
/// claim was sent.
async fn send(
    transaction: &mut (dyn TransactionClaim + '_),
    call: &Prepared,
    mut now: Option<Instant>,
    observed: Option<&Observation>,
    request: &ClaimRequest,
) -> Result<(ClaimInTransaction, Instant), Error> {
    let policy = &call.engine.policy;
    let patience = later(Instant::now(), policy.store_patience);
    let mut retries = Retries::until(call.by_deadline(patience));
    loop {
        call.check_deadline()?;
        let sent_at = now.take().unwrap_or_else(Instant::now);
        let claim = transaction.claim(observed, request);
        match bounded(call.time_left(policy.store_timeout), claim).await {
            Ok(answer) => {
                if !transaction.joins() && !matches!(answer, ClaimInTransaction::Granted(_)) {
                    // The answer is known, so a rollback that is not acknowledged must not take it away.
                    transaction.leave(policy.store_timeout).await;
                }
                return Ok((answer, sent_at));
            }
            // The statement was cut off on the caller's connection: the call cannot end as if nothing had been sent.
            Err(error) if transaction.joins() => return Err(error.into()),
            Err(error) => {
                call.check_deadline()?;
                retries.pause_after(error).await?;
            }
        }
    }
}
