//! Replacement of a connection: one renewal at a time, with growing pauses, in its own task.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::mutex::lock;

/// Number of times that the connection was given up: an answer is about the connection of its own epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Epoch(u64);

impl Epoch {
    pub(super) fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// First pause between two renewals. The address may lead to a replica for a while, or for good, or the cluster may be
/// down, and each renewal costs connections or cuts off calls in flight.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(8);
/// Time without a renewal after which the pauses start from the first one again.
const CALM: Duration = Duration::from_secs(60);

/// Renewals of one connection. Clones share them.
#[derive(Clone)]
pub(super) struct Renewals(Arc<Mutex<Renewal>>);

impl Renewals {
    pub(super) fn new() -> Self {
        Self::with_longest_pause(LONGEST_PAUSE)
    }

    pub(super) fn with_longest_pause(longest_pause: Duration) -> Self {
        Self(Arc::new(Mutex::new(Renewal::new(longest_pause))))
    }

    pub(super) fn epoch(&self) -> Epoch {
        self.lock().epoch
    }

    /// Runs `renew` in the background, unless the connection was renewed since the epoch, is being renewed, or was
    /// renewed a moment ago. Returns true if it runs. `renew` returns true if the connection is a new one.
    ///
    /// The task runs to its end even if the caller is cancelled.
    pub(super) fn start(
        &self,
        epoch: Epoch,
        renew: impl Future<Output = bool> + Send + 'static,
    ) -> bool {
        // A call may be dropped outside of a runtime.
        let Ok(runtime) = Handle::try_current() else {
            return false;
        };
        if !self.lock().begins(epoch, Instant::now()) {
            return false;
        }
        let running = Running {
            renewals: self.clone(),
            is_renewed: false,
        };
        runtime.spawn(async move {
            // The task owns the whole guard, not a copy of its field.
            let mut running = running;
            running.is_renewed = renew.await;
        });
        true
    }

    fn lock(&self) -> MutexGuard<'_, Renewal> {
        lock(&self.0)
    }
}

/// Renewal in progress. Dropping it ends the renewal, so that a task that panics, or whose runtime shuts down, does not
/// block all later renewals.
struct Running {
    renewals: Renewals,
    is_renewed: bool,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.renewals.lock().ends(self.is_renewed, Instant::now());
    }
}

struct Renewal {
    epoch: Epoch,
    /// True while a renewal runs. There is one renewal at a time, however many answers request it.
    running: bool,
    next: Option<Instant>,
    pause: Duration,
    longest_pause: Duration,
}

impl Renewal {
    fn new(longest_pause: Duration) -> Self {
        Self {
            longest_pause,
            epoch: Epoch(0),
            running: false,
            next: None,
            pause: FIRST_PAUSE,
        }
    }

    fn begins(&mut self, epoch: Epoch, now: Instant) -> bool {
        let too_soon = self.next.is_some_and(|next| now < next);
        if self.running || too_soon || epoch != self.epoch {
            return false;
        }
        self.running = true;
        true
    }

    fn ends(&mut self, is_renewed: bool, now: Instant) {
        let is_calm = self.next.is_none_or(|next| now > next + CALM);
        self.pause = if is_calm {
            FIRST_PAUSE
        } else {
            (self.pause * 2).min(self.longest_pause)
        };
        self.next = Some(now + self.pause);
        if is_renewed {
            self.epoch = self.epoch.next();
        }
        self.running = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_thousand_answers_of_one_epoch_make_one_renewal() {
        let mut renewal = Renewal::new(LONGEST_PAUSE);
        let now = Instant::now();
        assert!(renewal.begins(Epoch(0), now));
        assert!((0..1000).all(|_| !renewal.begins(Epoch(0), now)));
        renewal.ends(true, now);
        // Late answers of the connection that was given up.
        let later = now + LONGEST_PAUSE;
        assert!((0..1000).all(|_| !renewal.begins(Epoch(0), later)));
        assert!(renewal.begins(Epoch(1), later));
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_while_the_address_leads_to_a_replica() {
        let mut renewal = Renewal::new(LONGEST_PAUSE);
        let mut now = Instant::now();
        for (epoch, seconds) in [1, 2, 4, 8, 8].into_iter().enumerate() {
            let epoch = Epoch(epoch as u64);
            assert!(renewal.begins(epoch, now));
            renewal.ends(true, now);
            let epoch = epoch.next();
            let pause = Duration::from_secs(seconds);
            assert!(!renewal.begins(epoch, now + pause - Duration::from_millis(1)));
            now += pause;
        }
        now += CALM + Duration::from_secs(1);
        assert!(renewal.begins(Epoch(5), now));
        renewal.ends(true, now);
        assert_eq!(renewal.pause, FIRST_PAUSE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_that_failed_is_tried_again_after_growing_pauses() {
        let mut renewal = Renewal::new(LONGEST_PAUSE);
        let mut now = Instant::now();
        for seconds in [1, 2, 4, 8, 8] {
            assert!(renewal.begins(Epoch(0), now));
            renewal.ends(false, now);
            let pause = Duration::from_secs(seconds);
            assert!(!renewal.begins(Epoch(0), now + pause - Duration::from_millis(1)));
            now += pause;
        }
        assert!(renewal.begins(Epoch(0), now));
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_that_panics_keeps_no_other_from_beginning() {
        let renewals = Renewals::new();
        assert!(renewals.start(Epoch(0), async { panic!("a driver panics") }));
        tokio::time::sleep(FIRST_PAUSE * 2).await;
        assert!(renewals.start(Epoch(0), async { true }));
        tokio::time::sleep(FIRST_PAUSE).await;
        assert_eq!(renewals.epoch(), Epoch(1));
    }
}
