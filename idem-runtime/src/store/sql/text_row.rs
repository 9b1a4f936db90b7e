//! Record in three columns: most values as lines of text, the fingerprint, and the payload. This format is for
//! databases in which another column costs more than its content: MariaDB describes every column in every answer, and
//! the driver of SQLite copies each value separately.

use crate::error::StoreError;
use crate::key::{RecordId, hex};
use crate::record::{Digest, Record, Timestamp};
use crate::store::sql::Readable;
use crate::store::sql::rows::{corrupt, identity, payload, unreadable};
use crate::store::status::{Status, number};

/// Number of columns of this format.
pub(in crate::store) const COLUMNS: usize = 3;

/// Reads the record from the columns of this format.
///
/// The lines of the first column are:
///
/// 1. the status,
/// 2. the time of reading,
/// 3. the id in hex digits,
/// 4. the length of the codec's tag in bytes, or `-`,
/// 5. the operation,
/// 6. the key,
/// 7. the tag and the scope, which may contain line breaks.
pub(in crate::store) fn record<R: Readable>(row: &R) -> Result<Record, StoreError> {
    let mut lines = row.text(0).map_err(unreadable)?.splitn(7, '\n');
    let mut line = |column| lines.next().ok_or_else(|| corrupt(column));
    let status = Status::read(line("state")?).map_err(corrupt)?;
    let read_at = number(line("state")?).ok_or_else(|| corrupt("state"))?;
    let id = hex::decode(line("id")?).ok_or_else(|| corrupt("id"))?;
    let id = RecordId::from_bytes(id);
    let codec = match line("codec")? {
        "-" => None,
        length => Some(length.parse().map_err(|_| corrupt("codec"))?),
    };
    let (operation, key) = (line("operation")?, line("idempotency_key")?);
    let (tag, scope) = line("scope")?
        .split_at_checked(codec.unwrap_or(0))
        .ok_or_else(|| corrupt("codec"))?;
    let identity = identity(&id, scope, operation, key)?;
    let fingerprint = Digest::from_bytes(&row.bytes(1).map_err(unreadable)?)
        .ok_or_else(|| corrupt("fingerprint"))?;
    let payload = payload(
        codec.map(|_| tag),
        row.bytes_or_null(2).map_err(unreadable)?,
    )?;
    let read_at = Timestamp::from_micros(read_at);
    status
        .record((id, identity), fingerprint, payload, read_at)
        .map_err(corrupt)
}
