//! Erasure of all records of a scope, and the names of operations, alike in every dialect.

use std::collections::BTreeSet;

use super::listing::ScopeText;
use super::{Backend, Readable, corrupt, unreadable};
use crate::error::{StoreError, StoreErrorKind};
use crate::key::{Operation, RecordId, hex};
use crate::record::{Observation, RecordState};
use crate::store::{Cursor, Erasure, ManualChange, Redacted, ScopeFilter};

/// Number of entries of the audit that one statement examines.
const ENTRIES: i64 = 10_000;

/// Deletes those of these records that nobody holds, and counts them in the audit, on a connection that is in a
/// transaction. Returns the ids of those that are gone.
pub(in crate::store) async fn erase_in(
    on: &impl Backend,
    records: &[Observation],
    erasure: &Erasure,
    change: &ManualChange,
) -> Result<Vec<RecordId>, StoreError> {
    let statements = on.statements().await?;
    let highest = records.iter().map(|it| it.fencing_token.number()).max();
    let mut gone: BTreeSet<_> = records.iter().map(|it| it.id).collect();
    let ids = json(gone.iter().copied());
    let locked = on.read(statements.lock_all.query().text(&*ids)).await?;
    let (mut free, mut found) = (BTreeSet::new(), 0);
    for row in &locked {
        found += 1;
        let id = record_id(&row.bytes(0).map_err(unreadable)?)?;
        let is_running = row.text(2).map_err(unreadable)? == RecordState::Running.as_str()
            && row.number(3).map_err(unreadable)? > 0;
        // The fencing floor was raised for the records as they were read.
        let was_read = Some(row.number(1).map_err(unreadable)?) <= highest;
        match was_read && !is_running {
            true => free.insert(id),
            false => gone.remove(&id),
        };
    }
    if found < records.len() {
        // The others do not exist, or somebody holds them.
        let held = on.read(statements.present.query().text(&*ids)).await?;
        for row in &held {
            let id = record_id(&row.bytes(0).map_err(unreadable)?)?;
            if !free.contains(&id) {
                gone.remove(&id);
            }
        }
    }
    if !free.is_empty() {
        let number = i64::try_from(free.len()).unwrap_or(i64::MAX);
        let ids = json(free);
        on.write(statements.erase_all.query().text(&*ids)).await?;
        count(on, number, erasure, change).await?;
    }
    Ok(gone.into_iter().collect())
}

/// Adds a number of erased records to the entry of the erasure, which the first batch writes.
async fn count(
    on: &impl Backend,
    number: i64,
    erasure: &Erasure,
    change: &ManualChange,
) -> Result<(), StoreError> {
    let statements = on.statements().await?;
    let id = erasure.audit_id();
    let [count, write] = [&statements.count_erased, &statements.write_erasure].map(|statement| {
        let query = statement.query().bytes(&id.as_bytes()[..]);
        query.number(erasure.number()).number(number)
    });
    if on.write(count).await? > 0 {
        return Ok(());
    }
    let write = write.text(change.actor()).text(change.reason());
    on.write(write).await.map(drop)
}

/// Ids as a JSON array, in order. Hexadecimal digits need no escapes.
fn json(ids: impl IntoIterator<Item = RecordId>) -> String {
    let ids = ids.into_iter().map(|id| hex::encode(id.as_bytes()));
    format!("[\"{}\"]", ids.collect::<Vec<_>>().join("\",\""))
}

fn record_id(bytes: &[u8]) -> Result<RecordId, StoreError> {
    let id = bytes.try_into().map_err(|_| corrupt("id"))?;
    Ok(RecordId::from_bytes(id))
}

/// Removes scope and key from the next entries of the audit that are on records of this scope.
pub(in crate::store) async fn redact_audit(
    backend: &impl Backend,
    scope: &ScopeFilter,
    after: Option<&Cursor>,
) -> Result<Redacted, StoreError> {
    let statements = backend.statements().await?;
    let after = match after {
        None => 0,
        Some(cursor) => cursor.as_str().parse::<i64>().map_err(|_| {
            StoreError::new(
                StoreErrorKind::Other,
                "this is no position in an audit of this store; begin again without one",
            )
        })?,
    };
    let rows = backend.read(statements.last_entry.query()).await?;
    let row = rows.first().ok_or_else(|| corrupt("entry"))?;
    let last = row.number(0).map_err(unreadable)?;
    let until = after.saturating_add(ENTRIES);
    let text = ScopeText::of(Some(scope));
    let query = statements.redact_entries.query().number(after);
    let entries = backend.write(text.bind(query.number(until))).await?;
    Ok(Redacted {
        entries,
        next: (until < last).then(|| Cursor::new(until.to_string())),
    })
}

pub(in crate::store) async fn note_operation(
    backend: &impl Backend,
    operation: &Operation,
) -> Result<(), StoreError> {
    let query = backend.statements().await?.note_operation.query();
    backend
        .write(query.text(operation.as_str()))
        .await
        .map(drop)
}

pub(in crate::store) async fn operations(
    backend: &impl Backend,
) -> Result<Vec<Operation>, StoreError> {
    let query = backend.statements().await?.operations.query();
    let rows = backend.read(query).await?;
    let names = rows.iter().filter_map(|row| row.text(0).ok());
    let names = names.filter_map(|name| Operation::new(name.to_owned()).ok());
    Ok(names.collect())
}

/// Implements `ErasureStore` and `OperationStore` for a SQL store, in the scope of the macro `store`.
macro_rules! erasure_store {
    ($store:ty) => {
        #[async_trait::async_trait]
        impl crate::store::ErasureStore for $store {
            async fn erase_all(
                &self,
                records: &[Observation],
                erasure: &crate::store::Erasure,
                change: &crate::store::ManualChange,
            ) -> Result<Vec<RecordId>, StoreError> {
                use crate::store::TransactionalStore as _;
                let Some(highest) = records.iter().map(|it| it.fencing_token).max() else {
                    return Ok(Vec::new());
                };
                SqlStore::before_erasing_all(self, highest).await?;
                let run = || async {
                    // An error drops the transaction, which rolls it back.
                    let mut transaction = self.begin_manual_change().await?;
                    let on = sql::InTransaction::new(self, &mut transaction);
                    let gone = sql::erase_in(&on, records, erasure, change).await?;
                    self.commit(transaction).await?;
                    Ok(gone)
                };
                sql::retry_transaction(run)
                    .await
                    .map_err(sql::name_the_user)
            }

            async fn redact_audit(
                &self,
                scope: &crate::store::ScopeFilter,
                after: Option<&crate::store::Cursor>,
            ) -> Result<crate::store::Redacted, StoreError> {
                sql::redact_audit(self, scope, after).await
            }
        }

        #[async_trait::async_trait]
        impl crate::store::OperationStore for $store {
            async fn note_operation(&self, operation: &Operation) -> Result<(), StoreError> {
                sql::note_operation(self, operation).await
            }

            async fn operations(&self) -> Result<Vec<Operation>, StoreError> {
                sql::operations(self).await
            }
        }
    };
}
pub(in crate::store) use erasure_store;
