//! Releases claims whose calls were dropped.
//!
//! One task in each runtime of a handle serves all such claims, so that a runtime that stands still holds up only those
//! that its task is releasing. As many claims are released at the same time as the store works on: stores with batches
//! release them together. If the store fails, a task tries only one claim at a time, with growing pauses: thousands of
//! calls that failed together must not keep an overloaded store busy. A claim whose
//! fencing token is not known is searched for by reading. It is never claimed again: a claim sent from here could
//! itself be left behind. The search goes on after a release, because the call may have sent its claim several times.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::runtime::{self, Handle as Runtime};
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

/// Maximum number of queued abandoned claims, about 16 MiB. Further ones are left to their leases. Admission lets fewer claims be
/// sent than this while an outage lasts for as long as they are searched for.
const MAX_WAITING: usize = 65_536;
/// Number of claims that a task takes from the queue at a time.
const MAX_TAKEN: usize = 1024;
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
    /// Claims by the time at which they are due, and by a number.
    waiting: BTreeMap<(Instant, u64), AbandonedClaim>,
    next_number: u64,
    /// The runtimes with a task that serves the queue.
    serving: Vec<runtime::Id>,
}

impl ClaimQueue {
    fn push(&mut self, claim: AbandonedClaim) {
        self.next_number += 1;
        self.waiting.insert((claim.due, self.next_number), claim);
    }
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
            let mut waiting = queue.waiting.iter();
            let oldest = waiting.find(|(_, it)| in_vain(it)).map(|(due, _)| *due);
            let Some(oldest) = oldest else {
                // Unlocked first, because dropping the claim passes its leadership on.
                drop(queue);
                return false;
            };
            queue.waiting.remove(&oldest);
        }
        queue.push(claim);
        let is_served = queue.serving.contains(&runtime.id());
        if !is_served {
            queue.serving.push(runtime.id());
        }
        drop(queue);
        self.arrived.notify_waiters();
        if !is_served {
            // The guard is created outside of the task, because a runtime that is stopping drops the task before its
            // first poll.
            runtime.spawn(serve(ServingGuard {
                give_back: Arc::clone(self),
                runtime: runtime.id(),
                is_over: false,
            }));
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, ClaimQueue> {
        lock(&self.queue)
    }

    /// Takes due claims. If no claim is queued, marks the queue as not served by this runtime.
    fn due(&self, runtime: runtime::Id) -> DueClaims {
        let mut queue = self.lock();
        let now = Instant::now();
        let mut taken = Vec::new();
        while taken.len() < MAX_TAKEN
            && let Some(first) = queue.waiting.first_entry()
            && first.key().0 <= now
        {
            taken.push(first.remove());
        }
        if !taken.is_empty() {
            return DueClaims::Now(taken);
        }
        match queue.waiting.first_key_value() {
            Some(((next, _), _)) => DueClaims::At(*next),
            None => {
                queue.serving.retain(|it| *it != runtime);
                DueClaims::Nothing
            }
        }
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
        let at_once = self.store.claim_concurrency().max(1);
        let mut trying = JoinSet::<Tried>::new();
        for claim in due {
            if trying.len() >= at_once
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

/// The task of a handle in a runtime.
async fn serve(mut serving: ServingGuard) {
    let give_back = Arc::clone(&serving.give_back);
    let mut pauses = Backoff::of_retries();
    loop {
        // Registered before the look at the queue, because an arrival before the registration would be missed.
        let mut arrived = pin!(give_back.arrived.notified());
        arrived.as_mut().enable();
        let due = match give_back.due(serving.runtime) {
            DueClaims::Nothing => {
                serving.is_over = true;
                return;
            }
            DueClaims::At(next) => {
                // Ends when the next claim is due, or when another one arrives.
                let _ = timeout_at(next, arrived).await;
                continue;
            }
            DueClaims::Now(due) => due,
        };
        let tried = give_back.try_all(due).await;
        {
            let mut queue = give_back.lock();
            tried.again.into_iter().for_each(|claim| queue.push(claim));
        }
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
    runtime: runtime::Id,
    is_over: bool,
}

impl Drop for ServingGuard {
    fn drop(&mut self) {
        if !self.is_over {
            let mut queue = self.give_back.lock();
            queue.serving.retain(|it| *it != self.runtime);
        }
    }
}
