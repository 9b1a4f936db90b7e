//! A record in three columns: nearly all of it as lines of text, its fingerprint, and its payload. That is for where each
//! further column costs more than what is in it: MariaDB describes every column in every answer, and the driver of SQLite
//! copies every value by itself.

use crate::error::StoreError;
use crate::key::{Identity, Key, Operation, RecordId, Scope};
use crate::record::{Digest, Payload, Record, State, Timestamp};
use crate::store::cursor;
use crate::store::head::{Head, number};
use crate::store::sql::Readable;
use crate::store::sql::rows::{corrupt, unreadable};

/// The record in the columns that a dialect packs.
///
/// The lines of the first: the head, the time of reading, the id in hex digits, the length of the codec's tag in bytes or
/// `-`, operation, key, and then the tag and the scope, which may hold ends of lines themselves.
pub(in crate::store) fn record<R: Readable>(row: &R) -> Result<Record, StoreError> {
    let mut lines = row.text(0).map_err(unreadable)?.splitn(7, '\n');
    let mut line = |column| lines.next().ok_or_else(|| corrupt(column));
    let Head {
        state,
        ended_at,
        retention,
        lease_until,
        token,
        granted,
    } = Head::read(line("state")?).map_err(corrupt)?;
    let read_at = number(line("state")?).ok_or_else(|| corrupt("state"))?;
    let id = cursor::parse(line("id")?).ok_or_else(|| corrupt("id"))?;
    let codec = match line("codec")? {
        "-" => None,
        length => Some(length.parse().map_err(|_| corrupt("codec"))?),
    };
    let operation =
        Operation::new(line("operation")?.to_owned()).map_err(|_| corrupt("operation"))?;
    let key = Key::new(line("idempotency_key")?).map_err(|_| corrupt("idempotency_key"))?;
    let (codec, scope) = {
        let rest = line("scope")?;
        let at = codec.unwrap_or(0);
        let (tag, scope) = rest.split_at_checked(at).ok_or_else(|| corrupt("codec"))?;
        (codec.map(|_| tag), Scope::from_stored(scope))
    };
    let identity = Identity {
        scope,
        operation,
        key,
    };
    // Whatever put a row under the id of another would hand one caller the result of another.
    if RecordId::of(&identity) != id {
        return Err(corrupt("id"));
    }
    let fingerprint = row.bytes(1).map_err(unreadable)?;
    let payload = match (codec, row.bytes_or_null(2).map_err(unreadable)?) {
        (None, None) => None,
        (Some(codec), Some(bytes)) => Some(Payload {
            codec: codec.to_owned().into(),
            bytes: bytes.into(),
        }),
        _ => return Err(corrupt("payload")),
    };
    if payload.is_some() != matches!(state, State::Completed | State::Failed) {
        return Err(corrupt("payload"));
    }
    Ok(Record {
        id,
        identity,
        fingerprint: Digest::from_bytes(fingerprint).ok_or_else(|| corrupt("fingerprint"))?,
        state,
        payload,
        token,
        grant: granted.grant,
        attempt: granted.attempt,
        lease_until,
        retention,
        on_crash: granted.on_crash,
        first_claimed_at: granted.first_claimed_at,
        ended_at,
        read_at: Timestamp::from_micros(read_at),
    })
}
