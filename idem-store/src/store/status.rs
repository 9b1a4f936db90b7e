//! Status of a record as a line of text: all values that change before the record ends. For stores in which reading
//! many values takes longer than reading one.
//!
//! The words of the line are: state; time when the record ended or was released, or `-`; retention; `on_crash`; end of
//! the lease; claim id in hex digits, or `-`; fencing token; attempt; time of the first claim. Times and durations are
//! in microseconds. A tenth word is there only if the payload is kept for a shorter time than the record: `f` and that
//! duration.

use std::fmt;
use std::str::Split;
use std::time::Duration;

use crate::key::{Identity, RecordId, hex};
use crate::record::{
    ClaimId, Digest, FencingToken, OnCrash, Payload, Record, RecordState, Timestamp, micros,
};
use crate::store::Granted;

#[derive(Debug, PartialEq, Eq)]
pub struct Status {
    pub state: RecordState,
    pub ended_at: Option<Timestamp>,
    pub retention: Duration,
    pub payload_for: Option<Duration>,
    pub lease_until: Timestamp,
    pub claim_id: Option<ClaimId>,
    pub granted: Granted,
}

impl Status {
    /// Status of a record.
    pub fn of(record: &Record) -> Self {
        Self {
            state: record.state,
            ended_at: record.ended_at,
            retention: record.retention,
            payload_for: record.payload_for,
            lease_until: record.lease_until,
            claim_id: record.claim_id,
            granted: Granted::on(record),
        }
    }

    /// # Errors
    /// Name of the value that no store writes like this.
    pub fn read(line: &str) -> Result<Self, &'static str> {
        let words = &mut line.split(' ');
        let state = word(words, RecordState::from_stored).ok_or("state")?;
        let ended_at = word(words, |it| or_none(it, time)).ok_or("ended_at")?;
        let retention = word(words, number).ok_or("retention")?;
        let on_crash = word(words, OnCrash::from_stored).ok_or("on_crash")?;
        let lease_until = word(words, time).ok_or("lease_until")?;
        let claim_id = word(words, |it| or_none(it, claim_id)).ok_or("claim_id")?;
        let granted = Granted {
            fencing_token: FencingToken::from_number(word(words, number).ok_or("fencing_token")?),
            attempt: word(words, attempt).ok_or("attempt")?,
            first_claimed_at: word(words, time).ok_or("first_claimed_at")?,
            on_crash,
        };
        let payload_for = match words.next().map(|word| word.strip_prefix('f')) {
            None => None,
            Some(None) => return Err("first_claimed_at"),
            Some(Some(micros)) => Some(number(micros).ok_or("payload_for")?),
        };
        if words.next().is_some() {
            return Err("payload_for");
        }
        Self {
            state,
            ended_at,
            retention: Duration::from_micros(retention.cast_unsigned()),
            payload_for: payload_for.map(|it| Duration::from_micros(it.cast_unsigned())),
            lease_until,
            claim_id,
            granted,
        }
        .checked()
    }

    /// # Errors
    /// Name of the value that contradicts the state.
    pub fn checked(self) -> Result<Self, &'static str> {
        let state = self.state;
        if self.ended_at.is_some() != (state.is_ended() || state == RecordState::Released) {
            return Err("ended_at");
        }
        let owned = matches!(state, RecordState::Running | RecordState::Interrupted);
        if owned && self.claim_id.is_none()
            || state == RecordState::Released && self.claim_id.is_some()
        {
            return Err("claim_id");
        }
        if self.payload_for.is_some() && !state.is_ended() {
            return Err("payload_for");
        }
        Ok(self)
    }

    /// Builds the record with this status.
    ///
    /// # Errors
    /// Name of the payload, if it is missing or the state allows none.
    pub fn record(
        self,
        (id, identity): (RecordId, Identity),
        fingerprint: Digest,
        payload: Option<Payload>,
        read_at: Timestamp,
    ) -> Result<Record, &'static str> {
        let may_have_one = matches!(self.state, RecordState::Completed | RecordState::Failed);
        let may_have_none = !may_have_one || self.payload_for.is_some();
        if payload.is_some() && !may_have_one || payload.is_none() && !may_have_none {
            return Err("payload");
        }
        Ok(Record {
            id,
            identity,
            fingerprint,
            state: self.state,
            payload,
            claim_id: self.claim_id,
            fencing_token: self.granted.fencing_token,
            attempt: self.granted.attempt,
            lease_until: self.lease_until,
            retention: self.retention,
            payload_for: self.payload_for,
            on_crash: self.granted.on_crash,
            first_claimed_at: self.granted.first_claimed_at,
            ended_at: self.ended_at,
            read_at,
        })
    }
}

/// Writes the line that [`Status::read`] reads.
impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let or_none = |word: Option<String>| word.unwrap_or_else(|| "-".to_owned());
        let granted = &self.granted;
        write!(
            f,
            "{} {} {} {} {} {} {} {} {}",
            self.state,
            or_none(self.ended_at.map(|at| at.as_micros().to_string())),
            micros(self.retention),
            granted.on_crash.as_str(),
            self.lease_until.as_micros(),
            or_none(self.claim_id.map(|id| hex::encode(id.as_bytes()))),
            granted.fencing_token.number(),
            granted.attempt,
            granted.first_claimed_at.as_micros(),
        )?;
        match self.payload_for {
            None => Ok(()),
            Some(payload_for) => write!(f, " f{}", micros(payload_for)),
        }
    }
}

fn word<T>(words: &mut Split<'_, char>, read: impl Fn(&str) -> Option<T>) -> Option<T> {
    words.next().and_then(read)
}

fn attempt(word: &str) -> Option<u32> {
    u32::try_from(number(word)?)
        .ok()
        .filter(|attempt| *attempt > 0)
}

fn time(word: &str) -> Option<Timestamp> {
    number(word).map(Timestamp::from_micros)
}

fn claim_id(word: &str) -> Option<ClaimId> {
    hex::decode(word).map(ClaimId::from_bytes)
}

/// Reads a word that may be `-`, for none. Any other word must be readable.
fn or_none<T>(word: &str, read: impl Fn(&str) -> Option<T>) -> Option<Option<T>> {
    match word {
        "-" => Some(None),
        word => read(word).map(Some),
    }
}

/// Reads a non-negative integer, the only kind of number that is stored.
pub fn number(word: &str) -> Option<i64> {
    if word.is_empty() {
        return None;
    }
    word.bytes().try_fold(0_i64, |number, byte| {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit < 10)?;
        number.checked_mul(10)?.checked_add(digit.into())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "completed 7 60 rerun 5 000102030405060708090a0b0c0d0e0f 3 2 1";

    #[test]
    fn what_is_read_is_what_is_there() {
        let claim_id = ClaimId::from_bytes(std::array::from_fn(|n| n as u8));
        let granted = Granted {
            fencing_token: FencingToken::from_number(3),
            attempt: 2,
            first_claimed_at: Timestamp::from_micros(1),
            on_crash: OnCrash::Rerun,
        };
        let read = Status {
            state: RecordState::Completed,
            ended_at: Some(Timestamp::from_micros(7)),
            retention: Duration::from_micros(60),
            payload_for: None,
            lease_until: Timestamp::from_micros(5),
            claim_id: Some(claim_id),
            granted,
        };
        assert_eq!(read.to_string(), LINE);
        assert_eq!(Status::read(LINE).as_ref(), Ok(&read));
        assert_eq!(
            Status::read(&LINE.replace("0e0f", "0E0F")).as_ref(),
            Ok(&read)
        );
        let forgets = Status {
            payload_for: Some(Duration::from_micros(40)),
            ..read
        };
        assert_eq!(forgets.to_string(), format!("{LINE} f40"));
        assert_eq!(Status::read(&forgets.to_string()), Ok(forgets));
    }

    #[test]
    fn a_number_is_digits_alone_and_fits() {
        for (word, is) in [
            ("0", Some(0)),
            ("007", Some(7)),
            ("9223372036854775807", Some(i64::MAX)),
            ("9223372036854775808", None),
            ("99999999999999999999", None),
            ("", None),
            ("-1", None),
            ("+1", None),
            ("1 ", None),
            ("1:", None),
            ("1/", None),
            ("１", None),
        ] {
            assert_eq!(number(word), is, "{word:?}");
        }
    }

    #[test]
    fn a_word_too_many_too_few_or_of_another_kind_is_named() {
        const NAMES: [&str; 9] = [
            "state",
            "ended_at",
            "retention",
            "on_crash",
            "lease_until",
            "claim_id",
            "fencing_token",
            "attempt",
            "first_claimed_at",
        ];
        let words: Vec<_> = LINE.split(' ').collect();
        for (at, name) in NAMES.into_iter().enumerate() {
            for odd in ["", "odd", "+1"] {
                let mut words = words.clone();
                words[at] = odd;
                assert_eq!(Status::read(&words.join(" ")), Err(name), "{odd}");
            }
            let mut two = words.clone();
            two[at] = "1 1";
            assert!(Status::read(&two.join(" ")).is_err(), "{name}");
            assert!(Status::read(&words[..at].join(" ")).is_err());
        }
        assert_eq!(Status::read(&format!("{LINE} 1")), Err("first_claimed_at"));
        for odd in [" f", " f-1", " f1 1", " f1 f1"] {
            let line = format!("{LINE}{odd}");
            assert_eq!(Status::read(&line), Err("payload_for"), "{odd}");
        }
        let running = LINE.replace("completed 7", "running -") + " f1";
        assert_eq!(Status::read(&running), Err("payload_for"));
        for (from, to, name) in [
            ("completed", "running", "ended_at"),
            ("completed 7", "completed -", "ended_at"),
            ("completed", "released", "claim_id"),
            (" 2 1", " 0 1", "attempt"),
        ] {
            assert_eq!(Status::read(&LINE.replace(from, to)), Err(name));
        }
    }
}
