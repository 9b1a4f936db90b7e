//! Layout of a record in Redis: one string, so that a claim and a replay are one native command.
//!
//! The string begins with a head of fixed length. Numbers are big-endian, times and durations are in microseconds.
//!
//! | bytes | content |
//! | --- | --- |
//! | 1 | `0xFE`, which no text begins with |
//! | 1 | version of the layout, 1 |
//! | 1 | state: `r`unning, `i`nterrupted, re`l`eased, `c`ompleted, `f`ailed, `u`nrecorded, or `e`rased |
//! | 1 | policy after a crash: `r`erun, re`f`use, re`c`oncile |
//! | 1 | `o` with a claim id, `n` without one, `f` for a first claim that was written without a script |
//! | 16 | claim id |
//! | 8, 8 | fencing token, time of the first claim; under `f` they follow from the expiry |
//! | 8 | end of the lease; under `f` its duration |
//! | 8, 4 | retention, attempt |
//!
//! Sections follow: a letter, the length in four bytes, and the content. `q` is the request (fingerprint, operation, key
//! and scope) and always comes first, `o` the label of the owner, `m` the digests of the request's members, `b` the begin
//! of the attempt if it did not begin with the first claim, `h` earlier attempts, `s` a saved step, `p` the payload. If a
//! step was saved twice, the first section counts.
//!
//! The key of a record expires [`keep`] after the end of its lease, or after it ended or was released. The time when it
//! ended is therefore not stored: it follows from the expiry, and so do the times of a first claim (`f`), since its lease
//! is known. The times are the server's, although no script read its clock. Records that are INTERRUPTED, or RUNNING
//! without `rerun`, have no expiry.

use std::time::Duration;

use super::errors::{corrupt, unknown_layout};
use crate::error::StoreError;
use crate::key::RecordId;
use crate::record::{
    ClaimId, FencingToken, MemberDigests, OnCrash, Outcome, Owner, OwnerLabel, Payload, Record,
    RecordState, Timestamp, micros,
};
use crate::store::encoding::{self, read_request};
use crate::store::status::Status;
use crate::store::{ClaimRequest, Granted};

/// Length of the head, in bytes.
pub(super) const HEAD: usize = 57;
const MAGIC: u8 = 0xFE;
const LAYOUT: u8 = 1;
const ERASED: u8 = b'e';

/// Minimum time from the end of a lease or record to the expiry of its key. Fencing tokens are remembered for it: after a
/// failover, a server whose clock is behind by less than this still issues a higher token.
pub(super) const GRACE: Duration = Duration::from_secs(60);

const STATES: [(u8, RecordState); 6] = [
    (b'r', RecordState::Running),
    (b'i', RecordState::Interrupted),
    (b'l', RecordState::Released),
    (b'c', RecordState::Completed),
    (b'f', RecordState::Failed),
    (b'u', RecordState::Unrecorded),
];

const POLICIES: [(u8, OnCrash); 3] = [
    (b'r', OnCrash::Rerun),
    (b'f', OnCrash::Refuse),
    (b'c', OnCrash::Reconcile),
];

/// Letter of a state.
pub(super) fn state_letter(state: RecordState) -> u8 {
    letter(&STATES, state)
}

/// Letter of a policy after a crash.
pub(super) fn policy_letter(on_crash: OnCrash) -> u8 {
    letter(&POLICIES, on_crash)
}

fn letter<T: Copy + PartialEq>(letters: &[(u8, T)], value: T) -> u8 {
    let found = letters.iter().find(|(_, it)| *it == value);
    found.map_or(0, |(letter, _)| *letter)
}

fn by_letter<T: Copy>(letters: &[(u8, T)], letter: u8) -> Option<T> {
    let found = letters.iter().find(|(it, _)| *it == letter);
    found.map(|(_, value)| *value)
}

/// Duration as stored, in microseconds. It is limited to 101 years, because Lua's numbers are exact only up to 2^53: a
/// time plus two durations is exact until the year 2052, and a time plus one duration until 2154.
pub(super) fn span(duration: Duration) -> i64 {
    micros(duration).min(3_200_000_000_000_000)
}

/// Time from the end of the lease, or of the record, to the expiry of the key, in milliseconds.
pub(super) fn keep(retention: i64) -> i64 {
    retention.max(span(GRACE)) / 1000
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Claimed {
    /// The times of the claim follow from the expiry.
    First(ClaimId),
    By(ClaimId),
    Nobody,
}

/// Head of a record.
#[derive(Debug, Clone, Copy)]
struct Head {
    state: RecordState,
    on_crash: OnCrash,
    claimed: Claimed,
    fencing_token: i64,
    first_claimed_at: i64,
    lease_until: i64,
    retention: i64,
    attempt: u32,
}

impl Head {
    fn to_bytes(self) -> [u8; HEAD] {
        let (kind, claim_id) = match self.claimed {
            Claimed::First(id) => (b'f', *id.as_bytes()),
            Claimed::By(id) => (b'o', *id.as_bytes()),
            Claimed::Nobody => (b'n', [0; 16]),
        };
        let mut bytes = [0; HEAD];
        bytes[..5].copy_from_slice(&[
            MAGIC,
            LAYOUT,
            state_letter(self.state),
            policy_letter(self.on_crash),
            kind,
        ]);
        bytes[5..21].copy_from_slice(&claim_id);
        bytes[21..29].copy_from_slice(&self.fencing_token.to_be_bytes());
        bytes[29..37].copy_from_slice(&self.first_claimed_at.to_be_bytes());
        bytes[37..45].copy_from_slice(&self.lease_until.to_be_bytes());
        bytes[45..53].copy_from_slice(&self.retention.to_be_bytes());
        bytes[53..].copy_from_slice(&self.attempt.to_be_bytes());
        bytes
    }

    /// Parses the head at the begin of the bytes. Returns `None` for the head of an erased record.
    fn read(bytes: &[u8]) -> Result<Option<Self>, StoreError> {
        match bytes {
            [MAGIC, LAYOUT, ..] => {}
            [MAGIC, layout, ..] => return Err(unknown_layout(*layout)),
            _ => return Err(corrupt("record")),
        }
        let head: &[u8; HEAD] = bytes.first_chunk().ok_or_else(|| corrupt("record"))?;
        if head[2] == ERASED {
            return Ok(None);
        }
        let claim_id = ClaimId::from_bytes(array(head, 5));
        let number = |at, name| {
            let number = i64::from_be_bytes(array(head, at));
            // Lua's numbers are exact up to this.
            let fits = (0..1 << 53).contains(&number);
            fits.then_some(number).ok_or_else(|| corrupt(name))
        };
        Ok(Some(Self {
            state: by_letter(&STATES, head[2]).ok_or_else(|| corrupt("state"))?,
            on_crash: by_letter(&POLICIES, head[3]).ok_or_else(|| corrupt("on_crash"))?,
            claimed: match head[4] {
                b'f' => Claimed::First(claim_id),
                b'o' => Claimed::By(claim_id),
                b'n' => Claimed::Nobody,
                _ => return Err(corrupt("claim_id")),
            },
            fencing_token: number(21, "fencing_token")?,
            first_claimed_at: number(29, "first_claimed_at")?,
            lease_until: number(37, "lease_until")?,
            retention: number(45, "retention")?,
            attempt: match u32::from_be_bytes(array(head, 53)) {
                0 => return Err(corrupt("attempt")),
                attempt => attempt,
            },
        }))
    }

    /// Completes the times by the expiry of the key, in milliseconds.
    fn status(mut self, expiry: Option<i64>) -> Result<Status, StoreError> {
        let from = |head: Self| {
            let expiry = expiry.ok_or_else(|| corrupt("expiry"))?;
            Ok::<_, StoreError>(expiry.saturating_sub(keep(head.retention)))
        };
        let is_over = self.state.is_ended() || self.state == RecordState::Released;
        let claim_id = match self.claimed {
            Claimed::Nobody => None,
            Claimed::By(claim_id) => Some(claim_id),
            Claimed::First(_)
                if self.state != RecordState::Running || self.on_crash != OnCrash::Rerun =>
            {
                return Err(corrupt("state"));
            }
            Claimed::First(claim_id) => {
                let lease = self.lease_until;
                let claimed_at = from(self)?
                    .saturating_sub(lease / 1000)
                    .saturating_mul(1000);
                self.fencing_token = claimed_at;
                self.first_claimed_at = claimed_at;
                self.lease_until = claimed_at.saturating_add(lease);
                Some(claim_id)
            }
        };
        let ended_at = match is_over {
            true => Some(Timestamp::from_micros(from(self)?.saturating_mul(1000))),
            false => None,
        };
        let status = Status {
            state: self.state,
            ended_at,
            retention: Duration::from_micros(self.retention.cast_unsigned()),
            payload_for: None,
            lease_until: Timestamp::from_micros(self.lease_until),
            claim_id,
            granted: Granted {
                fencing_token: FencingToken::from_number(self.fencing_token),
                attempt: self.attempt,
                first_claimed_at: Timestamp::from_micros(self.first_claimed_at),
                on_crash: self.on_crash,
            },
        };
        status.checked().map_err(corrupt)
    }
}

fn array<const N: usize>(bytes: &[u8; HEAD], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}

/// Parses the head of a record. Returns `None` for an erased one. `expiry` is that of the key, in milliseconds.
pub(super) fn read_status(bytes: &[u8], expiry: Option<i64>) -> Result<Option<Status>, StoreError> {
    let head = Head::read(bytes)?;
    head.map(|head| head.status(expiry)).transpose()
}

fn push_section(value: &mut Vec<u8>, tag: u8, content: &[u8]) {
    value.push(tag);
    // Redis refuses longer strings.
    let length = u32::try_from(content.len()).unwrap_or(u32::MAX);
    value.extend_from_slice(&length.to_be_bytes());
    value.extend_from_slice(content);
}

/// First claim of a record under `rerun`, to be written without a script.
#[derive(Debug)]
pub(super) struct FirstClaim {
    /// Value of the key.
    pub(super) value: Vec<u8>,
    /// Time until the key expires, in milliseconds.
    pub(super) expires_in: i64,
}

impl FirstClaim {
    pub(super) fn of(claim: &ClaimRequest) -> Self {
        let (lease, retention) = (span(claim.lease), span(claim.retention));
        let head = Head {
            state: RecordState::Running,
            on_crash: OnCrash::Rerun,
            claimed: Claimed::First(claim.claim_id),
            fencing_token: 0,
            first_claimed_at: 0,
            lease_until: lease,
            retention,
            attempt: 1,
        };
        let request = encoding::request(&claim.fingerprint, &claim.identity);
        let mut value = Vec::with_capacity(HEAD + request.len() + 64);
        value.extend_from_slice(&head.to_bytes());
        push_section(&mut value, b'q', &request);
        if let Some(label) = &claim.owner_label {
            push_section(&mut value, b'o', label.as_str().as_bytes());
        }
        if let Some(members) = &claim.members {
            push_section(&mut value, b'm', members.as_bytes());
        }
        Self {
            value,
            expires_in: lease / 1000 + keep(retention),
        }
    }

    /// Returns true if the claim has this claim id.
    pub(super) fn is_by(&self, claim_id: &ClaimId) -> bool {
        self.value.get(5..21) == Some(claim_id.as_bytes())
    }

    /// Result of the claim, whose key expires at this time, in milliseconds.
    pub(super) fn granted(&self, expiry: i64) -> Result<Granted, StoreError> {
        let status = read_status(&self.value, Some(expiry))?;
        status
            .map(|status| status.granted)
            .ok_or_else(|| corrupt("record"))
    }

    /// Value of the completed record, and the time until its key expires, in milliseconds.
    pub(super) fn completed(
        &self,
        owner: &Owner,
        outcome: &Outcome,
    ) -> Result<(Vec<u8>, i64), StoreError> {
        let mut head = Head::read(&self.value)?.ok_or_else(|| corrupt("record"))?;
        let claimed_at = owner.fencing_token.number();
        head.state = outcome.state();
        head.claimed = Claimed::By(owner.claim_id);
        (head.fencing_token, head.first_claimed_at) = (claimed_at, claimed_at);
        head.lease_until = claimed_at.saturating_add(head.lease_until);
        let payload = outcome.payload().map(Payload::to_bytes);
        let length = payload.as_ref().map_or(0, |it| it.len() + 5);
        let mut value = Vec::with_capacity(self.value.len() + length);
        value.extend_from_slice(&head.to_bytes());
        value.extend_from_slice(&self.value[HEAD..]);
        if let Some(payload) = payload {
            push_section(&mut value, b'p', &payload);
        }
        Ok((value, keep(head.retention)))
    }
}

/// Content of a step's section: the length of the name in four bytes, the name, and the payload.
pub(super) fn step(name: &str, payload: &Payload) -> Vec<u8> {
    let payload = payload.to_bytes();
    let length = u32::try_from(name.len()).unwrap_or(u32::MAX);
    let mut content = Vec::with_capacity(4 + name.len() + payload.len());
    content.extend_from_slice(&length.to_be_bytes());
    content.extend_from_slice(name.as_bytes());
    content.extend_from_slice(&payload);
    content
}

/// Splits the content of a step's section into name and payload.
pub(super) fn read_step(content: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = content.split_first_chunk()?;
    rest.split_at_checked(u32::from_be_bytes(*length) as usize)
}

/// Sections of a record.
#[derive(Debug, Default)]
pub(super) struct Sections<'a> {
    pub(super) request: &'a [u8],
    pub(super) owner: Option<&'a [u8]>,
    pub(super) members: Option<&'a [u8]>,
    pub(super) began: Option<&'a [u8]>,
    pub(super) history: Option<&'a [u8]>,
    pub(super) steps: Vec<&'a [u8]>,
    pub(super) payload: Option<&'a [u8]>,
    /// Number of bytes that the value has after those that were read. They belong to the payload.
    pub(super) missing: usize,
}

impl<'a> Sections<'a> {
    /// Parses the sections of a value with this length, of which only the begin may have been read. Returns `None` if more
    /// has to be read.
    pub(super) fn of(read: &'a [u8], length: usize) -> Result<Option<Self>, StoreError> {
        let missing = length.saturating_sub(read.len());
        let mut sections = Sections::default();
        let mut rest = read.get(HEAD..).ok_or_else(|| corrupt("record"))?;
        let mut is_first = true;
        while let Some((tag, after)) = rest.split_first() {
            let Some((length, after)) = after.split_first_chunk() else {
                return cut(missing);
            };
            let length = u32::from_be_bytes(*length) as usize;
            let (content, after) = match after.split_at_checked(length) {
                Some(both) => both,
                // The payload is the last section.
                None if *tag == b'p' && after.len() + missing == length => {
                    sections.missing = missing;
                    (after, &[][..])
                }
                None => return cut(missing),
            };
            if is_first != (*tag == b'q') {
                return Err(corrupt("request"));
            }
            is_first = false;
            match tag {
                b'q' => sections.request = content,
                b'o' => sections.owner = Some(content),
                b'm' => sections.members = Some(content),
                b'b' => sections.began = Some(content),
                b'h' => sections.history = Some(content),
                b's' => sections.steps.push(content),
                b'p' => sections.payload = Some(content),
                _ => return Err(corrupt("section")),
            }
            rest = after;
        }
        if is_first {
            return Err(corrupt("request"));
        }
        if missing > sections.missing {
            return Ok(None);
        }
        Ok(Some(sections))
    }
}

/// Result for a value that ends in the middle of a section.
fn cut<T>(missing: usize) -> Result<Option<T>, StoreError> {
    match missing {
        0 => Err(corrupt("section")),
        _ => Ok(None),
    }
}

/// A record that was read, with the server's time and the expiry of its key at that moment.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) read_at: Timestamp,
    /// In milliseconds.
    pub(super) expiry: Option<i64>,
    pub(super) value: Vec<u8>,
}

impl Snapshot {
    /// Parses the record. Returns `None` if it is erased or has expired.
    pub(super) fn record(
        &self,
        id: &RecordId,
        claim: Option<&ClaimRequest>,
    ) -> Result<Option<Record>, StoreError> {
        let record = self.any_record(id, claim)?;
        Ok(record.filter(|record| !record.is_expired()))
    }

    /// Parses the record, even if it has expired. Returns `None` if it is erased.
    pub(super) fn any_record(
        &self,
        id: &RecordId,
        claim: Option<&ClaimRequest>,
    ) -> Result<Option<Record>, StoreError> {
        let Some(status) = read_status(&self.value, self.expiry)? else {
            return Ok(None);
        };
        let sections = self.sections()?;
        self.build(status, id, claim, &sections, Payload::from_bytes)
            .map(Some)
    }

    pub(super) fn sections(&self) -> Result<Sections<'_>, StoreError> {
        let sections = Sections::of(&self.value, self.value.len())?;
        sections.ok_or_else(|| corrupt("section"))
    }

    /// Builds the record of this status and these sections.
    pub(super) fn build(
        &self,
        status: Status,
        id: &RecordId,
        claim: Option<&ClaimRequest>,
        sections: &Sections<'_>,
        read_payload: impl Fn(&[u8]) -> Option<Payload>,
    ) -> Result<Record, StoreError> {
        let (fingerprint, identity) =
            read_request(sections.request).ok_or_else(|| corrupt("request"))?;
        // A key stored under the id of another record would give one caller the result of another.
        if claim.is_none_or(|claim| claim.identity != identity) && RecordId::of(&identity) != *id {
            return Err(corrupt("request"));
        }
        let payload = sections
            .payload
            .map(|payload| read_payload(payload).ok_or_else(|| corrupt("outcome")));
        let payload = payload.transpose()?;
        status
            .record((*id, identity), fingerprint, payload, self.read_at)
            .map_err(|_| corrupt("outcome"))
    }

    /// Returns true if this owner may read the steps of this record.
    pub(super) fn is_owned_by(&self, owner: &Owner, record: &Record) -> bool {
        let is_first = self.value.get(4) == Some(&b'f');
        let granted = owner.fencing_token.number();
        // See `is_owned` in `record.lua`.
        let is_granted = is_first
            && granted % 1000 == 0
            && (granted - record.fencing_token.number()).abs() <= span(GRACE);
        record.claim_id == Some(owner.claim_id)
            && !record.state.is_ended()
            && (is_granted || record.fencing_token == owner.fencing_token)
    }
}

/// Reads the label of an owner.
pub(super) fn owner_label(bytes: &[u8]) -> Result<OwnerLabel, StoreError> {
    let label = String::from_utf8_lossy(bytes).into_owned();
    OwnerLabel::new(label).map_err(|_| corrupt("owner"))
}

/// Reads the digests of members.
pub(super) fn member_digests(bytes: &[u8]) -> Result<MemberDigests, StoreError> {
    MemberDigests::from_bytes(bytes).ok_or_else(|| corrupt("members"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_and_two_spans_are_whole_numbers_in_lua() {
        let now = micros(Duration::from_secs(2_500_000_000));
        assert!(now + 2 * span(Duration::MAX) < 1 << 53);
        assert!(span(Duration::MAX) > micros(Duration::from_secs(100 * 365 * 24 * 3600)));
        assert_eq!(span(Duration::from_micros(7)), 7);
    }
}
