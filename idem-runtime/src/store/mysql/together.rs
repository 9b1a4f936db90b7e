//! Claims, and completions, in one statement for many. What there is for each of them is in one parameter, a JSON array
//! of arrays, since a statement with parameters for each would be another one for each number of records.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Answer, DUPLICATE, Inserted, LOCKED, MySqlStore, Steps as _, inserted, number};
use crate::key::hex;
use crate::record::{Ending, Holder};
use crate::store::sql::{self, Asked, Backend as _, Query, Readable as _, Together};
use crate::store::{ClaimRequest, Fenced};

/// How often a statement is tried that waits for no lock.
const TRIES: u32 = 6;

/// Runs a statement for many records, which fails where another session has one of their rows or gaps locked. Statements
/// beside it lock theirs for parts of a millisecond, so it is tried again before each of its callers runs alone.
async fn at_once(store: &MySqlStore, query: &Query<'_>) -> Result<Answer, sqlx::Error> {
    let mut tried = 1;
    loop {
        match store.answer(query).await {
            Err(locked)
                if tried < TRIES && number(&locked).is_some_and(|it| LOCKED.contains(&it)) =>
            {
                match tried {
                    1 | 2 => tokio::task::yield_now().await,
                    _ => tokio::time::sleep(Duration::from_millis(1)).await,
                }
                tried += 1;
            }
            answer => return answer,
        }
    }
}

/// Claims of many records.
#[derive(Debug, Clone)]
pub(super) struct Claims(pub(super) MySqlStore);

/// Completions of many records.
#[derive(Debug, Clone)]
pub(super) struct Completions(pub(super) MySqlStore);

impl Together for Claims {
    type Step = ClaimRequest;
    type Answer = Inserted;

    /// MySQL gives back no rows, so there nobody is answered, and everybody finds alone what was made of the claim. It
    /// is not tried again.
    async fn run(&self, steps: Vec<Asked<Self>>) {
        let steps = sql::once_each(steps, |claim| claim.id);
        let claims: Value = steps.iter().map(|(claim, _)| of_claim(claim)).collect();
        let claims = claims.to_string();
        let query = self.0.statements.insert_all.query().text(&*claims);
        let rows = match at_once(&self.0, &query).await {
            Ok(Answer { rows, done }) if !rows.is_empty() || done.rows_affected() == 0 => rows,
            Ok(_) => return self.0.returns_rows.store(false, Ordering::Relaxed),
            Err(error) if number(&error) == Some(DUPLICATE) => {
                return self.0.returns_rows.store(false, Ordering::Relaxed);
            }
            Err(_) => return,
        };
        let mut steps: HashMap<_, _> = steps.into_iter().map(|it| (it.0.id, it)).collect();
        for record in rows.iter().filter_map(|row| sql::packed::record(row).ok()) {
            if let Some((claim, sender)) = steps.remove(&record.id) {
                // Whoever asked may have gone away.
                let _ = sender.send(inserted(record, &claim.token));
            }
        }
    }
}

impl Together for Completions {
    type Step = (Holder, Ending);
    type Answer = Fenced;

    async fn run(&self, steps: Vec<Asked<Self>>) {
        let steps = sql::once_each(steps, |(holder, _)| holder.id);
        let completions = steps
            .iter()
            .map(|(completion, _)| of_completion(completion));
        let completions = completions.collect::<Value>().to_string();
        let Self(store) = self;
        let query = store.statements.complete_all.query().text(&*completions);
        let Ok(answer) = at_once(store, &query).await else {
            return;
        };
        let matched = answer.done.rows_affected();
        // The server tells how many took effect, and not which.
        let mut done = None;
        if matched != steps.len() as u64 {
            let query = store.statements.completed.query().text(&*completions);
            let Ok(rows) = store.read(query).await else {
                return;
            };
            let ids = rows
                .iter()
                .filter_map(|row| Some(row.bytes(0).ok()?.to_vec()));
            done = Some(ids.collect::<HashSet<_>>());
        }
        for ((holder, _), sender) in steps {
            let id = &holder.id.as_bytes()[..];
            if done.as_ref().is_none_or(|done| done.contains(id)) {
                let _ = sender.send(Fenced::Done);
            }
        }
    }
}

fn of_claim(claim: &ClaimRequest) -> Value {
    json!([
        hex(claim.id.as_bytes()),
        claim.identity.scope.as_str(),
        claim.identity.operation.as_str(),
        claim.identity.key.as_str(),
        hex(claim.fingerprint.as_bytes()),
        hex(claim.token.as_bytes()),
        sql::span(claim.lease),
        sql::span(claim.retention),
        claim.on_crash.as_str(),
    ])
}

fn of_completion((holder, ending): &(Holder, Ending)) -> Value {
    let payload = ending.payload();
    json!([
        hex(holder.id.as_bytes()),
        hex(holder.token.as_bytes()),
        holder.grant.number(),
        ending.state().as_str(),
        payload.map(|it| &*it.codec),
        payload.map(|it| hex(&it.bytes)),
    ])
}
