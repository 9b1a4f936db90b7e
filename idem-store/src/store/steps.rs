//! Optional store trait: saves the finished steps of bodies.

use async_trait::async_trait;

use super::FencedWrite;
use crate::error::StoreError;
use crate::record::{Owner, Payload};

/// Store that saves the finished steps of a body under its record, so that a later attempt resumes after them.
///
/// # Contract
///
/// The rules of [`Store`](crate::Store) on atomic transitions, expiry and errors apply here as well. In addition:
///
/// 1. A saved step belongs to **one generation of its record**: from the claim that created the record until the record
///    is [expired](crate::Record::is_expired), erased or purged. The step survives takeover, release and interruption.
///    A claim that replaces an expired record begins without steps.
/// 2. **Fenced**: both methods serve only the owner whose claim id **and** fencing token are on the record, and only
///    while the record has not ended. An owner whose lease has lapsed, or whose record is INTERRUPTED, may still save.
///    No takeover, completion or release can happen between the check of the owner and the write.
/// 3. **Immutable**: a saved step is never overwritten. Saving a step with the same name again, by any owner of the
///    record, writes nothing and returns [`FencedWrite::Applied`]. A save can therefore be repeated if its
///    acknowledgement was lost.
/// 4. Names are compared byte by byte. Payloads and codec tags are returned unchanged. The number of steps is not
///    limited.
/// 5. Saving a step does not change the record itself. In particular, it does not renew the lease.
#[async_trait]
pub trait StepStore: Send + Sync {
    /// Saves a finished step. The name has 1 to 255 bytes of UTF-8 and no control characters.
    async fn save_step(
        &self,
        owner: &Owner,
        name: &str,
        payload: &Payload,
    ) -> Result<FencedWrite, StoreError>;

    /// Reads all steps that any attempt saved in this generation of the record, in no particular order. Returns `None`
    /// if the caller no longer owns the record.
    async fn saved_steps(&self, owner: &Owner) -> Result<Option<Vec<SavedStep>>, StoreError>;
}

/// Saved step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedStep {
    /// Name of the step, unique in its record.
    pub name: String,
    /// Result of the step.
    pub payload: Payload,
}
