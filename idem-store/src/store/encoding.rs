//! Records and payloads as bytes.

use crate::error::{StoreError, StoreErrorKind};
use crate::key::{Identity, Key, Operation, RecordId, Scope};
use crate::record::{Digest, Payload, Record, Timestamp};
use crate::store::status::{Status, number};

/// Name and version of the format of a record.
const RECORD: &str = "idem-record/1";

impl Record {
    /// Encodes the record without its [`read_at`](Self::read_at), for stores that keep a record in one piece. The format
    /// is stable: every later version of this crate reads it.
    ///
    /// The first line is text: `idem-record/1`, the length of the request in bytes, the state and the values that change
    /// with it. The request (fingerprint, operation, key and scope) and the payload follow. Durations are whole
    /// microseconds, limited to the 292,000 years that an `i64` holds. Times are after 1970.
    pub fn to_bytes(&self) -> Vec<u8> {
        let request = request(&self.fingerprint, &self.identity);
        let status = Status::of(self);
        let mut bytes = format!("{RECORD} {} {status}\n", request.len()).into_bytes();
        bytes.extend_from_slice(&request);
        if let Some(payload) = &self.payload {
            bytes.extend_from_slice(&payload.to_bytes());
        }
        bytes
    }

    /// Decodes the record with this id, as of this time of the store's clock.
    ///
    /// # Errors
    /// [`StoreErrorKind::Corrupt`] if the bytes are not what [`to_bytes`](Self::to_bytes) writes for a record with this
    /// id. A store must return that error, and never treat such a record as absent: the body would run again.
    pub fn from_bytes(id: &RecordId, bytes: &[u8], read_at: Timestamp) -> Result<Self, StoreError> {
        let (head, content) = split_line(bytes).ok_or_else(|| corrupt("version"))?;
        let head = head
            .strip_prefix(RECORD)
            .and_then(|it| it.strip_prefix(' '));
        let (length, status) = head
            .and_then(|it| it.split_once(' '))
            .ok_or_else(|| corrupt("version"))?;
        let (fingerprint, identity, payload) = number(length)
            .and_then(|length| content.split_at_checked(usize::try_from(length).ok()?))
            .and_then(|(request, payload)| {
                let (fingerprint, identity) = read_request(request)?;
                Some((fingerprint, identity, payload))
            })
            .ok_or_else(|| corrupt("request"))?;
        // A record under the id of another one would give one caller the result of another.
        if RecordId::of(&identity) != *id {
            return Err(corrupt("id"));
        }
        let payload = match payload {
            [] => None,
            bytes => Some(Payload::from_bytes(bytes).ok_or_else(|| corrupt("payload"))?),
        };
        Status::read(status)
            .and_then(|status| status.record((*id, identity), fingerprint, payload, read_at))
            .map_err(corrupt)
    }
}

impl Payload {
    /// Encodes the payload: the length of the codec's tag in digits, a colon, the tag, and the bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = format!("{}:{}", self.codec.len(), self.codec).into_bytes();
        bytes.extend_from_slice(&self.bytes);
        bytes
    }

    /// Decodes what [`to_bytes`](Self::to_bytes) writes. Returns `None` for other bytes.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let colon = bytes.iter().position(|byte| *byte == b':')?;
        let (length, rest) = bytes.split_at(colon);
        let length: usize = std::str::from_utf8(length).ok()?.parse().ok()?;
        let (codec, bytes) = rest.get(1..)?.split_at_checked(length)?;
        Some(Self {
            codec: std::str::from_utf8(codec).ok()?.to_owned().into(),
            bytes: bytes.into(),
        })
    }
}

/// Encodes the fingerprint unchanged, operation, key and scope, separated by line breaks. Neither operation nor key can
/// contain a line break.
pub fn request(fingerprint: &Digest, identity: &Identity) -> Vec<u8> {
    let lines = [
        identity.operation.as_str(),
        "\n",
        identity.key.as_str(),
        "\n",
        identity.scope.as_str(),
    ];
    let len = lines.iter().map(|it| it.len()).sum::<usize>();
    let mut request = Vec::with_capacity(Digest::LEN + len);
    request.extend_from_slice(fingerprint.as_bytes());
    for line in lines {
        request.extend_from_slice(line.as_bytes());
    }
    request
}

/// Decodes the result of [`request`]. Returns `None` for other bytes.
pub fn read_request(request: &[u8]) -> Option<(Digest, Identity)> {
    let (fingerprint, lines) = request.split_at_checked(Digest::LEN)?;
    let mut lines = std::str::from_utf8(lines).ok()?.splitn(3, '\n');
    let identity = Identity {
        operation: Operation::new(lines.next()?.to_owned()).ok()?,
        key: Key::new(lines.next()?).ok()?,
        scope: Scope::from_stored(lines.next()?),
    };
    Some((Digest::from_bytes(fingerprint)?, identity))
}

/// Splits bytes after their first line, which is text.
fn split_line(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    let (line, rest) = bytes.split_at(end);
    Some((std::str::from_utf8(line).ok()?, rest.get(1..)?))
}

fn corrupt(field: &'static str) -> StoreError {
    StoreError::new(
        StoreErrorKind::Corrupt,
        format!(
            "the stored record is malformed in `{field}`, read it with the version of idem that wrote it, or restore it"
        ),
    )
}

#[cfg(test)]
mod tests;
