//! The table of messages as a relay sees it: every call is a message to the store.

use std::time::Duration;

use async_trait::async_trait;
use idem_runtime::operator::MigrationPlan;
use idem_store::StoreError;
use idem_store::record::{ClaimId, Timestamp};

#[expect(
    dead_code,
    unreachable_pub,
    reason = "nobody decodes messages, and there are no operators"
)]
#[path = "../../../../idem-runtime/src/store/outbox/messages.rs"]
mod messages;

pub(crate) use self::messages::{BATCH, Due, MessageLease, Messages, NextKey, StoredMessage};
use super::SimStore;
use crate::message::{
    ClaimedMessage, MessageOwner, MessageReply, MessageRequest, Reply, Request, wrong_reply,
};
use messages::{BacklogCount, MessageAuditFilter, MessageChange, MessageEntry};

/// The topic of all messages.
pub(crate) const TOPIC: &str = "sim.topic";

/// What a relay polls for: all messages of the one topic.
pub(crate) struct Polling {
    topic: String,
}

impl SimStore {
    async fn ask_for_messages(&self, request: MessageRequest) -> Result<MessageReply, StoreError> {
        match self.ask(Request::Messages(request)).await? {
            Reply::Messages(reply) => Ok(reply),
            _ => Err(wrong_reply()),
        }
    }

    async fn change(&self, request: MessageRequest) -> Result<bool, StoreError> {
        match self.ask_for_messages(request).await? {
            MessageReply::Changed(changed) => Ok(changed),
            _ => Err(wrong_reply()),
        }
    }
}

#[async_trait]
impl Messages for SimStore {
    async fn migrate(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// There are no tables.
    async fn migration_plan(&self) -> Result<MigrationPlan, StoreError> {
        Err(wrong_reply())
    }

    fn polling(&self, topics: &[&str], _: bool) -> Polling {
        let topic = topics.concat();
        Polling { topic }
    }

    async fn due(&self, polling: &Polling) -> Result<Due, StoreError> {
        match self.ask_for_messages(MessageRequest::Due).await? {
            MessageReply::Due(is_due) => Ok(Due {
                topics: Vec::from_iter(is_due.then(|| polling.topic.clone())),
                crowded: false,
            }),
            _ => Err(wrong_reply()),
        }
    }

    /// Only a crowded table is searched by key.
    async fn next_key(&self, _: &Polling, _: &str) -> Result<Option<NextKey>, StoreError> {
        Ok(None)
    }

    async fn claim(
        &self,
        _: &Polling,
        _: &str,
        claim_id: &ClaimId,
        lease: Duration,
        limit: usize,
    ) -> Result<Vec<StoredMessage>, StoreError> {
        let claim = MessageRequest::Claim {
            ordering_key: None,
            claim_id: *claim_id,
            lease,
            limit,
        };
        match self.ask_for_messages(claim).await? {
            MessageReply::Claimed(messages) => Ok(messages.into_iter().map(stored).collect()),
            _ => Err(wrong_reply()),
        }
    }

    async fn claim_next(
        &self,
        _: &Polling,
        ordering_key: &str,
        claim_id: &ClaimId,
        lease: Duration,
    ) -> Result<Option<StoredMessage>, StoreError> {
        let claim = MessageRequest::Claim {
            ordering_key: Some(ordering_key.to_owned()),
            claim_id: *claim_id,
            lease,
            limit: 1,
        };
        match self.ask_for_messages(claim).await? {
            MessageReply::Claimed(mut messages) => Ok(messages.pop().map(stored)),
            _ => Err(wrong_reply()),
        }
    }

    async fn renew(&self, claimed: MessageLease, lease: Duration) -> Result<bool, StoreError> {
        self.change(MessageRequest::Renew(owner(claimed), lease))
            .await
    }

    async fn deliver(
        &self,
        claimed: MessageLease,
        _: Option<Duration>,
    ) -> Result<bool, StoreError> {
        self.change(MessageRequest::Deliver(owner(claimed))).await
    }

    async fn give_back(
        &self,
        claimed: MessageLease,
        pause: Duration,
        _: &str,
    ) -> Result<bool, StoreError> {
        self.change(MessageRequest::GiveBack(owner(claimed), pause))
            .await
    }

    async fn park(&self, claimed: MessageLease, _: &str) -> Result<bool, StoreError> {
        self.change(MessageRequest::Park(owner(claimed))).await
    }

    async fn attempt(&self, id: i64) -> Result<Option<u32>, StoreError> {
        match self.ask_for_messages(MessageRequest::Attempt(id)).await? {
            MessageReply::Attempt(attempt) => Ok(attempt),
            _ => Err(wrong_reply()),
        }
    }

    /// Operators of the outbox are not simulated.
    async fn parked(&self, _: i64, _: u32) -> Result<Vec<StoredMessage>, StoreError> {
        Ok(Vec::new())
    }

    async fn change_manually(&self, _: &MessageChange<'_>) -> Result<bool, StoreError> {
        Ok(false)
    }

    async fn audit(
        &self,
        _: &MessageAuditFilter,
        _: i64,
        _: u32,
    ) -> Result<Vec<(i64, Result<MessageEntry, StoreError>)>, StoreError> {
        Ok(Vec::new())
    }

    async fn now(&self) -> Result<Timestamp, StoreError> {
        match self.ask(Request::Now).await? {
            Reply::Now(now) => Ok(now),
            _ => Err(wrong_reply()),
        }
    }

    /// Nothing is kept that was delivered.
    async fn purge(&self, _: u32, _: Timestamp) -> Result<u64, StoreError> {
        Ok(0)
    }

    async fn count(&self) -> Result<BacklogCount, StoreError> {
        Err(wrong_reply())
    }
}

fn owner(claimed: MessageLease) -> MessageOwner {
    MessageOwner {
        id: claimed.id,
        claim_id: claimed.claim_id,
    }
}

/// The message as a relay gets it. Its payload is its number.
fn stored(message: ClaimedMessage) -> StoredMessage {
    StoredMessage {
        id: message.id,
        key: format!("message-{}", message.id),
        topic: TOPIC.to_owned(),
        ordering_key: message.ordering_key,
        payload: message.id.to_string(),
        headers: None,
        attempt: message.attempt,
        enqueued_at: message.enqueued_at,
        parked_at: None,
        last_error: None,
    }
}
