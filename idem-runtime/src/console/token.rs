//! Tokens against forged forms: HMAC over the operator, the subject of the form, and the day.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::fingerprint::Secret;
use crate::key::hex;

pub(super) fn make(secret: &Secret, operator: &str, subject: &str) -> String {
    hex::encode(&secret.sign(&message(operator, subject, today())))
}

/// Returns true for a token of today or yesterday.
pub(super) fn is_valid(secret: &Secret, operator: &str, subject: &str, token: &str) -> bool {
    let Some(tag) = hex::decode::<32>(token) else {
        return false;
    };
    let today = today();
    [today, today.saturating_sub(1)]
        .into_iter()
        .any(|day| secret.signed(&message(operator, subject, day), &tag))
}

/// The lengths keep different parts apart.
fn message(operator: &str, subject: &str, day: u64) -> Vec<u8> {
    let mut message = b"idem/console/1".to_vec();
    for part in [operator, subject] {
        message.extend((part.len() as u64).to_be_bytes());
        message.extend(part.as_bytes());
    }
    message.extend(day.to_be_bytes());
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
}
