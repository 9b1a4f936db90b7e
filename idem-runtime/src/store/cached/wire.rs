//! Byte format of a cached record: a line with the version and the fencing token, which scripts read, a line of JSON,
//! then the encoded result. An operator can read all of it except the result.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::key::{Identity, Key, Operation, RecordId, Scope, hex};
use crate::record::{
    ClaimId, Digest, FencingToken, OnCrash, Payload, Record, RecordState, Timestamp, micros,
};

const VERSION: &str = "idem-record/2 ";

/// Prefix of a tombstone, before its fencing token. No record up to that token is put over the tombstone.
const TOMBSTONE: &str = "idem-erased/2 ";

/// Time at which a record was read and time until which it may be served, by the clock of Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Freshness {
    /// Time before the store was asked: its clock showed [`Record::read_at`] then or later.
    pub(super) asked_at: Timestamp,
    /// Time from which the record is no longer served.
    pub(super) valid_until: Timestamp,
}

impl Freshness {
    /// Creates the freshness of a record that was read after this moment.
    pub(super) fn new(record: &Record, asked_at: Timestamp, max_age: Duration) -> Option<Self> {
        let left = record.unchanged_until()?.since(record.read_at).min(max_age);
        let is_valid = record.state.is_ended() && left >= Duration::from_millis(1);
        is_valid.then(|| Self {
            asked_at,
            valid_until: asked_at.after(left),
        })
    }

    /// Record as the store would return it now, if it may still be served. Redis removes the record too, but not before
    /// this time. If its clock has gone back, it shows nothing about the record's age.
    pub(super) fn at(
        self,
        now: Timestamp,
        mut record: Record,
        max_age: Duration,
    ) -> Option<Record> {
        let age = now.since(self.asked_at);
        let is_valid = self.asked_at <= now && now < self.valid_until && age < max_age;
        record.read_at = record.read_at.after(age);
        (is_valid && !record.is_expired()).then_some(record)
    }
}

/// Times and durations are in microseconds by the clock of the record's store, unless stated otherwise.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    scope: String,
    operation: String,
    key: String,
    fingerprint: String,
    state: String,
    /// Codec of the result, and its number of bytes.
    payload: Option<(String, usize)>,
    claim_id: Option<String>,
    attempt: u32,
    lease_until: i64,
    retention: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    payload_for: Option<i64>,
    on_crash: String,
    first_claimed_at: i64,
    ended_at: i64,
    read_at: i64,
    /// See [`Freshness`].
    asked_at: i64,
    valid_until: i64,
}

/// Encodes a tombstone.
pub(super) fn tombstone(fencing_token: FencingToken) -> Vec<u8> {
    format!("{TOMBSTONE}{}\n", fencing_token.number()).into_bytes()
}

/// Returns true if the value is a tombstone.
pub(super) fn is_tombstone(bytes: &[u8]) -> bool {
    bytes
        .strip_prefix(TOMBSTONE.as_bytes())
        .and_then(|rest| rest.strip_suffix(b"\n"))
        .is_some_and(|number| !number.is_empty() && number.iter().all(u8::is_ascii_digit))
}

/// Encodes an ended record. Returns `None` if the record has not ended.
pub(super) fn write(record: &Record, freshness: &Freshness) -> Option<Vec<u8>> {
    let header = Header {
        scope: record.identity.scope.as_str().to_owned(),
        operation: record.identity.operation.as_str().to_owned(),
        key: record.identity.key.as_str().to_owned(),
        fingerprint: hex::encode(record.fingerprint.as_bytes()),
        state: record.state.as_str().to_owned(),
        payload: record
            .payload
            .as_ref()
            .map(|payload| (payload.codec.to_string(), payload.bytes.len())),
        claim_id: record
            .claim_id
            .map(|claim_id| hex::encode(claim_id.as_bytes())),
        attempt: record.attempt,
        lease_until: record.lease_until.as_micros(),
        retention: micros(record.retention),
        payload_for: record.payload_for.map(micros),
        on_crash: record.on_crash.as_str().to_owned(),
        first_claimed_at: record.first_claimed_at.as_micros(),
        ended_at: record.ended_at?.as_micros(),
        read_at: record.read_at.as_micros(),
        asked_at: freshness.asked_at.as_micros(),
        valid_until: freshness.valid_until.as_micros(),
    };
    let mut bytes = format!("{VERSION}{}\n", record.fencing_token.number()).into_bytes();
    serde_json::to_writer(&mut bytes, &header).ok()?;
    bytes.push(b'\n');
    if let Some(payload) = &record.payload {
        bytes.extend_from_slice(&payload.bytes);
    }
    Some(bytes)
}

/// Decodes the ended record with this id, and its freshness. Returns `None` for any other bytes, including the record
/// of another id.
pub(super) fn read(bytes: &[u8], id: &RecordId) -> Option<(Record, Freshness)> {
    let (fencing_token, rest) = line(bytes.strip_prefix(VERSION.as_bytes())?)?;
    let fencing_token: i64 = std::str::from_utf8(fencing_token).ok()?.parse().ok()?;
    let (header, payload) = line(rest)?;
    let header: Header = serde_json::from_slice(header).ok()?;
    let identity = Identity {
        scope: Scope::from_stored(&header.scope),
        operation: Operation::new(header.operation).ok()?,
        key: Key::new(header.key).ok()?,
    };
    // A value stored under the id of another record would give one caller the result of another.
    if RecordId::of(&identity) != *id {
        return None;
    }
    let state = RecordState::from_stored(&header.state).filter(|state| state.is_ended())?;
    let payload = match header.payload {
        Some((codec, length)) if length == payload.len() => Some(Payload {
            codec: codec.into(),
            bytes: payload.into(),
        }),
        None if payload.is_empty() => None,
        _ => return None,
    };
    let may_have_one = matches!(state, RecordState::Completed | RecordState::Failed);
    let may_have_none = !may_have_one || header.payload_for.is_some();
    if payload.is_some() && !may_have_one
        || payload.is_none() && !may_have_none
        || header.attempt == 0
    {
        return None;
    }
    let payload_for = match header.payload_for {
        Some(micros) => Some(Duration::from_micros(micros.try_into().ok()?)),
        None => None,
    };
    let claim_id = match header.claim_id {
        Some(claim_id) => Some(ClaimId::from_bytes(hex::decode(&claim_id)?)),
        None => None,
    };
    let record = Record {
        id: *id,
        identity,
        fingerprint: Digest::from_bytes(&hex::decode::<{ Digest::LEN }>(&header.fingerprint)?)?,
        state,
        payload,
        claim_id,
        fencing_token: FencingToken::from_number(fencing_token),
        attempt: header.attempt,
        lease_until: Timestamp::from_micros(header.lease_until),
        retention: Duration::from_micros(header.retention.try_into().ok()?),
        payload_for,
        on_crash: OnCrash::from_stored(&header.on_crash)?,
        first_claimed_at: Timestamp::from_micros(header.first_claimed_at),
        ended_at: Some(Timestamp::from_micros(header.ended_at)),
        read_at: Timestamp::from_micros(header.read_at),
    };
    let freshness = Freshness {
        asked_at: Timestamp::from_micros(header.asked_at),
        valid_until: Timestamp::from_micros(header.valid_until),
    };
    Some((record, freshness))
}

/// Splits off the first line.
fn line(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    Some((&bytes[..end], &bytes[end + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(state: RecordState) -> Record {
        let identity = Identity {
            scope: Scope::new("tenant/ü").unwrap(),
            operation: Operation::new("charges.create").unwrap(),
            key: Key::new("order \"1\"").unwrap(),
        };
        let payload = (state != RecordState::Unrecorded).then(|| Payload {
            codec: "json/1".into(),
            bytes: b"{\"a\":\n1}\n"[..].into(),
        });
        Record {
            id: RecordId::of(&identity),
            identity,
            fingerprint: Digest::new(1, [1, 2, 3, 4], &[200; 32]),
            state,
            payload,
            claim_id: (state != RecordState::Failed).then(|| ClaimId::from_bytes([9; 16])),
            fencing_token: FencingToken::from_number(i64::MAX),
            attempt: 3,
            lease_until: Timestamp::from_micros(-5),
            retention: Duration::from_secs(7),
            payload_for: None,
            on_crash: OnCrash::Reconcile,
            first_claimed_at: Timestamp::from_micros(1),
            ended_at: Some(Timestamp::from_micros(2)),
            read_at: Timestamp::from_micros(3),
        }
    }

    const FRESHNESS: Freshness = Freshness {
        asked_at: Timestamp::from_micros(10_000_000),
        valid_until: Timestamp::from_micros(12_000_000),
    };
    const FOREVER: Duration = Duration::MAX;

    #[test]
    fn what_is_written_is_read() {
        for state in [
            RecordState::Completed,
            RecordState::Failed,
            RecordState::Unrecorded,
        ] {
            let record = record(state);
            let bytes = write(&record, &FRESHNESS).unwrap();
            assert_eq!(read(&bytes, &record.id), Some((record, FRESHNESS)));
        }
        for payload in [record(RecordState::Completed).payload, None] {
            let forgetting = Record {
                payload,
                payload_for: Some(Duration::from_secs(2)),
                ..record(RecordState::Completed)
            };
            let bytes = write(&forgetting, &FRESHNESS).unwrap();
            assert_eq!(read(&bytes, &forgetting.id), Some((forgetting, FRESHNESS)));
        }
    }

    #[test]
    fn a_record_ages_by_the_clock_of_redis_until_it_is_invalid() {
        let record = record(RecordState::Completed);
        let at = |micros| FRESHNESS.at(Timestamp::from_micros(micros), record.clone(), FOREVER);
        assert_eq!(at(10_000_000), Some(record.clone()));
        let last = at(11_999_999).unwrap();
        assert_eq!(last.read_at, Timestamp::from_micros(2_000_002));
        assert_eq!(at(12_000_000), None);
        assert_eq!(at(9_999_999), None, "served by a clock that went back");
    }

    #[test]
    fn whoever_serves_it_may_ask_for_a_younger_one() {
        let record = record(RecordState::Completed);
        let at = |age| FRESHNESS.at(Timestamp::from_micros(11_000_000), record.clone(), age);
        assert_eq!(at(Duration::from_secs(1)), None);
        assert!(at(Duration::from_micros(1_000_001)).is_some());
    }

    #[test]
    fn validity_ends_with_the_retention_or_the_maximum_age() {
        let record = record(RecordState::Completed);
        let valid_until =
            |max_age| Freshness::new(&record, FRESHNESS.asked_at, max_age).map(|it| it.valid_until);
        // The record ended at 2 with a retention of 7 s, and was read at 3.
        let whole = Timestamp::from_micros(16_999_999);
        assert_eq!(valid_until(FOREVER), Some(whole));
        assert_eq!(
            valid_until(Duration::from_secs(2)),
            Some(FRESHNESS.valid_until)
        );
        assert_eq!(valid_until(Duration::ZERO), None);
        let mut forgetting = Record {
            payload_for: Some(Duration::from_secs(2)),
            ..record.clone()
        };
        let until_payload = Freshness::new(&forgetting, FRESHNESS.asked_at, FOREVER);
        let until_payload = until_payload.map(|it| it.valid_until);
        assert_eq!(until_payload, Some(Timestamp::from_micros(11_999_999)));
        forgetting.payload = None;
        let until_end = Freshness::new(&forgetting, FRESHNESS.asked_at, FOREVER);
        assert_eq!(until_end.map(|it| it.valid_until), Some(whole));
    }

    #[test]
    fn a_tombstone_is_no_record() {
        let record = record(RecordState::Completed);
        let tombstone = tombstone(record.fencing_token);
        assert!(is_tombstone(&tombstone));
        assert_eq!(read(&tombstone, &record.id), None);
        let bytes = write(&record, &FRESHNESS).unwrap();
        for other in [
            &bytes[..],
            b"",
            b"idem-erased/2 \n",
            b"idem-erased/2 7",
            b"idem-erased/2 x\n",
        ] {
            assert!(!is_tombstone(other));
        }
    }

    #[test]
    fn the_record_of_another_id_is_not_read() {
        let record = record(RecordState::Completed);
        let bytes = write(&record, &FRESHNESS).unwrap();
        assert_eq!(read(&bytes, &RecordId::from_bytes([1; 32])), None);
    }

    #[test]
    fn only_ended_records_are_read() {
        let running = Record {
            state: RecordState::Running,
            payload: None,
            ..record(RecordState::Completed)
        };
        let bytes = write(&running, &FRESHNESS).unwrap();
        assert_eq!(read(&bytes, &running.id), None);
    }

    #[test]
    fn no_part_of_a_record_is_read() {
        let record = record(RecordState::Completed);
        let bytes = write(&record, &FRESHNESS).unwrap();
        for end in 0..bytes.len() {
            assert_eq!(read(&bytes[..end], &record.id), None, "{end} bytes");
        }
        let longer = [&bytes[..], b"x"].concat();
        assert_eq!(read(&longer, &record.id), None);
    }
}
