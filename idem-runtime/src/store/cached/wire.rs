//! A record as bytes that name their own form: a line with the version, a line of JSON, then the result as it was
//! encoded. An operator can read all but the result.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::key::{Identity, Key, Operation, RecordId, Scope, hex};
use crate::record::{Digest, Grant, OnCrash, Payload, Record, State, Timestamp, Token, micros};

const VERSION: &[u8] = b"idem-record/1\n";

/// Times and durations are in microseconds by the clock of the store that the record is from, unless named otherwise.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    scope: String,
    operation: String,
    key: String,
    fingerprint: String,
    state: String,
    /// The codec of the result, and how many bytes it has.
    payload: Option<(String, usize)>,
    token: Option<String>,
    grant: i64,
    attempt: u32,
    lease_until: i64,
    retention: i64,
    on_crash: String,
    first_claimed_at: i64,
    ended_at: i64,
    read_at: i64,
    /// The life that it was given when `read_at` was now, in milliseconds: what has gone of it is its age.
    life_ms: u64,
}

/// A record that has this long to live, in milliseconds; none where it has not ended.
pub(super) fn write(record: &Record, life_ms: u64) -> Option<Vec<u8>> {
    let header = Header {
        scope: record.identity.scope.as_str().to_owned(),
        operation: record.identity.operation.as_str().to_owned(),
        key: record.identity.key.as_str().to_owned(),
        fingerprint: hex(record.fingerprint.as_bytes()),
        state: record.state.as_str().to_owned(),
        payload: record
            .payload
            .as_ref()
            .map(|payload| (payload.codec.to_string(), payload.bytes.len())),
        token: record.token.map(|token| hex(token.as_bytes())),
        grant: record.grant.number(),
        attempt: record.attempt,
        lease_until: record.lease_until.as_micros(),
        retention: micros(record.retention),
        on_crash: record.on_crash.as_str().to_owned(),
        first_claimed_at: record.first_claimed_at.as_micros(),
        ended_at: record.ended_at?.as_micros(),
        read_at: record.read_at.as_micros(),
        life_ms,
    };
    let mut bytes = VERSION.to_vec();
    serde_json::to_writer(&mut bytes, &header).ok()?;
    bytes.push(b'\n');
    if let Some(payload) = &record.payload {
        bytes.extend_from_slice(&payload.bytes);
    }
    Some(bytes)
}

/// The ended record with this id that has `left_ms` of its life left, read now. None where the bytes are anything else,
/// the record of another id included, and where their life has no end.
pub(super) fn read(bytes: &[u8], id: &RecordId, left_ms: i64) -> Option<Record> {
    let rest = bytes.strip_prefix(VERSION)?;
    let end = rest.iter().position(|byte| *byte == b'\n')?;
    let (header, payload) = (&rest[..end], &rest[end + 1..]);
    let header: Header = serde_json::from_slice(header).ok()?;
    let age = header.life_ms.checked_sub(u64::try_from(left_ms).ok()?)?;
    let identity = Identity {
        scope: Scope::from_stored(&header.scope),
        operation: Operation::new(header.operation).ok()?,
        key: Key::new(header.key).ok()?,
    };
    // Whatever put a record under the id of another would hand one caller the result of another.
    if RecordId::of(&identity) != *id {
        return None;
    }
    let state = State::from_stored(&header.state).filter(|state| state.is_ended())?;
    let payload = match header.payload {
        Some((codec, length)) if length == payload.len() => Some(Payload {
            codec: codec.into(),
            bytes: payload.into(),
        }),
        None if payload.is_empty() => None,
        _ => return None,
    };
    if payload.is_some() != matches!(state, State::Completed | State::Failed) || header.attempt == 0
    {
        return None;
    }
    let token = match header.token {
        Some(token) => Some(Token::from_bytes(unhex(&token)?.try_into().ok()?)),
        None => None,
    };
    Some(Record {
        id: *id,
        identity,
        fingerprint: Digest::from_bytes(&unhex(&header.fingerprint)?)?,
        state,
        payload,
        token,
        grant: Grant::from_number(header.grant),
        attempt: header.attempt,
        lease_until: Timestamp::from_micros(header.lease_until),
        retention: Duration::from_micros(header.retention.try_into().ok()?),
        on_crash: OnCrash::from_stored(&header.on_crash)?,
        first_claimed_at: Timestamp::from_micros(header.first_claimed_at),
        ended_at: Some(Timestamp::from_micros(header.ended_at)),
        read_at: Timestamp::from_micros(header.read_at).after(Duration::from_millis(age)),
    })
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    text.as_bytes()
        .chunks(2)
        .map(|pair| match pair {
            [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(state: State) -> Record {
        let identity = Identity {
            scope: Scope::new("tenant/ü").unwrap(),
            operation: Operation::new("charges.create").unwrap(),
            key: Key::new("order \"1\"").unwrap(),
        };
        let payload = (state != State::Unrecorded).then(|| Payload {
            codec: "json/1".into(),
            bytes: b"{\"a\":\n1}\n"[..].into(),
        });
        Record {
            id: RecordId::of(&identity),
            identity,
            fingerprint: Digest::new(1, [1, 2, 3, 4], &[200; 32]),
            state,
            payload,
            token: (state != State::Failed).then(|| Token::from_bytes([9; 16])),
            grant: Grant::from_number(i64::MAX),
            attempt: 3,
            lease_until: Timestamp::from_micros(-5),
            retention: Duration::from_secs(7),
            on_crash: OnCrash::Reconcile,
            first_claimed_at: Timestamp::from_micros(1),
            ended_at: Some(Timestamp::from_micros(2)),
            read_at: Timestamp::from_micros(3),
        }
    }

    #[test]
    fn what_is_written_is_read_and_has_aged() {
        for state in [State::Completed, State::Failed, State::Unrecorded] {
            let record = record(state);
            let bytes = write(&record, 1_000).unwrap();
            assert_eq!(read(&bytes, &record.id, 1_000).as_ref(), Some(&record));
            let aged = read(&bytes, &record.id, 400).unwrap();
            assert_eq!(aged.read_at, Timestamp::from_micros(600_003));
        }
    }

    #[test]
    fn a_life_without_end_or_that_was_prolonged_says_nothing_of_the_age() {
        let record = record(State::Completed);
        let bytes = write(&record, 1_000).unwrap();
        for left in [-1, -2, 1_001] {
            assert_eq!(read(&bytes, &record.id, left), None);
        }
    }

    #[test]
    fn the_record_of_another_id_is_not_read() {
        let record = record(State::Completed);
        let bytes = write(&record, 1_000).unwrap();
        assert_eq!(read(&bytes, &RecordId::from_bytes([1; 32]), 500), None);
    }

    #[test]
    fn only_ended_records_are_read() {
        let running = Record {
            state: State::Running,
            payload: None,
            ..record(State::Completed)
        };
        let bytes = write(&running, 1_000).unwrap();
        assert_eq!(read(&bytes, &running.id, 500), None);
    }

    #[test]
    fn no_part_of_a_record_is_read() {
        let record = record(State::Completed);
        let bytes = write(&record, 1_000).unwrap();
        for end in 0..bytes.len() {
            assert_eq!(read(&bytes[..end], &record.id, 500), None, "{end} bytes");
        }
        let longer = [&bytes[..], b"x"].concat();
        assert_eq!(read(&longer, &record.id, 500), None);
    }
}
