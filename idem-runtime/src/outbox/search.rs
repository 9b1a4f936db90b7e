//! Searches an outbox for messages that are due, claims them, and starts their deliveries.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::deliver::{MessageClaim, deliver_in_order};
use super::shared::{RelayShared, STATEMENT_TIMEOUT};
use super::wake;
use crate::error::StoreError;
use crate::failure_log::FailureLog;
use crate::purge_clock::PurgeClock;
use crate::random;
use crate::store::outbox::{BATCH, Due};
use crate::timing::bounded;
use crate::worker::{Found, SOON, Search, Tasks};

/// Interval at which delivered messages are deleted, unless they are kept for less.
const PURGE_EVERY: Duration = Duration::from_secs(60);
const PURGE_BATCH: u32 = 1_000;
/// Number of ordering keys that one search visits, if too many messages wait behind others.
const KEYS: usize = 64;

/// The search of a relay.
pub(super) struct MessageSearch {
    shared: Arc<RelayShared>,
    enqueued: watch::Receiver<()>,
    /// Messages that the last search left.
    due: Due,
    /// Last ordering key that was visited.
    last_key: String,
    purge_every: Duration,
    purge_at: Instant,
    purge_clock: PurgeClock,
    search_failures: FailureLog,
    purge_failures: FailureLog,
}

impl MessageSearch {
    pub(super) fn new(shared: RelayShared) -> Self {
        let keep = shared.settings.keep_delivered.unwrap_or(PURGE_EVERY);
        let purge_every = keep.min(PURGE_EVERY).max(SOON);
        Self {
            shared: Arc::new(shared),
            enqueued: wake::subscribe(),
            due: Due::default(),
            last_key: String::new(),
            purge_every,
            // Jittered, so that the relays of a service do not purge at the same time.
            purge_at: Instant::now() + purge_every.mul_f64(random::fraction()),
            purge_clock: PurgeClock::default(),
            search_failures: FailureLog::default(),
            purge_failures: FailureLog::default(),
        }
    }

    async fn take_messages(&mut self, tasks: &mut Tasks) -> Result<Found, StoreError> {
        loop {
            if self.due.topics.is_empty() {
                let due = self.shared.messages.due(&self.shared.polling);
                self.due = bounded(STATEMENT_TIMEOUT, due).await?;
                if self.due.topics.is_empty() && !self.due.crowded {
                    return Ok(Found::All);
                }
            }
            let expected = !self.due.topics.is_empty();
            let mut taken = self.take_by_topic(tasks).await?;
            if self.due.crowded {
                taken += self.take_by_key(tasks).await?;
            }
            if self.shared.stop.is_requested() {
                return Ok(Found::All);
            }
            if tasks.room() == 0 {
                return Ok(Found::Full);
            }
            if taken == 0 {
                self.due = Due::default();
                return Ok(match expected {
                    // Other relays took the messages.
                    true => Found::More,
                    // All messages that were seen wait behind others.
                    false => Found::All,
                });
            }
        }
    }

    /// Takes messages of each topic that is due, and returns their number.
    async fn take_by_topic(&mut self, tasks: &mut Tasks) -> Result<usize, StoreError> {
        let shared = &self.shared;
        let topics = &mut self.due.topics;
        // Rotated, so that the last topic is first next time and no topic starves.
        if !topics.is_empty() {
            topics.rotate_right(1);
        }
        let (mut taken, mut at) = (0, 0);
        while at < topics.len() && tasks.room() > 0 && !shared.stop.is_requested() {
            let share = shared.shares.room(&topics[at]);
            let limit = tasks.room().min(BATCH).min(share);
            if limit == 0 {
                topics.swap_remove(at);
                continue;
            }
            let lease = shared.settings.lease;
            let claim = MessageClaim::new(lease);
            let claimed =
                shared
                    .messages
                    .claim(&shared.polling, &topics[at], &claim.id, lease, limit);
            let claimed = bounded(STATEMENT_TIMEOUT, claimed).await?;
            if claimed.len() < limit {
                topics.swap_remove(at);
            } else {
                at += 1;
            }
            taken += claimed.len();
            for message in claimed {
                tasks.start(deliver_in_order(Arc::clone(shared), claim, message));
            }
        }
        Ok(taken)
    }

    /// Takes the first message of each ordering key after the last visited key, and returns their number. Visits at
    /// most [`KEYS`] keys; the next search continues after them.
    async fn take_by_key(&mut self, tasks: &mut Tasks) -> Result<usize, StoreError> {
        let shared = &self.shared;
        let mut taken = 0;
        let mut wrapped = self.last_key.is_empty();
        for _ in 0..KEYS {
            if tasks.room() == 0 || shared.stop.is_requested() {
                break;
            }
            let next = shared.messages.next_key(&shared.polling, &self.last_key);
            let Some(next) = bounded(STATEMENT_TIMEOUT, next).await? else {
                self.last_key.clear();
                if wrapped {
                    break;
                }
                wrapped = true;
                continue;
            };
            self.last_key = next.name;
            if !next.is_due || shared.stop.is_requested() {
                continue;
            }
            let lease = shared.settings.lease;
            let claim = MessageClaim::new(lease);
            let claimed =
                shared
                    .messages
                    .claim_next(&shared.polling, &self.last_key, &claim.id, lease);
            if let Some(message) = bounded(STATEMENT_TIMEOUT, claimed).await? {
                tasks.start(deliver_in_order(Arc::clone(shared), claim, message));
                taken += 1;
            }
        }
        Ok(taken)
    }

    /// Deletes a batch of the delivered messages that were kept for long enough. Returns true if there may be more of
    /// them. The next batch is due after as long as this one took: a relay that always has messages to deliver purges,
    /// too, and one that has much to purge delivers.
    async fn purge(&mut self) -> bool {
        let began = Instant::now();
        let more = match self.purge_batch(began).await {
            Ok(purged) => {
                self.purge_failures.reset();
                purged >= u64::from(PURGE_BATCH)
            }
            Err(error) => {
                if let Some(text) = self.purge_failures.text(&error) {
                    tracing::warn!(
                        target: "idem",
                        error = text,
                        "deleting delivered messages failed, trying again later",
                    );
                }
                false
            }
        };
        let pause = if more {
            began.elapsed()
        } else {
            self.purge_every
        };
        self.purge_at = Instant::now() + pause;
        more
    }

    /// Deletes a batch as of a time that this process can explain, if it can explain one already.
    async fn purge_batch(&mut self, began: Instant) -> Result<u64, StoreError> {
        let messages = &self.shared.messages;
        let now = bounded(STATEMENT_TIMEOUT, messages.now()).await?;
        match self.purge_clock.compare(began, now).as_of {
            Some(as_of) => bounded(STATEMENT_TIMEOUT, messages.purge(PURGE_BATCH, as_of)).await,
            None => Ok(0),
        }
    }
}

impl Search for MessageSearch {
    async fn search(&mut self, tasks: &mut Tasks) -> Found {
        let found = match self.take_messages(tasks).await {
            Ok(found) => {
                self.search_failures.reset();
                found
            }
            Err(error) => {
                if let Some(text) = self.search_failures.text(&error) {
                    tracing::warn!(
                        target: "idem",
                        error = text,
                        "looking for messages failed, trying again",
                    );
                }
                self.due = Due::default();
                return Found::Failed;
            }
        };
        if Instant::now() >= self.purge_at && self.purge().await && found == Found::All {
            return Found::More;
        }
        found
    }

    async fn woken(&mut self) {
        // The sender is a static variable, so it is never dropped.
        let _ = self.enqueued.changed().await;
    }
}
