//! Claims and completions of many records in one statement. Its only parameter is a JSON array of arrays. With separate
//! parameters for each record, each number of records would need a different statement.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::oneshot::Sender;

use super::MySqlStore;
use super::claiming::{Executor as _, InsertResult, insert_result};
use super::connections::Executed;
use super::errors::{DUPLICATE, LOCKED, number};
use crate::key::hex;
use crate::record::{Outcome, Owner, OwnerLabel};
use crate::store::sql::{self, Backend as _, BatchExecutor, Completion, Query, Readable as _};
use crate::store::{ClaimRequest, FencedWrite};

/// Largest number of tries of a statement that waits for no lock.
const TRIES: u32 = 6;

/// Runs a statement for many records, which fails if another session has locked one of their rows or gaps. Concurrent
/// statements hold their locks for parts of a millisecond, so the statement is retried before each request runs
/// individually.
async fn run_without_waiting(
    store: &MySqlStore,
    query: &Query<'_>,
) -> Result<Executed, sqlx::Error> {
    let mut tried = 1;
    loop {
        match store.execute(query).await {
            Err(locked)
                if tried < TRIES && number(&locked).is_some_and(|it| LOCKED.contains(&it)) =>
            {
                match tried {
                    1 | 2 => tokio::task::yield_now().await,
                    _ => tokio::time::sleep(Duration::from_millis(1)).await,
                }
                tried += 1;
            }
            executed => return executed,
        }
    }
}

/// Claims of many records.
#[derive(Debug, Clone)]
pub(super) struct ClaimBatch(pub(super) MySqlStore);

/// Completions of many records.
#[derive(Debug, Clone)]
pub(super) struct CompletionBatch(pub(super) MySqlStore);

impl BatchExecutor for ClaimBatch {
    type Pending = (ClaimRequest, Sender<InsertResult>);

    /// MySQL returns no rows from an insert, so there is no response, and each claim runs again individually. Claims
    /// are not batched again on that server.
    async fn run(&self, batch: Vec<Self::Pending>) {
        let batch = sql::one_per_record(batch, |claim| claim.id);
        let claims: Value = batch.iter().map(|(claim, _)| of_claim(claim)).collect();
        let claims = claims.to_string();
        let query = self.0.statements.insert_all.query().text(&*claims);
        let rows = match run_without_waiting(&self.0, &query).await {
            Ok(Executed { rows, done }) if !rows.is_empty() || done.rows_affected() == 0 => rows,
            Ok(_) => return self.0.returns_rows.store(false, Ordering::Relaxed),
            Err(error) if number(&error) == Some(DUPLICATE) => {
                return self.0.returns_rows.store(false, Ordering::Relaxed);
            }
            Err(_) => return,
        };
        let mut pending: HashMap<_, _> = batch.into_iter().map(|it| (it.0.id, it)).collect();
        for record in rows
            .iter()
            .filter_map(|row| sql::text_row::record(row).ok())
        {
            if let Some((claim, sender)) = pending.remove(&record.id) {
                // The receiver may be gone.
                let _ = sender.send(insert_result(record, &claim.claim_id));
            }
        }
    }
}

impl BatchExecutor for CompletionBatch {
    type Pending = Completion;

    async fn run(&self, batch: Vec<Self::Pending>) {
        let batch = sql::one_per_record(batch, |(owner, _)| owner.id);
        let completions = batch
            .iter()
            .map(|(completion, _)| of_completion(completion));
        let completions = completions.collect::<Value>().to_string();
        let Self(store) = self;
        let query = store.statements.complete_all.query().text(&*completions);
        let Ok(executed) = run_without_waiting(store, &query).await else {
            return;
        };
        let matched = executed.done.rows_affected();
        // The server returns only the number of completions that took effect.
        let mut done = None;
        if matched != batch.len() as u64 {
            let query = store.statements.completed.query().text(&*completions);
            let Ok(rows) = store.read(query).await else {
                return;
            };
            let ids = rows
                .iter()
                .filter_map(|row| Some(row.bytes(0).ok()?.into_owned()));
            done = Some(ids.collect::<HashSet<_>>());
        }
        for ((owner, _), sender) in batch {
            let id = &owner.id.as_bytes()[..];
            if done.as_ref().is_none_or(|done| done.contains(id)) {
                let _ = sender.send(FencedWrite::Applied);
            }
        }
    }
}

fn of_claim(claim: &ClaimRequest) -> Value {
    json!([
        hex::encode(claim.id.as_bytes()),
        claim.identity.scope.as_str(),
        claim.identity.operation.as_str(),
        claim.identity.key.as_str(),
        hex::encode(claim.fingerprint.as_bytes()),
        hex::encode(claim.claim_id.as_bytes()),
        sql::span(claim.lease),
        sql::span(claim.retention),
        claim.on_crash.as_str(),
        claim.owner_label.as_ref().map(OwnerLabel::as_str),
        claim.members.as_ref().map(|it| hex::encode(it.as_bytes())),
    ])
}

fn of_completion((owner, outcome): &(Owner, Outcome)) -> Value {
    let payload = outcome.payload();
    json!([
        hex::encode(owner.id.as_bytes()),
        hex::encode(owner.claim_id.as_bytes()),
        owner.fencing_token.number(),
        outcome.state().as_str(),
        payload.map(|it| &*it.codec),
        payload.map(|it| hex::encode(&it.bytes)),
    ])
}
