//! Requests of relays, and their replies.

use std::time::Duration;

use idem_store::record::{ClaimId, Timestamp};

/// Claim of a message by a relay.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MessageOwner {
    pub(crate) id: i64,
    pub(crate) claim_id: ClaimId,
}

/// A message that was claimed.
#[derive(Debug, Clone)]
pub(crate) struct ClaimedMessage {
    pub(crate) id: i64,
    pub(crate) ordering_key: Option<String>,
    pub(crate) attempt: u32,
    pub(crate) enqueued_at: Timestamp,
}

/// Request of a relay.
#[derive(Debug, Clone)]
pub(crate) enum MessageRequest {
    Due,
    Claim {
        /// None for any messages that are due.
        ordering_key: Option<String>,
        claim_id: ClaimId,
        lease: Duration,
        limit: usize,
    },
    Renew(MessageOwner, Duration),
    Deliver(MessageOwner),
    GiveBack(MessageOwner, Duration),
    Park(MessageOwner),
    Attempt(i64),
}

/// Reply to a relay.
#[derive(Debug, Clone)]
pub(crate) enum MessageReply {
    Due(bool),
    Claimed(Vec<ClaimedMessage>),
    Changed(bool),
    Attempt(Option<u32>),
}

impl MessageRequest {
    /// Name of the request in a trace.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Due => "look for messages".to_owned(),
            Self::Claim { .. } => "claim messages".to_owned(),
            Self::Renew(owner, _) => format!("renew message {}", owner.id),
            Self::Deliver(owner) => format!("deliver message {}", owner.id),
            Self::GiveBack(owner, _) => format!("give message {} back", owner.id),
            Self::Park(owner) => format!("park message {}", owner.id),
            Self::Attempt(id) => format!("attempts of message {id}"),
        }
    }
}

impl MessageReply {
    /// The reply in a trace.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Due(is_due) => format!("due: {is_due}"),
            Self::Claimed(messages) => {
                let ids: Vec<_> = messages.iter().map(|message| message.id).collect();
                format!("claimed {ids:?}")
            }
            Self::Changed(true) => "done".to_owned(),
            Self::Changed(false) => "fenced".to_owned(),
            Self::Attempt(attempt) => format!("{attempt:?}"),
        }
    }
}
