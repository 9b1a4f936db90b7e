//! Claims the record of a call in a transaction.

use std::pin::Pin;
use std::time::Duration;

use tokio::time::Instant;

use super::send::wait_for_admission;
use super::{ClaimStage, Claimer};
use crate::engine::admission::Permit;
use crate::engine::prepared::Prepared;
use crate::error::{Error, StoreError};
use crate::metrics::Timed;
use crate::record::Observation;
use crate::store::{ClaimInTransaction, ClaimOutcome, ClaimRequest};
use crate::timing::{Retries, later, within};

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

    /// Number of transactions that the store begins and claims in at the same time. None if no transaction is begun,
    /// because it is the caller's.
    fn begin_concurrency(&self) -> Option<usize>;

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
        let (answer, sent_at) = send(transaction, &self.call, now, observed, request).await?;
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

/// Claims, once the call is admitted, until the store answers, patience runs out or the call's deadline comes. Returns the
/// answer, and the time at which the claim was sent.
async fn send(
    transaction: &mut (dyn TransactionClaim + '_),
    call: &Prepared,
    mut now: Option<Instant>,
    observed: Option<&Observation>,
    request: &ClaimRequest,
) -> Result<(ClaimInTransaction, Instant), Error> {
    let policy = &call.engine.policy;
    let mut retries = None;
    let mut first_sent_at = None;
    loop {
        let permit = admit(transaction.begin_concurrency(), call).await?;
        call.check_deadline()?;
        if permit.as_ref().is_some_and(|permit| permit.waited) {
            now = None;
        }
        let sent_at = now.take().unwrap_or_else(Instant::now);
        let first_sent_at = *first_sent_at.get_or_insert(sent_at);
        let timer = || call.metrics.start_at(Timed::Claim, first_sent_at);
        let limit = call.time_left(policy.store_timeout);
        let claim = within(limit, transaction.claim(observed, request)).await;
        match claim.unwrap_or_else(|| Err(call.engine.no_answer(limit))) {
            Ok(answer) => {
                timer().stop();
                if let Some(permit) = permit {
                    permit.answered();
                }
                if !transaction.joins() && !matches!(answer, ClaimInTransaction::Granted(_)) {
                    // The answer is known, so a rollback that is not acknowledged must not take it away.
                    transaction.leave(policy.store_timeout).await;
                }
                return Ok((answer, sent_at));
            }
            // The statement was cut off on the caller's connection: the call cannot end as if nothing had been sent.
            Err(error) if transaction.joins() => {
                timer().stop();
                return Err(error.into());
            }
            Err(error) => {
                drop(permit);
                if let Err(late) = call.check_deadline() {
                    timer().stop();
                    return Err(late);
                }
                let patience = later(first_sent_at, policy.store_patience);
                let retries =
                    retries.get_or_insert_with(|| Retries::until(call.by_deadline(patience)));
                if let Err(error) = retries.pause_after(error).await {
                    timer().stop();
                    return Err(error.into());
                }
            }
        }
    }
}

/// Permission to begin a transaction and to claim in it. None if it is the caller's: its connection is there. The permit is
/// not held while the body runs, so that a body which begins another transaction does not wait for itself.
async fn admit(capacity: Option<usize>, call: &Prepared) -> Result<Option<Permit>, Error> {
    let Some(capacity) = capacity else {
        return Ok(None);
    };
    let begins = &call.engine.begins;
    match begins.try_admit(capacity) {
        Some(permit) => Ok(Some(permit)),
        None => Box::pin(wait_for_admission(call, begins, || capacity))
            .await
            .map(Some),
    }
}
