//! Stored records as bytes and as texts.

use arbitrary::Unstructured;
use idem_runtime::{MemoryStore, Store as _};
use idem_store::key::{Identity, Key, Operation, RecordId, Scope};
use idem_store::record::{Observation, Payload, Record, Timestamp};
use idem_store::store::encoding::read_request;
use idem_store::store::status::Status;
use idem_store::store::{Cursor, Filter, PageRequest};
use serde_json::Value as Json;

use super::{running, sample};
use crate::wire;

const NOW: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

/// Bytes are a record or an error. A record that was read is written and read again.
pub(super) fn bytes(input: &[u8]) {
    let id = id_in(input).unwrap_or(RecordId::from_bytes([0; 32]));
    if let Ok(record) = Record::from_bytes(&id, input, NOW) {
        sample::check(&record);
        let again = Record::from_bytes(&id, &record.to_bytes(), NOW);
        assert_eq!(again.expect("a written record is readable"), record);
    }
    if let Some(payload) = Payload::from_bytes(input) {
        assert_eq!(Payload::from_bytes(&payload.to_bytes()), Some(payload));
    }
    if let Ok(text) = std::str::from_utf8(input)
        && let Ok(status) = Status::read(text)
    {
        assert_eq!(Status::read(&status.to_string()), Ok(status));
    }
}

/// Id of the record in these bytes, so that their other parts are reached.
fn id_in(input: &[u8]) -> Option<RecordId> {
    let end = input.iter().position(|byte| *byte == b'\n')?;
    let head = std::str::from_utf8(&input[..end]).ok()?;
    let length: usize = head.split(' ').nth(1)?.parse().ok()?;
    let request = input[end + 1..].get(..length)?;
    read_request(request).map(|(_, identity)| RecordId::of(&identity))
}

/// A text is an observation, an id or a record in JSON, or none. What was read is written and read again.
pub(super) fn texts(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    if let Ok(observation) = text.parse::<Observation>() {
        assert_eq!(observation.to_string().parse(), Ok(observation));
    }
    if let Ok(id) = text.parse::<RecordId>() {
        assert_eq!(id.to_string().parse(), Ok(id));
    }
    if let Ok(record) = serde_json::from_str::<Record>(text) {
        assert_eq!(through_json(&record), record);
        let _ = (record.is_expired(), record.outcome());
    }
}

fn through_json(record: &Record) -> Record {
    let json = serde_json::to_string(record).expect("a record is JSON");
    serde_json::from_str(&json).expect("a written record is readable")
}

/// A record of any content comes back from each of its forms.
pub(super) fn built(input: &[u8]) {
    let mut input = Unstructured::new(input);
    let Ok(record) = sample::record(&mut input) else {
        return;
    };
    sample::check(&record);
    let read = Record::from_bytes(&record.id, &record.to_bytes(), record.read_at);
    assert_eq!(read.expect("a written record is readable"), record);
    assert_eq!(through_json(&record), record);
    let other = RecordId::from_bytes([7; 32]);
    assert!(Record::from_bytes(&other, &record.to_bytes(), NOW).is_err());
    let max_age = input.arbitrary().unwrap_or_default();
    if let Some(freshness) = wire::Freshness::new(&record, NOW, max_age) {
        let bytes = wire::write(&record, &freshness).expect("a fresh record has ended");
        assert_eq!(wire::read(&bytes, &record.id), Some((record, freshness)));
    }
}

/// Bytes in the cache are a record or nothing. A record that was read is written and read again.
pub(super) fn cached(input: &[u8]) {
    let id = id_in_cache(input).unwrap_or(RecordId::from_bytes([0; 32]));
    let read = wire::read(input, &id);
    assert!(read.is_none() || !wire::is_tombstone(input));
    if let Some((record, freshness)) = read {
        sample::check(&record);
        let bytes = wire::write(&record, &freshness).expect("only ended records are read");
        assert_eq!(wire::read(&bytes, &id), Some((record.clone(), freshness)));
        let _ = freshness.at(NOW, record, std::time::Duration::MAX);
    }
}

fn id_in_cache(input: &[u8]) -> Option<RecordId> {
    let mut lines = input.split(|byte| *byte == b'\n');
    let header: Json = serde_json::from_slice(lines.nth(1)?).ok()?;
    let text = |name: &str| header.get(name)?.as_str().map(str::to_owned);
    Some(RecordId::of(&Identity {
        scope: Scope::from_stored(&text("scope")?),
        operation: Operation::new(text("operation")?).ok()?,
        key: Key::new(text("key")?).ok()?,
    }))
}

/// A cursor that no store returned is an error, and not the beginning of the list.
pub(super) fn cursors(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    let page = PageRequest {
        limit: 5,
        after: Some(Cursor::new(text)),
    };
    let is_valid = text.len() == 64 && text.bytes().all(|it| it.is_ascii_hexdigit());
    assert_eq!(page.in_id_order().is_ok(), is_valid, "{text:?}");
    let listed = running::run(MemoryStore::new().list(&Filter::default(), &page));
    assert_eq!(listed.is_ok(), is_valid, "{text:?}");
}
