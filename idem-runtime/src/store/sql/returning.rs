//! Transitions of the dialects in which a write returns rows.

use crate::error::StoreError;
use crate::record::{Observation, RecordState, Timestamp};
use crate::store::sql::{
    Backend, Query, Readable as _, Statement, get, granted, take_over_query, unreadable,
};
use crate::store::{ClaimOutcome, ClaimRequest, Purged};

/// Backend whose writes return rows.
pub(in crate::store) trait Returning: Backend {
    /// Runs a statement that writes, and returns its rows. The statement is driven to its end even if one row is
    /// enough: the commit comes after the last row, so a single row could acknowledge a write that is undone later.
    fn write_returning(
        &self,
        query: Query<'_>,
    ) -> impl Future<Output = Result<Vec<Self::Row>, StoreError>> + Send;
}

/// Runs a statement that grants the row it returns. Returns `None` if there is no row.
pub(in crate::store) async fn claim_returning(
    backend: &impl Returning,
    query: Query<'_>,
) -> Result<Option<ClaimOutcome>, StoreError> {
    let rows = backend.write_returning(query).await?;
    let row = rows.first();
    row.map(|row| granted(row).map(ClaimOutcome::Granted))
        .transpose()
}

/// Takes over with this statement. If it changes nothing, reads the current record.
pub(in crate::store) async fn try_take_over(
    backend: &impl Returning,
    statement: &Statement,
    observed: &Observation,
    claim: &ClaimRequest,
) -> Result<Option<ClaimOutcome>, StoreError> {
    let query = take_over_query(statement, observed, claim);
    if let Some(granted) = claim_returning(backend, query).await? {
        return Ok(Some(granted));
    }
    let record = get(backend, &claim.id).await?;
    Ok(record.map(|record| ClaimOutcome::Existing(Box::new(record))))
}

/// Deletes with one statement, and interrupts, forgets or requeues with the other. Each takes the maximum number of rows to
/// change and the time as of which they are due, and returns the states of the changed rows. The second one returns
/// [`FORGOTTEN`] in place of the state of a row that has lost its payload.
pub(in crate::store) async fn purge(
    backend: &impl Returning,
    delete: &Statement,
    requeue: &Statement,
    limit: u32,
    as_of: Timestamp,
) -> Result<Purged, StoreError> {
    // Mostly nothing is due, and this read blocks no other caller.
    let due = limited(&backend.statements().await?.due, 1, as_of);
    let due = backend.read(due).await?;
    if due.is_empty() {
        return Ok(Purged::default());
    }
    let deleted = states(backend, limited(delete, limit, as_of)).await?;
    let rest = limit.saturating_sub(deleted.len() as u32);
    let mut kept = Vec::new();
    if rest > 0 {
        kept = states(backend, limited(requeue, rest, as_of)).await?;
    }
    let count = |words: &[String], word| words.iter().filter(|it| *it == word).count() as u64;
    Ok(Purged {
        removed: deleted.len() as u64,
        abandoned: count(&deleted, RecordState::Running.as_str()),
        interrupted: count(&kept, RecordState::Interrupted.as_str()),
        forgotten: count(&kept, FORGOTTEN),
        more: deleted.len() + kept.len() >= limit as usize,
    })
}

/// Binds parameters 1 and 2.
fn limited(statement: &Statement, limit: u32, as_of: Timestamp) -> Query<'_> {
    let query = statement.query().number(i64::from(limit));
    query.number(as_of.as_micros())
}

/// Word for a row that has lost its payload.
const FORGOTTEN: &str = "forgotten";

async fn states(backend: &impl Returning, query: Query<'_>) -> Result<Vec<String>, StoreError> {
    let rows = backend.write_returning(query).await?;
    let words = rows.iter().map(|row| row.text(0).map(str::to_owned));
    words.collect::<Result<_, _>>().map_err(unreadable)
}
