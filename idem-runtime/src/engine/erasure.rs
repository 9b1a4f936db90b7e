//! Erasure of all records of a scope, in batches.

use super::Engine;
use crate::error::{Error, StoreError, StoreErrorKind};
use crate::key::RecordId;
use crate::random;
use crate::record::Observation;
use crate::store::{
    Cursor, Erasure, ErasureStore, Filter, ManualChange, PageRequest, ScopeFilter, Unreadable,
};
use crate::timing::bounded;

/// Erasure of everything that is kept about a scope. Created by
/// [`RecordChanges::erase_scope`](super::RecordChanges::erase_scope).
///
/// It deletes the records of the scope in all states, expired ones too, each with its result, steps, attempts and recovery
/// input. Then it removes scope and key from the entries of the audit on these records. The audit gets one entry for the
/// erasure, with a number of records and an [id](crate::Scope::audit_id) in place of the scope.
///
/// A record that is RUNNING with a valid lease stays, because its body may be at work. Erase the scope again after its lease.
/// A record whose call begins meanwhile may be missed, too.
///
/// Without the [optional index](crate::operator::OptionalIndex::Scope) of scopes, an erasure reads all records of the store.
///
/// # Cancel safety
/// A batch whose future is dropped was erased or not, and its entry in the audit counts it if it was. Go on with the next
/// batch, or begin again: what is gone is not found again.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use idem_runtime::store::{ManualChange, ScopeFilter};
/// use idem_runtime::{Idem, MemoryStore, Scope};
///
/// let idem = Idem::new(MemoryStore::new());
/// let change = ManualChange::new("ann", "request 17 of the customer")?;
/// let customer = ScopeFilter::Within(Scope::new("customer-17")?);
/// let mut erasure = idem.records().by(&change).erase_scope(customer)?;
/// while erasure.next_batch(1_000).await? {}
/// assert_eq!(erasure.progress().running_count, 0);
/// # Ok(())
/// # }
/// ```
pub struct ScopeErasure<'a> {
    engine: &'a Engine,
    store: &'a dyn ErasureStore,
    change: &'a ManualChange,
    erasure: Erasure,
    stage: Stage,
    progress: ErasedScope,
}

#[derive(Debug)]
enum Stage {
    Records(Option<Cursor>),
    Audit(Option<Cursor>),
    Ended,
}

/// Progress of an erasure.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ErasedScope {
    /// Number of records that were deleted.
    pub erased: u64,
    /// Number of records that stay, because their owners may be at work.
    pub running_count: u64,
    /// Ids of those records, the first [`MAX_NAMED`](Self::MAX_NAMED).
    pub running: Vec<RecordId>,
    /// Records that cannot be read, of any scope, the first [`MAX_NAMED`](Self::MAX_NAMED). They stay.
    pub unreadable: Vec<Unreadable>,
    /// Number of entries of the audit from which scope and key were removed.
    pub audit_entries: u64,
}

impl std::fmt::Debug for ScopeErasure<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ScopeErasure")
            .field("scope", &self.erasure.scope)
            .field("progress", &self.progress)
            .finish_non_exhaustive()
    }
}

impl ErasedScope {
    /// Number of records that are named.
    pub const MAX_NAMED: usize = 100;
}

impl<'a> ScopeErasure<'a> {
    pub(super) fn new(
        engine: &'a Engine,
        store: &'a dyn ErasureStore,
        change: &'a ManualChange,
        scope: ScopeFilter,
    ) -> Result<Self, Error> {
        if scope.selects_all() {
            return Err(StoreError::new(
                StoreErrorKind::Other,
                "an erasure of every scope would delete all records; name a scope",
            )
            .into());
        }
        Ok(Self {
            engine,
            store,
            change,
            erasure: Erasure::new(scope, random::number()),
            stage: Stage::Records(None),
            progress: ErasedScope::default(),
        })
    }

    /// Erases the next batch, of up to this many records. Returns false if nothing is left to do.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn next_batch(&mut self, limit: u32) -> Result<bool, Error> {
        match &self.stage {
            Stage::Records(after) => {
                let after = after.clone();
                let next = self.erase_page(after, limit).await?;
                self.stage = match next {
                    Some(next) => Stage::Records(Some(next)),
                    None => Stage::Audit(None),
                };
            }
            Stage::Audit(after) => {
                let redacted = self.store.redact_audit(&self.erasure.scope, after.as_ref());
                let redacted = bounded(self.engine.policy.store_timeout, redacted).await?;
                self.progress.audit_entries += redacted.entries;
                self.stage = match redacted.next {
                    Some(next) => Stage::Audit(Some(next)),
                    None => Stage::Ended,
                };
            }
            Stage::Ended => {}
        }
        Ok(!matches!(self.stage, Stage::Ended))
    }

    /// Number of records that were deleted so far, and those that stay.
    pub fn progress(&self) -> &ErasedScope {
        &self.progress
    }

    async fn erase_page(
        &mut self,
        after: Option<Cursor>,
        limit: u32,
    ) -> Result<Option<Cursor>, Error> {
        let filter = Filter {
            scope: Some(self.erasure.scope.clone()),
            expired: true,
            ..Filter::default()
        };
        let request = PageRequest { limit, after };
        let page = self.engine.store.list(&filter, &request);
        let page = bounded(self.engine.policy.store_timeout, page).await?;
        let mut running = Vec::new();
        let mut free: Vec<Observation> = Vec::new();
        for listed in &page.records {
            match listed.record.has_live_owner() {
                true => running.push(listed.record.id),
                false => free.push(listed.record.observation()),
            }
        }
        if !free.is_empty() {
            let erased = self.store.erase_all(&free, &self.erasure, self.change);
            let erased = bounded(self.engine.policy.store_timeout, erased).await?;
            let gone: std::collections::BTreeSet<_> = erased.into_iter().collect();
            self.progress.erased += gone.len() as u64;
            let kept = free.iter().map(|it| it.id);
            running.extend(kept.filter(|id| !gone.contains(id)));
        }
        let progress = &mut self.progress;
        progress.running_count += running.len() as u64;
        progress.running.extend(running);
        progress.running.truncate(ErasedScope::MAX_NAMED);
        progress.unreadable.extend(page.unreadable);
        progress.unreadable.truncate(ErasedScope::MAX_NAMED);
        Ok(page.next)
    }
}
