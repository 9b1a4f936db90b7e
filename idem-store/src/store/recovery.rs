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
/// A recovery input belongs to one generation of a record, from its first claim until it expires or is deleted.
/// Deleting the record deletes the input. The input of an expired generation may still be read. The caller recognises
/// it by comparing its [`first_claimed_at`](RecoveryInput::first_claimed_at) with the record's. An input of the next
/// generation replaces it, with its recoveries counted from 0. An input is *due* at a time by the store's clock: at
/// first, one lease after it was saved. Each method is one atomic transition, durable when it returns `Ok`, and may be
/// repeated.
#[async_trait]
pub trait RecoveryStore: Send + Sync {
    /// Saves the recovery input with the owner's record. The input is due after `lease`, or at its earlier due time if
    /// that is later. Takes effect like [`renew`](crate::Store::renew): only while the record has the owner's claim id
    /// and fencing token. Replaces the input that an earlier attempt saved, but keeps the count of recoveries.
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

    /// Begins a recovery: postpones a recovery input as [`postpone`](Self::postpone) does, and increments its count of
    /// recoveries in the same transition. If several callers try concurrently, one succeeds.
    async fn begin_recovery(
        &self,
        input: &RecoveryInput,
        by: Duration,
    ) -> Result<Resolved, StoreError>;

    /// Postpones a recovery input by this duration from now, if it has not changed since it was read
    /// (compare-and-swap). If several callers try concurrently, one succeeds.
    async fn postpone(&self, input: &RecoveryInput, by: Duration) -> Result<Resolved, StoreError>;

    /// Deletes a recovery input, if it has not changed since it was read (compare-and-swap).
    async fn forget(&self, input: &RecoveryInput) -> Result<Resolved, StoreError>;
}

/// Recovery input that is saved with a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoveryInput {
    /// Id of the record.
    pub id: RecordId,
    /// Generation of the record: the time of its first claim.
    pub first_claimed_at: Timestamp,
    /// The saved value.
    pub payload: Payload,
    /// Number of recoveries begun with this input.
    pub recoveries: u32,
    /// Time from which the input was due when it was read.
    pub due_at: Timestamp,
}
