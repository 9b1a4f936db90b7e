//! Releases claims whose calls were dropped.
//!
//! One task per handle serves all such claims. If the store fails, the task tries only one claim at a time, with
//! growing pauses: thousands of calls that failed together must not keep an overloaded store busy. A claim whose
//! fencing token is not known is searched for by reading. It is never claimed again: a claim sent from here could
//! itself be left behind. The search goes on after a release, because the call may have sent its claim several times.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::runtime::Handle as Runtime;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use super::decisions::abandoned_token;
use super::singleflight::Leader;
use crate::error::StoreError;
use crate::key::RecordId;
use crate::mutex::lock;
use crate::record::{ClaimId, FencingToken, Owner};
use crate::store::{ClaimRequest, Store};
use crate::timing::{Backoff, bounded, later};

/// Maximum number of queued abandoned claims. Further ones are left to their leases.
const MAX_WAITING: usize = 4096;
/// Number of claims that are released concurrently, once the store has answered for one.
const MAX_IN_FLIGHT: usize = 16;
/// Time for which a claim is searched for and its release is retried, unless its lease is longer. Under `refuse`, a record that stays
/// RUNNING needs an operator, and a restart of a server may take longer than a short lease.
const LONGEST_OUTAGE: Duration = Duration::from_secs(60);
/// Number of reads, spread over the time limit of a store call, for a claim that is not in the store. After them the
/// claim has most likely not arrived. It may also wait at the store for a lock, whose owner decides how long: the claim
/// is therefore searched for with growing pauses, until its search ends.
const EARLY_READS: u32 = 3;

/// The abandoned claims of a handle.
pub(super) struct GiveBack {
    store: Arc<dyn Store>,
    store_timeout: Duration,
    queue: Mutex<ClaimQueue>,
    arrived: Notify,
}

#[derive(Default)]
struct ClaimQueue {
    waiting: Vec<AbandonedClaim>,
    is_served: bool,
}

/// A claim whose call was dropped.
pub(super) struct AbandonedClaim {
    id: RecordId,
    claim_id: ClaimId,
    /// None if the store's answer is not known.
    fencing_token: Option<FencingToken>,
    reads: u32,
    /// Pause after the last read.
    pause: Duration,
    /// Longest pause. A claim that is found later has nearly lapsed.
    longest_pause: Duration,
    due: Instant,
    give_up_at: Instant,
    /// Prevents other calls of this process from claiming the key until this claim was tried once.
    leader: Option<Leader>,
}

/// Result of releasing a claim.
enum Release {
    Done,
    /// The claim is not in the store.
    NotFound,
}

/// Result of trying one or more claims.
struct Tried {
    /// Claims to try again.
    again: Vec<AbandonedClaim>,
    store_failed: bool,
}

impl AbandonedClaim {
    /// A claim that may or may not have been granted.
    pub(super) fn in_doubt(request: &ClaimRequest, leader: Option<Leader>) -> Self {
        let now = Instant::now();
        Self {
            id: request.id,
            claim_id: request.claim_id,
            fencing_token: None,
            reads: 0,
            pause: Duration::ZERO,
            longest_pause: request.lease / 2,
            due: now,
            give_up_at: later(now, request.lease.max(LONGEST_OUTAGE)),
            leader,
        }
    }

    /// Schedules the next read. False if the search is over.
    fn search_again(&mut self, store_timeout: Duration) -> bool {
        self.reads += 1;
        let early = store_timeout / (EARLY_READS - 1);
        self.pause = match self.reads < EARLY_READS {
            true => early,
            false => (self.pause * 2).min(self.longest_pause.max(early)),
        };
        self.due = later(Instant::now(), self.pause);
        self.due <= self.give_up_at
    }

    /// A claim that was granted with this fencing token.
    pub(super) fn granted(
        request: &ClaimRequest,
        fencing_token: FencingToken,
        leader: Option<Leader>,
    ) -> Self {
        Self {
            fencing_token: Some(fencing_token),
            ..Self::in_doubt(request, leader)
        }
    }
}

/// Claims to release.
enum DueClaims {
    Now(Vec<AbandonedClaim>),
    /// Nothing is due before this time.
    At(Instant),
    Nothing,
}

impl GiveBack {
    /// An empty queue for the claims in this store.
    pub(super) fn new(store: Arc<dyn Store>, store_timeout: Duration) -> Self {
        Self {
            store,
            store_timeout,
            queue: Mutex::default(),
            arrived: Notify::new(),
        }
    }

    /// Passes a claim to the handle's task. False if too many claims are queued: this one is then left to its lease.
    #[must_use]
    pub(super) fn add(self: &Arc<Self>, claim: AbandonedClaim, runtime: &Runtime) -> bool {
        let mut queue = self.lock();
        if queue.waiting.len() >= MAX_WAITING {
            // A claim that was searched for in vain gives way: it has most likely not arrived.
            let in_vain = |it: &AbandonedClaim| it.reads >= EARLY_READS;
            let Some(oldest) = queue.waiting.iter().position(in_vain) else {
                // Unlocked first, because dropping the claim passes its leadership on.
                drop(queue);
                return false;
            };
            queue.waiting.swap_remove(oldest);
        }
        queue.waiting.push(claim);
        let is_served = mem::replace(&mut queue.is_served, true);
        drop(queue);
        if is_served {
            self.arrived.notify_one();
        } else {
            // The guard is created outside of the task, because a runtime that is stopping drops the task before its
            // first poll.
            runtime.spawn(serve(ServingGuard {
                give_back: Arc::clone(self),
                is_over: false,
            }));
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, ClaimQueue> {
        lock(&self.queue)
    }

    /// Takes the due claims. If no claim is queued, marks the queue as not served.
    fn due(&self) -> DueClaims {
        let mut queue = self.lock();
        let now = Instant::now();
        let waiting = mem::take(&mut queue.waiting);
        let (due, waiting): (Vec<_>, Vec<_>) = waiting.into_iter().partition(|it| it.due <= now);
        queue.waiting = waiting;
        if !due.is_empty() {
            return DueClaims::Now(due);
        }
        let next = queue.waiting.iter().map(|it| it.due).min();
        queue.is_served = next.is_some();
        next.map_or(DueClaims::Nothing, DueClaims::At)
    }

    /// Releases the claim, if it is in the store.
    async fn release(&self, claim: &AbandonedClaim) -> Result<Release, StoreError> {
        let limit = self.store_timeout;
        let fencing_token = match claim.fencing_token {
            Some(fencing_token) => fencing_token,
            None => {
                let record = bounded(limit, self.store.get(&claim.id)).await?;
                match abandoned_token(record.as_ref(), claim.claim_id) {
                    Some(fencing_token) => fencing_token,
                    None => return Ok(Release::NotFound),
                }
            }
        };
        let owner = Owner {
            id: claim.id,
            claim_id: claim.claim_id,
            fencing_token,
        };
        bounded(limit, self.store.release(&owner)).await?;
        Ok(Release::Done)
    }

    /// Tries one claim once.
    async fn try_one(self: Arc<Self>, mut claim: AbandonedClaim) -> Tried {
        let released = self.release(&claim).await;
        claim.leader = None;
        let store_failed = released.is_err();
        let again = match released {
            // Another try of a claim in doubt may arrive after this one, and is then granted on the released record.
            Ok(Release::Done) => {
                claim.fencing_token.is_none() && claim.search_again(self.store_timeout)
            }
            Ok(Release::NotFound) => claim.search_again(self.store_timeout),
            Err(error) => error.is_retryable() && Instant::now() < claim.give_up_at,
        };
        Tried {
            again: again.then_some(claim).into_iter().collect(),
            store_failed,
        }
    }

    /// Tries each claim once. The first claim probes the store: if the store fails, the others are not tried.
    async fn try_all(self: &Arc<Self>, due: Vec<AbandonedClaim>) -> Tried {
        let mut due = due.into_iter();
        let Some(first) = due.next() else {
            return Tried {
                again: Vec::new(),
                store_failed: false,
            };
        };
        let mut tried = Arc::clone(self).try_one(first).await;
        if tried.store_failed {
            tried.again.extend(due);
            return tried;
        }
        let mut trying = JoinSet::<Tried>::new();
        for claim in due {
            if trying.len() >= MAX_IN_FLIGHT
                && let Some(Ok(one)) = trying.join_next().await
            {
                tried.again.extend(one.again);
            }
            trying.spawn(Arc::clone(self).try_one(claim));
        }
        while let Some(one) = trying.join_next().await {
            tried.again.extend(one.into_iter().flat_map(|it| it.again));
        }
        tried
    }
}

/// The task of a handle.
async fn serve(mut serving: ServingGuard) {
    let give_back = Arc::clone(&serving.give_back);
    let mut pauses = Backoff::of_retries();
    loop {
        let due = match give_back.due() {
            DueClaims::Nothing => {
                serving.is_over = true;
                return;
            }
            DueClaims::At(next) => {
                // Ends when the next claim is due, or when another one arrives.
                let _ = timeout_at(next, give_back.arrived.notified()).await;
                continue;
            }
            DueClaims::Now(due) => due,
        };
        let tried = give_back.try_all(due).await;
        give_back.lock().waiting.extend(tried.again);
        if tried.store_failed {
            tokio::time::sleep(pauses.pause()).await;
        } else {
            pauses = Backoff::of_retries();
        }
    }
}

/// Marks the queue as not served if the task is cancelled, for example when its runtime ends. The next task then serves
/// the queue.
struct ServingGuard {
    give_back: Arc<GiveBack>,
    is_over: bool,
}

impl Drop for ServingGuard {
    fn drop(&mut self) {
        if !self.is_over {
            self.give_back.lock().is_served = false;
        }
    }
}
