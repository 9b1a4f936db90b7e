//! Waits for a running call without claiming its key.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::{Found, Lookup};
use crate::engine::claim::Waited;
use crate::engine::decisions::{ReadState, on_read};
use crate::engine::progress::{Phase, Progress, QueuePlace, SharedOutcome};
use crate::engine::reentrancy;
use crate::engine::singleflight::SharedCall;
use crate::engine::watch::{PollTurn, Seen, Sight, Turn};
use crate::error::{Error, InvalidCall};
use crate::fingerprint;
use crate::metrics::Waiting;
use crate::record::{Digest, Record};
use crate::timing::{Backoff, bounded, later};

/// Longest age of what a caller saw last that is its answer when its time is over. An older one is read again.
const RECENT: Duration = Duration::from_secs(1);

/// A caller that waits for a running call.
struct Attached<'l> {
    lookup: &'l Lookup,
    begun: Instant,
    deadline: Instant,
    /// The running call that it waits for.
    expected: Expected,
    /// The running record as it was last seen, if the store has it, and when the store was asked for it.
    last: Option<Box<Record>>,
    seen_at: Instant,
}

/// How the call that a caller waits for is told from one that has replaced it.
enum Expected {
    /// By its stored digest.
    Stored(Digest),
    /// By its own digest: its record is not committed yet.
    Plain(Digest),
}

impl Lookup {
    /// Reads the record, and waits while its call runs, at most for this time.
    pub(super) async fn attach(&self, wait: Duration) -> Result<(Found, Waited), Error> {
        if reentrancy::is_polled(&self.engine) {
            return Err(InvalidCall::InsideTransaction.into());
        }
        if reentrancy::is_running(&self.engine, &self.id) {
            return Err(InvalidCall::OwnKey.into());
        }
        let begun = Instant::now();
        let found = self.read().await?;
        let (expected, last) = match found {
            Found::Record(Some(record)) if on_read(&record) == ReadState::Running => {
                (Expected::Stored(record.fingerprint), Some(record))
            }
            Found::Record(None) => match self.uncommitted()? {
                Some(digest) => (Expected::Plain(digest), None),
                None => return Ok((Found::Record(None), Waited(false))),
            },
            found => return Ok((found, Waited(false))),
        };
        let attached = Attached {
            lookup: self,
            begun,
            deadline: later(begun, wait),
            expected,
            last,
            seen_at: begun,
        };
        let _waiting = Waiting::begin(self.metrics());
        // Boxed, like everything that a lookup without a wait does not need.
        let found = Box::pin(attached.wait()).await?;
        Ok((found, Waited(true)))
    }

    /// Digest of a call of this process that runs in a transaction. The store has no record of it yet.
    fn uncommitted(&self) -> Result<Option<Digest>, Error> {
        let Some(leader) = self.engine.singleflight.leader(&self.id) else {
            return Ok(None);
        };
        if !matches!(observe(&*leader), Phase::Running) {
            return Ok(None);
        }
        match &self.digest {
            Some(digest) if digest != leader.digest() => Err(Error::KeyReused),
            _ => Ok(Some(*leader.digest())),
        }
    }
}

impl Attached<'_> {
    async fn wait(mut self) -> Result<Found, Error> {
        let engine = &self.lookup.engine;
        let mut watcher = engine.watches.attach(self.lookup.id, self.begun);
        loop {
            match watcher.turn(self.deadline).await {
                Turn::Told(sight) => {
                    if let Some(found) = self.judge(&sight)? {
                        return Ok(found);
                    }
                }
                Turn::Poll(turn) => {
                    let mut polls = Backoff::of_polls();
                    while let Some(sight) = self.poll(&turn, &mut polls).await? {
                        let sight = turn.publish(sight);
                        if let Some(found) = self.judge(&sight)? {
                            return Ok(found);
                        }
                    }
                    // The turn passes on before this caller reads for itself.
                    drop(turn);
                    return self.late().await;
                }
                Turn::Late => return self.late().await,
            }
        }
    }

    /// Waits until something may have changed, and reads the record. None if the time is over.
    async fn poll(
        &mut self,
        turn: &PollTurn<'_>,
        polls: &mut Backoff,
    ) -> Result<Option<Sight>, Error> {
        let engine = &self.lookup.engine;
        loop {
            let now = Instant::now();
            if now >= self.deadline {
                return Ok(None);
            }
            let mut wake = now;
            if let Some(leader) = engine.singleflight.leader(&self.lookup.id)
                && self.is_expected(&*leader)
            {
                let phase = observe(&*leader);
                if let Some(until) = relies_until(&phase, leader.progress(), now) {
                    // The leader may be a future that is not polled.
                    let until = until.min(later(now, engine.policy.store_timeout));
                    turn.polls_by(until);
                    let progress = leader.progress();
                    progress
                        .wait_for_change(&phase, until.min(self.deadline))
                        .await;
                    match observe(&*leader) {
                        Phase::Ended(ended) => return Ok(Some(Sight::ended(ended))),
                        // Left without an outcome for others: the store knows more now.
                        Phase::Vacant | Phase::AskStore | Phase::Reused => {}
                        _ => continue,
                    }
                } else {
                    wake = self.next_poll(now, polls);
                }
            } else {
                wake = self.next_poll(now, polls);
            }
            turn.polls_by(later(wake, engine.policy.store_timeout));
            if wake >= self.deadline {
                sleep_until(self.deadline).await;
                return Ok(None);
            }
            sleep_until(wake).await;
            let asked_at = Instant::now();
            let read = engine.store.get(&self.lookup.id);
            match bounded(engine.policy.store_timeout, read).await {
                Ok(record) => {
                    let seen = Seen::Record(record.map(Box::new));
                    return Ok(Some(Sight { asked_at, seen }));
                }
                Err(error) if error.is_retryable() => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Time of the next read: after a pause, or when the lease lapses.
    fn next_poll(&self, now: Instant, polls: &mut Backoff) -> Instant {
        let next = now + polls.pause_of_poll(now.duration_since(self.begun));
        match &self.last {
            Some(record) => {
                let lapses = later(self.seen_at, record.lease_until.since(record.read_at));
                // A lease that should have lapsed by now was renewed, or the next read sees that it lapsed.
                if lapses > now { next.min(lapses) } else { next }
            }
            None => next,
        }
    }

    /// Decides whether the wait is over. The fingerprints are compared first.
    fn judge(&mut self, sight: &Sight) -> Result<Option<Found>, Error> {
        match &sight.seen {
            Seen::Ended(ended) => {
                self.compare(&ended.fingerprint)?;
                Ok(Some(Found::Shared(Arc::clone(ended))))
            }
            Seen::Record(record) => self.judge_record(record.clone(), sight.asked_at),
        }
    }

    fn judge_record(
        &mut self,
        record: Option<Box<Record>>,
        asked_at: Instant,
    ) -> Result<Option<Found>, Error> {
        let Some(record) = record else {
            return Ok(Some(Found::Record(None)));
        };
        self.compare(&record.fingerprint)?;
        if on_read(&record) != ReadState::Running {
            return Ok(Some(Found::Record(Some(record))));
        }
        (self.last, self.seen_at) = (Some(record), asked_at);
        Ok(None)
    }

    /// Answers when the time is over: with what was seen just now, or with what the store says.
    async fn late(mut self) -> Result<Found, Error> {
        if self.last.is_none() || self.seen_at.elapsed() > RECENT {
            let engine = &self.lookup.engine;
            let asked_at = Instant::now();
            let read = engine.store.get(&self.lookup.id);
            let record = bounded(engine.policy.store_timeout, read).await?;
            if let Some(found) = self.judge_record(record.map(Box::new), asked_at)? {
                return Ok(found);
            }
        }
        Ok(Found::Record(self.last))
    }

    /// Refuses an outcome or a record of another request than the one that the caller waits for.
    fn compare(&self, stored: &Digest) -> Result<(), Error> {
        self.lookup.compare(stored)?;
        let is_expected = match &self.expected {
            Expected::Stored(expected) => stored == expected,
            Expected::Plain(expected) => {
                fingerprint::matches(stored, expected, &self.lookup.engine.secrets)?
            }
        };
        // The request that the query names was compared above: its digest may be signed with another secret by now.
        match is_expected || self.lookup.digest.is_some() {
            true => Ok(()),
            false => Err(Error::KeyReused),
        }
    }

    /// True if the leader of the key has the request that the caller waits for.
    fn is_expected(&self, leader: &dyn SharedCall) -> bool {
        let secrets = &self.lookup.engine.secrets;
        match &self.expected {
            Expected::Stored(expected) => {
                fingerprint::matches(expected, leader.digest(), secrets).unwrap_or(false)
            }
            Expected::Plain(expected) => expected == leader.digest(),
        }
    }
}

impl Sight {
    /// An outcome that a leader has just shared. Callers that attached meanwhile get it, as the leader's waiters do.
    fn ended(ended: Arc<SharedOutcome>) -> Self {
        Self {
            asked_at: Instant::now(),
            seen: Seen::Ended(ended),
        }
    }
}

/// The phase of a leader, for a caller that never leads, and so has no place in its queue.
fn observe(leader: &dyn SharedCall) -> Phase {
    leader.progress().observe(&mut QueuePlace::default())
}

/// Time until which a caller relies on the leader to tell the outcome. None: it asks the store itself.
fn relies_until(phase: &Phase, progress: &Progress, now: Instant) -> Option<Instant> {
    let until = match phase {
        Phase::Running => progress.live_until(),
        Phase::RunningElsewhere { next_check_by, .. } => Some(*next_check_by),
        // It has left already: observing it again returns at once.
        Phase::Ended(_) => return Some(now),
        _ => None,
    };
    until.filter(|until| *until > now)
}
