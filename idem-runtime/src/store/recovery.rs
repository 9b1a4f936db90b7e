//! What a store can do besides that keeps with a record what it takes to make its call again.

use std::time::Duration;

use async_trait::async_trait;

use crate::error::StoreError;
use crate::key::{Operation, RecordId};
use crate::record::{Owner, Payload, Timestamp};
use crate::store::{FencedWrite, Resolved};

/// A store that keeps values with its records, from which calls whose owner died can be made again.
///
/// # Contract
///
/// A kept value belongs to one generation of a record, from its first claim until it expires or is deleted. Deleting
/// the record deletes it. What an expired generation has left behind may still be read, and tells so by its
/// [`first_claimed_at`](Kept::first_claimed_at), which whoever recovers compares with the record; what the next
/// generation keeps takes its place, and begins anew. A value is *due* at a time that the store's clock decides: at
/// first a lease after it was kept. Each method is one atomic step, durable when it returns `Ok`, and may be repeated.
#[async_trait]
pub trait RecoveryStore: Send + Sync {
    /// Keeps this with the owner's record, due a `lease` from now, or when it was due before, should that be later.
    /// Takes effect as [`renew`](crate::Store::renew) does: only while the record bears the owner's claim id and
    /// fencing token. What an earlier attempt kept is replaced; how often it was recovered is not.
    async fn keep(
        &self,
        owner: &Owner,
        kept: &Payload,
        lease: Duration,
    ) -> Result<FencedWrite, StoreError>;

    /// Reads up to `limit` values of an operation that are due, the longest due first.
    async fn due(&self, operation: &Operation, limit: u32) -> Result<Vec<Kept>, StoreError>;

    /// Makes a value due this much later from now on, if it still is as it was read; with `recovering`, counts one
    /// recovery more. Of several who try, one succeeds.
    async fn postpone(
        &self,
        kept: &Kept,
        by: Duration,
        recovering: bool,
    ) -> Result<Resolved, StoreError>;

    /// Deletes a value, if it still is as it was read.
    async fn forget(&self, kept: &Kept) -> Result<Resolved, StoreError>;
}

/// A value that is kept with a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// The record.
    pub id: RecordId,
    /// Generation of the record: when that was first claimed.
    pub first_claimed_at: Timestamp,
    /// The value.
    pub payload: Payload,
    /// How often a recovery was begun with it.
    pub recoveries: u32,
    /// When it was due.
    pub due_at: Timestamp,
}
