//! The time of an invocation.

use std::time::{Duration, SystemTime};

use idem_runtime::advanced::Deadline;
use tokio::time::Instant;

/// The longest time that Lambda gives an invocation. A deadline that is further away is a mistake of a clock.
const LONGEST: Duration = Duration::from_secs(15 * 60);
/// Default margin, for invocations that are not very short.
const MARGIN: Duration = Duration::from_secs(1);

/// The time that is left to an invocation.
///
/// Lambda kills an environment whose invocation does not end in time. No answer is sent, so all messages of a batch are
/// delivered again, and the next invocation has a cold start. Therefore work stops a [margin](Self::margin) earlier:
///
/// ```text
/// |<--------------- bodies ------------->|<-- margin -->|
/// |<- bodies begin ->|<-- body_time ---->|              |
/// invoked            no body begins     bodies         Lambda kills the environment,
///                    any more           are dropped    and leases end
/// ```
///
/// A body that is dropped counts as a crash, as if Lambda had killed it. Its lease ends with the invocation and not
/// later, so no retry has to wait for a lease of an owner that is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Invocation {
    ends_at: Instant,
    margin: Duration,
    body_time: Duration,
}

impl Invocation {
    /// Creates the invocation that Lambda ends at this time: `event.context.deadline()` of `lambda_runtime`.
    ///
    /// Lambda states this time by the clock of the machine that runs the function. It is compared with the same clock, once,
    /// here. Create the invocation first in the handler.
    pub fn until(deadline: SystemTime) -> Self {
        let left = deadline.duration_since(SystemTime::now());
        Self::ending_at(Instant::now() + left.unwrap_or_default().min(LONGEST))
    }

    /// Creates an invocation that ends at this time, for tests of handlers.
    pub fn ending_at(end: Instant) -> Self {
        let left = end.duration_since(Instant::now());
        Self {
            ends_at: end,
            margin: MARGIN.min(left / 4),
            body_time: Duration::ZERO,
        }
    }

    /// Sets the time before the end at which bodies that still run are dropped, and the batch is answered. The first half of
    /// it is for what dropped calls leave to background tasks, such as the rollback of a transaction, and the second half is
    /// for sending the answer.
    ///
    /// Default: a second, or a quarter of the time that is left if that is shorter.
    #[must_use]
    pub fn margin(mut self, margin: Duration) -> Self {
        self.margin = margin;
        self
    }

    /// Sets the time that a body needs. No body begins with less time left before the margin: its record is reported as
    /// failed, and was not touched. Default: none, so that every body begins, and may be dropped soon after.
    #[must_use]
    pub fn body_time(mut self, time: Duration) -> Self {
        self.body_time = time;
        self
    }

    /// The deadline of calls in this invocation, for the option `deadline` of `#[idempotent]`.
    pub fn deadline(&self) -> Deadline {
        let begin_by = earlier(self.drops_at(), self.body_time);
        Deadline::new(begin_by).process_ends(self.ends_at)
    }

    /// Time at which bodies that still run are dropped.
    pub fn drops_at(&self) -> Instant {
        earlier(self.ends_at, self.margin)
    }

    /// Time at which the answer is sent if bodies were dropped.
    pub(crate) fn answers_at(&self) -> Instant {
        earlier(self.ends_at, self.margin / 2)
    }
}

/// The instant that is so much earlier. The current time if there is none, because either deadline has passed.
fn earlier(time: Instant, by: Duration) -> Instant {
    time.checked_sub(by).unwrap_or_else(Instant::now)
}
