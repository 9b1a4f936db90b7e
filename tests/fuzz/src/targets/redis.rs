//! Replies of Redis, through the parser of its client.

use idem_store::key::RecordId;
use idem_store::record::{ClaimId, Digest, Owner};
use idem_store::store::encoding::read_request;
use idem_store::store::{ClaimOutcome, Filter};
use redis::Value;

use super::sample;
use crate::{decode, layout};

/// A reply is an answer or an error, whatever a server sends.
pub(super) fn replies(input: &[u8]) {
    let value = match redis::parse_redis_value(input) {
        Ok(value) => value,
        // Most mutations break the framing. The parts of such an input are taken as the fields of a reply.
        Err(_) => fields(input),
    };
    let claim = sample::claim(Digest::new(1, [0; 4], &[0; 32]));
    if let Ok(ClaimOutcome::Existing(record)) = decode::claim_outcome(&claim, value.clone()) {
        assert_eq!(record.id, claim.id);
        sample::check(&record);
    }
    let _ = decode::took_effect(&value);
    let id = id_in(&value).unwrap_or(RecordId::from_bytes([0; 32]));
    let _ = decode::listed_by_beginning(&id, value.clone(), &Filter::default());
    let Ok(Some(snapshot)) = decode::snapshot(value) else {
        return;
    };
    if let Ok(Some(record)) = snapshot.record(&id, None) {
        assert_eq!(record.id, id);
        sample::check(&record);
        let owner = Owner {
            id,
            claim_id: record.claim_id.unwrap_or(ClaimId::from_bytes([0; 16])),
            fencing_token: record.fencing_token,
        };
        let _ = decode::attempts(&id, &snapshot);
        let _ = decode::saved_steps(&owner, &snapshot);
    }
}

/// Takes an input as the reply with a record: the time, the expiry of its key, and the value.
fn fields(input: &[u8]) -> Value {
    let time = ["1700000000", "5000"].map(|it| Value::BulkString(it.into()));
    Value::Array(vec![
        Value::Array(time.into()),
        Value::Int(1_700_000_100_000),
        Value::BulkString(input.to_vec()),
    ])
}

/// Id of the record in a reply, so that its other parts are reached.
fn id_in(value: &Value) -> Option<RecordId> {
    let Value::Array(fields) = value else {
        return None;
    };
    let Value::BulkString(value) = fields.get(2)? else {
        return None;
    };
    let sections = layout::Sections::of(value, value.len()).ok()??;
    read_request(sections.request).map(|(_, identity)| RecordId::of(&identity))
}
