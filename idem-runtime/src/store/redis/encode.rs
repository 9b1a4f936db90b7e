//! Encodes and decodes the fields of the hash of a record, see `record.lua`.

use super::errors::corrupt;
use crate::error::StoreError;
use crate::key::{Identity, Key, Operation, Scope, hex};
use crate::record::{ClaimId, Digest, Payload};

/// Encodes a claim id as hex digits.
pub(super) fn claim_id(claim_id: &ClaimId) -> String {
    hex(claim_id.as_bytes())
}

/// Encodes the fingerprint unchanged, operation, key and scope, separated by line breaks. Neither operation nor key can
/// contain a line break.
pub(super) fn request(fingerprint: &Digest, identity: &Identity) -> Vec<u8> {
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

/// Decodes the result of [`request`].
pub(super) fn read_request(request: &[u8]) -> Result<(Digest, Identity), StoreError> {
    let read = || {
        let (fingerprint, lines) = request.split_at_checked(Digest::LEN)?;
        let mut lines = std::str::from_utf8(lines).ok()?.splitn(3, '\n');
        let identity = Identity {
            operation: Operation::new(lines.next()?.to_owned()).ok()?,
            key: Key::new(lines.next()?).ok()?,
            scope: Scope::from_stored(lines.next()?),
        };
        Some((Digest::from_bytes(fingerprint)?, identity))
    };
    read().ok_or_else(|| corrupt("request"))
}

/// Encodes the length of the codec's tag in digits, a colon, the tag, and the bytes.
pub(super) fn payload(payload: &Payload) -> Vec<u8> {
    let mut encoded = format!("{}:{}", payload.codec.len(), payload.codec).into_bytes();
    encoded.extend_from_slice(&payload.bytes);
    encoded
}

/// Decodes the result of [`payload`].
pub(super) fn read_payload(encoded: &[u8]) -> Option<Payload> {
    let colon = encoded.iter().position(|byte| *byte == b':')?;
    let (length, rest) = encoded.split_at(colon);
    let length: usize = std::str::from_utf8(length).ok()?.parse().ok()?;
    let (codec, bytes) = rest.get(1..)?.split_at_checked(length)?;
    Some(Payload {
        codec: std::str::from_utf8(codec).ok()?.to_owned().into(),
        bytes: bytes.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_decoded_is_what_was_encoded() {
        let fingerprint = Digest::new(1, [b'\n'; 4], &[b'\n'; 32]);
        for scope in [
            Scope::none(),
            Scope::new("ann").unwrap(),
            Scope::from_stored("a\nb"),
        ] {
            let identity = Identity {
                scope,
                operation: Operation::new("charges.create").unwrap(),
                key: Key::new("a key of blanks ").unwrap(),
            };
            let encoded = request(&fingerprint, &identity);
            assert_eq!(read_request(&encoded).unwrap(), (fingerprint, identity));
        }
        let result = Payload {
            codec: "a:tag".into(),
            bytes: (*b"1:\n\xff").into(),
        };
        assert_eq!(read_payload(&payload(&result)), Some(result));
        let claim_id = claim_id(&ClaimId::from_bytes(std::array::from_fn(|n| n as u8)));
        assert_eq!(claim_id, "000102030405060708090a0b0c0d0e0f");
    }
}
