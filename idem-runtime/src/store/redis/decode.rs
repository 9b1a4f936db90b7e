//! Decodes the replies of the server.

use redis::Value;

use super::errors::{corrupt, unreadable};
use super::layout::{self, Sections, Snapshot};
use crate::error::StoreError;
use crate::key::RecordId;
use crate::record::{FencingToken, OnCrash, Owner, Payload, Timestamp};
use crate::store::status::number;
use crate::store::{
    AttemptLog, Attempts, ClaimOutcome, ClaimRequest, Filter, Granted, ListedRecord, SavedStep,
    Unreadable,
};

/// Decodes the answer of a script to a claim.
pub(super) fn claim_outcome(
    claim: &ClaimRequest,
    answer: Value,
) -> Result<ClaimOutcome, StoreError> {
    if let Value::BulkString(line) = answer {
        let granted = std::str::from_utf8(&line).ok().and_then(granted);
        return granted.map(ClaimOutcome::Granted).ok_or_else(unreadable);
    }
    let snapshot = snapshot(answer)?.ok_or_else(unreadable)?;
    let record = snapshot.record(&claim.id, Some(claim))?;
    let record = record.ok_or_else(unreadable)?;
    Ok(ClaimOutcome::Existing(Box::new(record)))
}

/// Decodes a granted claim: fencing token, attempt, time of the first claim, and the letter of `on_crash`.
fn granted(line: &str) -> Option<Granted> {
    let mut words = line.split(' ');
    let fencing_token = FencingToken::from_number(number(words.next()?)?);
    let attempt = u32::try_from(number(words.next()?)?).ok()?;
    let first_claimed_at = Timestamp::from_micros(number(words.next()?)?);
    let letter = words.next()?.as_bytes();
    let policies = [OnCrash::Rerun, OnCrash::Refuse, OnCrash::Reconcile];
    let mut policies = policies.into_iter();
    let on_crash = policies.find(|it| letter == [layout::policy_letter(*it)])?;
    Some(Granted {
        fencing_token,
        attempt,
        first_claimed_at,
        on_crash,
    })
}

/// Decodes a record that was read: the server's time, the expiry of the key, and its value. Returns `None` if there is
/// none.
pub(super) fn snapshot(answer: Value) -> Result<Option<Snapshot>, StoreError> {
    let mut fields = match answer {
        Value::Array(fields) => fields.into_iter(),
        _ => return Err(unreadable()),
    };
    let read_at = fields.next().and_then(time).ok_or_else(unreadable)?;
    let expiry = match fields.next() {
        Some(Value::Int(at)) => Some(at).filter(|at| *at >= 0),
        _ => return Err(unreadable()),
    };
    match fields.next() {
        Some(Value::BulkString(value)) => Ok(Some(Snapshot {
            read_at,
            expiry,
            value,
        })),
        Some(Value::Nil) | None => Ok(None),
        _ => Err(unreadable()),
    }
}

/// Decodes the answer to `TIME`. The clock of the store has whole milliseconds, because times of a record follow from the
/// expiry of its key.
pub(super) fn time(answer: Value) -> Option<Timestamp> {
    let (seconds, micros): (i64, i64) = redis::from_redis_value(answer).ok()?;
    let millis = seconds.saturating_mul(1000).saturating_add(micros / 1000);
    // A time that no clock shows is the last one.
    Some(Timestamp::from_micros(millis.saturating_mul(1000)))
}

/// Decodes the begin of a record, and the length of its value. Returns `None` if the whole record has to be read, and
/// `Some(None)` if there is no record.
pub(super) fn listed_by_beginning(
    id: &RecordId,
    answer: Value,
    filter: &Filter,
) -> Result<Option<Option<ListedRecord>>, StoreError> {
    let Value::Array(mut fields) = answer else {
        return Err(unreadable());
    };
    let Some(Value::Int(length)) = fields.pop() else {
        return Err(unreadable());
    };
    let length = usize::try_from(length).unwrap_or_default();
    match snapshot(Value::Array(fields))? {
        None => Ok(Some(None)),
        Some(snapshot) => listed(id, &snapshot, length, filter),
    }
}

/// Builds the listed form of a record with this length, of which at least the begin was read. Returns what
/// [`listed_by_beginning`] returns.
pub(super) fn listed(
    id: &RecordId,
    snapshot: &Snapshot,
    length: usize,
    filter: &Filter,
) -> Result<Option<Option<ListedRecord>>, StoreError> {
    let Some(status) = layout::read_status(&snapshot.value, snapshot.expiry)? else {
        return Ok(Some(None));
    };
    let Some(sections) = Sections::of(&snapshot.value, length)? else {
        return Ok(None);
    };
    let record = snapshot.build(status, id, None, &sections, Payload::from_bytes)?;
    if record.is_expired() && !filter.expired {
        return Ok(Some(None));
    }
    let mut listed = ListedRecord::new(record, filter);
    if let Some(payload) = &mut listed.payload {
        payload.size += sections.missing as u64;
    }
    // The record is good without the label, and `attempts` names a label that cannot be read.
    listed.owner = sections.owner.and_then(|it| layout::owner_label(it).ok());
    Ok(Some(Some(listed)))
}

/// Decodes the record with its attempts, if there is one that has not expired.
pub(super) fn attempts(id: &RecordId, snapshot: &Snapshot) -> Result<Option<Attempts>, StoreError> {
    let attempts = attempts_of_any(id, snapshot)?;
    Ok(attempts.filter(|it| !it.record.is_expired()))
}

/// Decodes the record with its attempts, even if it has expired.
pub(super) fn attempts_of_any(
    id: &RecordId,
    snapshot: &Snapshot,
) -> Result<Option<Attempts>, StoreError> {
    let Some(record) = snapshot.any_record(id, None)? else {
        return Ok(None);
    };
    let sections = snapshot.sections()?;
    // The record is good without the parts that follow, and an operator needs it.
    let mut passed_over = Vec::new();
    let owner = sections.owner.map(layout::owner_label);
    let owner = Unreadable::part("owner", owner, &mut passed_over);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let began_at = sections
        .began
        .map(|it| number(&text(it)).ok_or_else(|| corrupt("began")));
    let began_at = Unreadable::part("began", began_at, &mut passed_over);
    let began_at = began_at.map(Timestamp::from_micros);
    // A history that was cut in the middle of a character begins with a part of a line, which is not read.
    let history = sections.history.map(text).unwrap_or_default();
    let log = AttemptLog::from_parts(owner, began_at, history);
    let members = sections.members.map(layout::member_digests);
    let members = Unreadable::part("members", members, &mut passed_over);
    let attempts = log.attempts(record).with_members(members);
    Ok(Some(attempts.with_unreadable(passed_over)))
}

/// Decodes the saved steps. Returns `None` if the caller does not own the record.
pub(super) fn saved_steps(
    owner: &Owner,
    snapshot: &Snapshot,
) -> Result<Option<Vec<SavedStep>>, StoreError> {
    let record = snapshot.record(&owner.id, None)?;
    if !record.is_some_and(|record| snapshot.is_owned_by(owner, &record)) {
        return Ok(None);
    }
    // A body must not run again as if the step had not been saved.
    let steps = steps(&snapshot.sections()?)
        .into_iter()
        .map(|(_, step)| step);
    steps.collect::<Result<_, _>>().map(Some)
}

/// Name of a step, and the step.
type NamedStep = (String, Result<SavedStep, StoreError>);

/// Decodes the saved steps, each with its name. If a step was saved twice, the first one counts.
pub(super) fn steps(sections: &Sections<'_>) -> Vec<NamedStep> {
    let mut steps: Vec<NamedStep> = Vec::new();
    for content in &sections.steps {
        let (name, payload) = layout::read_step(content).unwrap_or_default();
        let shown = format!("step:{}", String::from_utf8_lossy(name));
        if steps.iter().all(|(it, _)| *it != shown) {
            steps.push((shown, step(name, payload)));
        }
    }
    steps
}

fn step(name: &[u8], payload: &[u8]) -> Result<SavedStep, StoreError> {
    Ok(SavedStep {
        name: String::from_utf8(name.to_vec()).map_err(|_| corrupt("step"))?,
        payload: Payload::from_bytes(payload).ok_or_else(|| corrupt("step"))?,
    })
}

/// Decodes whether a transition took effect.
pub(super) fn took_effect(answer: &Value) -> Result<bool, StoreError> {
    match answer {
        Value::Int(0) => Ok(false),
        Value::Int(1) => Ok(true),
        _ => Err(unreadable()),
    }
}
