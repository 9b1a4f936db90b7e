//! The time limit of a call.

use std::time::Duration;

use tokio::time::Instant;

/// Time limit of a call, for [`Call::deadline`](crate::Call::deadline): nothing is begun after it.
///
/// Some processes end at a known time, whatever their bodies do, such as a function with a time limit or a job of a
/// scheduler. [`process_ends`](Self::process_ends) sets that time. The leases of the call then end with the process, so that
/// a retry takes over at once.
///
/// ```
/// use std::time::Duration;
///
/// use idem_runtime::advanced::Deadline;
/// use idem_runtime::{Error, Idem, MemoryStore, idempotent};
/// use tokio::time::Instant;
///
/// #[idempotent(key = order, ttl = "24h", name = "orders.place", store = idem, deadline = deadline)]
/// async fn place(idem: &Idem, order: u64, deadline: Deadline) -> Result<u64, Error> {
///     Ok(order)
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Error> {
/// # let idem = Idem::new(MemoryStore::new()).erased();
/// let killed_at = Instant::now() + Duration::from_secs(60);
/// let deadline = Deadline::new(killed_at - Duration::from_secs(5)).process_ends(killed_at);
/// assert_eq!(place(&idem, 1, deadline).await?, 1);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline {
    begin_by: Instant,
    process_ends: Option<Instant>,
}

impl Deadline {
    /// Creates a deadline after which nothing is begun.
    pub fn new(begin_by: Instant) -> Self {
        Self {
            begin_by,
            process_ends: None,
        }
    }

    /// Sets the time at which the process of the call ends. No claim, renewal or saved input gives the call a lease beyond it.
    /// A call that has waited for another one before its claim may exceed it by the time that it waited. A body that
    /// runs on beyond it is told so: [`Attempt::is_live`](crate::Attempt::is_live) turns false.
    ///
    /// Nothing is begun after this time either.
    #[must_use]
    pub fn process_ends(mut self, at: Instant) -> Self {
        self.process_ends = Some(at);
        self.begin_by = self.begin_by.min(at);
        self
    }

    /// Time after which nothing is begun.
    pub fn begin_by(&self) -> Instant {
        self.begin_by
    }

    /// A deadline that is not later than this time.
    #[cfg(feature = "http")]
    pub(crate) fn not_after(mut self, time: Instant) -> Self {
        self.begin_by = self.begin_by.min(time);
        self
    }

    /// Time at which the process of the call ends.
    pub(super) fn lease_end(&self) -> Option<Instant> {
        self.process_ends
    }
}

impl From<Instant> for Deadline {
    fn from(begin_by: Instant) -> Self {
        Self::new(begin_by)
    }
}

/// The part of a lease that ends with its process. At least a millisecond, because a lease cannot be empty.
pub(super) fn lease_within(lease: Duration, now: Instant, lease_end: Option<Instant>) -> Duration {
    const LEAST: Duration = Duration::from_millis(1);
    lease_end.map_or(lease, |end| lease.min(end.duration_since(now).max(LEAST)))
}
