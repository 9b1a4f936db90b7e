//! How a record is written in the fields of its hash, see `record.lua`.

use std::str::Split;
use std::time::Duration;

use super::errors::corrupt;
use crate::error::StoreError;
use crate::key::{Identity, Key, Operation, Scope, hex};
use crate::record::{Digest, Grant, OnCrash, Payload, State, Timestamp, Token};
use crate::store::Granted;

/// Hex digits.
pub(super) fn token(token: &Token) -> String {
    hex(token.as_bytes())
}

/// The fingerprint as it is, operation, key and scope, between them ends of lines, which neither operation nor key can
/// hold.
pub(super) fn about(fingerprint: &Digest, identity: &Identity) -> Vec<u8> {
    let lines = [
        identity.operation.as_str(),
        "\n",
        identity.key.as_str(),
        "\n",
        identity.scope.as_str(),
    ];
    let len = lines.iter().map(|it| it.len()).sum::<usize>();
    let mut about = Vec::with_capacity(Digest::LEN + len);
    about.extend_from_slice(fingerprint.as_bytes());
    for line in lines {
        about.extend_from_slice(line.as_bytes());
    }
    about
}

/// What [`about`] wrote.
pub(super) fn read_about(about: &[u8]) -> Result<(Digest, Identity), StoreError> {
    let read = || {
        let (fingerprint, lines) = about.split_at_checked(Digest::LEN)?;
        let mut lines = std::str::from_utf8(lines).ok()?.splitn(3, '\n');
        let identity = Identity {
            operation: Operation::new(lines.next()?.to_owned()).ok()?,
            key: Key::new(lines.next()?).ok()?,
            scope: Scope::from_stored(lines.next()?),
        };
        Some((Digest::from_bytes(fingerprint)?, identity))
    };
    read().ok_or_else(|| corrupt("about"))
}

/// The length of the codec's tag in digits, a colon, the tag, the bytes.
pub(super) fn payload(payload: &Payload) -> Vec<u8> {
    let mut written = format!("{}:{}", payload.codec.len(), payload.codec).into_bytes();
    written.extend_from_slice(&payload.bytes);
    written
}

/// What [`payload`] wrote.
pub(super) fn read_payload(written: &[u8]) -> Option<Payload> {
    let colon = written.iter().position(|byte| *byte == b':')?;
    let (length, rest) = written.split_at(colon);
    let length: usize = std::str::from_utf8(length).ok()?.parse().ok()?;
    let (codec, bytes) = rest.get(1..)?.split_at_checked(length)?;
    Some(Payload {
        codec: std::str::from_utf8(codec).ok()?.to_owned().into(),
        bytes: bytes.into(),
    })
}

/// What changes of a record until it ends. The scripts write it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) state: State,
    pub(super) ended_at: Option<Timestamp>,
    pub(super) retention: Duration,
    pub(super) lease_until: Timestamp,
    pub(super) token: Option<Token>,
    pub(super) granted: Granted,
}

impl Head {
    pub(super) fn read(head: &[u8]) -> Result<Self, StoreError> {
        let read = || {
            let mut words = std::str::from_utf8(head).ok()?.split(' ');
            let state = State::from_stored(words.next()?)?;
            let ended_at = or_none(words.next()?, time)?;
            let retention = Duration::from_micros(number(words.next()?)?.cast_unsigned());
            let on_crash = OnCrash::from_stored(words.next()?)?;
            let lease_until = time(words.next()?)?;
            let token = or_none(words.next()?, read_token)?;
            let granted = Granted {
                grant: Grant::from_number(number(words.next()?)?),
                attempt: attempt(&mut words)?,
                first_claimed_at: time(words.next()?)?,
                on_crash,
            };
            let has_ended = state.is_ended() || state == State::Released;
            let owned = matches!(state, State::Running | State::Interrupted);
            let fits = words.next().is_none()
                && ended_at.is_some() == has_ended
                && (token.is_some() || !owned)
                && (token.is_none() || state != State::Released);
            fits.then_some(Self {
                state,
                ended_at,
                retention,
                lease_until,
                token,
                granted,
            })
        };
        read().ok_or_else(|| corrupt("head"))
    }
}

fn attempt(words: &mut Split<'_, char>) -> Option<u32> {
    let attempt = u32::try_from(number(words.next()?)?).ok()?;
    (attempt > 0).then_some(attempt)
}

fn time(word: &str) -> Option<Timestamp> {
    number(word).map(Timestamp::from_micros)
}

fn read_token(word: &str) -> Option<Token> {
    let is_token = word.len() == 32 && word.bytes().all(|it| it.is_ascii_hexdigit());
    let number = is_token.then(|| u128::from_str_radix(word, 16).ok())??;
    Some(Token::from_bytes(number.to_be_bytes()))
}

/// A word that may be absent; what is there must be readable.
fn or_none<T>(word: &str, read: impl Fn(&str) -> Option<T>) -> Option<Option<T>> {
    match word {
        "-" => Some(None),
        word => read(word).map(Some),
    }
}

/// All numbers that are stored are whole and positive.
pub(super) fn number(word: &str) -> Option<i64> {
    let is_number = word.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| word.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "completed 7 60 rerun 5 000102030405060708090a0b0c0d0e0f 3 2 1";

    #[test]
    fn what_is_read_is_what_was_written() {
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
            let written = about(&fingerprint, &identity);
            assert_eq!(read_about(&written).unwrap(), (fingerprint, identity));
        }
        let result = Payload {
            codec: "a:tag".into(),
            bytes: (*b"1:\n\xff").into(),
        };
        assert_eq!(read_payload(&payload(&result)), Some(result));
        let head = Head::read(HEAD.as_bytes()).unwrap();
        let bytes = std::array::from_fn(|n| n as u8);
        assert_eq!(head.token, Some(Token::from_bytes(bytes)));
        assert_eq!(
            token(&Token::from_bytes(bytes)),
            HEAD.split(' ').nth(5).unwrap()
        );
        assert_eq!(head.state, State::Completed);
        assert_eq!(head.ended_at, Some(Timestamp::from_micros(7)));
        assert_eq!(head.retention, Duration::from_micros(60));
        assert_eq!(head.lease_until, Timestamp::from_micros(5));
        let Granted {
            grant,
            attempt,
            first_claimed_at,
            on_crash,
        } = head.granted;
        assert_eq!((grant.number(), attempt, on_crash), (3, 2, OnCrash::Rerun));
        assert_eq!(first_claimed_at, Timestamp::from_micros(1));
    }

    #[test]
    fn a_word_too_many_too_few_or_of_another_kind_is_corrupt() {
        let words: Vec<_> = HEAD.split(' ').collect();
        for at in 0..words.len() {
            for odd in ["", "odd", "+1", "1 1"] {
                let mut words = words.clone();
                words[at] = odd;
                let head = words.join(" ");
                assert!(Head::read(head.as_bytes()).is_err(), "{head}");
            }
            let short = words[..at].join(" ");
            assert!(Head::read(short.as_bytes()).is_err(), "{short}");
        }
        for contradiction in [
            HEAD.replace("completed", "running"),
            HEAD.replace("completed", "released"),
            HEAD.replace("completed 7", "completed -"),
        ] {
            assert!(Head::read(contradiction.as_bytes()).is_err());
        }
    }
}
