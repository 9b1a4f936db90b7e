//! What the scripts answer.

use std::time::Duration;

use redis::Value;

use super::errors::{corrupt, unreadable};
use crate::error::StoreError;
use crate::key::{Identity, Key, Operation, RecordId, Scope};
use crate::record::{Digest, Grant, OnCrash, Payload, Record, State, Timestamp, Token};
use crate::store::{Claim, Granted};

/// The answer to a claim.
pub(super) fn claim(id: &RecordId, answer: Value) -> Result<Claim, StoreError> {
    let mut answer = Fields::of(answer)?;
    match answer.bytes("answer")?.as_slice() {
        b"granted" => Ok(Claim::Granted(Granted {
            grant: Grant::from_number(answer.number("grant")?),
            attempt: answer.attempt()?,
            first_claimed_at: answer.time("first_claimed_at")?,
            on_crash: answer.on_crash()?,
        })),
        b"existing" => Ok(Claim::Existing(Box::new(record(id, answer)?))),
        _ => Err(unreadable()),
    }
}

/// The record that was read, where there is one.
pub(super) fn found(id: &RecordId, answer: Value) -> Result<Option<Record>, StoreError> {
    if matches!(answer, Value::Nil) {
        return Ok(None);
    }
    let mut answer = Fields::of(answer)?;
    answer.bytes("answer")?;
    record(id, answer).map(Some)
}

/// Whether a step took effect.
pub(super) fn took_effect(answer: &Value) -> Result<bool, StoreError> {
    match answer {
        Value::Int(0) => Ok(false),
        Value::Int(1) => Ok(true),
        _ => Err(unreadable()),
    }
}

fn record(id: &RecordId, mut fields: Fields) -> Result<Record, StoreError> {
    let read_at = fields.time("answer")?;
    let state = fields.text("state")?;
    let state = State::from_stored(&state).ok_or_else(|| corrupt("state"))?;
    let token = match fields.next() {
        None => None,
        Some(bytes) => Some(Token::from_bytes(
            bytes.try_into().map_err(|_| corrupt("token"))?,
        )),
    };
    let grant = Grant::from_number(fields.number("grant")?);
    let attempt = fields.attempt()?;
    let lease_until = fields.time("lease_until")?;
    let retention = u64::try_from(fields.number("retention")?).map_err(|_| corrupt("retention"))?;
    let on_crash = fields.on_crash()?;
    let first_claimed_at = fields.time("first_claimed_at")?;
    let ended_at = fields
        .next()
        .map(|bytes| number(bytes, "ended_at").map(Timestamp::from_micros))
        .transpose()?;
    let fingerprint =
        Digest::from_bytes(&fields.bytes("fingerprint")?).ok_or_else(|| corrupt("fingerprint"))?;
    let identity = Identity {
        scope: Scope::from_stored(&fields.text("scope")?),
        operation: Operation::new(fields.text("operation")?).map_err(|_| corrupt("operation"))?,
        key: Key::new(fields.text("key")?).map_err(|_| corrupt("key"))?,
    };
    // Whatever put a record under the id of another would hand one caller the result of another.
    if RecordId::of(&identity) != *id {
        return Err(corrupt("key"));
    }
    let payload = match (fields.next(), fields.next()) {
        (None, None) => None,
        (Some(codec), Some(bytes)) => Some(Payload {
            codec: String::from_utf8(codec)
                .map_err(|_| corrupt("codec"))?
                .into(),
            bytes: bytes.into(),
        }),
        _ => return Err(corrupt("payload")),
    };
    if payload.is_some() != matches!(state, State::Completed | State::Failed) {
        return Err(corrupt("payload"));
    }
    if ended_at.is_some() != (state.is_ended() || state == State::Released) {
        return Err(corrupt("ended_at"));
    }
    let owned = matches!(state, State::Running | State::Interrupted);
    if owned && token.is_none() || state == State::Released && token.is_some() {
        return Err(corrupt("token"));
    }
    Ok(Record {
        id: *id,
        identity,
        fingerprint,
        state,
        payload,
        token,
        grant,
        attempt,
        lease_until,
        retention: Duration::from_micros(retention),
        on_crash,
        first_claimed_at,
        ended_at,
        read_at,
    })
}

/// The fields of an answer, in the order of the scripts.
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

    fn text(&mut self, field: &str) -> Result<String, StoreError> {
        String::from_utf8(self.bytes(field)?).map_err(|_| corrupt(field))
    }

    fn number(&mut self, field: &str) -> Result<i64, StoreError> {
        number(self.bytes(field)?, field)
    }

    fn time(&mut self, field: &str) -> Result<Timestamp, StoreError> {
        self.number(field).map(Timestamp::from_micros)
    }

    fn attempt(&mut self) -> Result<u32, StoreError> {
        u32::try_from(self.number("attempt")?)
            .ok()
            .filter(|attempt| *attempt > 0)
            .ok_or_else(|| corrupt("attempt"))
    }

    fn on_crash(&mut self) -> Result<OnCrash, StoreError> {
        OnCrash::from_stored(&self.text("on_crash")?).ok_or_else(|| corrupt("on_crash"))
    }
}

fn number(bytes: Vec<u8>, field: &str) -> Result<i64, StoreError> {
    String::from_utf8(bytes)
        .ok()
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| corrupt(field))
}
