//! Claims: an insert, and the reads and updates that follow if the record exists.

use std::sync::atomic::Ordering;

use sqlx::mysql::MySqlRow;

use super::MySqlStore;
use super::connections::Executed;
use super::errors::{DUPLICATE, error, number};
use super::statements::MySqlStatements;
use crate::error::StoreError;
use crate::record::{ClaimId, FencingToken, Observation, Record, RecordState, Timestamp};
use crate::store::sql::{self, Backend, Query, Statement};
use crate::store::{ClaimOutcome, ClaimRequest, Granted};

/// Runs statements that only this dialect has.
pub(super) trait Executor: Backend<Row = MySqlRow> {
    fn store(&self) -> &MySqlStore;

    /// The statements for the connections of this executor.
    fn own_statements(&self) -> &MySqlStatements;

    /// Runs a statement that may return rows, to its end.
    async fn execute(&self, query: &Query<'_>) -> Result<Executed, sqlx::Error>;
}

/// Result of the first statement of a claim.
pub(super) enum InsertResult {
    Created(ClaimOutcome),
    /// The record existed.
    Existing(Box<Record>),
    /// A record exists, and has to be read.
    ExistingUnread,
    /// The statement did not try to insert.
    NotTried,
}

/// Reads the record from a server that refuses to write, such as a replica: it may hold the outcome.
pub(super) async fn read_instead(
    backend: &impl Backend,
    claim: &ClaimRequest,
    refused: StoreError,
) -> Result<Option<ClaimOutcome>, StoreError> {
    match sql::get(backend, &claim.id).await? {
        Some(record) if !claim.may_claim(&record) => {
            Ok(Some(ClaimOutcome::Existing(Box::new(record))))
        }
        _ => Err(refused),
    }
}

/// Inserts the record of a first claim. `INSERT IGNORE` is not used, because it would also ignore invalid values.
pub(super) async fn insert(
    backend: &impl Executor,
    claim: &ClaimRequest,
) -> Result<InsertResult, StoreError> {
    let statements = backend.own_statements();
    match insert_by(backend, &statements.insert, claim).await? {
        InsertResult::NotTried => insert_by(backend, &statements.insert_above, claim).await,
        result => Ok(result),
    }
}

async fn insert_by(
    backend: &impl Executor,
    statement: &Statement,
    claim: &ClaimRequest,
) -> Result<InsertResult, StoreError> {
    let query = sql::claim_query(statement, claim);
    let Executed { rows, done } = match backend.execute(&query).await {
        Err(error) if number(&error) == Some(DUPLICATE) => return Ok(InsertResult::ExistingUnread),
        executed => executed.map_err(error)?,
    };
    if let Some(row) = rows.first() {
        return Ok(insert_result(sql::text_row::record(row)?, &claim.claim_id));
    }
    Ok(match (done.rows_affected(), done.last_insert_id()) {
        (0, _) => InsertResult::NotTried,
        (_, 0) => InsertResult::ExistingUnread,
        // A node that ran the insert again by itself reports the number of its first try.
        _ if backend.store().statements.is_galera() => {
            let record = sql::read_current(backend, &claim.id).await?;
            match record.and_then(|it| granted_to(&claim.claim_id, &it)) {
                Some(granted) => InsertResult::Created(granted),
                None => InsertResult::ExistingUnread,
            }
        }
        // MySQL returns no row. It returns this number, which is the fencing token. `insert` inserts only if the token
        // equals the time.
        (_, number) => {
            backend.store().returns_rows.store(false, Ordering::Relaxed);
            let number = number.cast_signed();
            InsertResult::Created(ClaimOutcome::Granted(Granted {
                fencing_token: FencingToken::from_number(number),
                attempt: 1,
                first_claimed_at: Timestamp::from_micros(number),
                on_crash: claim.on_crash,
            }))
        }
    })
}

/// Result of an insert that returned a row, as on MariaDB.
pub(super) fn insert_result(record: Record, claim_id: &ClaimId) -> InsertResult {
    // If the times differ, an earlier try of this claim inserted the record, at another time.
    let is_new = record.first_claimed_at == record.read_at;
    match granted_to(claim_id, &record) {
        Some(granted) if is_new => InsertResult::Created(granted),
        _ => InsertResult::Existing(Box::new(record)),
    }
}

/// Claims an existing record. Returns `None` if it changed since it was read.
pub(super) async fn claim_existing(
    backend: &impl Executor,
    claim: &ClaimRequest,
) -> Result<Option<ClaimOutcome>, StoreError> {
    let query = sql::claim_query(&backend.own_statements().claim, claim);
    if backend.write(query).await? == 0 {
        return Ok(None);
    }
    let record = sql::read_current(backend, &claim.id).await?;
    Ok(record.and_then(|record| granted_to(&claim.claim_id, &record)))
}

pub(super) async fn try_take_over(
    backend: &impl Executor,
    observed: &Observation,
    claim: &ClaimRequest,
) -> Result<Option<ClaimOutcome>, StoreError> {
    let query = sql::take_over_query(&backend.own_statements().take_over, observed, claim);
    let taken = backend.write(query).await? > 0;
    let Some(record) = sql::read_current(backend, &claim.id).await? else {
        return Ok(None);
    };
    if let Some(granted) = granted_to(&claim.claim_id, &record).filter(|_| taken) {
        return Ok(Some(granted));
    }
    Ok((!record.is_expired()).then(|| ClaimOutcome::Existing(Box::new(record))))
}

/// Builds the answer to a claim whose claim id owns the record.
fn granted_to(claim_id: &ClaimId, record: &Record) -> Option<ClaimOutcome> {
    (record.state == RecordState::Running && record.claim_id == Some(*claim_id)).then_some(
        ClaimOutcome::Granted(Granted {
            fencing_token: record.fencing_token,
            attempt: record.attempt,
            first_claimed_at: record.first_claimed_at,
            on_crash: record.on_crash,
        }),
    )
}
