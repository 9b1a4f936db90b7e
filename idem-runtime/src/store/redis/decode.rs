//! Decodes the replies of the scripts.

use redis::Value;

use super::errors::{corrupt, unreadable};
use crate::error::StoreError;
use crate::key::RecordId;
use crate::record::{MemberDigests, OwnerLabel, Payload, Record, Timestamp};
use crate::store::encoding::read_request;
use crate::store::status::{Status, number};
use crate::store::{
    AttemptLog, Attempts, ClaimOutcome, ClaimRequest, RecordSummary, SavedStep, Unreadable,
};

/// Decodes the answer to a claim.
pub(super) fn claim_outcome(
    claim: &ClaimRequest,
    answer: Value,
) -> Result<ClaimOutcome, StoreError> {
    match answer {
        Value::BulkString(status) => Ok(ClaimOutcome::Granted(read_status(&status)?.granted)),
        existing => {
            let record = record(&claim.id, Some(claim), existing)?;
            Ok(ClaimOutcome::Existing(Box::new(record)))
        }
    }
}

/// Decodes the record that was read, if there is one.
pub(super) fn record_if_any(id: &RecordId, answer: Value) -> Result<Option<Record>, StoreError> {
    match answer {
        Value::Nil => Ok(None),
        existing => record(id, None, existing).map(Some),
    }
}

/// Decodes the record without its result, if there is one: the record with the codec alone, the size of the result, and the
/// label of the owner.
pub(super) fn summary(id: &RecordId, answer: Value) -> Result<Option<RecordSummary>, StoreError> {
    if matches!(answer, Value::Nil) {
        return Ok(None);
    }
    let mut fields = Fields::of(answer)?;
    let record = record(id, None, fields.0.next().unwrap_or(Value::Nil))?;
    let mut summary = RecordSummary::from(record);
    let Some(Value::Int(size)) = fields.0.next() else {
        return Err(unreadable());
    };
    if let Some(payload) = &mut summary.payload {
        payload.size = size.max(0).cast_unsigned();
    }
    // The record is good without the label, and `attempts` names a label that cannot be read.
    summary.owner = owner_label(fields.next()).unwrap_or_default();
    Ok(Some(summary))
}

/// Decodes the label of an owner.
fn owner_label(bytes: Option<Vec<u8>>) -> Result<Option<OwnerLabel>, StoreError> {
    bytes
        .filter(|bytes| !bytes.is_empty())
        .map(|bytes| {
            let label = String::from_utf8_lossy(&bytes).into_owned();
            OwnerLabel::new(label).map_err(|_| corrupt("owner"))
        })
        .transpose()
}

/// Decodes the record with its attempts, if there is one: the record, the label of the owner, the begin of the attempt,
/// the history, and the digests of the members.
pub(super) fn attempts(id: &RecordId, answer: Value) -> Result<Option<Attempts>, StoreError> {
    if matches!(answer, Value::Nil) {
        return Ok(None);
    }
    let mut fields = Fields::of(answer)?;
    let record = record(id, None, fields.0.next().unwrap_or(Value::Nil))?;
    // The record is good without the parts that follow, and an operator needs it.
    let mut passed_over = Vec::new();
    let owner = owner_label(fields.next()).transpose();
    let owner = Unreadable::part("owner", owner, &mut passed_over);
    // A history that was cut in the middle of a character begins with a part of a line, which is not read.
    let mut text = || {
        let bytes = fields.next();
        bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    };
    let began_at = text().map(|began| number(&began).ok_or_else(|| corrupt("began")));
    let began_at = Unreadable::part("began", began_at, &mut passed_over);
    let began_at = began_at.map(Timestamp::from_micros);
    let log = AttemptLog::from_parts(owner, began_at, text().unwrap_or_default());
    let members = fields.next();
    let members = members
        .map(|members| MemberDigests::from_bytes(&members).ok_or_else(|| corrupt("members")));
    let members = Unreadable::part("members", members, &mut passed_over);
    let attempts = log.attempts(record).with_members(members);
    Ok(Some(attempts.with_unreadable(passed_over)))
}

/// Decodes the saved steps, which are pairs of field and content. Returns `None` if the caller does not own the record.
pub(super) fn saved_steps(answer: Value) -> Result<Option<Vec<SavedStep>>, StoreError> {
    let steps = steps(answer)?;
    // A body must not run again as if the step had not been saved.
    let steps = steps.map(|steps| steps.into_iter().map(|(_, step)| step).collect());
    steps.transpose()
}

/// Decodes the saved steps, each with its name.
pub(super) fn steps(answer: Value) -> Result<Option<Vec<NamedStep>>, StoreError> {
    if matches!(answer, Value::Nil) {
        return Ok(None);
    }
    let mut fields = Fields::of(answer)?;
    let mut steps = Vec::new();
    while let Some(field) = fields.next() {
        let content = fields.bytes("step")?;
        let shown = String::from_utf8_lossy(&field).into_owned();
        steps.push((shown, step(field, &content)));
    }
    Ok(Some(steps))
}

/// Name of a step, and the step.
type NamedStep = (String, Result<SavedStep, StoreError>);

fn step(field: Vec<u8>, content: &[u8]) -> Result<SavedStep, StoreError> {
    let name = String::from_utf8(field).map_err(|_| corrupt("step"))?;
    let name = name.strip_prefix("step:").ok_or_else(|| corrupt("step"))?;
    Ok(SavedStep {
        name: name.to_owned(),
        payload: Payload::from_bytes(content).ok_or_else(|| corrupt("step"))?,
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

pub(super) fn read_status(status: &[u8]) -> Result<Status, StoreError> {
    let line = std::str::from_utf8(status).map_err(|_| corrupt("status"))?;
    Status::read(line).map_err(|_| corrupt("status"))
}

/// Redis' time in microseconds. A time that no clock shows is the last one.
pub(super) fn in_micros(seconds: i64, micros: i64) -> i64 {
    seconds.saturating_mul(1_000_000).saturating_add(micros)
}

/// Decodes a record: the time in seconds and microseconds with the status; the request, which is absent if it equals
/// that of the claim; the outcome.
fn record(
    id: &RecordId,
    claim: Option<&ClaimRequest>,
    answer: Value,
) -> Result<Record, StoreError> {
    let mut fields = Fields::of(answer)?;
    let line = fields.bytes("status")?;
    let line = std::str::from_utf8(&line).map_err(|_| corrupt("status"))?;
    let mut parts = line.splitn(3, ' ');
    let mut time = || number(parts.next()?);
    let read_at = time()
        .zip(time())
        .map(|(seconds, micros)| in_micros(seconds, micros))
        .ok_or_else(unreadable)?;
    let status =
        Status::read(parts.next().ok_or_else(unreadable)?).map_err(|_| corrupt("status"))?;
    let (fingerprint, identity) = match (fields.0.next(), claim) {
        (Some(Value::BulkString(request)), _) => {
            read_request(&request).ok_or_else(|| corrupt("request"))?
        }
        (Some(Value::Nil), Some(claim)) => (claim.fingerprint, claim.identity.clone()),
        _ => return Err(unreadable()),
    };
    // A key stored under the id of another record would give one caller the result of another.
    if claim.is_none_or(|claim| claim.identity != identity) && RecordId::of(&identity) != *id {
        return Err(corrupt("request"));
    }
    let payload = match fields.next() {
        Some(outcome) => Some(Payload::from_bytes(&outcome).ok_or_else(|| corrupt("outcome"))?),
        None => None,
    };
    let read_at = Timestamp::from_micros(read_at);
    status
        .record((*id, identity), fingerprint, payload, read_at)
        .map_err(|_| corrupt("outcome"))
}

/// Fields of an answer, in the order of the scripts.
struct Fields(std::vec::IntoIter<Value>);

impl Fields {
    fn of(answer: Value) -> Result<Self, StoreError> {
        match answer {
            Value::Array(fields) => Ok(Self(fields.into_iter())),
            _ => Err(unreadable()),
        }
    }

    fn next(&mut self) -> Option<Vec<u8>> {
        match self.0.next()? {
            Value::BulkString(bytes) => Some(bytes),
            _ => None,
        }
    }

    fn bytes(&mut self, field: &str) -> Result<Vec<u8>, StoreError> {
        self.next().ok_or_else(|| corrupt(field))
    }
}
