//! Optional store trait: transitions that need no waiting.

use super::{ClaimOutcome, ClaimRequest, FencedWrite, Store};
use crate::error::StoreError;
use crate::record::{Outcome, Owner};

/// [`Store`] that claims and settles without waiting, as a store in memory does. The engine then needs no future for a
/// transition, which nothing can drop half way.
///
/// # Contract
///
/// Each method is the transition of [`Store`] that its name begins with. After an error the engine repeats it by the method
/// of [`Store`].
pub trait ImmediateStore: Store {
    /// [`Store::claim`].
    ///
    /// # Errors
    /// Those of that method.
    fn claim_now(&self, claim: &ClaimRequest) -> Result<ClaimOutcome, StoreError>;

    /// [`Store::complete`].
    ///
    /// # Errors
    /// Those of that method.
    fn complete_now(&self, owner: &Owner, outcome: &Outcome) -> Result<FencedWrite, StoreError>;

    /// [`Store::release`].
    ///
    /// # Errors
    /// Those of that method.
    fn release_now(&self, owner: &Owner) -> Result<FencedWrite, StoreError>;

    /// [`Store::interrupt`].
    ///
    /// # Errors
    /// Those of that method.
    fn interrupt_now(&self, owner: &Owner) -> Result<FencedWrite, StoreError>;
}
