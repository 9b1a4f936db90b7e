//! The steps of the dialects in which a statement that writes gives back rows.

use crate::error::StoreError;
use crate::record::{Observation, State};
use crate::store::sql::{Backend, Query, Statement, get, granted, state, take_over_query};
use crate::store::{ClaimOutcome, ClaimRequest, Purged};

/// What runs statements that write and give back rows.
pub(in crate::store) trait Returning: Backend {
    /// Runs a statement that writes, and gives the rows it returns. It is driven to its end even where one row is
    /// enough: the commit comes after the last, and a row alone would acknowledge what may yet be undone.
    fn write_returning(
        &self,
        query: Query<'_>,
    ) -> impl Future<Output = Result<Vec<Self::Row>, StoreError>> + Send;
}

/// Runs a statement that grants what it returns; none where it returns nothing.
pub(in crate::store) async fn claim_returning(
    backend: &impl Returning,
    query: Query<'_>,
) -> Result<Option<ClaimOutcome>, StoreError> {
    let rows = backend.write_returning(query).await?;
    let row = rows.first();
    row.map(|row| granted(row).map(ClaimOutcome::Granted))
        .transpose()
}

/// Takes over by this statement, and reads what is there where it did not.
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

/// Deletes by one statement, and interrupts or requeues by the other; each takes how many rows it may change, and
/// returns their states.
pub(in crate::store) async fn purge(
    backend: &impl Returning,
    delete: &Statement,
    requeue: &Statement,
    limit: u32,
) -> Result<Purged, StoreError> {
    // Most of the time there is nothing to do, and looking keeps nobody waiting.
    let due = backend.read(backend.statements().due.query()).await?;
    if due.is_empty() {
        return Ok(Purged::default());
    }
    let deleted = states(backend, delete, limit).await?;
    let rest = limit.saturating_sub(deleted.len() as u32);
    let mut kept = Vec::new();
    if rest > 0 {
        kept = states(backend, requeue, rest).await?;
    }
    let count = |states: &[State], state| states.iter().filter(|it| **it == state).count() as u64;
    Ok(Purged {
        removed: deleted.len() as u64,
        abandoned: count(&deleted, State::Running),
        interrupted: count(&kept, State::Interrupted),
        more: deleted.len() + kept.len() >= limit as usize,
    })
}

async fn states(
    backend: &impl Returning,
    statement: &Statement,
    limit: u32,
) -> Result<Vec<State>, StoreError> {
    let query = statement.query().number(i64::from(limit));
    let rows = backend.write_returning(query).await?;
    rows.iter().map(state).collect()
}
