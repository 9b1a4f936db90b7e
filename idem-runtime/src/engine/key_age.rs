//! Keys that say when they were made: a UUID of version 7.
//!
//! The record of a key shows that the key was used. Without a record, its age can show that it may have been used: it is
//! older than records are kept ([`Call::refuse_old_keys`](super::Call::refuse_old_keys)), or older than the restore of a
//! store that lost records ([`restored_at`](super::IdemBuilder::restored_at)).
//!
//! The time in a key is that of its maker's clock. It is compared with the store's clock. This is the one exception to the
//! rule that times of different clocks are not compared, so both features are off by default. The clock of this process
//! only says which keys are worth the reads.

use std::time::{Duration, SystemTime};

use crate::key::Key;
use crate::record::Timestamp;

/// The latest time at which a record may have been claimed first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FirstClaimBy {
    /// Last time at which an issued key is valid.
    Issued(Timestamp),
    /// Time from which a key that was made by then is too old.
    Made(Timestamp),
}

impl FirstClaimBy {
    /// Time from which a key is older than the retention and this slack. None if the key does not say when it was made.
    pub(super) fn made(key: &Key, retention: Duration, slack: Duration) -> Option<Self> {
        let made_at = Timestamp::from(key.made_at()?);
        Some(Self::Made(made_at.after(retention).after(slack)))
    }
}

/// Restore of a store that lost records: the time until which calls used the lost one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RestoredAt {
    pub(super) at: Timestamp,
    /// True for all keys, also for those that do not say when they were made, or were made later.
    pub(super) is_for_all_keys: bool,
}

impl RestoredAt {
    fn concerns(&self, key: &Key) -> bool {
        self.is_for_all_keys
            || key
                .made_at()
                .is_some_and(|made_at| Timestamp::from(made_at) < self.at)
    }
}

/// Checks before the first claim of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KeyChecks {
    /// Time from which the key is too old.
    pub(super) too_old_from: Option<Timestamp>,
    /// Time until which the restored store may lack the record of the key.
    pub(super) lacks_until: Option<Timestamp>,
}

impl KeyChecks {
    /// Checks for this key. None for a key that need not be checked.
    pub(super) fn of(
        key: &Key,
        retention: Duration,
        first_claim_by: Option<FirstClaimBy>,
        restored_at: Option<RestoredAt>,
    ) -> Option<Self> {
        let restored = restored_at.filter(|it| it.concerns(key));
        let too_old_from = match first_claim_by {
            Some(FirstClaimBy::Made(from)) if from <= SystemTime::now().into() => Some(from),
            _ => None,
        };
        let checks = Self {
            too_old_from,
            lacks_until: restored.map(|it| it.at.after(retention)),
        };
        (too_old_from.is_some() || restored.is_some()).then_some(checks)
    }
}
