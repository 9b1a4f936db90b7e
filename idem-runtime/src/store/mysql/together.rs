//! Claims, and completions, in one statement for many. What there is for each of them is in one parameter, a JSON array
//! of arrays, since a statement with parameters for each would be another one for each number of records.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;

use futures_util::TryStreamExt as _;
use serde_json::{Value, json};
use sqlx::mysql::MySqlRow;
use sqlx::{Either, Executor as _, MySql};

use super::{DUPLICATE, Inserted, MySqlStore, inserted, number, retry_undone};
use crate::key::hex;
use crate::record::{Ending, Holder};
use crate::store::sql::{self, Asked, Together};
use crate::store::{ClaimRequest, Fenced};

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
        let rows = match self.insert(&claims.to_string()).await {
            Ok((rows, made)) if !rows.is_empty() || made == 0 => rows,
            Ok(_) => return self.0.returns_rows.store(false, Ordering::Relaxed),
            Err(error) if number(&error) == Some(DUPLICATE) => {
                return self.0.returns_rows.store(false, Ordering::Relaxed);
            }
            Err(_) => return,
        };
        let mut steps: HashMap<_, _> = steps.into_iter().map(|it| (it.0.id, it)).collect();
        for record in rows.iter().filter_map(|row| sql::record(row).ok()) {
            if let Some((claim, sender)) = steps.remove(&record.id) {
                // Whoever asked may have gone away.
                let _ = sender.send(inserted(record, &claim.token));
            }
        }
    }
}

impl Claims {
    /// The rows that were given back, and how many were made.
    async fn insert(&self, claims: &str) -> Result<(Vec<MySqlRow>, u64), sqlx::Error> {
        let Self(store) = self;
        retry_undone(|| async {
            let (mut rows, mut made) = (Vec::new(), 0);
            let query = sqlx::query::<MySql>(store.statements.insert_all.text()).bind(claims);
            let mut answer = store.pool.fetch_many(query);
            while let Some(step) = answer.try_next().await? {
                match step {
                    Either::Left(done) => made += done.rows_affected(),
                    Either::Right(row) => rows.push(row),
                }
            }
            Ok((rows, made))
        })
        .await
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
        let all = steps.len() as u64;
        let Ok(done) = self.complete(&completions).await else {
            return;
        };
        let done = match done {
            matched if matched == all => None,
            // The server tells how many took effect, and not which.
            _ => match self.completed(&completions).await {
                Ok(done) => Some(done),
                Err(_) => return,
            },
        };
        for ((holder, _), sender) in steps {
            if done
                .as_ref()
                .is_none_or(|done| done.contains(&holder.id.as_bytes()[..]))
            {
                let _ = sender.send(Fenced::Done);
            }
        }
    }
}

impl Completions {
    async fn complete(&self, completions: &str) -> Result<u64, sqlx::Error> {
        let Self(store) = self;
        let text = || store.statements.complete_all.text();
        let query = || {
            sqlx::query::<MySql>(text())
                .bind(completions)
                .execute(&store.pool)
        };
        Ok(retry_undone(query).await?.rows_affected())
    }

    async fn completed(&self, completions: &str) -> Result<HashSet<Vec<u8>>, sqlx::Error> {
        let Self(store) = self;
        let text = || store.statements.completed.text();
        let query = || {
            sqlx::query_scalar::<MySql, Vec<u8>>(text())
                .bind(completions)
                .fetch_all(&store.pool)
        };
        Ok(retry_undone(query).await?.into_iter().collect())
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
