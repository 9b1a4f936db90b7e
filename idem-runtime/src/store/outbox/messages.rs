//! Table of messages, as relays see it. The simulation of `tests/sim` compiles this file once more, over a table of its
//! own.

use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;

use super::Polling;
use crate::error::StoreError;
use crate::record::{ClaimId, Timestamp};

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

    /// Makes a parked message claimable again, with all the attempts of a new one.
    async fn requeue(&self, key: &str) -> Result<bool, StoreError>;

    /// Deletes a parked message.
    async fn discard(&self, key: &str) -> Result<bool, StoreError>;

    /// Deletes up to `limit` delivered messages whose retention is over.
    async fn purge(&self, limit: u32) -> Result<u64, StoreError>;

    async fn count(&self) -> Result<BacklogCount, StoreError>;
}
