//! Erasure of all records of a scope, and the names of operations.

use async_trait::async_trait;
use redis::Value;
use tokio::task::JoinSet;

use super::scripts::{self, ScriptCall};
use super::{MAX_CONCURRENT, RedisStore, errors};
use crate::error::{StoreError, StoreErrorKind};
use crate::key::{Operation, RecordId};
use crate::record::Observation;
use crate::store::{
    Cursor, Erasure, ErasureStore, ManualChange, OperationStore, Redacted, ScopeFilter,
};

impl RedisStore {
    /// Adds to the number of an erasure's entry in the audit, or writes the entry.
    async fn note_erasure(
        &self,
        erasure: &Erasure,
        change: &ManualChange,
        erased: usize,
        user: &str,
    ) -> Result<(), StoreError> {
        let key = self.audit_key(&erasure.audit_id());
        let call = ScriptCall::new(&scripts::NOTE_ERASURE, &key)
            .text(change.actor())
            .text(change.reason())
            .text(&erasure.number().to_string())
            .text(&erased.to_string())
            .text(user);
        self.write(&call).await.map(drop)
    }

    /// Erases one record. Returns true if this deleted it, false if it was absent, and `None` if its owner is alive.
    async fn erase_one(&self, id: &RecordId) -> Result<Option<bool>, StoreError> {
        self.first_claims.forget(id);
        let key = self.key(id);
        let call = ScriptCall::new(&scripts::ERASE_SCOPE, &key);
        match self.write(&call).await? {
            Value::BulkString(word) => match word.as_slice() {
                b"erased" => Ok(Some(true)),
                b"absent" => Ok(Some(false)),
                b"running" => Ok(None),
                _ => Err(errors::unreadable()),
            },
            _ => Err(errors::unreadable()),
        }
    }

    /// Key of the set with the names of operations.
    fn operations_key(&self) -> Vec<u8> {
        format!("{}operations", self.prefix).into_bytes()
    }
}

#[async_trait]
impl ErasureStore for RedisStore {
    /// One script for each record. The entry of the audit is written before them, and its number after them.
    async fn erase_all(
        &self,
        records: &[Observation],
        erasure: &Erasure,
        change: &ManualChange,
    ) -> Result<Vec<RecordId>, StoreError> {
        if records.is_empty() {
            return Ok(Vec::new());
        }
        let user = self.user_detail().await?;
        self.note_erasure(erasure, change, 0, &user).await?;
        let (mut gone, mut erased, mut failed) = (Vec::new(), 0, None);
        for batch in records.chunks(MAX_CONCURRENT) {
            let mut erasing = JoinSet::new();
            for observed in batch {
                let (store, id) = (self.clone(), observed.id);
                erasing.spawn(async move { (id, store.erase_one(&id).await) });
            }
            while let Some(done) = erasing.join_next().await {
                let (id, done) = done.map_err(errors::task_failed)?;
                match done {
                    Ok(Some(deleted)) => {
                        erased += usize::from(deleted);
                        gone.push(id);
                    }
                    Ok(None) => {}
                    // A record that was changed by hand must not keep the others from being erased. Listings name it.
                    Err(error) if error.kind() == StoreErrorKind::Corrupt => {}
                    Err(error) => failed = Some(error),
                }
            }
            if failed.is_some() {
                break;
            }
        }
        if erased > 0 {
            self.note_erasure(erasure, change, erased, &user).await?;
        }
        match failed {
            Some(error) => Err(error),
            None => Ok(gone),
        }
    }

    /// Reads all audits, because Redis has no index for them.
    async fn redact_audit(
        &self,
        scope: &ScopeFilter,
        _: Option<&Cursor>,
    ) -> Result<Redacted, StoreError> {
        let mut entries = 0;
        for id in self.audited().await? {
            let (found, _) = self.entries(&id).await?;
            let is_of_scope = found.iter().any(|(_, entry)| {
                let identity = entry.record().and_then(|it| it.identity.as_ref());
                identity.is_some_and(|it| scope.matches(&it.scope))
            });
            if is_of_scope {
                let key = self.audit_key(&id);
                let answer = self.write(&ScriptCall::new(&scripts::REDACT, &key)).await?;
                match answer {
                    Value::Int(redacted) => entries += redacted.max(0).cast_unsigned(),
                    _ => return Err(errors::unreadable()),
                }
            }
        }
        Ok(Redacted {
            entries,
            next: None,
        })
    }
}

#[async_trait]
impl OperationStore for RedisStore {
    async fn note_operation(&self, operation: &Operation) -> Result<(), StoreError> {
        let key = self.operations_key();
        let call = ScriptCall::new(&scripts::NOTE_OPERATION, &key).text(operation.as_str());
        self.write(&call).await.map(drop)
    }

    async fn operations(&self) -> Result<Vec<Operation>, StoreError> {
        let key = self.operations_key();
        let answer = self
            .read(&ScriptCall::new(&scripts::OPERATIONS, &key))
            .await?;
        let names: Vec<Vec<u8>> =
            redis::from_redis_value(answer).map_err(|_| errors::unreadable())?;
        let names = names
            .into_iter()
            .filter_map(|it| String::from_utf8(it).ok());
        Ok(names.filter_map(|it| Operation::new(it).ok()).collect())
    }
}
