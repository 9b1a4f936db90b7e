//! Table of messages, as relays see it. The simulation of `tests/sim` compiles this file once more, over a table of its
//! own.

use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;

use super::Polling;
use crate::error::StoreError;
use crate::key::Key;
use crate::record::{ClaimId, Timestamp};
use crate::store::ManualChange;
use crate::store::operator::MigrationPlan;

/// Maximum number of messages that one transition claims, to keep its locks short.
pub(crate) const BATCH: usize = 32;

/// Messages that could be claimed.
#[derive(Debug, Default)]
pub(crate) struct Due {
    /// Topics with at least one claimable message.
    pub(crate) topics: Vec<String>,
    /// True if so many messages wait behind others that claimable ones may be missing here: check each ordering key
    /// instead.
    pub(crate) crowded: bool,
}

/// Ordering key with undelivered messages.
#[derive(Debug)]
pub(crate) struct NextKey {
    pub(crate) name: String,
    /// True if its first message is claimable.
    pub(crate) is_due: bool,
}

/// Message that was claimed or parked.
#[derive(Debug, Clone)]
pub(crate) struct StoredMessage {
    pub(crate) id: i64,
    pub(crate) key: String,
    pub(crate) topic: String,
    pub(crate) ordering_key: Option<String>,
    pub(crate) payload: String,
    pub(crate) headers: Option<String>,
    /// Number of times the message was claimed, including this one.
    pub(crate) attempt: u32,
    pub(crate) enqueued_at: Timestamp,
    pub(crate) parked_at: Option<Timestamp>,
    pub(crate) last_error: Option<String>,
}

/// Claim of a message by a relay. A transition with such a claim changes nothing if another relay has the message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MessageLease {
    pub(crate) id: i64,
    pub(crate) claim_id: ClaimId,
}

/// Kind of a manual change of a parked message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MessageAction {
    /// The message was made claimable again, with all the attempts of a new one.
    Requeued,
    /// The message was deleted.
    Discarded,
}

impl MessageAction {
    /// The action as it is stored.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Requeued => "requeued",
            Self::Discarded => "discarded",
        }
    }

    /// Reads an action as it is stored. None for any other word.
    pub fn from_stored(word: &str) -> Option<Self> {
        let mut all = [Self::Requeued, Self::Discarded].into_iter();
        all.find(|action| action.as_str() == word)
    }
}

/// Manual change of a parked message.
#[derive(Debug)]
pub(crate) struct MessageChange<'a> {
    pub(crate) action: MessageAction,
    pub(crate) key: &'a str,
    /// Applies the change only to a message that was parked at this time.
    pub(crate) parked_at: Option<Timestamp>,
    pub(crate) by: &'a ManualChange,
}

/// Entry of the audit of an outbox: one manual change of a message. The payload is not part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageEntry {
    /// Time of the change, by the database's clock.
    pub at: Timestamp,
    /// Who made the change, and why.
    pub change: ManualChange,
    /// The change.
    pub action: MessageAction,
    /// Key of the message.
    pub key: Key,
    /// The topic for which the message was enqueued.
    pub topic: String,
    /// Ordering key, if the message had one.
    pub ordering_key: Option<String>,
    /// Number of attempts to deliver the message, before the change.
    pub attempts: u32,
    /// Time of enqueuing, by the database's clock.
    pub enqueued_at: Timestamp,
}

/// Selection of entries in the audit of an outbox. The default selects all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MessageAuditFilter {
    /// Selects only entries on messages with exactly this key.
    pub key: Option<String>,
    /// Selects only entries by exactly this actor.
    pub actor: Option<String>,
    /// Selects only entries that are at most this old, by the database's clock.
    pub within: Option<Duration>,
}

/// Counts of the messages in a table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BacklogCount {
    pub(crate) waiting: u64,
    pub(crate) parked: u64,
    /// Age of the oldest waiting message.
    pub(crate) oldest: Duration,
}

/// Table of messages. Each method is one transition that may be repeated. If its future is dropped, the transition is
/// applied or not applied.
#[async_trait]
pub(crate) trait Messages: Debug + Send + Sync {
    async fn migrate(&self) -> Result<(), StoreError>;

    async fn migration_plan(&self) -> Result<MigrationPlan, StoreError>;

    /// Statements that poll for these topics. If parked messages are skipped, later ones of their ordering key overtake
    /// them.
    fn polling(&self, topics: &[&str], skip_parked: bool) -> Polling;

    /// Finds claimable messages, without reading all that wait behind others.
    async fn due(&self, polling: &Polling) -> Result<Due, StoreError>;

    /// Returns the next ordering key in the order of the index. The empty string precedes the first one.
    async fn next_key(&self, polling: &Polling, after: &str)
    -> Result<Option<NextKey>, StoreError>;

    /// Claims up to `limit` messages of a topic, at most [`BATCH`]. No claimed message waits behind an earlier one of
    /// its ordering key. Of the ordered messages, only the first `WINDOW` due ones are considered.
    async fn claim(
        &self,
        polling: &Polling,
        topic: &str,
        claim_id: &ClaimId,
        lease: Duration,
        limit: usize,
    ) -> Result<Vec<StoredMessage>, StoreError>;

    /// Claims the first message of an ordering key, if it is due and its topic is polled.
    async fn claim_next(
        &self,
        polling: &Polling,
        ordering_key: &str,
        claim_id: &ClaimId,
        lease: Duration,
    ) -> Result<Option<StoredMessage>, StoreError>;

    /// Renews the lease. Returns false if another relay has the message.
    async fn renew(&self, claimed: MessageLease, lease: Duration) -> Result<bool, StoreError>;

    /// Marks the message delivered and keeps it for this retention. Without a retention, deletes it. Returns false if
    /// another relay has it, or it is deleted.
    async fn deliver(
        &self,
        claimed: MessageLease,
        retention: Option<Duration>,
    ) -> Result<bool, StoreError>;

    /// Releases the message, to be claimed again after a pause.
    async fn give_back(
        &self,
        claimed: MessageLease,
        pause: Duration,
        error: &str,
    ) -> Result<bool, StoreError>;

    /// Parks the message for an operator.
    async fn park(&self, claimed: MessageLease, error: &str) -> Result<bool, StoreError>;

    /// Number of claims of a message since it was last requeued. `None` if the message is deleted.
    async fn attempt(&self, id: i64) -> Result<Option<u32>, StoreError>;

    /// Returns up to `limit` parked messages after the one with this id, in the order of enqueuing.
    async fn parked(&self, after: i64, limit: u32) -> Result<Vec<StoredMessage>, StoreError>;

    /// Changes a parked message manually, and writes who did it and why in the same transaction. Returns false, and
    /// writes nothing, if no message is parked like that.
    async fn change_manually(&self, change: &MessageChange<'_>) -> Result<bool, StoreError>;

    /// Returns up to `limit` matching entries before this number, the newest first, with their numbers. An entry that
    /// somebody changed by hand is an error of its own.
    async fn audit(
        &self,
        filter: &MessageAuditFilter,
        before: i64,
        limit: u32,
    ) -> Result<Vec<(i64, Result<MessageEntry, StoreError>)>, StoreError>;

    /// Time of the clock of the database.
    async fn now(&self) -> Result<Timestamp, StoreError>;

    /// Deletes up to `limit` delivered messages whose retention is over, as of the earlier of `as_of` and the clock of the
    /// database.
    async fn purge(&self, limit: u32, as_of: Timestamp) -> Result<u64, StoreError>;

    async fn count(&self) -> Result<BacklogCount, StoreError>;
}
