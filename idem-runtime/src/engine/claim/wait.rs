//! Waits for another call of this process with the same key (single-flight).

use std::sync::Arc;

use tokio::time::Instant;

use super::{Claimed, Claimer, Waited, in_flight};
use crate::engine::decisions::is_over;
use crate::engine::progress::{Phase, QueuePlace, SharedOutcome};
use crate::engine::singleflight::{FlightRole, SharedCall};
use crate::error::Error;
use crate::timing::later;

/// Next action of a waiter.
enum WaiterAction {
    /// Wait until the leader has claimed, or until this time.
    WaitForClaim(Instant),
    /// Wait until the leader leaves, or until this time.
    WaitForEnd(Instant),
    /// Find another leader, or become the leader.
    Rejoin,
    /// Claim without single-flight.
    Claim,
    Replay(Arc<SharedOutcome>),
}

impl Claimer<'_> {
    /// Waits for the leader of the call's key. None: claim, as the leader or without single-flight.
    pub(super) async fn wait_for_leader(
        &mut self,
        mut leader: Arc<dyn SharedCall>,
    ) -> Result<Option<Claimed>, Error> {
        self.now = None;
        let store_timeout = self.call.engine.policy.store_timeout;
        let mut patience = later(Instant::now(), store_timeout);
        let mut place = QueuePlace::default();
        loop {
            let phase = leader.progress().observe(&mut place);
            if let Phase::Queued { next_look_by } = phase {
                // Its claim is sent after that, at the earliest.
                patience = later(next_look_by, store_timeout);
            }
            match self.next_action(&*leader, &phase, patience)? {
                WaiterAction::WaitForClaim(end) => {
                    self.begin_to_wait();
                    leader.progress().wait_for_claim(end).await;
                }
                WaiterAction::WaitForEnd(end) => {
                    self.begin_to_wait();
                    leader.progress().wait_for_end(&mut place, end).await;
                }
                WaiterAction::Rejoin => match self.rejoin(&leader, &mut place) {
                    Some(next) => {
                        leader = next;
                        patience = later(Instant::now(), store_timeout);
                    }
                    None => return Ok(None),
                },
                WaiterAction::Claim => return Ok(None),
                WaiterAction::Replay(ended) => {
                    let ended = SharedOutcome::clone(&ended);
                    return Ok(Some(Claimed::Replay(ended, self.waited)));
                }
            }
        }
    }

    /// Decides on the next action in this phase of the leader. `patience` is the time until which the leader may
    /// claim.
    fn next_action(
        &mut self,
        leader: &dyn SharedCall,
        phase: &Phase,
        patience: Instant,
    ) -> Result<WaiterAction, Error> {
        let now = Instant::now();
        match phase {
            // The leader's claim hangs, or its future is not polled: do not hang with it.
            Phase::Claiming if now >= patience => Ok(WaiterAction::Claim),
            Phase::Claiming => {
                self.call.check_deadline()?;
                let end = self.call.by_deadline(patience);
                Ok(WaiterAction::WaitForClaim(end))
            }
            // It waits for as long as the leader does: by itself it would wait in the same queue.
            Phase::Queued { next_look_by } if now >= *next_look_by => Ok(WaiterAction::Claim),
            Phase::Queued { next_look_by } => {
                self.call.check_deadline()?;
                let end = self.call.by_deadline(*next_look_by);
                Ok(WaiterAction::WaitForClaim(end))
            }
            Phase::Running => self.wait_for_body(leader, now),
            Phase::RunningElsewhere {
                fingerprint,
                lapses,
                next_check_by,
            } => {
                if let Some(fingerprint) = fingerprint {
                    self.compare(fingerprint)?;
                }
                if now < self.deadline() && now >= *next_check_by {
                    return Ok(WaiterAction::Rejoin);
                }
                self.wait_until(now, *next_check_by, *lapses)
            }
            Phase::Ended(ended) => {
                self.compare(&ended.fingerprint)?;
                if is_over(ended.age, ended.payload_for, self.call.replay_for()) {
                    return Err(Error::Expired);
                }
                Ok(WaiterAction::Replay(Arc::clone(ended)))
            }
            Phase::AskStore | Phase::Reused => Ok(WaiterAction::Claim),
            Phase::Vacant => Ok(WaiterAction::Rejoin),
        }
    }

    /// Waits while the leader runs the body, for as long as its lease is valid. Looks again after the time limit of a
    /// store call: the call that was woken to become the next leader may be a future that is not polled.
    fn wait_for_body(
        &mut self,
        leader: &dyn SharedCall,
        now: Instant,
    ) -> Result<WaiterAction, Error> {
        if *leader.digest() != self.call.digest {
            return Err(Error::KeyReused);
        }
        match leader.progress().live_until() {
            Some(live_until) if now < live_until => {
                let look = later(now, self.call.engine.policy.store_timeout);
                self.wait_until(now, live_until.min(look), live_until)
            }
            _ => Ok(WaiterAction::Claim),
        }
    }

    /// Waits until `end`, or until the call's deadline. If the deadline has passed, the caller may retry at `retry_at`.
    fn wait_until(
        &mut self,
        now: Instant,
        end: Instant,
        retry_at: Instant,
    ) -> Result<WaiterAction, Error> {
        if now >= self.deadline() {
            return Err(in_flight(retry_at));
        }
        self.waited = Waited(true);
        Ok(WaiterAction::WaitForEnd(self.deadline().min(end)))
    }

    /// Finds a leader other than this one, or becomes the leader. None: claim, as the leader or without single-flight.
    /// The new leader takes over the queue that it has waited in.
    fn rejoin(
        &mut self,
        left: &Arc<dyn SharedCall>,
        place: &mut QueuePlace,
    ) -> Option<Arc<dyn SharedCall>> {
        match self.call.engine.singleflight.join(&self.call) {
            FlightRole::Waiter(next) if Arc::ptr_eq(&next, left) => None,
            FlightRole::Waiter(next) => Some(next),
            FlightRole::Leader(leader) => {
                self.call.progress.take_over(std::mem::take(place));
                self.leader = Some(leader);
                None
            }
        }
    }
}
