//! Shares the polls of a key among the callers of a handle that are attached to it: one of them polls, and the others are
//! told what it saw. They rely on it only until it should have polled, because its future may not be polled any more.

use std::collections::HashMap;
use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::progress::SharedOutcome;
use crate::key::RecordId;
use crate::mutex::lock;
use crate::record::Record;

/// Grace for a caller that polls.
const RELIABLE: Duration = Duration::from_millis(250);

/// The keys that callers of a handle are attached to.
#[derive(Debug, Default)]
pub(super) struct Watches(Mutex<HashMap<RecordId, Weak<Watch>>>);

/// A key, as the callers that are attached to it see it.
#[derive(Debug, Default)]
struct Watch {
    state: Mutex<WatchState>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct WatchState {
    /// Number of the turn to poll, and the time until which the others rely on its caller.
    poller: Option<(u64, Instant)>,
    /// Number of turns so far.
    turns: u64,
    /// Number of the latest sight.
    number: u64,
    latest: Option<Arc<Sight>>,
}

/// What a poll has seen.
#[derive(Debug)]
pub(super) struct Sight {
    /// Time at which the store was asked. A caller that attached later needs a later sight.
    pub(super) asked_at: Instant,
    pub(super) seen: Seen,
}

pub(super) enum Seen {
    Record(Option<Box<Record>>),
    /// An outcome that a call of this process has shared.
    Ended(Arc<SharedOutcome>),
}

/// What an attached caller does next.
pub(super) enum Turn<'w> {
    /// It polls, for all, until it drops this.
    Poll(PollTurn<'w>),
    /// Another caller has polled.
    Told(Arc<Sight>),
    /// Its time is over.
    Late,
}

/// The turn to poll. Dropping it passes the turn on.
pub(super) struct PollTurn<'w> {
    watch: &'w Watch,
    number: u64,
}

/// A caller that is attached to a key.
pub(super) struct Watcher<'w> {
    watches: &'w Watches,
    id: RecordId,
    watch: Arc<Watch>,
    since: Instant,
    /// Number of the last sight that it was told.
    number: u64,
}

impl Watches {
    /// Attaches a caller that has read the record at this time.
    pub(super) fn attach(&self, id: RecordId, since: Instant) -> Watcher<'_> {
        let mut watches = lock(&self.0);
        let watch = watches.get(&id).and_then(Weak::upgrade);
        let watch = watch.unwrap_or_else(|| {
            let watch = Arc::default();
            watches.insert(id, Arc::downgrade(&watch));
            watch
        });
        Watcher {
            watches: self,
            id,
            watch,
            since,
            number: 0,
        }
    }
}

impl Watcher<'_> {
    /// Waits for what another caller sees, or for the turn to poll, at most until `deadline`.
    pub(super) async fn turn(&mut self, deadline: Instant) -> Turn<'_> {
        let Self { watch, number, .. } = self;
        loop {
            let mut changed = pin!(watch.changed.notified());
            // Registered before the state is read, because a change before the registration would be missed.
            changed.as_mut().enable();
            let end = {
                let mut state = lock(&watch.state);
                if state.number > *number
                    && let Some(sight) = &state.latest
                {
                    *number = state.number;
                    if sight.asked_at >= self.since {
                        return Turn::Told(Arc::clone(sight));
                    }
                }
                let now = Instant::now();
                match state.poller {
                    Some((_, reliable_until)) if now < reliable_until => {
                        if now >= deadline {
                            return Turn::Late;
                        }
                        reliable_until.min(deadline)
                    }
                    _ => {
                        state.turns += 1;
                        let number = state.turns;
                        // Until it says how long it will take.
                        state.poller = Some((number, now + RELIABLE));
                        return Turn::Poll(PollTurn { watch, number });
                    }
                }
            };
            // The state says whether a change, the deadline or a silent poller ended the wait.
            let _ = timeout_at(end, changed).await;
        }
    }
}

impl Drop for Watcher<'_> {
    fn drop(&mut self) {
        let mut watches = lock(&self.watches.0);
        // Callers attach under the lock, so this is the last one.
        if Arc::strong_count(&self.watch) == 1 {
            watches.remove(&self.id);
        }
    }
}

impl PollTurn<'_> {
    /// Tells the others that the next poll has ended by this time. After it, one of them takes the turn.
    pub(super) fn polls_by(&self, time: Instant) {
        if let Some((number, reliable_until)) = &mut lock(&self.watch.state).poller
            && *number == self.number
        {
            *reliable_until = time + RELIABLE;
        }
    }

    /// Tells the other callers what this one saw.
    pub(super) fn publish(&self, sight: Sight) -> Arc<Sight> {
        let sight = Arc::new(sight);
        {
            let mut state = lock(&self.watch.state);
            state.number += 1;
            state.latest = Some(Arc::clone(&sight));
        }
        self.watch.changed.notify_waiters();
        sight
    }
}

impl Drop for PollTurn<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.watch.state);
        if state
            .poller
            .is_some_and(|(number, _)| number == self.number)
        {
            state.poller = None;
            drop(state);
            self.watch.changed.notify_waiters();
        }
    }
}

/// Without the record, whose key and result no log may show.
impl fmt::Debug for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seen")
    }
}
