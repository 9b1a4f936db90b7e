//! Admits claims: bounds those that a handle has sent and that the store has not answered.
//!
//! Above the capacity of a store, a queue in front of it grows without a limit. First in, first out, it then serves each
//! call just before its caller leaves, and nothing is gained. Renewals, steps and completions of calls that run would
//! stand in it, too. Therefore claims wait here, before they are sent, and as few as the store can work on at the same
//! time are admitted.
//!
//! - **A permit covers one claim**, and is given back with its answer. It is never held over a body or a wait for another
//!   call, so that a body that makes further calls does not wait for itself.
//! - **First in, first out, while the queue is short.** Once the first call has waited for longer than [`CONGESTED`], the
//!   last one comes first: its caller is the least likely to have left. The others wait until the load falls.
//! - **Operations take turns**, so that a flood of one does not delay another.
//! - A caller that leaves takes its place along, and costs the store nothing.
//! - **Nothing depends on a caller whose runtime stands still.** A permit that is out for longer than a store call may take
//!   counts as lost.
//! - **A store that gives no answer is no overload.** If it answers no claim for as long as the handle's patience lasts,
//!   the calls that have waited for so long fail like those that were sent.

mod lanes;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use lanes::Lanes;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use crate::key::Operation;
use crate::mutex::lock;
use crate::policy::Policy;
use crate::timing::later;

/// Time that the first call waits before the last one comes first.
const CONGESTED: Duration = Duration::from_millis(100);
/// Largest number of calls that wait. Beyond it, the operation with the most of them loses the one that has waited longest.
const MAX_WAITING: usize = 32_768;
/// Bounds of the time after which a refused call may be repeated.
pub(super) const RETRY_AFTER: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];
/// Share of a new measurement in the typical time of a claim.
const WEIGHT: f64 = 0.1;

/// The claims of a handle, sent and waiting.
#[derive(Debug)]
pub(super) struct Admission {
    /// Time after which a permit counts as lost.
    longest: Duration,
    /// Time without an answer after which the store counts as unreachable.
    patience: Duration,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    /// Permits that are out, by number, and since when.
    sent: BTreeMap<u64, Instant>,
    /// Number of claims that the store works on at the same time.
    capacity: usize,
    next_permit: u64,
    /// Number of claims that the store has answered.
    answered: u64,
    waiting: Lanes<WaitingCall>,
    /// Typical time, in seconds, from a permit to the answer of the store.
    typical: f64,
}

/// A call that waits, and how to admit it.
#[derive(Debug)]
struct WaitingCall {
    since: Instant,
    deadline: Option<Instant>,
    admit: oneshot::Sender<Result<Permit, Refused>>,
}

/// Reason for which a claim was not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    /// The call was not admitted before its deadline, or too many calls wait. The queue may be shorter after this time.
    Overloaded(Duration),
    /// The store has answered no claim for this time.
    Silent(Duration),
}

/// Permission to send one claim. Dropping it admits the next call.
#[derive(Debug)]
pub(super) struct Permit {
    admission: Arc<Admission>,
    number: u64,
    /// True if the call had to wait for it.
    pub(super) waited: bool,
}

impl Admission {
    /// Admits the claims of a handle with this policy. `grace` is the time for which an answer is waited for after the time
    /// limit of a store call.
    pub(super) fn new(policy: &Policy, grace: Duration) -> Self {
        Self {
            longest: policy.store_timeout.saturating_add(grace),
            patience: policy.store_patience,
            queue: Mutex::default(),
        }
    }

    /// Permission to send a claim now, unless other calls wait or the store works on as many claims as it can
    /// (`capacity`).
    pub(super) fn try_admit(self: &Arc<Self>, capacity: usize) -> Option<Permit> {
        let mut queue = self.queue();
        queue.capacity = capacity;
        let is_free = queue.waiting.len() == 0 && queue.has_room(Instant::now(), self.longest);
        is_free.then(|| self.permit(&mut queue, false))
    }

    /// Waits in the queue until the call may send a claim, at most until its deadline. Tells `waits_until` again and again
    /// until when the call will have been admitted or looked at the queue.
    ///
    /// # Cancel safety
    /// If the future is dropped, the call's place in the queue is free.
    pub(super) async fn admit(
        self: &Arc<Self>,
        operation: &Operation,
        deadline: Option<Instant>,
        waits_until: impl Fn(Instant),
    ) -> Result<Permit, Refused> {
        let silent_at = later(Instant::now(), self.patience);
        let (mut place, answered) = {
            let mut queue = self.queue();
            let answered = queue.answered;
            (queue.enter(self, operation, deadline), answered)
        };
        let one_too_many = self.queue().one_too_many();
        if let Some(oldest) = one_too_many {
            let refused = self.queue().overloaded();
            let _ = oldest.admit.send(Err(refused));
        }
        loop {
            // At first, because permits may have come back before this call was in the queue.
            self.admit_next();
            let look = self.queue().next_loss(self.longest);
            let until = deadline.map_or(look, |deadline| deadline.min(look));
            waits_until(until);
            if let Ok(answer) = timeout_at(until, &mut place.answer).await {
                // A sender is never dropped without an answer.
                return answer.unwrap_or_else(|_| Err(self.queue().overloaded()));
            }
            let now = Instant::now();
            if deadline.is_some_and(|deadline| now >= deadline) {
                return Err(self.queue().overloaded());
            }
            if now >= silent_at && self.queue().answered == answered {
                return Err(Refused::Silent(self.patience));
            }
        }
    }

    /// Notes how many claims the store works on at the same time.
    pub(super) fn set_capacity(&self, capacity: usize) {
        self.queue().capacity = capacity;
    }

    /// Admits waiting calls while the store can work on more claims.
    fn admit_next(self: &Arc<Self>) {
        loop {
            let (next, answer) = {
                let mut queue = self.queue();
                let now = Instant::now();
                if !queue.has_room(now, self.longest) {
                    return;
                }
                let Some(next) = queue.leave_next(now) else {
                    return;
                };
                let answer = match next.is_late(now, queue.typical) {
                    true => Err(queue.overloaded()),
                    false => Ok(self.permit(&mut queue, true)),
                };
                (next, answer)
            };
            // Without the lock: a permit whose call has just left comes back at once.
            let _ = next.admit.send(answer);
        }
    }

    fn permit(self: &Arc<Self>, queue: &mut Queue, waited: bool) -> Permit {
        let number = queue.next_permit;
        queue.next_permit += 1;
        queue.sent.insert(number, Instant::now());
        Permit {
            admission: Arc::clone(self),
            number,
            waited,
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        lock(&self.queue)
    }
}

impl Queue {
    /// True if the store can work on another claim. Forgets permits that are out for longer than a store call may take.
    fn has_room(&mut self, now: Instant, longest: Duration) -> bool {
        while let Some(oldest) = self.sent.first_entry()
            && now.duration_since(*oldest.get()) >= longest
        {
            oldest.remove();
        }
        self.sent.len() < self.capacity
    }

    /// Time at which the next permit counts as lost.
    fn next_loss(&self, longest: Duration) -> Instant {
        let oldest = self.sent.first_key_value().map(|(_, since)| *since);
        later(oldest.unwrap_or_else(Instant::now), longest)
    }

    /// Adds a call at the end of its operation's lane.
    fn enter<'a>(
        &mut self,
        admission: &'a Admission,
        operation: &'a Operation,
        deadline: Option<Instant>,
    ) -> Place<'a> {
        let (admit, answer) = oneshot::channel();
        let call = WaitingCall {
            since: Instant::now(),
            deadline,
            admit,
        };
        Place {
            admission,
            operation,
            number: self.waiting.enter(operation, call),
            answer,
        }
    }

    /// Takes the next call out of the queue: of the operation whose turn it is the first one, or under congestion the
    /// last one.
    fn leave_next(&mut self, now: Instant) -> Option<WaitingCall> {
        let waited = |first: &WaitingCall| now.duration_since(first.since);
        self.waiting.leave_next(|first| waited(first) > CONGESTED)
    }

    /// Takes the call that has waited longest, in the longest lane, out of a queue that is too long.
    fn one_too_many(&mut self) -> Option<WaitingCall> {
        let is_too_long = self.waiting.len() > MAX_WAITING;
        is_too_long.then(|| self.waiting.leave_longest()).flatten()
    }

    /// Refusal with the time in which the store answers the claims that wait.
    fn overloaded(&self) -> Refused {
        let rounds = self.waiting.len() / self.capacity.max(1) + 1;
        let seconds = self.typical * f64::from(u32::try_from(rounds).unwrap_or(u32::MAX));
        let [shortest, longest] = RETRY_AFTER;
        let drained = Duration::try_from_secs_f64(seconds).unwrap_or(longest);
        Refused::Overloaded(drained.clamp(shortest, longest))
    }
}

impl WaitingCall {
    /// True if the store would most likely answer after the deadline.
    fn is_late(&self, now: Instant, typical: f64) -> bool {
        let left = self.deadline.map(|it| it.saturating_duration_since(now));
        left.is_some_and(|left| left.as_secs_f64() <= typical)
    }
}

impl Permit {
    /// Notes that the store has answered the claim, and gives the permit back.
    pub(super) fn answered(self) {
        let mut queue = self.admission.queue();
        queue.answered += 1;
        if let Some(since) = queue.sent.get(&self.number) {
            let took = since.elapsed().as_secs_f64();
            queue.typical += WEIGHT * (took - queue.typical);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut queue = self.admission.queue();
        // None: it has counted as lost, and another one has its place.
        queue.sent.remove(&self.number);
        let is_empty = queue.waiting.len() == 0;
        drop(queue);
        if !is_empty {
            self.admission.admit_next();
        }
    }
}

/// Place of a call in the queue.
struct Place<'a> {
    admission: &'a Admission,
    operation: &'a Operation,
    number: u64,
    answer: oneshot::Receiver<Result<Permit, Refused>>,
}

/// A permit that is on its way comes back with the receiver.
impl Drop for Place<'_> {
    fn drop(&mut self) {
        // Dropped without the lock, because that wakes somebody.
        let left = self
            .admission
            .queue()
            .waiting
            .leave(self.operation, self.number);
        drop(left);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::pin::pin;

    use futures_util::future::{join, join_all};
    use futures_util::{FutureExt as _, poll};
    use tokio::time::sleep;

    use super::*;

    fn operation(name: &'static str) -> Operation {
        Operation::new(name).unwrap()
    }

    /// A queue in front of a store that works on one claim at a time.
    struct Narrow(Arc<Admission>);

    const GRACE: Duration = Duration::from_millis(250);

    impl Default for Narrow {
        fn default() -> Self {
            Self(Arc::new(Admission::new(&Policy::default(), GRACE)))
        }
    }

    impl Narrow {
        fn enters(
            &self,
            operation: &Operation,
        ) -> impl Future<Output = Result<Permit, Refused>> + use<> {
            self.enters_until(operation, None)
        }

        fn enters_until(
            &self,
            operation: &Operation,
            deadline: Option<Instant>,
        ) -> impl Future<Output = Result<Permit, Refused>> + use<> {
            let (admission, operation) = (Arc::clone(&self.0), operation.clone());
            async move { admission.admit(&operation, deadline, |_| {}).await }
        }

        fn waiting(&self) -> usize {
            self.0.queue().waiting.len()
        }

        /// Names of calls in the order in which they are admitted, after they have waited for this time. Each has a name of
        /// the operation.
        async fn order(waited: Duration, calls: &[(&'static str, u32)]) -> Vec<u32> {
            let narrow = Self::default();
            let held = narrow.0.try_admit(1).unwrap();
            let admitted = RefCell::new(Vec::new());
            let calls = calls.iter().map(|(name, number)| {
                let entered = narrow.enters(&operation(name));
                let admitted = &admitted;
                async move {
                    let permit = entered.await.unwrap();
                    admitted.borrow_mut().push(*number);
                    drop(permit);
                }
            });
            let opens = async {
                sleep(waited).await;
                drop(held);
            };
            join(join_all(calls), opens).await;
            admitted.into_inner()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_short_queue_is_first_in_first_out() {
        let order = Narrow::order(CONGESTED, &[("a", 1), ("a", 2), ("a", 3)]);
        assert_eq!(order.await, [1, 2, 3]);
    }

    #[tokio::test(start_paused = true)]
    async fn under_congestion_the_last_comes_first() {
        let waited = CONGESTED + Duration::from_millis(2);
        let order = Narrow::order(waited, &[("a", 1), ("a", 2), ("a", 3)]);
        assert_eq!(order.await, [3, 2, 1]);
    }

    #[tokio::test(start_paused = true)]
    async fn operations_take_turns() {
        let calls = [("a", 1), ("a", 2), ("a", 3), ("b", 4), ("c", 5), ("b", 6)];
        let order = Narrow::order(Duration::ZERO, &calls);
        assert_eq!(order.await, [1, 4, 5, 2, 6, 3]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_permit_is_given_out_while_the_store_has_room_and_nobody_waits() {
        let narrow = Narrow::default();
        let first = narrow.0.try_admit(2).unwrap();
        let second = narrow.0.try_admit(2).unwrap();
        assert!(narrow.0.try_admit(2).is_none());
        let mut waits = pin!(narrow.enters(&operation("a")));
        assert!(poll!(&mut waits).is_pending());
        drop((first, second));
        assert!(
            narrow.0.try_admit(2).is_some(),
            "the other call has its permit"
        );
        assert!(poll!(&mut waits).is_ready());
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_leaves_takes_its_place_along() {
        let narrow = Narrow::default();
        let held = narrow.0.try_admit(1).unwrap();
        let operation = operation("a");
        {
            let mut leaves = pin!(narrow.enters(&operation));
            assert!(poll!(&mut leaves).is_pending());
            assert_eq!(narrow.waiting(), 1);
        }
        assert_eq!(narrow.waiting(), 0);
        // Admitted, but gone before it knows.
        let mut leaves = Box::pin(narrow.enters(&operation));
        let mut stays = pin!(narrow.enters(&operation));
        assert!(poll!(&mut leaves).is_pending());
        assert!(poll!(&mut stays).is_pending());
        drop(held);
        assert!(poll!(&mut stays).is_pending());
        drop(leaves);
        assert!(stays.now_or_never().is_some_and(|it| it.is_ok()));
        assert!(narrow.0.try_admit(1).is_some(), "no permit is lost");
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_is_refused_at_its_deadline_and_not_admitted_when_it_would_be_late() {
        let narrow = Narrow::default();
        let deadline = Some(Instant::now() + Duration::from_millis(40));
        let held = narrow.0.try_admit(1).unwrap();
        let refused = narrow.enters_until(&operation("a"), deadline).await;
        assert!(refused.is_err());
        assert_eq!(narrow.waiting(), 0);
        narrow.0.queue().typical = 10.0;
        let soon = Some(Instant::now() + Duration::from_secs(5));
        let mut late = pin!(narrow.enters_until(&operation("a"), soon));
        let mut patient = pin!(narrow.enters(&operation("a")));
        assert!(poll!(&mut late).is_pending());
        assert!(poll!(&mut patient).is_pending());
        drop(held);
        let refused = late.now_or_never().unwrap().unwrap_err();
        assert_eq!(refused, Refused::Overloaded(RETRY_AFTER[1]));
        assert!(patient.now_or_never().unwrap().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_permit_that_stands_still_is_counted_as_lost() {
        let narrow = Narrow::default();
        let stands_still = narrow.0.try_admit(2).unwrap();
        let busy = narrow.0.try_admit(2).unwrap();
        sleep(Duration::from_secs(1)).await;
        // The other permit goes on.
        drop(busy);
        let busy = narrow.0.try_admit(2).unwrap();
        let begun = Instant::now();
        let permit = narrow.enters(&operation("a")).await.unwrap();
        let lost_after = Policy::default().store_timeout + GRACE;
        assert!(begun.elapsed() + Duration::from_secs(1) >= lost_after);
        // It comes back late, and does not count twice.
        drop(stands_still);
        assert!(narrow.0.try_admit(2).is_none());
        drop((permit, busy));
        assert!(narrow.0.try_admit(2).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_without_answers_fails_the_calls_that_wait() {
        let narrow = Narrow::default();
        // Each claim is cut off after a while, and the next one is sent.
        let silent = async {
            for _ in 0..20 {
                let permit = narrow.0.try_admit(1);
                sleep(Duration::from_secs(1)).await;
                drop(permit);
            }
        };
        let held = narrow.0.try_admit(1).unwrap();
        let begun = Instant::now();
        let operation = operation("a");
        let waits = async {
            let first = narrow.enters(&operation);
            let second = narrow.enters(&operation);
            let (first, second) = join(first, second).await;
            (first.map(|_| ()), second.map(|_| ()), begun.elapsed())
        };
        let (answers, ()) = join(waits, silent).await;
        drop(held);
        let patience = Policy::default().store_patience;
        let silent = Err(Refused::Silent(patience));
        assert!(answers.0 == silent || answers.1 == silent, "{answers:?}");
        assert!(
            answers.2 >= patience && answers.2 < 2 * patience,
            "{answers:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_waits_for_as_long_as_the_store_answers_others() {
        let narrow = Narrow::default();
        let operation = operation("a");
        let mut held = narrow.0.try_admit(1).unwrap();
        let mut old = pin!(narrow.enters(&operation));
        assert!(poll!(&mut old).is_pending());
        let seconds = 3 * Policy::default().store_patience.as_secs();
        for _ in 0..seconds {
            sleep(Duration::from_secs(1)).await;
            let mut new = pin!(narrow.enters(&operation));
            assert!(poll!(&mut new).is_pending());
            held.answered();
            held = new.await.unwrap();
            assert!(poll!(&mut old).is_pending());
        }
        held.answered();
        assert!(old.await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn of_too_many_calls_the_oldest_of_the_largest_operation_is_refused() {
        let narrow = Narrow::default();
        let held = narrow.0.try_admit(1).unwrap();
        let few = operation("few");
        let mut of_few = pin!(narrow.enters(&few));
        assert!(poll!(&mut of_few).is_pending());
        let many = operation("many");
        let mut of_many: Vec<_> = (0..MAX_WAITING)
            .map(|_| Box::pin(narrow.enters(&many)))
            .collect();
        for call in &mut of_many {
            assert!(poll!(call).is_pending());
        }
        assert_eq!(narrow.waiting(), MAX_WAITING);
        let mut of_many = of_many.into_iter();
        assert!(of_many.next().unwrap().now_or_never().unwrap().is_err());
        drop(held);
        assert!(of_few.now_or_never().unwrap().is_ok());
    }
}
