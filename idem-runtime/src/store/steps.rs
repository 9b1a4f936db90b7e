//! What a store can do further that keeps the finished steps of bodies.

use async_trait::async_trait;

use super::{FencedWrite, Store};
use crate::error::StoreError;
use crate::record::{Owner, Payload};

/// A [`Store`] that keeps the finished steps of a body under its record, so that a later attempt goes on behind them.
///
/// # Contract
///
/// What [`Store`] says of atomic steps, expiry and errors holds here as well. Further:
///
/// 1. A saved step belongs to **one generation of its record**: from the claim that made it until it is
///    [expired](crate::Record::is_expired), erased or purged. It stays over takeover, release and interruption. A claim
///    that replaces an expired record begins without steps.
/// 2. **Fenced**: both methods answer only the owner whose claim id **and** fencing token the record bears, and only
///    while it has not ended. A lease that ran out does not by itself refuse its owner, nor does INTERRUPTED. Nobody
///    can take the record over, end or release it in between the look at the owner and the write.
/// 3. **Immutable**: a step that is saved is never written over. Saving one of the same name again, by whoever holds
///    the record, writes nothing and answers [`FencedWrite::Applied`]: so a save whose acknowledgement was lost finds
///    itself.
/// 4. Names are told apart by their bytes, payloads and tags of codecs come back byte for byte, and there may be any
///    number of steps.
/// 5. Saving changes nothing of the record itself, its lease included.
#[async_trait]
pub trait StepStore: Store {
    /// Saves a finished step. The name has 1 to 255 bytes of UTF-8 and no control characters.
    async fn save_step(
        &self,
        owner: &Owner,
        name: &str,
        payload: &Payload,
    ) -> Result<FencedWrite, StoreError>;

    /// Reads all steps that were saved in this generation of the record, by whatever attempt, in no particular order;
    /// none where the record is not the owner's any more.
    async fn saved_steps(&self, owner: &Owner) -> Result<Option<Vec<SavedStep>>, StoreError>;
}

/// A step that was saved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedStep {
    /// Its name, unique in its record.
    pub name: String,
    /// What it came to.
    pub payload: Payload,
}
