//! Replies of Redis, through the parser of its client.

use idem_store::key::RecordId;
use idem_store::record::Digest;
use idem_store::store::ClaimOutcome;
use idem_store::store::encoding::read_request;
use redis::Value;

use super::sample;
use crate::decode;

/// A reply is an answer or an error, whatever a server sends.
pub(super) fn replies(input: &[u8]) {
    let value = match redis::parse_redis_value(input) {
        Ok(value) => value,
        // Most mutations break the framing. The parts of such an input are taken as the fields of a reply.
        Err(_) => fields(input),
    };
    let id = id_in(&value).unwrap_or(RecordId::from_bytes([0; 32]));
    if let Ok(Some(record)) = decode::record_if_any(&id, value.clone()) {
        assert_eq!(record.id, id);
        sample::check(&record);
    }
    let claim = sample::claim(Digest::new(1, [0; 4], &[0; 32]));
    if let Ok(ClaimOutcome::Existing(record)) = decode::claim_outcome(&claim, value.clone()) {
        assert_eq!(record.id, claim.id);
        sample::check(&record);
    }
    let _ = decode::took_effect(&value);
    let _ = decode::saved_steps(value);
}

fn fields(input: &[u8]) -> Value {
    let fields = input.split(|byte| *byte == 0).map(|field| match field {
        b"(nil)" => Value::Nil,
        b"(int)" => Value::Int(1),
        bytes => Value::BulkString(bytes.to_vec()),
    });
    Value::Array(fields.collect())
}

/// Id of the record in a reply, so that its other parts are reached.
fn id_in(value: &Value) -> Option<RecordId> {
    let Value::Array(fields) = value else {
        return None;
    };
    let Value::BulkString(request) = fields.get(1)? else {
        return None;
    };
    read_request(request).map(|(_, identity)| RecordId::of(&identity))
}
