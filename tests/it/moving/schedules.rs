//! Every order in which two or three callers of one key can reach two stores.
//!
//! Each request to a store waits for a permit of the schedule. A schedule chooses the next caller until all have ended,
//! and the search tries every schedule.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use async_trait::async_trait;
use idem_runtime::error::StoreError;
use idem_runtime::key::RecordId;
use idem_runtime::record::{ClaimId, Observation, Outcome, Owner, Record, RecordState, Timestamp};
use idem_runtime::store::{
    ClaimOutcome, ClaimRequest, FencedWrite, Filter, Page, PageRequest, Purged, Resolution,
    Resolved,
};
use idem_runtime::{MemoryStore, Moving, Store};

use self::Process::{ClaimsInNew, ClaimsInOld, NewAlone, OldAlone};
use crate::records::{claim, outcome};

/// Connection of one caller to a store. A request waits until the schedule lets its caller send one.
#[derive(Debug, Clone)]
struct Connection {
    store: Arc<MemoryStore>,
    permits: Arc<AtomicU32>,
}

impl Connection {
    async fn send(&self) {
        poll_fn(|_| {
            let taken = self
                .permits
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |it| it.checked_sub(1));
            match taken {
                Ok(_) => Poll::Ready(()),
                Err(_) => Poll::Pending,
            }
        })
        .await;
    }
}

#[async_trait]
impl Store for Connection {
    async fn claim(&self, claim: &ClaimRequest) -> Result<ClaimOutcome, StoreError> {
        self.send().await;
        self.store.claim(claim).await
    }

    async fn take_over(
        &self,
        observed: &Observation,
        claim: &ClaimRequest,
    ) -> Result<ClaimOutcome, StoreError> {
        self.send().await;
        self.store.take_over(observed, claim).await
    }

    async fn renew(&self, owner: &Owner, lease: Duration) -> Result<FencedWrite, StoreError> {
        self.send().await;
        self.store.renew(owner, lease).await
    }

    async fn complete(&self, owner: &Owner, outcome: &Outcome) -> Result<FencedWrite, StoreError> {
        self.send().await;
        self.store.complete(owner, outcome).await
    }

    async fn release(&self, owner: &Owner) -> Result<FencedWrite, StoreError> {
        self.send().await;
        self.store.release(owner).await
    }

    async fn interrupt(&self, owner: &Owner) -> Result<FencedWrite, StoreError> {
        self.send().await;
        self.store.interrupt(owner).await
    }

    async fn resolve(
        &self,
        observed: &Observation,
        resolution: &Resolution,
    ) -> Result<Resolved, StoreError> {
        self.send().await;
        self.store.resolve(observed, resolution).await
    }

    async fn get(&self, id: &RecordId) -> Result<Option<Record>, StoreError> {
        self.send().await;
        self.store.get(id).await
    }

    async fn list(&self, filter: &Filter, page: &PageRequest) -> Result<Page, StoreError> {
        self.send().await;
        self.store.list(filter, page).await
    }

    async fn now(&self) -> Result<Timestamp, StoreError> {
        self.send().await;
        self.store.now().await
    }

    async fn purge(&self, limit: u32, as_of: Timestamp) -> Result<Purged, StoreError> {
        self.send().await;
        self.store.purge(limit, as_of).await
    }
}

/// Configuration of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Process {
    OldAlone,
    ClaimsInOld,
    ClaimsInNew,
    NewAlone,
}

/// End of a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    RanTheBody,
    FoundARecord,
}

struct Caller {
    process: Process,
    call: Pin<Box<dyn Future<Output = End>>>,
    permits: Arc<AtomicU32>,
    has_begun: bool,
    end: Option<End>,
}

/// True if an earlier caller of a process alike has not begun either: which of the two begins makes no difference.
fn is_like_an_earlier_one(callers: &[Caller], n: usize) -> bool {
    let is_alike = |it: &Caller| !it.has_begun && it.process == callers[n].process;
    !callers[n].has_begun && callers[..n].iter().any(is_alike)
}

/// Claims once. If the claim is granted, the body runs, and its outcome is stored.
async fn call(store: Arc<dyn Store>) -> End {
    let claim = ClaimRequest {
        claim_id: ClaimId::random(),
        ..claim("contended")
    };
    match store.claim(&claim).await.unwrap() {
        ClaimOutcome::Existing(_) => End::FoundARecord,
        ClaimOutcome::Granted(granted) => {
            let owner = Owner {
                id: claim.id,
                claim_id: claim.claim_id,
                fencing_token: granted.fencing_token,
            };
            let ended = store.complete(&owner, &outcome(b"1")).await.unwrap();
            assert_eq!(ended, FencedWrite::Applied, "the owner lost its record");
            End::RanTheBody
        }
    }
}

/// The two stores of one schedule.
#[derive(Default)]
struct World {
    old: Arc<MemoryStore>,
    new: Arc<MemoryStore>,
}

impl World {
    fn store(&self, process: Process, permits: &Arc<AtomicU32>) -> Arc<dyn Store> {
        let connection = |store: &Arc<MemoryStore>| Connection {
            store: Arc::clone(store),
            permits: Arc::clone(permits),
        };
        let (old, new) = (connection(&self.old), connection(&self.new));
        match process {
            OldAlone => Arc::new(old),
            ClaimsInOld => Arc::new(Moving::claims_in_old(old, new)),
            ClaimsInNew => Arc::new(Moving::claims_in_new(old, new)),
            NewAlone => Arc::new(new),
        }
    }
}

/// The choices of a schedule: which of the callers that have not ended sends the next request.
#[derive(Default)]
struct Schedule {
    choices: Vec<(usize, usize)>,
    next: usize,
}

impl Schedule {
    fn choose(&mut self, options: usize) -> usize {
        if self.next == self.choices.len() {
            self.choices.push((0, options));
        }
        let (choice, _) = self.choices[self.next];
        self.next += 1;
        choice
    }

    /// The schedule after this one; `None` after the last one.
    fn following(mut self) -> Option<Self> {
        while let Some((choice, options)) = self.choices.pop() {
            if choice + 1 < options {
                self.choices.push((choice + 1, options));
                self.next = 0;
                return Some(self);
            }
        }
        None
    }
}

/// Numbers of schedules of a group of callers, by their results.
#[derive(Debug, Default, PartialEq, Eq)]
struct Count {
    schedules: u32,
    /// Schedules in which every caller gave its claim back.
    nobody_ran: u32,
}

async fn every_schedule(processes: &[Process]) -> Count {
    let mut count = Count::default();
    let mut schedule = Some(Schedule::default());
    while let Some(mut current) = schedule {
        let world = World::default();
        let ends = run(&world, processes, &mut current);
        let ran = ends.iter().filter(|end| **end == End::RanTheBody).count();
        assert!(ran <= 1, "{ran} bodies ran: {:?}", current.choices);
        count.schedules += 1;
        count.nobody_ran += u32::from(ran == 0);
        for process in processes {
            finds_what_happened(&world, *process, ran == 1).await;
        }
        schedule = current.following();
    }
    count
}

fn run(world: &World, processes: &[Process], schedule: &mut Schedule) -> Vec<End> {
    let caller = |process: &Process| {
        let permits = Arc::default();
        Caller {
            process: *process,
            call: Box::pin(call(world.store(*process, &permits))),
            permits,
            has_begun: false,
            end: None,
        }
    };
    let mut callers: Vec<_> = processes.iter().map(caller).collect();
    loop {
        let next: Vec<_> = (0..callers.len())
            .filter(|n| callers[*n].end.is_none() && !is_like_an_earlier_one(&callers, *n))
            .collect();
        if next.is_empty() {
            return callers.into_iter().filter_map(|it| it.end).collect();
        }
        let caller = &mut callers[next[schedule.choose(next.len())]];
        caller.has_begun = true;
        caller.permits.fetch_add(1, Ordering::Relaxed);
        let context = &mut Context::from_waker(Waker::noop());
        if let Poll::Ready(end) = caller.call.as_mut().poll(context) {
            caller.end = Some(end);
        }
    }
}

/// Asserts that a call after all others finds their outcome, or can run the body itself.
async fn finds_what_happened(world: &World, process: Process, is_done: bool) {
    let unlimited = Arc::new(AtomicU32::new(u32::MAX));
    let store = world.store(process, &unlimited);
    let record = store.get(&claim("contended").id).await.unwrap();
    let state = record.map(|it| it.state);
    match is_done {
        true => assert_eq!(
            state,
            Some(RecordState::Completed),
            "the outcome is not found"
        ),
        false => assert_eq!(
            state,
            Some(RecordState::Released),
            "nobody can claim the key"
        ),
    }
}

#[tokio::test]
async fn of_two_callers_in_neighbouring_phases_at_most_one_runs_the_body() {
    for processes in [
        [OldAlone, ClaimsInOld],
        [ClaimsInOld, ClaimsInOld],
        [ClaimsInOld, ClaimsInNew],
        [ClaimsInNew, ClaimsInNew],
        [ClaimsInNew, NewAlone],
    ] {
        let count = every_schedule(&processes).await;
        assert!(count.schedules > 5, "{processes:?}: {count:?}");
        // In one store, one of two claims is granted.
        let in_both = processes == [ClaimsInOld, ClaimsInNew];
        assert_eq!(count.nobody_ran > 0, in_both, "{processes:?}: {count:?}");
    }
}

#[tokio::test]
async fn of_three_callers_in_both_phases_at_most_one_runs_the_body() {
    for processes in [
        [ClaimsInOld, ClaimsInNew, ClaimsInNew],
        [OldAlone, OldAlone, ClaimsInOld],
        [ClaimsInNew, NewAlone, NewAlone],
    ] {
        let count = every_schedule(&processes).await;
        assert!(count.schedules > 20, "{processes:?}: {count:?}");
    }
}

/// Phases that are not neighbours: the order of the deployments is not a recommendation.
#[tokio::test]
#[should_panic = "2 bodies ran"]
async fn a_process_with_the_old_store_alone_must_not_run_beside_one_that_claims_in_the_new() {
    every_schedule(&[OldAlone, ClaimsInNew]).await;
}
