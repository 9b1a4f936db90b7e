//! Checks if a history of one record is linearizable: if its requests, each at some moment between its sending and its
//! answer, could have been executed one after the other. The search is that of Wing and Gong, in `porcupine-rs`.

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use idem_store::store::ClaimOutcome;
use porcupine_rs::{CheckResult, Model, Operation};

use crate::history::{Event, History, What};
use crate::possible::{Possible, Window};
use crate::request::{Answer, Request};

/// Time after which a search gives up. A history that is not decided counts as a failure.
const PATIENCE: Duration = Duration::from_secs(600);

/// Steps after which a search gives up: it remembers the states after most of them, a few kilobytes each.
const STEPS: u64 = 500_000;

/// Verdict on a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The history is linearizable.
    Accepted,
    /// No order of the requests explains the answers.
    Rejected,
    /// The search took too long, or too many steps.
    Undecided,
}

/// Further explanations that the checker accepts for an answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Allowed {
    /// Number of times that a store may execute a claim, a takeover or a completion in addition, as its caller would after
    /// an error.
    pub repetitions: usize,
    /// A takeover that finds no record is granted as a claim, which is a second transition.
    pub late_claims: bool,
    /// After a failover, the record may be in an earlier state that it had since the replica was cut off.
    pub losses: bool,
}

/// Checks a history. Requests without an answer may have been executed at any time after they were sent, or never.
pub fn check(history: &History, allowed: Allowed) -> Verdict {
    let mut operations: Vec<Operation<Reference>> = Vec::new();
    let steps = Arc::<AtomicU64>::default();
    for event in history.events.iter().filter(|it| it.matters()) {
        let tries = match &event.what {
            What::Request(Request::Claim(_) | Request::TakeOver(..) | Request::Complete(..)) => {
                1 + allowed.repetitions
            }
            _ => 1,
        };
        for left in (0..tries).rev() {
            operations.push(Operation {
                client_id: u32::try_from(event.client).ok(),
                call_time: event.sent,
                return_time: event.answered.unwrap_or(i64::MAX),
                op: Arc::new(Step {
                    event: event.clone(),
                    is_earlier_try: left > 0,
                    window: history.window(event),
                    allowed,
                    steps: Arc::clone(&steps),
                }),
                metadata: None,
            });
        }
    }
    match porcupine_rs::check_operations_timeout(&operations, PATIENCE) {
        CheckResult::Ok => Verdict::Accepted,
        CheckResult::Illegal if steps.load(Ordering::Relaxed) > STEPS => Verdict::Undecided,
        CheckResult::Illegal => Verdict::Rejected,
        CheckResult::Unknown => Verdict::Undecided,
    }
}

/// The sequential specification, as the checker sees it.
#[derive(Debug, Clone)]
struct Reference;

/// One event, with what the checker knows about its time.
#[derive(Debug)]
struct Step {
    event: Event,
    /// True for a try before the one that was answered, which may not have been made.
    is_earlier_try: bool,
    window: Window,
    allowed: Allowed,
    /// Steps of the whole search.
    steps: Arc<AtomicU64>,
}

/// Set of possible states.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct States(Vec<Branch>);

/// A possible state, and those that it had since the replica was cut off.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Branch {
    now: Possible,
    since_cut: Option<Vec<Possible>>,
}

impl Hash for Branch {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.now.hash(hasher);
    }
}

impl Model for Reference {
    type State = States;
    type Op = Arc<Step>;
    type Metadata = ();

    fn init() -> States {
        States(vec![Branch::default()])
    }

    fn step(states: &States, step: &Arc<Step>) -> (bool, States) {
        let mut after: Vec<Branch> = Vec::new();
        if step.steps.fetch_add(1, Ordering::Relaxed) >= STEPS {
            return (false, States(after));
        }
        for branch in states.0.iter().flat_map(|branch| branch.after(step)) {
            if !after.contains(&branch) {
                after.push(branch);
            }
        }
        (!after.is_empty(), States(after))
    }
}

impl Branch {
    fn after(&self, step: &Step) -> Vec<Self> {
        let Event { what, answer, .. } = &step.event;
        match what {
            What::Request(request) => {
                let answer = answer.as_ref().filter(|_| !step.is_earlier_try);
                let mut after = self.now.after(request, answer, step.window);
                if let (true, Some(claim)) = (step.allowed.late_claims, late_claim(request, answer))
                {
                    after.extend(self.now.after(&claim, answer, step.window));
                }
                if step.is_earlier_try {
                    after.push(self.now.clone());
                }
                after.into_iter().map(|now| self.moved_to(now)).collect()
            }
            What::CutOff => vec![Self {
                now: self.now.clone(),
                since_cut: Some(vec![self.now.clone()]),
            }],
            What::Kill => vec![self.clone()],
            What::Failover => {
                let states = match (step.allowed.losses, &self.since_cut) {
                    (true, Some(states)) => states.clone(),
                    _ => vec![self.now.clone()],
                };
                let after = states.into_iter().map(|now| Self {
                    now,
                    since_cut: None,
                });
                after.collect()
            }
        }
    }

    fn moved_to(&self, now: Possible) -> Self {
        let mut since_cut = self.since_cut.clone();
        if let Some(states) = since_cut.as_mut().filter(|it| it.last() != Some(&now)) {
            states.push(now.clone());
        }
        Self { now, since_cut }
    }
}

/// The claim that a takeover makes if it finds no record.
fn late_claim(request: &Request, answer: Option<&Answer>) -> Option<Request> {
    match (request, answer) {
        (Request::TakeOver(_, claim), None | Some(Answer::Claim(ClaimOutcome::Granted(_)))) => {
            Some(Request::Claim(claim.clone()))
        }
        _ => None,
    }
}
