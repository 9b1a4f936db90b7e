//! Releases claims whose calls were dropped.
//!
//! One task per handle serves all such claims. If the store fails, the task tries only one claim at a time, with
//! growing pauses: thousands of calls that failed together must not keep an overloaded store busy. A claim whose
//! fencing token is not known is searched for by reading. It is never claimed again: a claim sent from here could
//! itself be left behind.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use crate::engine::Engine;
use crate::engine::call::Prepared;
use crate::engine::singleflight::Leader;
use crate::engine::timing::{Backoff, bounded, later};
use crate::error::StoreError;
use crate::record::{FencingToken, Owner, State};

/// Maximum number of queued abandoned claims. Further ones are left to their leases.
const MAX_WAITING: usize = 4096;
/// Number of claims that are released concurrently, once the store has answered for one.
const AT_ONCE: usize = 16;
/// Number of reads for a claim that is not in the store. They are spread over the time limit of a store call, because
/// the claim may still arrive.
const LOOKS: u32 = 3;

/// The abandoned claims of a handle.
#[derive(Default)]
pub(crate) struct GiveBack {
    queue: Mutex<Queue>,
    arrived: Notify,
}

#[derive(Default)]
struct Queue {
    waiting: Vec<Abandoned>,
    is_served: bool,
}

/// A claim whose call was dropped.
pub(super) struct Abandoned {
    call: Arc<Prepared>,
    /// The fencing token, if the store's answer is known.
    granted: Option<FencingToken>,
    looks: u32,
    due: Instant,
    give_up_at: Instant,
    /// Prevents other calls of this process from claiming the key until this claim was tried once.
    leader: Option<Leader>,
}

/// Result of one try.
enum Tried {
    Over,
    /// The claim is not in the store, and may still arrive.
    Absent,
}

impl Abandoned {
    /// A claim that may or may not have been granted.
    pub(super) fn in_doubt(call: &Arc<Prepared>, leader: Option<Leader>) -> Self {
        let now = Instant::now();
        Self {
            call: Arc::clone(call),
            granted: None,
            looks: 0,
            due: now,
            give_up_at: later(now, call.request.lease),
            leader,
        }
    }

    /// A claim that was granted with this fencing token.
    pub(super) fn granted(
        call: &Arc<Prepared>,
        granted: FencingToken,
        leader: Option<Leader>,
    ) -> Self {
        Self {
            granted: Some(granted),
            ..Self::in_doubt(call, leader)
        }
    }

    /// Passes the claim to the handle's task.
    pub(super) fn give_back(self) {
        let (engine, runtime) = (Arc::clone(&self.call.engine), self.call.runtime.clone());
        let mut queue = engine.give_back.lock();
        if queue.waiting.len() >= MAX_WAITING {
            drop(queue);
            tracing::warn!(
                target: "idem",
                operation = self.call.request.identity.operation.as_str(),
                "too many calls went away while they claimed: this claim is left to its lease",
            );
            return;
        }
        queue.waiting.push(self);
        let is_served = mem::replace(&mut queue.is_served, true);
        drop(queue);
        if is_served {
            engine.give_back.arrived.notify_one();
        } else {
            // `Service` is created outside of the task, because a runtime that is stopping drops the task before its
            // first poll.
            runtime.spawn(serve(Service {
                engine,
                is_over: false,
            }));
        }
    }

    async fn try_once(&self) -> Result<Tried, StoreError> {
        let engine = &self.call.engine;
        let limit = engine.policy.store_timeout;
        let request = &self.call.request;
        let fencing_token = match self.granted {
            Some(granted) => granted,
            None => match bounded(limit, engine.store.get(&request.id)).await? {
                Some(record)
                    if record.claim_id == Some(request.claim_id)
                        && record.state == State::Running =>
                {
                    record.fencing_token
                }
                _ => return Ok(Tried::Absent),
            },
        };
        let owner = Owner {
            id: request.id,
            claim_id: request.claim_id,
            fencing_token,
        };
        bounded(limit, engine.store.release(&owner)).await?;
        Ok(Tried::Over)
    }

    /// Tries once. Returns the claim if it is to be tried again, and true if the store failed.
    async fn try_again(mut self) -> (Option<Self>, bool) {
        let tried = self.try_once().await;
        self.leader = None;
        match tried {
            Ok(Tried::Over) => (None, false),
            Ok(Tried::Absent) => {
                self.looks += 1;
                let pause = self.call.engine.policy.store_timeout / (LOOKS - 1);
                self.due = later(Instant::now(), pause);
                let again = self.looks < LOOKS && self.due <= self.give_up_at;
                (again.then_some(self), false)
            }
            Err(error) => {
                let again = error.is_retryable() && Instant::now() < self.give_up_at;
                (again.then_some(self), true)
            }
        }
    }
}

/// Claims to release.
enum Due {
    Now(Vec<Abandoned>),
    /// Nothing is due before this time.
    At(Instant),
    Nothing,
}

impl GiveBack {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the due claims. If no claim is queued, marks the queue as not served.
    fn due(&self) -> Due {
        let mut queue = self.lock();
        let now = Instant::now();
        let waiting = mem::take(&mut queue.waiting);
        let (due, waiting): (Vec<_>, Vec<_>) = waiting.into_iter().partition(|it| it.due <= now);
        queue.waiting = waiting;
        if !due.is_empty() {
            return Due::Now(due);
        }
        let next = queue.waiting.iter().map(|it| it.due).min();
        queue.is_served = next.is_some();
        next.map_or(Due::Nothing, Due::At)
    }
}

/// The task of a handle.
async fn serve(mut service: Service) {
    let engine = Arc::clone(&service.engine);
    let mut pauses = Backoff::of_outages();
    loop {
        let mut due = match engine.give_back.due() {
            Due::Nothing => {
                service.is_over = true;
                return;
            }
            Due::At(next) => {
                // Ends when the next claim is due, or when another one arrives.
                let _ = timeout_at(next, engine.give_back.arrived.notified()).await;
                continue;
            }
            Due::Now(due) => due.into_iter(),
        };
        // The first claim probes the store: if the store fails, the others wait for the pause.
        let Some(first) = due.next() else { continue };
        let (again, failed) = first.try_again().await;
        let mut waiting: Vec<_> = again.into_iter().collect();
        if failed {
            waiting.extend(due);
        } else {
            pauses = Backoff::of_outages();
            let mut trying = JoinSet::new();
            for claim in due {
                if trying.len() >= AT_ONCE
                    && let Some(Ok((again, _))) = trying.join_next().await
                {
                    waiting.extend(again);
                }
                trying.spawn(claim.try_again());
            }
            while let Some(tried) = trying.join_next().await {
                waiting.extend(tried.ok().and_then(|(again, _)| again));
            }
        }
        let pause = failed.then(|| pauses.pause());
        engine.give_back.lock().waiting.extend(waiting);
        if let Some(pause) = pause {
            tokio::time::sleep(pause).await;
        }
    }
}

/// Marks the queue as not served if the task is cancelled, for example when its runtime ends. The next task then serves
/// the queue.
struct Service {
    engine: Arc<Engine>,
    is_over: bool,
}

impl Drop for Service {
    fn drop(&mut self) {
        if !self.is_over {
            self.engine.give_back.lock().is_served = false;
        }
    }
}
