//! Tokens against forged forms, and sealed positions of lists.
//!
//! A token is an HMAC over the operator, the subject of the form, and the day.

use std::time::{SystemTime, UNIX_EPOCH};

use idem_runtime::fingerprint::Secret;

pub(super) fn make(secret: &Secret, operator: &str, subject: &str) -> String {
    let day = today().to_be_bytes();
    hex(&secret.sign(&message(TOKEN, &[operator, subject], &day)))
}

/// Returns true for a token of today or yesterday.
pub(super) fn is_valid(secret: &Secret, operator: &str, subject: &str, token: &str) -> bool {
    let Some(tag) = tag(token) else {
        return false;
    };
    let today = today();
    [today, today.saturating_sub(1)].into_iter().any(|day| {
        let message = message(TOKEN, &[operator, subject], &day.to_be_bytes());
        secret.verify(&message, &tag)
    })
}

/// Encrypts the position at which a list continues, for a URL.
///
/// A position names the last item that was read. That item may be one that the operator does not see, and the id of a record
/// is a hash that confirms a guessed key. The construction is SIV: an HMAC of the text is both the tag and the seed of the
/// key stream, so no nonce can repeat.
pub(super) fn seal(secret: &Secret, operator: &str, list: &str, position: &str) -> String {
    let tag = secret.sign(&message(POSITION, &[operator, list], position.as_bytes()));
    hex(&tag) + &hex(&with_key_stream(secret, &tag, position.as_bytes()))
}

/// Decrypts a position. `None` if this operator did not get it for this list.
pub(super) fn open(secret: &Secret, operator: &str, list: &str, sealed: &str) -> Option<String> {
    let (digits, rest) = sealed.split_at_checked(64)?;
    let tag = tag(digits)?;
    let position = with_key_stream(secret, &tag, &unhex(rest)?);
    let message = message(POSITION, &[operator, list], &position);
    secret.verify(&message, &tag).then_some(())?;
    String::from_utf8(position).ok()
}

fn with_key_stream(secret: &Secret, tag: &[u8; 32], text: &[u8]) -> Vec<u8> {
    let mut changed = text.to_vec();
    for (block, bytes) in (0_u64..).zip(changed.chunks_mut(32)) {
        let seed = [&tag[..], &block.to_be_bytes()].concat();
        let stream = secret.sign(&message(STREAM, &[], &seed));
        bytes
            .iter_mut()
            .zip(stream)
            .for_each(|(byte, key)| *byte ^= key);
    }
    changed
}

fn tag(digits: &str) -> Option<[u8; 32]> {
    unhex(digits)?.try_into().ok()
}

/// Encodes bytes as hexadecimal digits.
fn hex(bytes: &[u8]) -> String {
    let digit = |digit: u8| char::from_digit(digit.into(), 16).unwrap_or_default();
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.map(digit).collect()
}

/// Decodes hexadecimal digits. `None` for any other text.
fn unhex(digits: &str) -> Option<Vec<u8>> {
    let digit = |digit: u8| char::from(digit).to_digit(16).map(|it| it as u8);
    let pairs = digits.as_bytes().chunks(2);
    pairs
        .map(|pair| Some(digit(pair[0])? << 4 | digit(*pair.get(1)?)?))
        .collect()
}

const TOKEN: &str = "idem/console/1";
const POSITION: &str = "idem/console/position/1";
const STREAM: &str = "idem/console/stream/1";

/// Message to sign, for one purpose. The lengths keep different parts apart.
fn message(purpose: &str, parts: &[&str], rest: &[u8]) -> Vec<u8> {
    let mut message = purpose.as_bytes().to_vec();
    for part in parts {
        message.extend((part.len() as u64).to_be_bytes());
        message.extend(part.as_bytes());
    }
    message.extend(rest);
    message
}

fn today() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs() / 86_400)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_for_one_operator_and_one_subject() {
        let secret = Secret::new([7; 16]).unwrap();
        let token = make(&secret, "ann", "record 1");
        assert!(is_valid(&secret, "ann", "record 1", &token));
        assert!(!is_valid(&secret, "bob", "record 1", &token));
        assert!(!is_valid(&secret, "ann", "record 2", &token));
        assert!(!is_valid(&secret, "annrecord 1", "", &token));
        assert!(!is_valid(&secret, "ann", "record 1", ""));
        let other = Secret::new([8; 16]).unwrap();
        assert!(!is_valid(&other, "ann", "record 1", &token));
    }

    #[test]
    fn a_sealed_position_is_for_one_operator_and_one_list_and_hides_its_text() {
        let secret = Secret::new([7; 16]).unwrap();
        for length in [0, 1, 31, 32, 33, 200] {
            let position = "é".repeat(length);
            let sealed = seal(&secret, "ann", "records", &position);
            assert_eq!(open(&secret, "ann", "records", &sealed), Some(position));
        }
        let sealed = seal(&secret, "ann", "records", "17");
        assert_eq!(open(&secret, "bob", "records", &sealed), None);
        assert_eq!(open(&secret, "ann", "audit", &sealed), None);
        assert!(!sealed.contains(&hex(b"17")), "{sealed}");
        for at in 0..sealed.len() {
            let mut forged = sealed.clone().into_bytes();
            forged[at] = if forged[at] == b'0' { b'1' } else { b'0' };
            let forged = String::from_utf8(forged).unwrap();
            assert_eq!(open(&secret, "ann", "records", &forged), None, "{forged}");
        }
        for wrong in ["", "17", &"0".repeat(63), &"é".repeat(40), &sealed[..64]] {
            assert_eq!(open(&secret, "ann", "records", wrong), None, "{wrong}");
        }
        // The digits of a position do not repeat those of another one.
        let other = seal(&secret, "ann", "records", "18");
        assert_ne!(sealed[64..], other[64..]);
    }
}
