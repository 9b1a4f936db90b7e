//! Waits for an owner outside of this process, by polling the store.

use tokio::time::Instant;

use super::{ClaimStage, Claimer, MAX_RETRY_AFTER, Waited, in_flight};
use crate::engine::decisions::{OnPoll, on_poll};
use crate::engine::progress::Phase;
use crate::error::Error;
use crate::record::{Digest, Record};
use crate::timing::{bounded, later};

/// A claim of another owner, as this call tells its waiters and its caller about it.
struct HeldElsewhere {
    /// The stored digest of the other request; none if it is not committed yet.
    fingerprint: Option<Digest>,
    /// Expiry of the other owner's lease, as far as this process can tell.
    lapses: Instant,
    /// Time at which the caller may retry, if this call cannot wait any longer.
    retry_at: Instant,
}

impl Claimer<'_> {
    /// Polls a record that another process works on, by reading it. Ends when the record looks free, has an outcome, or
    /// the deadline passes.
    pub(super) async fn wait_for_owner(
        &mut self,
        mut seen: Box<Record>,
    ) -> Result<ClaimStage, Error> {
        loop {
            let now = Instant::now();
            let lapses = later(now, seen.lease_until.since(seen.read_at));
            let held = HeldElsewhere {
                fingerprint: Some(seen.fingerprint),
                lapses,
                retry_at: lapses,
            };
            let pause = self.polls.pause_of_poll(now.duration_since(self.begun));
            let wake = lapses.min(now + pause);
            self.pause(now, wake, &held).await?;
            if let Some(stage) = self.poll(&mut seen).await? {
                return Ok(stage);
            }
        }
    }

    /// Reads the record again. None if its owner still runs, or if the store could not be reached: it is polled again.
    async fn poll(&mut self, seen: &mut Record) -> Result<Option<ClaimStage>, Error> {
        let engine = &self.call.engine;
        let request = &self.call.request;
        let limit = engine.policy.store_timeout;
        let asked_at = Instant::now();
        let record = match bounded(limit, engine.store.get(&request.id)).await {
            Ok(Some(record)) => record,
            Ok(None) => return Ok(Some(ClaimStage::Again)),
            Err(error) if error.is_retryable() => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        match on_poll(&record, request.claim_id) {
            OnPoll::Claim => Ok(Some(ClaimStage::Again)),
            OnPoll::Wait => {
                self.compare(&record.fingerprint)?;
                *seen = record;
                Ok(None)
            }
            OnPoll::Look => match self.replay(&record, asked_at)? {
                Some(claimed) => Ok(Some(ClaimStage::Claimed(claimed))),
                None => self.inspect(Box::new(record)).await.map(Some),
            },
        }
    }

    /// Waits before retrying a claim of a record that another transaction holds. The uncommitted record cannot be read,
    /// and retrying the claim costs no more than reading would.
    pub(super) async fn wait_for_lock(&mut self, fingerprint: Option<Digest>) -> Result<(), Error> {
        if let Some(fingerprint) = &fingerprint {
            self.compare(fingerprint)?;
        }
        let now = Instant::now();
        let pause = self.polls.pause_of_poll(now.duration_since(self.begun));
        let wake = later(now, pause);
        let held = HeldElsewhere {
            fingerprint,
            lapses: later(now, MAX_RETRY_AFTER),
            retry_at: wake,
        };
        self.pause(now, wake, &held).await
    }

    /// Pauses until `wake`, and tells the waiters of this process when the next check is due. If the deadline has
    /// passed, the call stops waiting.
    async fn pause(
        &mut self,
        now: Instant,
        wake: Instant,
        held: &HeldElsewhere,
    ) -> Result<(), Error> {
        let phase = |next_check_by| Phase::RunningElsewhere {
            fingerprint: held.fingerprint,
            lapses: held.lapses,
            next_check_by,
        };
        if now >= self.deadline() {
            if let Some(leader) = self.leader.take() {
                // Waiters without time left get their answer here; the others elect another leader.
                leader.step_down(|| phase(now));
            }
            return Err(in_flight(held.retry_at));
        }
        self.waited = Waited(true);
        self.begin_to_wait();
        let wake = wake.min(self.deadline());
        if let Some(leader) = &self.leader {
            let limit = self.call.engine.policy.store_timeout;
            leader.publish(phase(later(wake, limit)));
        }
        tokio::time::sleep_until(wake).await;
        Ok(())
    }
}
