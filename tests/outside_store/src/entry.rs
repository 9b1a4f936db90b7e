//! Entries of the server: a record with its steps, and the number above which the fencing tokens of new records are.

use std::collections::BTreeMap;

use idem_store::record::{FencingToken, Payload};
use idem_store::{Record, RecordId, StoreError, StoreErrorKind, Timestamp};

/// A record and its saved steps. They share an entry, so that one compare-and-swap checks the owner and saves a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) record: Record,
    pub(crate) steps: BTreeMap<String, Payload>,
}

impl Entry {
    pub(crate) fn new(record: Record) -> Self {
        Self {
            record,
            steps: BTreeMap::new(),
        }
    }

    /// Encodes the record, then name and result of each step, each part preceded by its length.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        push(&mut bytes, &self.record.to_bytes());
        for (name, payload) in &self.steps {
            push(&mut bytes, name.as_bytes());
            push(&mut bytes, &payload.to_bytes());
        }
        bytes
    }

    /// An entry that cannot be read is an error, and never absent: the body would run again.
    pub(crate) fn from_bytes(
        id: &RecordId,
        mut bytes: &[u8],
        read_at: Timestamp,
    ) -> Result<Self, StoreError> {
        let record = take(&mut bytes).ok_or_else(corrupt)?;
        let mut entry = Self::new(Record::from_bytes(id, record, read_at)?);
        while !bytes.is_empty() {
            let (name, payload) = take_step(&mut bytes).ok_or_else(corrupt)?;
            entry.steps.insert(name, payload);
        }
        Ok(entry)
    }
}

pub(crate) fn floor_to_bytes(floor: FencingToken) -> Vec<u8> {
    floor.number().to_be_bytes().to_vec()
}

pub(crate) fn floor_from_bytes(bytes: &[u8]) -> Result<FencingToken, StoreError> {
    let number = bytes.try_into().map_err(|_| corrupt())?;
    Ok(FencingToken::from_number(i64::from_be_bytes(number)))
}

fn take_step(bytes: &mut &[u8]) -> Option<(String, Payload)> {
    let name = String::from_utf8(take(bytes)?.to_vec()).ok()?;
    Some((name, Payload::from_bytes(take(bytes)?)?))
}

fn push(bytes: &mut Vec<u8>, part: &[u8]) {
    bytes.extend_from_slice(&(part.len() as u64).to_be_bytes());
    bytes.extend_from_slice(part);
}

fn take<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, rest) = bytes.split_first_chunk()?;
    let length = usize::try_from(u64::from_be_bytes(*length)).ok()?;
    let (part, rest) = rest.split_at_checked(length)?;
    *bytes = rest;
    Some(part)
}

fn corrupt() -> StoreError {
    StoreError::new(
        StoreErrorKind::Corrupt,
        "an entry holds what this store does not write; find out who else writes to this server, and repair the entry",
    )
}
