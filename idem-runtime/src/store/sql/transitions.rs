//! Transitions that are alike in every SQL store.

use std::time::Duration;

use crate::error::{StoreError, StoreErrorKind};
use crate::key::RecordId;
use crate::record::{
    FencingToken, MemberDigests, Observation, Outcome, Owner, OwnerLabel, Payload, Record,
    Timestamp,
};
use crate::store::sql::{
    Query, Readable, SharedStatements, Statement, Template, corrupt, span, unreadable,
};
use crate::store::{
    AttemptLog, Attempts, ClaimOutcome, ClaimRequest, FencedWrite, Purged, Resolution, Resolved,
    Unreadable,
};

/// Backend that runs the statements of a store.
pub(in crate::store) trait Backend: Sync {
    type Row: Readable + Send;

    /// Number of columns in the part `record` of the statements.
    const RECORD_COLUMNS: usize;

    /// Statements for the tables as they are, which may have to be read first.
    fn statements(&self) -> impl Future<Output = Result<&SharedStatements, StoreError>> + Send;

    /// Reads the record in a row of the part `record` of the statements.
    fn record(row: &Self::Row) -> Result<Record, StoreError>;

    /// Runs a statement that only reads.
    fn read(
        &self,
        query: Query<'_>,
    ) -> impl Future<Output = Result<Vec<Self::Row>, StoreError>> + Send;

    /// Runs a statement that writes, and returns the number of rows that it matched.
    fn write(&self, query: Query<'_>) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Runs a statement that checks the owner of a record and writes another table, and returns the number of rows that
    /// it matched. A takeover comes before or after it: servers whose locks do not hold everywhere need more than the
    /// statement.
    fn write_as_owner(
        &self,
        _owner: &Owner,
        query: Query<'_>,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send {
        self.write(query)
    }
}

/// Transitions of a store that differ between databases. Each statement commits on its own.
pub(in crate::store) trait SqlStore: Backend + Sized {
    /// Template for further statements on the pool, on records and the tables beside them.
    fn template(&self) -> Template;

    /// Name of the table of records.
    fn table_name(&self) -> &str;

    /// True if the optional index of scopes finds all scopes inside of another one.
    fn finds_inner_scopes(&self) -> bool {
        true
    }

    /// Claims like [`Store::claim`](crate::store::Store::claim). Returns `None` if the record changed between read and
    /// write.
    fn try_claim(
        &self,
        claim: &ClaimRequest,
    ) -> impl Future<Output = Result<Option<ClaimOutcome>, StoreError>> + Send;

    /// Number of claims like [`Store::claim_concurrency`](crate::store::Store::claim_concurrency).
    fn claim_concurrency(&self) -> usize;

    /// Tells why statements wait, like [`Store::bottleneck`](crate::store::Store::bottleneck).
    fn bottleneck(&self) -> Option<String> {
        None
    }

    /// Takes over like [`Store::take_over`](crate::store::Store::take_over). Returns `None` if there is no record.
    fn try_take_over(
        &self,
        observed: &Observation,
        claim: &ClaimRequest,
    ) -> impl Future<Output = Result<Option<ClaimOutcome>, StoreError>> + Send;

    /// Completes like [`Store::complete`](crate::store::Store::complete).
    fn complete(
        &self,
        owner: &Owner,
        outcome: &Outcome,
    ) -> impl Future<Output = Result<FencedWrite, StoreError>> + Send {
        complete(self, owner, outcome)
    }

    /// Releases like [`Store::release`](crate::store::Store::release).
    fn release(
        &self,
        owner: &Owner,
    ) -> impl Future<Output = Result<FencedWrite, StoreError>> + Send {
        release(self, owner)
    }

    /// Saves a step that was not saved before. Returns `Fenced` if it was, or if the caller is not the owner.
    fn save_new_step(
        &self,
        owner: &Owner,
        name: &str,
        payload: &Payload,
    ) -> impl Future<Output = Result<FencedWrite, StoreError>> + Send {
        save_new_step(self, owner, name, payload)
    }

    /// Prepares to erase a record. Returns `Stale` if the record no longer equals the observation.
    fn before_erasing(
        &self,
        _observed: &Observation,
    ) -> impl Future<Output = Result<Resolved, StoreError>> + Send {
        std::future::ready(Ok(Resolved::Done))
    }

    /// Prepares to erase records up to this fencing token.
    fn before_erasing_all(
        &self,
        _highest: FencingToken,
    ) -> impl Future<Output = Result<(), StoreError>> + Send {
        std::future::ready(Ok(()))
    }

    /// Resolves like [`Store::resolve`](crate::store::Store::resolve).
    fn resolve(
        &self,
        observed: &Observation,
        resolution: &Resolution,
    ) -> impl Future<Output = Result<Resolved, StoreError>> + Send {
        resolve(self, observed, resolution)
    }

    /// Purges like [`Store::purge`](crate::store::Store::purge).
    fn purge(
        &self,
        limit: u32,
        as_of: Timestamp,
    ) -> impl Future<Output = Result<Purged, StoreError>> + Send;
}

/// Maximum number of tries of a claim whose record changes between its read and its write.
pub(in crate::store) const MAX_CONFLICTS: u32 = 16;

/// Error after [`MAX_CONFLICTS`] tries.
pub(in crate::store) fn too_many_conflicts() -> StoreError {
    StoreError::new(
        StoreErrorKind::Conflict,
        "the record changed at each try because of concurrent calls, try again",
    )
}

pub(in crate::store) async fn claim(
    backend: &impl SqlStore,
    claim: &ClaimRequest,
) -> Result<ClaimOutcome, StoreError> {
    for _ in 0..MAX_CONFLICTS {
        if let Some(answer) = backend.try_claim(claim).await? {
            return Ok(answer);
        }
    }
    Err(too_many_conflicts())
}

pub(in crate::store) async fn take_over(
    backend: &impl SqlStore,
    observed: &Observation,
    request: &ClaimRequest,
) -> Result<ClaimOutcome, StoreError> {
    for _ in 0..MAX_CONFLICTS {
        match backend.try_take_over(observed, request).await? {
            // The lease lapsed, or an earlier try of this takeover arrived, between the write and the read.
            Some(ClaimOutcome::Existing(record)) if request.may_take_over(observed, &record) => {}
            Some(answer) => return Ok(answer),
            None => return claim(backend, request).await,
        }
    }
    Err(too_many_conflicts())
}

/// Binds parameters 1 to 11: id, scope, operation, key, fingerprint, claim id, lease, retention, `on_crash`, label of the
/// owner, digests of the members.
pub(in crate::store) fn claim_query<'q>(
    statement: &'q Statement,
    claim: &'q ClaimRequest,
) -> Query<'q> {
    statement
        .query()
        .bytes(&claim.id.as_bytes()[..])
        .identity(&claim.identity)
        .bytes(&claim.fingerprint.as_bytes()[..])
        .bytes(&claim.claim_id.as_bytes()[..])
        .number(span(claim.lease))
        .number(span(claim.retention))
        .text(claim.on_crash.as_str())
        .text(claim.owner_label.as_ref().map(OwnerLabel::as_str))
        .bytes(claim.members.as_ref().map(MemberDigests::as_bytes))
}

/// Binds parameters 1 to 11: the observation, then claim id, fingerprint, lease, retention, id and label of the claim.
pub(in crate::store) fn take_over_query<'q>(
    statement: &'q Statement,
    observed: &'q Observation,
    claim: &'q ClaimRequest,
) -> Query<'q> {
    statement
        .query()
        .observation(observed)
        .bytes(&claim.claim_id.as_bytes()[..])
        .bytes(&claim.fingerprint.as_bytes()[..])
        .number(span(claim.lease))
        .number(span(claim.retention))
        .bytes(&claim.id.as_bytes()[..])
        .text(claim.owner_label.as_ref().map(OwnerLabel::as_str))
}

pub(in crate::store) async fn renew(
    backend: &impl Backend,
    owner: &Owner,
    lease: Duration,
) -> Result<FencedWrite, StoreError> {
    let query = backend.statements().await?.renew.query().owner(owner);
    fenced(backend, query.number(span(lease))).await
}

pub(in crate::store) async fn complete(
    backend: &impl Backend,
    owner: &Owner,
    outcome: &Outcome,
) -> Result<FencedWrite, StoreError> {
    complete_as(backend, owner, outcome, None).await
}

/// Completes a record, and keeps its payload for this time if it is given.
pub(in crate::store) async fn complete_as(
    backend: &impl Backend,
    owner: &Owner,
    outcome: &Outcome,
    payload_for: Option<Duration>,
) -> Result<FencedWrite, StoreError> {
    let statements = backend.statements().await?;
    let query = match payload_for.filter(|_| outcome.payload().is_some()) {
        None => statements.complete.query().owner(owner).outcome(outcome),
        Some(payload_for) => {
            let query = statements.complete_for.query().owner(owner);
            query.outcome(outcome).number(span(payload_for))
        }
    };
    if fenced(backend, query).await? == FencedWrite::Applied {
        return Ok(FencedWrite::Applied);
    }
    let repeated = get(backend, &owner.id)
        .await?
        .is_some_and(|record| record.state.is_ended() && owner.owns(&record));
    Ok(if repeated {
        FencedWrite::Applied
    } else {
        FencedWrite::Fenced
    })
}

pub(in crate::store) async fn release(
    backend: &impl Backend,
    owner: &Owner,
) -> Result<FencedWrite, StoreError> {
    let query = backend.statements().await?.release.query().owner(owner);
    fenced(backend, query).await
}

pub(in crate::store) async fn interrupt(
    backend: &impl Backend,
    owner: &Owner,
) -> Result<FencedWrite, StoreError> {
    let query = backend.statements().await?.interrupt.query().owner(owner);
    fenced(backend, query).await
}

/// Saves a step that was not saved before.
pub(in crate::store) async fn save_new_step(
    backend: &impl Backend,
    owner: &Owner,
    name: &str,
    payload: &Payload,
) -> Result<FencedWrite, StoreError> {
    let save = backend
        .statements()
        .await?
        .save_step
        .query()
        .owner(owner)
        .text(name);
    let save = save.text(&*payload.codec).bytes(&*payload.bytes);
    Ok(match backend.write_as_owner(owner, save).await? {
        0 => FencedWrite::Fenced,
        _ => FencedWrite::Applied,
    })
}

/// Runs a transition that only the owner may make.
pub(super) async fn fenced(
    backend: &impl Backend,
    query: Query<'_>,
) -> Result<FencedWrite, StoreError> {
    Ok(match backend.write(query).await? {
        0 => FencedWrite::Fenced,
        _ => FencedWrite::Applied,
    })
}

pub(in crate::store) async fn resolve(
    backend: &impl Backend,
    observed: &Observation,
    resolution: &Resolution,
) -> Result<Resolved, StoreError> {
    let statements = backend.statements().await?;
    let statement = match resolution {
        Resolution::Complete(_) => &statements.resolve_complete,
        Resolution::Release => &statements.resolve_release,
        Resolution::Interrupt => &statements.resolve_interrupt,
        Resolution::Correct(_) => &statements.resolve_correct,
        Resolution::Erase => &statements.erase,
    };
    let mut query = statement.query().observation(observed);
    if let Some(outcome) = resolution.outcome() {
        query = query.outcome(outcome);
    }
    resolved(backend, query).await
}

/// Runs a transition that requires the row to be as it was read.
pub(super) async fn resolved(
    backend: &impl Backend,
    query: Query<'_>,
) -> Result<Resolved, StoreError> {
    Ok(match backend.write(query).await? {
        0 => Resolved::Stale,
        _ => Resolved::Done,
    })
}

pub(in crate::store) async fn get<B: Backend>(
    backend: &B,
    id: &RecordId,
) -> Result<Option<Record>, StoreError> {
    let found = read_current(backend, id).await?;
    Ok(found.filter(|record| !record.is_expired()))
}

/// Reads the record with its attempts, unless it has expired.
pub(in crate::store) async fn attempts<B: Backend>(
    backend: &B,
    id: &RecordId,
) -> Result<Option<Attempts>, StoreError> {
    let read = attempts_of_any(backend, id).await?;
    Ok(read.filter(|attempts| !attempts.record.is_expired()))
}

/// Reads the record with its attempts, even if it has expired.
pub(in crate::store) async fn attempts_of_any<B: Backend>(
    backend: &B,
    id: &RecordId,
) -> Result<Option<Attempts>, StoreError> {
    let query = backend.statements().await?.attempts.query();
    let rows = backend.read(query.bytes(&id.as_bytes()[..])).await?;
    let Some(row) = rows.first() else {
        return Ok(None);
    };
    let record = B::record(row)?;
    let [owner, began_at, history, members] = [0, 1, 2, 3].map(|column| B::RECORD_COLUMNS + column);
    let owner = row.text_or_null(owner).map_err(unreadable)?;
    let began_at = row.number_or_null(began_at).map_err(unreadable)?;
    let history = row.text_or_null(history).map_err(unreadable)?;
    let members = row.bytes_or_null(members).map_err(unreadable)?;
    // The record is good without these, and an operator needs it.
    let mut passed_over = Vec::new();
    let owner = Unreadable::part("owner", owner.map(owner_label), &mut passed_over);
    let members = members
        .map(|members| MemberDigests::from_bytes(&members).ok_or_else(|| corrupt("members")));
    let members = Unreadable::part("members", members, &mut passed_over);
    let log = AttemptLog::from_parts(
        owner,
        began_at.map(Timestamp::from_micros),
        history.unwrap_or_default().to_owned(),
    );
    let attempts = log.attempts(record).with_members(members);
    Ok(Some(attempts.with_unreadable(passed_over)))
}

/// Adds a replay to the history of the record that has this fencing token.
pub(in crate::store) async fn note_replay(
    backend: &impl Backend,
    id: &RecordId,
    fencing_token: FencingToken,
    by: Option<&OwnerLabel>,
) -> Result<bool, StoreError> {
    let query = backend
        .statements()
        .await?
        .note_replay
        .query()
        .bytes(&id.as_bytes()[..])
        .number(fencing_token.number())
        .text(by.map(OwnerLabel::as_str));
    Ok(backend.write(query).await? > 0)
}

/// Reads the clock of the database.
pub(in crate::store) async fn now(backend: &impl Backend) -> Result<Timestamp, StoreError> {
    let rows = backend
        .read(backend.statements().await?.now.query())
        .await?;
    let row = rows.first().ok_or_else(|| corrupt("time"))?;
    row.number(0)
        .map(Timestamp::from_micros)
        .map_err(unreadable)
}

/// Reads the record, even if it has expired.
pub(in crate::store) async fn read_current<B: Backend>(
    backend: &B,
    id: &RecordId,
) -> Result<Option<Record>, StoreError> {
    let query = backend
        .statements()
        .await?
        .get
        .query()
        .bytes(&id.as_bytes()[..]);
    let rows = backend.read(query).await?;
    rows.first().map(B::record).transpose()
}

pub(super) fn owner_label(label: &str) -> Result<OwnerLabel, StoreError> {
    OwnerLabel::new(label).map_err(|_| corrupt("owner"))
}
