//! What a record may be, as far as its answers tell.

use std::hash::{Hash, Hasher};
use std::time::Duration;

use idem_store::record::Timestamp;

use crate::reference::Cell;

/// Limits of the store's clock during a request. A store with an uncertain clock decides by a time within these limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Earliest time.
    pub from: Timestamp,
    /// Latest time.
    pub to: Timestamp,
    /// How much later the time may be that the store writes, see [`Store::time_uncertainty`](idem_store::Store).
    pub uncertainty: Duration,
}

/// Possible states of a record that differ in times and fencing tokens only, by their earliest and their latest one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Possible {
    pub(crate) early: Cell,
    pub(crate) late: Cell,
}

impl Hash for Possible {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        for cell in [&self.early, &self.late] {
            let Some(record) = &cell.record else { continue };
            (record.state, record.claim_id, record.attempt).hash(hasher);
            (record.fencing_token, record.lease_until, record.ended_at).hash(hasher);
        }
    }
}
