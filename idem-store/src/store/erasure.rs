//! Optional store trait: erases what is kept about a scope.

use async_trait::async_trait;

use crate::error::StoreError;
use crate::key::RecordId;
use crate::record::Observation;
use crate::store::{Cursor, ManualChange, ScopeFilter};

/// Store that erases all records of a scope, and the scope from its audit.
///
/// A caller lists the records of the scope with [`Filter::expired`](crate::store::Filter::expired), and erases them page by
/// page. Then it redacts the audit. Whatever was cut off is finished by doing the same again.
///
/// # Contract
///
/// Erasing differs from [`Resolution::Erase`](crate::store::Resolution::Erase) in that it also deletes expired records, and
/// records that have changed since they were read. A record that is RUNNING with a valid lease stays, and so does one
/// that an open transaction holds: neither is waited for.
///
/// The audit gets **one entry for each erasure**, with the number of records erased so far. A store with transactions
/// writes it together with each batch. A store without them writes it before the first batch.
#[async_trait]
pub trait ErasureStore: Send + Sync {
    /// Deletes these records, with their steps, attempts and recovery inputs. Returns the ids of those that are gone
    /// afterwards, of which some may have been absent before.
    ///
    /// After an error, the batch may have been erased or not, in a store without transactions also in part.
    async fn erase_all(
        &self,
        records: &[Observation],
        erasure: &Erasure,
        change: &ManualChange,
    ) -> Result<Vec<RecordId>, StoreError>;

    /// Removes scope, key and hashes of values from the entries of the audit on records of this scope, in one bounded batch.
    /// The id of the record stays. Entries on records that are still there lose them, too.
    async fn redact_audit(
        &self,
        scope: &ScopeFilter,
        after: Option<&Cursor>,
    ) -> Result<Redacted, StoreError>;
}

/// One erasure, for all of its batches.
#[derive(Debug, Clone)]
pub struct Erasure {
    /// Scope that is erased.
    pub scope: ScopeFilter,
    /// Random number by which the batches of one erasure find their entry in the audit.
    number: i64,
}

impl Erasure {
    /// Begins an erasure with a random number, of which the sign is dropped.
    pub fn new(scope: ScopeFilter, random: u64) -> Self {
        Self {
            scope,
            number: (random >> 1).cast_signed(),
        }
    }

    /// Number by which the batches find their entry.
    pub const fn number(&self) -> i64 {
        self.number
    }

    /// Id under which the audit has the erasure, in place of the scope.
    pub fn audit_id(&self) -> RecordId {
        self.scope.scope().audit_id()
    }
}

/// Result of redacting one batch of the audit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Redacted {
    /// Number of entries that had scope and key.
    pub entries: u64,
    /// Start of the next batch; `None` after the last one.
    pub next: Option<Cursor>,
}
