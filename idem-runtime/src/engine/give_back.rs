//! Releases claims whose calls were dropped.
//!
//! One task in each runtime of a handle serves all such claims, so that a runtime that stands still holds up only those
//! that its task is releasing. As many claims are released at the same time as the store works on: stores with batches
//! release them together. If the store fails, a task tries only a few claims at a time, with growing pauses: thousands of
//! calls that failed together must not keep an overloaded store busy. Each time it tries others, because the reason may be
//! a single record, which somebody has locked.
//!
//! A claim whose fencing token is not known is searched for by reading. It is never claimed again: a claim sent from here
//! could itself be left behind. The search goes on after a release, because the call may have sent its claim several times.

use std::collections::{BTreeMap, BTreeSet};
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
/// Bounds of the pause after a failed try.
const PAUSE_AFTER_FAILURE: [Duration; 2] = [Duration::from_millis(20), Duration::from_secs(1)];
/// Time after which a task looks for claims that another task has taken, and whose runtime may have ended.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Largest number of claims that are tried at the same time while the store fails.
const MAX_PROBES: usize = 8;

/// The abandoned claims of a handle.
pub(super) struct GiveBack {
    store: Arc<dyn Store>,
    store_timeout: Duration,
    queue: Mutex<ClaimQueue>,
    arrived: Notify,
}

#[derive(Default)]
struct ClaimQueue {
    waiting: BTreeMap<Place, AbandonedClaim>,
    /// Places of the claims that were searched for in vain. They give way to others when the queue is full.
    in_vain: BTreeSet<Place>,
    /// Number of claims that tasks have taken. They may come back.
    taken: usize,
    next_number: u64,
    /// The runtimes with a task that serves the queue.
    serving: Vec<runtime::Id>,
}

/// Place of a claim in the queue: the time at which it is due, and a number.
type Place = (Instant, u64);

impl ClaimQueue {
    fn push(&mut self, claim: AbandonedClaim) {
        self.next_number += 1;
        let place = (claim.due, self.next_number);
        if claim.reads >= EARLY_READS {
            self.in_vain.insert(place);
        }
        self.waiting.insert(place, claim);
    }

    /// Removes the first claim if it is due.
    fn pop_due(&mut self, now: Instant) -> Option<AbandonedClaim> {
        let first = self.waiting.first_entry().filter(|it| it.key().0 <= now)?;
        let (place, claim) = first.remove_entry();
        self.in_vain.remove(&place);
        Some(claim)
    }

    /// Removes a claim that was searched for in vain, because it has most likely not arrived.
    fn pop_in_vain(&mut self) -> Option<AbandonedClaim> {
        self.in_vain
            .pop_first()
            .and_then(|place| self.waiting.remove(&place))
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

/// A claim that a task took from the queue. It goes back if its release is interrupted, because the runtime ended or the
/// store panicked.
struct TakenClaim {
    give_back: Arc<GiveBack>,
    /// None once the claim is released, left to its lease or back in the queue.
    claim: Option<AbandonedClaim>,
}

impl Drop for TakenClaim {
    fn drop(&mut self) {
        // Before the queue is locked, because dropping a claim passes its leadership on.
        let interrupted = self.claim.take();
        let again = interrupted.and_then(|mut claim| claim.try_again().then_some(claim));
        let mut queue = self.give_back.lock();
        queue.taken -= 1;
        if let Some(claim) = again {
            queue.push(claim);
            drop(queue);
            // A task of another runtime may be waiting for a later claim.
            self.give_back.arrived.notify_waiters();
        }
    }
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

    /// Schedules the next try after a failed one. False if the claim is left to its lease.
    fn try_again(&mut self) -> bool {
        let [shortest, longest] = PAUSE_AFTER_FAILURE;
        self.pause = (self.pause * 2).clamp(shortest, longest);
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
    Now(Vec<TakenClaim>),
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
        if queue.waiting.len() >= MAX_WAITING && queue.pop_in_vain().is_none() {
            // Unlocked first, because dropping the claim passes its leadership on.
            drop(queue);
            return false;
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
    fn due(self: &Arc<Self>, runtime: runtime::Id) -> DueClaims {
        let mut queue = self.lock();
        let now = Instant::now();
        let mut taken = Vec::new();
        while taken.len() < MAX_TAKEN
            && let Some(claim) = queue.pop_due(now)
        {
            taken.push(TakenClaim {
                give_back: Arc::clone(self),
                claim: Some(claim),
            });
        }
        if !taken.is_empty() {
            queue.taken += taken.len();
            return DueClaims::Now(taken);
        }
        match queue.waiting.first_key_value() {
            Some(((next, _), _)) => DueClaims::At(*next),
            None if queue.taken > 0 => DueClaims::At(later(now, LOOK_AGAIN)),
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

    /// Tries one claim once. Returns false if the store failed.
    async fn try_one(self: Arc<Self>, mut taken: TakenClaim) -> bool {
        let Some(claim) = &mut taken.claim else {
            return true;
        };
        let released = self.release(claim).await;
        claim.leader = None;
        let answered = released.is_ok();
        let again = match released {
            // Another try of a claim in doubt may arrive after this one, and is then granted on the released record.
            Ok(Release::Done) => {
                claim.fencing_token.is_none() && claim.search_again(self.store_timeout)
            }
            Ok(Release::NotFound) => claim.search_again(self.store_timeout),
            Err(error) => error.is_retryable() && claim.try_again(),
        };
        if let Some(claim) = taken.claim.take()
            && again
        {
            self.lock().push(claim);
        }
        answered
    }

    /// Tries each claim once. The first ones probe the store. If it fails all of them, the others are not tried, and the
    /// answer is false.
    async fn try_all(self: &Arc<Self>, mut due: Vec<TakenClaim>, probes: usize) -> bool {
        let others = due.split_off(probes.min(due.len()));
        if !self.try_together(due, probes).await {
            // Collected first, because dropping a taken claim locks the queue.
            let untried = others.into_iter().filter_map(|mut it| it.claim.take());
            let untried: Vec<_> = untried.collect();
            let mut queue = self.lock();
            for claim in untried {
                queue.push(claim);
            }
            return false;
        }
        let at_once = self.store.claim_concurrency().max(1);
        self.try_together(others, at_once).await;
        true
    }

    /// Tries each claim once, this number of them at the same time. Returns false if the store failed all of them.
    async fn try_together(self: &Arc<Self>, claims: Vec<TakenClaim>, at_once: usize) -> bool {
        let mut has_answered = claims.is_empty();
        let mut trying = JoinSet::new();
        let note = |tried| matches!(tried, Some(Ok(true)));
        for claim in claims {
            if trying.len() >= at_once {
                has_answered |= note(trying.join_next().await);
            }
            trying.spawn(Arc::clone(self).try_one(claim));
        }
        while !trying.is_empty() {
            has_answered |= note(trying.join_next().await);
        }
        has_answered
    }
}

/// The task of a handle in a runtime.
async fn serve(mut serving: ServingGuard) {
    let give_back = Arc::clone(&serving.give_back);
    let mut pauses = Backoff::of_retries();
    let mut probes = 1;
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
        if give_back.try_all(due, probes).await {
            (pauses, probes) = (Backoff::of_retries(), 1);
        } else {
            probes = (2 * probes).min(MAX_PROBES);
            tokio::time::sleep(pauses.pause()).await;
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
