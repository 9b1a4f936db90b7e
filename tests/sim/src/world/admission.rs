//! Checks of the queues in front of the store, in calm plans with more calls than the store can answer.

use std::collections::BTreeMap;

use idem_runtime::Error;

use super::{Shared, World};
use crate::outcome::{Receipt, SimError};
use crate::plan::{Action, CallPlan, Part, Plan, What};

/// Number of messages for each call that may come first: two of a claim with a lease, and six of a claim in a
/// transaction, which a third of the calls make.
const MESSAGES_OF_OTHERS: u64 = 4;
/// Number of messages of a call itself: up to six to claim, two to read earlier steps, two for each of two steps,
/// and two to complete. The rest is to spare.
const MESSAGES_OF_CALL: u64 = 20;

/// Kind of a claim. Each has a queue of its own in a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Queue {
    /// Claims with leases.
    Claims,
    /// Transactions that are begun and claimed in.
    Begins,
}

/// The claims that are under way, and their limits.
pub(super) struct Admission {
    /// None if the plan is not calm, or has no overload.
    limits: Option<Limits>,
    /// Number of claims that were sent and not answered, by process.
    unanswered: BTreeMap<(usize, Queue), usize>,
}

#[derive(Clone, Copy)]
struct Limits {
    /// Number of claims of a kind that a process may have sent without an answer.
    concurrency: usize,
    /// Longest time of a call without its body and without the time that it may wait for another one, in microseconds.
    queueing: u64,
}

impl Admission {
    pub(super) fn of(plan: &Plan) -> Self {
        let is_checked = plan.setup.is_overloaded && plan.is_calm();
        Self {
            limits: is_checked.then(|| Limits::of(plan)),
            unanswered: BTreeMap::new(),
        }
    }
}

impl Limits {
    fn of(plan: &Plan) -> Self {
        let concurrency = plan.setup.claim_concurrency;
        let is_call = |action: &&Action| matches!(action.what, What::Call(_));
        let calls = plan.actions.iter().filter(is_call).count() as u64;
        let messages = calls * MESSAGES_OF_OTHERS / concurrency as u64 + MESSAGES_OF_CALL;
        Self {
            concurrency,
            queueing: messages * (plan.faults.delay + 1) * 1000,
        }
    }
}

/// A claim that was sent. Dropping it says that the store has answered, or that the process no longer waits.
pub(crate) struct Unanswered {
    shared: Shared,
    process: usize,
    queue: Queue,
}

impl Unanswered {
    /// A process sends a claim.
    pub(crate) fn new(shared: &Shared, process: usize, queue: Queue) -> Self {
        shared.world().claim_is_sent(process, queue);
        Self {
            shared: shared.clone(),
            process,
            queue,
        }
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        let mut world = self.shared.world();
        let unanswered = &mut world.admission.unanswered;
        if let Some(count) = unanswered.get_mut(&(self.process, self.queue)) {
            *count -= 1;
        }
    }
}

impl World {
    /// A process has sent no more claims than the store works on at the same time.
    fn claim_is_sent(&mut self, process: usize, queue: Queue) {
        let Admission { limits, unanswered } = &mut self.admission;
        let count = unanswered.entry((process, queue)).or_default();
        *count += 1;
        let (count, limits) = (*count, *limits);
        if let Some(Limits { concurrency, .. }) = limits
            && count > concurrency
        {
            let what = format!(
                "process {process} has {count} claims under way ({queue:?}), and the store works on {concurrency}"
            );
            self.violation("admission", what);
        }
    }

    /// A call is answered by the store, and as soon as all calls could have been.
    pub(super) fn check_admission(
        &mut self,
        caller: usize,
        plan: &CallPlan,
        called_at: u64,
        answer: &Result<Receipt, SimError>,
    ) {
        let Some(limits) = self.admission.limits else {
            return;
        };
        let body = plan.script.parts.iter().map(Part::millis).sum::<u64>();
        let longest = limits.queueing + (plan.wait + body) * 1000;
        let took = self.time().saturating_sub(called_at);
        if took > longest {
            let (took, longest) = (took / 1000, longest / 1000);
            let what = format!(
                "caller {caller} was answered after {took} ms, and not within {longest} ms"
            );
            self.violation("admission", what);
        }
        if let Err(SimError::Idempotency(error @ Error::Store(_))) = answer {
            let what = format!("caller {caller} got {error:?}, although the store answers");
            self.violation("admission", what);
        }
    }
}
