//! Audit of manual changes, alike in every dialect.

use super::transitions::{get, resolve};
use super::{Backend, Readable, corrupt, identity, random_pause, retry, unreadable};
use crate::error::{StoreError, StoreErrorKind};
use crate::key::RecordId;
use crate::record::{FencingToken, Observation, Outcome, RecordState, Timestamp, micros};
#[cfg(any(feature = "postgres", feature = "mysql"))]
use crate::store::operator::Finding;
use crate::store::{
    AuditAction, AuditEntry, AuditFilter, AuditPage, AuditSubject, AuditedRecord, Cursor,
    ManualChange, PageRequest, Purged, Resolution, Resolved, Unreadable, ValueHash,
};

/// Resolves a record and writes the entry of the audit, on a connection that is in a transaction. After `Stale` or an
/// error, the caller rolls the transaction back.
pub(in crate::store) async fn resolve_manually(
    backend: &impl Backend,
    observed: &Observation,
    resolution: &Resolution,
    change: &ManualChange,
) -> Result<Resolved, StoreError> {
    // The entry is written only if the record is still as observed. It has this content then, because no record ends twice
    // with one fencing token.
    let old_value = match resolution {
        Resolution::Correct(_) => {
            let record = get(backend, &observed.id).await?;
            record.and_then(|it| Some(ValueHash::of(it.payload.as_ref()?)))
        }
        _ => None,
    };
    let new_value = resolution.outcome().and_then(Outcome::payload);
    let new_value = new_value.map(ValueHash::of);
    let query = backend
        .statements()
        .await?
        .write_entry
        .query()
        .observation(observed)
        .text(change.actor())
        .text(change.reason())
        .text(AuditAction::of(resolution).as_str())
        .bytes(old_value.as_ref().map(|it| &it.as_bytes()[..]))
        .bytes(new_value.as_ref().map(|it| &it.as_bytes()[..]));
    if backend.write(query).await? == 0 {
        return Ok(Resolved::Stale);
    }
    resolve(backend, observed, resolution).await
}

/// Writes the entry of a purge, on the connection and in the transaction of the purge.
pub(in crate::store) async fn write_purge(
    backend: &impl Backend,
    purged: &Purged,
    change: &ManualChange,
) -> Result<(), StoreError> {
    let count = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let query = backend
        .statements()
        .await?
        .write_purge
        .query()
        .text(change.actor())
        .text(change.reason())
        .text(AuditAction::Purged.as_str())
        .number(count(purged.removed))
        .number(count(purged.abandoned))
        .number(count(purged.interrupted));
    backend.write(query).await.map(drop)
}

/// Finding about the rights on the audit. A service does without them, unless operators use its user.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(in crate::store) fn manual_changes(missing: &[String]) -> Finding {
    const CHECK: &str = "manual changes";
    if missing.is_empty() {
        return Finding::ok(CHECK, "the user may write and read the audit");
    }
    Finding::warning(
        CHECK,
        format!(
            "the user has not the right to {}, so a manual change fails. Calls need no right on the audit",
            missing.join(", ")
        ),
        "GRANT these privileges to the user with whom operators connect",
    )
}

/// Names the user that a manual change needs, if this one lacks a privilege.
pub(in crate::store) fn name_the_user(error: StoreError) -> StoreError {
    #[cfg(any(feature = "postgres", feature = "mysql"))]
    if error.to_string() == super::LACKS_PRIVILEGE {
        const MESSAGE: &str = "this user may not change records manually; connect as the user of operators, whose privileges \
             the book lists";
        return StoreError::new(StoreErrorKind::Denied, MESSAGE).with_source(error);
    }
    error
}

/// Reads a page of the audit.
pub(in crate::store) async fn audit<B: Backend>(
    backend: &B,
    filter: &AuditFilter,
    page: &PageRequest,
) -> Result<AuditPage, StoreError> {
    let limit = page.limit.max(1) as usize;
    let before = match &page.after {
        None => i64::MAX,
        Some(cursor) => cursor.as_str().parse().map_err(|_| foreign_cursor())?,
    };
    let id = filter.id.as_ref().map(|id| &id.as_bytes()[..]);
    let query = backend
        .statements()
        .await?
        .audit
        .query()
        .number(before)
        .bytes(id)
        .text(filter.actor.as_deref())
        .number(filter.within.map(micros))
        .number(limit as i64 + 1);
    let rows = backend.read(query).await?;
    let numbers = rows.iter().take(limit).map(|row| {
        let number = row.number(0).map_err(unreadable)?;
        Ok::<_, StoreError>(number.to_string())
    });
    let numbers = numbers.collect::<Result<Vec<_>, _>>()?;
    let last = numbers.last().filter(|_| rows.len() > limit);
    let next = last.map(|number| Cursor::new(number.as_str()));
    let (entries, unreadable) = Unreadable::sort(numbers.into_iter().zip(rows.iter().map(entry)))?;
    Ok(AuditPage {
        entries,
        unreadable,
        next,
    })
}

fn entry<R: Readable>(row: &R) -> Result<AuditEntry, StoreError> {
    let text = |column| row.text(column).map_err(unreadable);
    let number = |column| row.number(column).map_err(unreadable);
    let action = AuditAction::from_stored(text(4)?).ok_or_else(|| corrupt("action"))?;
    let count = |column| u64::try_from(number(column)?).map_err(|_| corrupt("count"));
    let id = || {
        let id = row.bytes(5).map_err(unreadable)?;
        let id = id.as_ref().try_into().map_err(|_| corrupt("id"))?;
        Ok::<_, StoreError>(RecordId::from_bytes(id))
    };
    let hash = |column| {
        let hash = row.bytes_or_null(column).map_err(unreadable)?;
        let hash = hash.map(|it| it.as_ref().try_into().map_err(|_| corrupt("hash")));
        Ok::<_, StoreError>(hash.transpose()?.map(ValueHash::from_bytes))
    };
    let subject = if action == AuditAction::Purged {
        AuditSubject::Purge {
            removed: count(12)?,
            abandoned: count(13)?,
            interrupted: count(14)?,
        }
    } else if action == AuditAction::ErasedScope {
        AuditSubject::Scope {
            id: id()?,
            number: number(10)?,
            erased: count(12)?,
        }
    } else {
        let id = id()?;
        // Both were removed if the scope was erased.
        let [scope, key] = [6, 8].map(|column| row.text_or_null(column).map_err(unreadable));
        let identity = match (scope?, key?) {
            (None, None) => None,
            (scope, key) => {
                let [scope, key] = [scope, key].map(Option::unwrap_or_default);
                Some(identity(&id, scope, text(7)?, key)?)
            }
        };
        AuditSubject::Record(AuditedRecord {
            identity,
            id,
            state: RecordState::from_stored(text(9)?).ok_or_else(|| corrupt("state"))?,
            fencing_token: FencingToken::from_number(number(10)?),
            attempt: number(11)?.try_into().map_err(|_| corrupt("attempt"))?,
            old_value: hash(15)?,
            new_value: hash(16)?,
        })
    };
    Ok(AuditEntry {
        at: Timestamp::from_micros(number(1)?),
        change: ManualChange::new(text(2)?, text(3)?).map_err(|_| corrupt("reason"))?,
        user: row.text_or_null(17).map_err(unreadable)?.map(Into::into),
        action,
        subject,
    })
}

fn foreign_cursor() -> StoreError {
    StoreError::new(
        StoreErrorKind::Other,
        "this is no position in an audit of this store, begin again without one",
    )
}

/// Runs a transaction again that was rolled back because of a conflict.
pub(in crate::store) async fn retry_transaction<T, F>(
    run: impl FnMut() -> F,
) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    const TRIES: u32 = 20;
    let is_undone = |error: &StoreError| error.kind() == StoreErrorKind::Conflict;
    retry(TRIES, is_undone, random_pause, run).await
}

/// Implements [`AuditStore`](crate::store::AuditStore) for a SQL store, in the scope of the macro `store`.
macro_rules! audit_store {
    ($store:ty) => {
        #[async_trait::async_trait]
        impl crate::store::AuditStore for $store {
            async fn resolve_manually(
                &self,
                observed: &Observation,
                resolution: &Resolution,
                change: &crate::store::ManualChange,
            ) -> Result<Resolved, StoreError> {
                use crate::store::TransactionalStore as _;
                if *resolution == Resolution::Erase
                    && SqlStore::before_erasing(self, observed)
                        .await
                        .map_err(sql::name_the_user)?
                        == Resolved::Stale
                {
                    return Ok(Resolved::Stale);
                }
                let run = || async {
                    // An error drops the transaction, which rolls it back.
                    let mut transaction = self.begin_manual_change().await?;
                    let on = sql::InTransaction::new(self, &mut transaction);
                    let resolved = sql::resolve_manually(&on, observed, resolution, change).await?;
                    match resolved {
                        Resolved::Done => self.commit(transaction).await?,
                        Resolved::Stale => self.rollback(transaction).await?,
                    }
                    Ok(resolved)
                };
                sql::retry_transaction(run)
                    .await
                    .map_err(sql::name_the_user)
            }

            async fn purge_manually(
                &self,
                limit: u32,
                change: &crate::store::ManualChange,
            ) -> Result<Purged, StoreError> {
                use crate::store::TransactionalStore as _;
                let due = self.due_for_purge(limit).await;
                let due = &due.map_err(sql::name_the_user)?;
                let run = || async move {
                    // An error drops the transaction, which rolls it back.
                    let mut transaction = self.begin_manual_change().await?;
                    let on = sql::InTransaction::new(self, &mut transaction);
                    let purged = Self::purge_in(&on, due).await?;
                    if !purged.is_nothing() {
                        sql::write_purge(&on, &purged, change).await?;
                    }
                    // Also if nothing was deleted: records may have been queued again.
                    self.commit(transaction).await?;
                    Ok(purged)
                };
                sql::retry_transaction(run)
                    .await
                    .map_err(sql::name_the_user)
            }

            async fn audit(
                &self,
                filter: &crate::store::AuditFilter,
                page: &PageRequest,
            ) -> Result<crate::store::AuditPage, StoreError> {
                sql::audit(self, filter, page).await
            }
        }
    };
}
pub(in crate::store) use audit_store;
