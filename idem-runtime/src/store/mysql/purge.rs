//! Purge of due records, in batches.
//!
//! MySQL has no statement that deletes rows and returns them. A purge therefore reads due records, raises the fencing
//! floor above those that it is about to delete, and changes each kind of them with a statement that checks them again.

use std::sync::Arc;

use sqlx::{AssertSqlSafe, MySql};

use super::errors::{error, retry_undone};
use super::{MySqlStore, connections, fencing_floor};
use crate::error::StoreError;
use crate::record::FencingToken;
use crate::store::Purged;
use crate::store::sql::{Backend as _, Readable as _, Statement};

/// Maximum number of records that one statement of a purge changes, to keep its locks short.
const BATCH: u32 = 512;

pub(super) async fn purge(store: &MySqlStore, limit: u32) -> Result<Purged, StoreError> {
    let mut all = Purged::default();
    let mut rest = limit;
    loop {
        let batch = rest.min(BATCH);
        let done = purge_batch(store, batch).await?;
        all.removed += done.removed;
        all.abandoned += done.abandoned;
        all.interrupted += done.interrupted;
        all.more = done.more;
        rest -= batch;
        if rest == 0 || !done.more {
            return Ok(all);
        }
    }
}

async fn purge_batch(store: &MySqlStore, limit: u32) -> Result<Purged, StoreError> {
    let statements = &store.statements;
    let query = statements.purge_due.query().number(i64::from(limit));
    let rows = store.read(query).await?;
    let mut highest = 0;
    let mut due: [Vec<&[u8]>; 4] = Default::default();
    for row in &rows {
        let class = match row.text(2).map_err(error)? {
            "abandoned" => 0,
            "expired" => 1,
            "interrupt" => 2,
            _ => 3,
        };
        if class < 2 {
            highest = highest.max(row.number(1).map_err(error)?);
        }
        due[class].push(row.bytes(0).map_err(error)?);
    }
    let [abandoned, expired, interrupt, requeue] = &due;
    if !(abandoned.is_empty() && expired.is_empty()) {
        fencing_floor::raise_above(store, FencingToken::from_number(highest)).await?;
    }
    let abandoned =
        run_for_ids(store, &statements.purge_abandoned, Some(highest), abandoned).await?;
    let expired = run_for_ids(store, &statements.purge_expired, Some(highest), expired).await?;
    let interrupted = run_for_ids(store, &statements.purge_interrupt, None, interrupt).await?;
    run_for_ids(store, &statements.purge_requeue, None, requeue).await?;
    Ok(Purged {
        removed: abandoned + expired,
        abandoned,
        interrupted,
        more: rows.len() >= limit as usize,
    })
}

/// Runs a statement with a list of ids, and returns the number of rows that it matched.
async fn run_for_ids(
    store: &MySqlStore,
    statement: &Statement,
    first: Option<i64>,
    ids: &[&[u8]],
) -> Result<u64, StoreError> {
    if ids.is_empty() {
        return Ok(0);
    }
    let list = vec!["?"; ids.len()].join(", ");
    let text: Arc<str> = statement.as_str().replace("{ids}", &list).into();
    let run = || {
        // Lists have many lengths. If a statement for each length were cached, they would evict the prepared
        // statements of claims.
        let query = sqlx::query::<MySql>(AssertSqlSafe(Arc::clone(&text))).persistent(false);
        let query = first.iter().fold(query, |query, it| query.bind(*it));
        let query = ids.iter().fold(query, |query, id| query.bind(id.to_vec()));
        connections::run_owned(&store.pool, query)
    };
    let executed = retry_undone(run).await.map_err(error)?;
    Ok(executed.done.rows_affected())
}
