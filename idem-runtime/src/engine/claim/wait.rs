//! Waits for another call of this process with the same key (single-flight).

use std::sync::Arc;

use tokio::time::Instant;

use super::{Claimed, Claimer, Waited, in_flight};
use crate::engine::progress::{Phase, SharedOutcome};
use crate::engine::singleflight::{FlightRole, SharedCall};
use crate::error::Error;
use crate::timing::later;

/// Next action of a waiter.
enum WaiterAction {
    /// Wait for a change of the leader's phase, until this time.
    WaitUntil(Instant),
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
        let patience = later(Instant::now(), self.call.engine.policy.store_timeout);
        loop {
            let phase = leader.progress().observe();
            match self.next_action(&*leader, &phase, patience)? {
                WaiterAction::WaitUntil(end) => {
                    self.begin_to_wait();
                    leader.progress().wait_for_change(end, &phase).await;
                }
                WaiterAction::Rejoin => match self.rejoin(&leader) {
                    Some(next) => leader = next,
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

    /// Decides on the next action in this phase of the leader. `patience` is the time until which the leader may claim.
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
            Phase::Claiming => Ok(WaiterAction::WaitUntil(patience)),
            Phase::Running => self.wait_for_body(leader, now),
            Phase::RunningElsewhere {
                fingerprint,
                lapses,
                next_check_by,
            } => {
                if let Some(fingerprint) = fingerprint {
                    self.compare(fingerprint)?;
                }
                if now < self.deadline && now >= *next_check_by {
                    return Ok(WaiterAction::Rejoin);
                }
                self.wait_until(now, *next_check_by, *lapses)
            }
            Phase::Ended(ended) => {
                self.compare(&ended.fingerprint)?;
                Ok(WaiterAction::Replay(Arc::clone(ended)))
            }
            Phase::AskStore => Ok(WaiterAction::Claim),
            Phase::Vacant => Ok(WaiterAction::Rejoin),
        }
    }

    /// Waits while the leader runs the body, for as long as its lease is valid.
    fn wait_for_body(
        &mut self,
        leader: &dyn SharedCall,
        now: Instant,
    ) -> Result<WaiterAction, Error> {
        if *leader.digest() != self.call.digest {
            return Err(Error::KeyReused);
        }
        match leader.progress().live_until() {
            Some(live_until) if now < live_until => self.wait_until(now, live_until, live_until),
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
        if now >= self.deadline {
            return Err(in_flight(retry_at));
        }
        self.waited = Waited(true);
        Ok(WaiterAction::WaitUntil(self.deadline.min(end)))
    }

    /// Finds a leader other than this one, or becomes the leader. None: claim, as the leader or without single-flight.
    fn rejoin(&mut self, left: &Arc<dyn SharedCall>) -> Option<Arc<dyn SharedCall>> {
        match self.call.engine.singleflight.join(&self.call) {
            FlightRole::Waiter(next) if Arc::ptr_eq(&next, left) => None,
            FlightRole::Waiter(next) => Some(next),
            FlightRole::Leader(leader) => {
                self.leader = Some(leader);
                None
            }
        }
    }
}
