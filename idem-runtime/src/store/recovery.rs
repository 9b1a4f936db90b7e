//! Optional store trait: saves the recovery input of a call with its record, so that the call can be retried after a
//! crash.

use std::time::Duration;

use async_trait::async_trait;

use crate::error::StoreError;
use crate::key::{Operation, RecordId};
use crate::record::{Owner, Payload, Timestamp};
use crate::store::{FencedWrite, Resolved};

/// Store that saves recovery inputs with its records, so that calls whose owner crashed can be retried.
///
/// # Contract
///
/// A kept value belongs to one generation of a record, from its first claim until it expires or is deleted. Deleting
/// the record deletes it. What an expired generation has left behind may still be read, and tells so by its
/// [`first_claimed_at`](RecoveryInput::first_claimed_at), which whoever recovers compares with the record; what the
/// next generation keeps takes its place, and begins anew. A value is *due* at a time that the store's clock decides:
/// at first a lease after it was kept. Each method is one atomic transition, durable when it returns `Ok`, and may be
/// repeated.
#[async_trait]
pub trait RecoveryStore: Send + Sync {
    /// Saves the recovery input with the owner's record, due a `lease` from now, or when it was due before, should that
    /// be later. Takes effect as [`renew`](crate::Store::renew) does: only while the record bears the owner's claim id
    /// and fencing token. What an earlier attempt saved is replaced; how often it was recovered is not.
    async fn save_input(
        &self,
        owner: &Owner,
        input: &Payload,
        lease: Duration,
    ) -> Result<FencedWrite, StoreError>;

    /// Reads up to `limit` recovery inputs of an operation that are due, the longest due first.
    async fn due(
        &self,
        operation: &Operation,
        limit: u32,
    ) -> Result<Vec<RecoveryInput>, StoreError>;

    /// Makes a recovery input due this much later from now on, if it still is as it was read; with `recovering`, counts
    /// one recovery more. Of several who try, one succeeds.
    async fn postpone(
        &self,
        input: &RecoveryInput,
        by: Duration,
        recovering: bool,
    ) -> Result<Resolved, StoreError>;

    /// Deletes a recovery input, if it still is as it was read.
    async fn forget(&self, input: &RecoveryInput) -> Result<Resolved, StoreError>;
}

/// Recovery input that is saved with a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoveryInput {
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
