//! A record in three columns: nearly all of it as lines of text, its fingerprint, and its payload. That is for where each
//! further column costs more than what is in it: MariaDB describes every column in every answer, and the driver of SQLite
//! copies every value by itself.

use crate::error::StoreError;
use crate::key::{Identity, Key, Operation, RecordId, Scope};
use crate::record::{Digest, Payload, Record, Timestamp};
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
    let head = Head::read(line("state")?).map_err(corrupt)?;
    let read_at = number(line("state")?).ok_or_else(|| corrupt("state"))?;
    let id = cursor::parse(line("id")?).ok_or_else(|| corrupt("id"))?;
    let codec = match line("codec")? {
        "-" => None,
        length => Some(length.parse().map_err(|_| corrupt("codec"))?),
    };
    let operation =
        Operation::new(line("operation")?.to_owned()).map_err(|_| corrupt("operation"))?;
    let key = Key::new(line("idempotency_key")?).map_err(|_| corrupt("idempotency_key"))?;
    let (tag, scope) = line("scope")?
        .split_at_checked(codec.unwrap_or(0))
        .ok_or_else(|| corrupt("codec"))?;
    let identity = Identity {
        scope: Scope::from_stored(scope),
        operation,
        key,
    };
    // Whatever put a row under the id of another would hand one caller the result of another.
    if RecordId::of(&identity) != id {
        return Err(corrupt("id"));
    }
    let fingerprint = Digest::from_bytes(row.bytes(1).map_err(unreadable)?)
        .ok_or_else(|| corrupt("fingerprint"))?;
    let payload = match (codec, row.bytes_or_null(2).map_err(unreadable)?) {
        (None, None) => None,
        (Some(_), Some(bytes)) => Some(Payload {
            codec: tag.to_owned().into(),
            bytes: bytes.into(),
        }),
        _ => return Err(corrupt("payload")),
    };
    let read_at = Timestamp::from_micros(read_at);
    head.record((id, identity), fingerprint, payload, read_at)
        .map_err(corrupt)
}
