//! Optional store trait: drops the payload of an ended record before the record expires.

use std::time::Duration;

use async_trait::async_trait;

use super::FencedWrite;
use crate::error::StoreError;
use crate::record::{Outcome, Owner};

/// Store that keeps the payload of an ended record for a shorter time than the record.
///
/// The rest of the record [stays](crate::Record::is_forgotten): a later call learns that its work was done, and
/// does not do it again.
///
/// # Contract
///
/// 1. [`complete_for`](Self::complete_for) is [`Store::complete`](crate::Store::complete), and sets
///    [`Record::payload_for`](crate::Record::payload_for) in the same transition. Every other way to end a record leaves
///    it `None`, and so does the claim that replaces an expired record.
/// 2. [`Store::purge`](crate::Store::purge) drops the payload and its codec once
///    [`Record::payload_until`](crate::Record::payload_until) has passed, and nothing else of the record. The statement
///    that writes checks this again, by the same time as a deletion. [`Purged::forgotten`](super::Purged::forgotten)
///    counts these records, and the limit of a purge includes them.
/// 3. Until a purge has dropped the payload, reads return it. The reader compares
///    [`payload_until`](crate::Record::payload_until) with the time of its read.
#[async_trait]
pub trait ForgettingStore: Send + Sync {
    /// Ends the record as [`Store::complete`](crate::Store::complete) does, and keeps its payload for this time from now.
    /// The time is shorter than the record's retention; a longer one has no effect. An outcome without a payload is
    /// completed as by that method. A repeated completion writes nothing and returns [`FencedWrite::Applied`].
    async fn complete_for(
        &self,
        owner: &Owner,
        outcome: &Outcome,
        payload_for: Duration,
    ) -> Result<FencedWrite, StoreError>;
}
