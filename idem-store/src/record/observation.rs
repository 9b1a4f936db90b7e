//! Text of an observation, for programs that send it to an operator and back.

use std::fmt;
use std::str::FromStr;

use super::{ClaimId, FencingToken, Observation, RecordState, Timestamp};
use crate::error::InvalidObservation;
use crate::key::hex;

/// The text is `ID.STATE.CLAIM_ID.FENCING_TOKEN.LEASE_UNTIL`, with a dash for no claim id. It has only letters, digits,
/// dots and dashes, so that it can be part of a URL or a header. [`FromStr`] parses it.
impl fmt::Display for Observation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let claim_id = self.claim_id.map(|id| hex::encode(id.as_bytes()));
        write!(
            f,
            "{}.{}.{}.{}.{}",
            self.id,
            self.state,
            claim_id.as_deref().unwrap_or("-"),
            self.fencing_token.0,
            self.lease_until.0,
        )
    }
}

impl FromStr for Observation {
    type Err = InvalidObservation;

    fn from_str(text: &str) -> Result<Self, InvalidObservation> {
        read_observation(text).ok_or(InvalidObservation)
    }
}

fn read_observation(text: &str) -> Option<Observation> {
    let mut parts = text.split('.');
    let observation = Observation {
        id: parts.next()?.parse().ok()?,
        state: RecordState::from_stored(parts.next()?)?,
        claim_id: match parts.next()? {
            "-" => None,
            id => Some(ClaimId::from_bytes(hex::decode(id)?)),
        },
        fencing_token: FencingToken(parts.next()?.parse().ok()?),
        lease_until: Timestamp(parts.next()?.parse().ok()?),
    };
    parts.next().is_none().then_some(observation)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::RecordId;

    #[test]
    fn an_observation_is_parsed_as_it_was_printed() {
        let mut observation = Observation {
            id: RecordId::from_bytes(std::array::from_fn(|n| n as u8)),
            state: RecordState::Running,
            claim_id: Some(ClaimId::from_bytes([255; 16])),
            fencing_token: FencingToken::from_number(i64::MAX),
            lease_until: Timestamp::from_micros(i64::MIN),
        };
        for claim_id in [observation.claim_id, None] {
            observation.claim_id = claim_id;
            let text = observation.to_string();
            assert_eq!(text.parse(), Ok(observation), "{text}");
            let is_plain = |it: char| it.is_ascii_alphanumeric() || "-.".contains(it);
            assert!(text.chars().all(is_plain), "{text}");
        }
    }

    #[test]
    fn other_texts_are_no_observations() {
        let valid = format!("{}.running.-.1.2", "0".repeat(64));
        assert!(valid.parse::<Observation>().is_ok());
        let others = [
            String::new(),
            valid[1..].to_owned(),
            valid.replace("running", "sleeping"),
            valid.replace(".-.", ".00."),
            valid.replace(".1.", ".1.5."),
            valid.replace(".1.", ".9223372036854775808."),
            format!("{valid}.3"),
            format!("{valid} "),
        ];
        for text in others {
            assert_eq!(
                text.parse::<Observation>(),
                Err(InvalidObservation),
                "{text:?}"
            );
        }
    }
}
