//! Operations on records for operators: read, list, resolve and erase.

use super::{Engine, OperationName, ScopeErasure, TypedOperation};
use crate::codec::value::ValueCodec;
use crate::codec::{EncodeError, StoredValue};
use crate::error::{Error, InvalidCall, StoreError, StoreErrorKind};
use crate::key::{Identity, Operation, RecordId, Scope, ToKey, ToScope};
use crate::policy::Policy;
use crate::record::{Observation, Outcome, Payload, Record};
use crate::store::{
    Attempts, AuditAction, AuditEntry, AuditFilter, AuditPage, AuditStore, Filter, ListedRecord,
    ManualChange, Page, PageRequest, Purged, Resolution, Resolved, ScopeFilter,
};
use crate::timing::bounded;

/// The records of a handle's store. Created by [`Idem::records`](crate::Idem::records).
///
/// Reading takes nothing. Changing a record takes an actor and a reason, see [`by`](Self::by).
///
/// # Cancel safety
/// Dropping a future of these methods leaves its transition either done or not done.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use std::time::Duration;
/// use idem_runtime::record::RecordState;
/// use idem_runtime::store::ManualChange;
/// use idem_runtime::{Call, Error, Idem, MemoryStore, OnCrash, TypedOperation};
///
/// const POST: TypedOperation<u64> = TypedOperation::new("letters.post");
///
/// let idem = Idem::new(MemoryStore::new());
/// let call = || {
///     let ttl = Duration::from_secs(3600);
///     Call::new(POST, "order-1", &(), ttl).on_crash(OnCrash::Refuse)
/// };
/// // Nobody knows whether the letter was posted.
/// let jammed = idem.run(call(), async || Err::<u64, Box<dyn std::error::Error + Send + Sync>>("jammed".into()));
/// assert!(jammed.await.is_err());
///
/// let record = idem.records().find(POST.name(), "order-1").await?;
/// let record = record.ok_or("the record has expired")?;
/// assert_eq!(record.state, RecordState::Interrupted);
///
/// // An operator has found the letter: it has the number 7.
/// let change = ManualChange::new("ann", "found the letter at the post office")?;
/// idem.records().by(&change).complete(POST, &record.observation(), &7).await?;
/// assert_eq!(idem.run(call(), async || Ok::<u64, Error>(8)).await?, 7);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Records<'a>(&'a Engine);

impl<'a> Records<'a> {
    pub(super) fn new(engine: &'a Engine) -> Self {
        Self(engine)
    }

    /// Finds the record of a key: in the scope that the key [carries](crate::Key::scoped), or in none. None if there is no
    /// record, or if the record has expired.
    ///
    /// # Errors
    /// [`Error::InvalidKey`], [`Error::InvalidCall`], [`Error::Store`].
    pub async fn find(
        self,
        operation: &str,
        key: &(impl ToKey + ?Sized),
    ) -> Result<Option<Record>, Error> {
        self.find_scoped(operation, key, &Scope::none()).await
    }

    /// Finds the record of a key in this scope, as [`find`](Self::find) does. The scope is joined to the one that the key
    /// carries, as [`Call::scope`](crate::Call::scope) joins it.
    ///
    /// # Errors
    /// Those of [`find`](Self::find).
    pub async fn find_scoped(
        self,
        operation: &str,
        key: &(impl ToKey + ?Sized),
        scope: &(impl ToScope + ?Sized),
    ) -> Result<Option<Record>, Error> {
        let key = key.to_key()?;
        let identity = Identity {
            scope: key.scope().join(&scope.to_scope()?),
            operation: Operation::new(operation.to_owned()).map_err(|_| InvalidCall::Name)?,
            key,
        };
        self.get(&RecordId::of(&identity)).await
    }

    /// Finds a key of this scope in every operation whose name the store has noted, by one read for each: also the records
    /// that have expired and are not purged yet. The processes of a service note the name of an operation ten seconds after
    /// its first call; one that ends sooner calls [`note_operations`](Self::note_operations). No index is needed.
    ///
    /// To find a key in any scope, [list](Self::list) the records with [`Filter::key`].
    ///
    /// # Errors
    /// [`Error::InvalidKey`], and [`Error::Store`], also if the store does not note operations: all stores of this crate do.
    pub async fn find_in_all_operations(
        self,
        key: &(impl ToKey + ?Sized),
        scope: &(impl ToScope + ?Sized),
    ) -> Result<Vec<ListedRecord>, Error> {
        let key = key.to_key()?;
        let scope = key.scope().join(&scope.to_scope()?);
        let mut found = Vec::new();
        for operation in self.operations().await? {
            let id = RecordId::of(&Identity {
                scope: scope.clone(),
                operation,
                key: key.clone(),
            });
            let filter = Filter {
                id: Some(id),
                expired: true,
                ..Filter::default()
            };
            let page = self.list(&filter, &PageRequest::default()).await?;
            found.extend(page.records);
        }
        Ok(found)
    }

    /// Writes the names of the operations that this handle has called into the store now. Only a process that ends within ten
    /// seconds needs this: a longer one does so by itself.
    ///
    /// # Errors
    /// [`Error::Store`]. Does nothing if the store does not note operations.
    pub async fn note_operations(self) -> Result<(), Error> {
        let Some(store) = self.0.store.operations() else {
            return Ok(());
        };
        let limit = self.policy().store_timeout;
        Ok(self.0.operation_names.note_now(store, limit).await?)
    }

    /// Lists the names of the operations that the store has noted.
    ///
    /// # Errors
    /// [`Error::Store`], also if the store does not note operations: all stores of this crate do.
    pub async fn operations(self) -> Result<Vec<Operation>, Error> {
        let store = self.0.store.operations().ok_or_else(|| {
            StoreError::new(
                StoreErrorKind::Other,
                "this store does not note the names of operations; find a record by operation and key instead",
            )
        })?;
        let mut names = bounded(self.policy().store_timeout, store.operations()).await?;
        names.sort_unstable_by(|one, other| one.as_str().cmp(other.as_str()));
        Ok(names)
    }

    /// Reads the record with this id.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn get(self, id: &RecordId) -> Result<Option<Record>, Error> {
        Ok(bounded(self.policy().store_timeout, self.0.store.get(id)).await?)
    }

    /// Reads a record with its attempts: who made them, and how each of them ended. None if there is no record. The result
    /// is for operators: the labels of owners name hosts.
    ///
    /// # Errors
    /// [`Error::Store`], also if the store keeps no history of attempts: all stores of this crate do.
    pub async fn attempts(self, id: &RecordId) -> Result<Option<Attempts>, Error> {
        let store = self.0.store.attempts().ok_or_else(|| {
            StoreError::new(
                StoreErrorKind::Other,
                "this store keeps no history of attempts, read the record instead",
            )
        })?;
        Ok(bounded(self.policy().store_timeout, store.attempts(id)).await?)
    }

    /// Lists a page of the records that match the filter, without their results unless [`Filter::payloads`] asks for them.
    /// The result is for operators: the labels of owners name hosts.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn list(self, filter: &Filter, page: &PageRequest) -> Result<Page, Error> {
        let limit = self.policy().store_timeout;
        Ok(bounded(limit, self.0.store.list(filter, page)).await?)
    }

    /// Changes records manually. Each change writes who made it and why into the audit of the store, in the same
    /// transaction.
    pub fn by(self, change: &'a ManualChange) -> RecordChanges<'a> {
        RecordChanges {
            records: self,
            change,
        }
    }

    /// Reads a page of the audit of manual changes, the newest entries first.
    ///
    /// # Errors
    /// [`Error::Store`], also if the store keeps no audit: all stores of this crate do.
    pub async fn audit(self, filter: &AuditFilter, page: &PageRequest) -> Result<AuditPage, Error> {
        let limit = self.policy().store_timeout;
        Ok(bounded(limit, self.audit_store()?.audit(filter, page)).await?)
    }

    /// Returns the entry of the audit on the outcome of this record, if an operator set it: who set or last corrected it,
    /// when, and why. `None` if the owner of a claim set the outcome, or the answer of a reconciliation did, if the entry
    /// was deleted, or if the store keeps no audit.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn set_manually(self, record: &Record) -> Result<Option<AuditEntry>, Error> {
        if !record.was_resolved() || self.0.store.audit().is_none() {
            return Ok(None);
        }
        let filter = AuditFilter {
            id: Some(record.id),
            ..AuditFilter::default()
        };
        let mut page = PageRequest::default();
        loop {
            let read = self.audit(&filter, &page).await?;
            for entry in read.entries {
                let Some(before) = entry.record() else {
                    continue;
                };
                // Entries on what came after this record.
                if before.fencing_token >= record.fencing_token {
                    continue;
                }
                // The others are on this attempt of this generation, or on an earlier one: an ended record has no further
                // attempt.
                if entry.at < record.first_claimed_at
                    || before.attempt != record.attempt
                    || entry.action == AuditAction::Erased
                {
                    return Ok(None);
                }
                if entry.action.sets_outcome() {
                    return Ok(Some(entry));
                }
            }
            match read.next {
                Some(next) => page.after = Some(next),
                None => return Ok(None),
            }
        }
    }

    fn audit_store(self) -> Result<&'a dyn AuditStore, StoreError> {
        self.0.store.audit().ok_or_else(|| {
            StoreError::new(
                StoreErrorKind::Other,
                "this store keeps no audit, so its records cannot be changed manually: use a store that implements \
                 `AuditStore`",
            )
        })
    }

    fn encode<T>(self, value: &T, encoding: ValueCodec<T>) -> Result<Payload, Error> {
        let policy = self.policy();
        (encoding.encode)(value, policy.codec, policy.max_result_bytes).map_err(|error| match error
        {
            EncodeError::TooLarge { .. } => {
                StoreError::new(StoreErrorKind::Full, error.to_string()).into()
            }
            EncodeError::Inexact(_)
            | EncodeError::MemberMissing(_)
            | EncodeError::Codec(_)
            | EncodeError::Panicked => StoreError::new(
                StoreErrorKind::Other,
                "the value cannot be stored, nothing was changed",
            )
            .with_source(error)
            .into(),
        })
    }

    fn policy(self) -> &'a Policy {
        &self.0.policy
    }
}

/// Manual changes of records, with actor and reason. Created by [`Records::by`].
///
/// Every method on one record takes an [`Observation`] ([`Record::observation`]), as an optimistic lock. The change takes effect only if
/// the record is still exactly as it was observed, and returns [`Resolved::Stale`] otherwise. An operator who decides on an
/// hour-old view therefore cannot undo later changes. The change and its entry in the audit take effect together, or
/// neither does: a stale change writes no entry.
///
/// # Cancel safety
/// Dropping a future of these methods leaves its change, with its entry, either done or not done.
#[derive(Debug, Clone, Copy)]
pub struct RecordChanges<'a> {
    records: Records<'a>,
    change: &'a ManualChange,
}

impl<'a> RecordChanges<'a> {
    /// Completes an interrupted or lapsed record of this operation with this value: the work was done, and replays return
    /// the value.
    ///
    /// # Errors
    /// [`InvalidCall::OtherOperation`] if the record is one of another operation, and [`Error::Store`], also if the value
    /// cannot be encoded exactly or is over the limit. Nothing is changed then.
    pub async fn complete<T: StoredValue, E: ?Sized>(
        self,
        operation: TypedOperation<T, E>,
        observed: &Observation,
        value: &T,
    ) -> Result<Resolved, Error> {
        let outcome = self.completed(operation, value)?;
        self.of_operation(operation.name(), observed, Resolution::Complete(outcome))
            .await
    }

    /// Completes an interrupted or lapsed record of this operation with this error: the work failed for good, and replays
    /// return the error. Only an operation whose type names the error has this method: a function with `replay_err`.
    ///
    /// # Errors
    /// As for [`complete`](Self::complete).
    pub async fn fail<T, E: StoredValue>(
        self,
        operation: TypedOperation<T, E>,
        observed: &Observation,
        error: &E,
    ) -> Result<Resolved, Error> {
        let outcome = self.failed(error)?;
        self.of_operation(operation.name(), observed, Resolution::Complete(outcome))
            .await
    }

    /// Replaces an outcome that was [set manually](Records::set_manually) by this value. The retention of the record does not
    /// begin again. Calls that were answered before had the old outcome.
    ///
    /// # Errors
    /// [`InvalidCall::NotSetManually`] if no operator set the outcome, and those of [`complete`](Self::complete). Nothing is
    /// changed then.
    pub async fn correct<T: StoredValue, E: ?Sized>(
        self,
        operation: TypedOperation<T, E>,
        observed: &Observation,
        value: &T,
    ) -> Result<Resolved, Error> {
        let outcome = self.completed(operation, value)?;
        self.of_operation(operation.name(), observed, Resolution::Correct(outcome))
            .await
    }

    /// Replaces an outcome that was set manually by this error, as [`correct`](Self::correct) does by a value.
    ///
    /// # Errors
    /// As for [`correct`](Self::correct).
    pub async fn correct_to_error<T, E: StoredValue>(
        self,
        operation: TypedOperation<T, E>,
        observed: &Observation,
        error: &E,
    ) -> Result<Resolved, Error> {
        let outcome = self.failed(error)?;
        self.of_operation(operation.name(), observed, Resolution::Correct(outcome))
            .await
    }

    fn completed<T: StoredValue, E: ?Sized>(
        self,
        operation: TypedOperation<T, E>,
        value: &T,
    ) -> Result<Outcome, Error> {
        let values = operation.values().unwrap_or(ValueCodec::stored());
        Ok(Outcome::Completed(self.records.encode(value, values)?))
    }

    fn failed<E: StoredValue>(self, error: &E) -> Result<Outcome, Error> {
        let errors = ValueCodec::stored();
        Ok(Outcome::Failed(self.records.encode(error, errors)?))
    }

    /// Resolves a record of this operation. The operation of an id never changes, so reading it first is no race.
    async fn of_operation(
        self,
        operation: &'static str,
        observed: &Observation,
        resolution: Resolution,
    ) -> Result<Resolved, Error> {
        let Some(record) = self.records.get(&observed.id).await? else {
            return Ok(Resolved::Stale);
        };
        let found = record.identity.operation.as_str();
        if found != operation {
            return Err(InvalidCall::OtherOperation {
                expected: operation,
                found: found.to_owned(),
            }
            .into());
        }
        self.resolve(observed, resolution).await
    }

    /// Releases an interrupted or lapsed record: the work was not done, and the next call runs the body.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn release(self, observed: &Observation) -> Result<Resolved, Error> {
        self.resolve(observed, Resolution::Release).await
    }

    /// Deletes a record, as if its key had never been used. Refused ([`Resolved::Stale`]) while its owner's lease is
    /// valid.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn erase(self, observed: &Observation) -> Result<Resolved, Error> {
        self.resolve(observed, Resolution::Erase).await
    }

    /// Deletes one batch of expired records, up to this many, and marks those that nobody can continue. For the last batch,
    /// [`Purged::more`] is false. The audit gets one entry for each batch that changed something. A
    /// [`Purger`](crate::Purger) is not a manual change and writes none.
    ///
    /// The store's clock decides what has expired. Unlike a [`Purger`](crate::Purger), this method follows a clock that has
    /// jumped forward.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn purge(self, limit: u32) -> Result<Purged, Error> {
        let store = self.records.audit_store()?;
        let purged = store.purge_manually(limit, self.change);
        Ok(bounded(self.records.policy().store_timeout, purged).await?)
    }

    /// Erases everything that is kept about a scope: see [`ScopeErasure`]. Nothing is done before its first batch.
    ///
    /// # Errors
    /// [`Error::Store`] if every scope is meant, or if the store cannot erase scopes: all stores of this crate can, except
    /// [`Moving`](crate::Moving), whose two stores are erased one by one.
    pub fn erase_scope(self, scope: ScopeFilter) -> Result<ScopeErasure<'a>, Error> {
        let store = self.records.0.store.erasure().ok_or_else(|| {
            StoreError::new(
                StoreErrorKind::Other,
                "this store cannot erase a scope; list its records and erase them one by one",
            )
        })?;
        ScopeErasure::new(self.records.0, store, self.change, scope)
    }

    /// Resolves a record, with an outcome that is encoded already. For programs that do not know the types of operations: a
    /// value of another type makes later calls fail with [`Error::Decode`]. [`Records::stored_form`] finds most of them.
    ///
    /// # Errors
    /// [`Error::Store`], and [`InvalidCall::NotSetManually`] for a correction of an outcome that no operator set.
    pub async fn resolve(
        self,
        observed: &Observation,
        resolution: Resolution,
    ) -> Result<Resolved, Error> {
        if matches!(resolution, Resolution::Correct(_)) {
            let record = self.records.get(&observed.id).await?;
            // The outcome of an observation never changes, so reading who set it first is no race.
            let Some(record) = record.filter(|it| it.observation() == *observed) else {
                return Ok(Resolved::Stale);
            };
            if self.records.set_manually(&record).await?.is_none() {
                return Err(InvalidCall::NotSetManually.into());
            }
        }
        let store = self.records.audit_store()?;
        let resolved = store.resolve_manually(observed, &resolution, self.change);
        Ok(bounded(self.records.policy().store_timeout, resolved).await?)
    }
}
