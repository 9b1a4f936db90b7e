//! The entry of a record: the record and everything that belongs to it, or its tombstone.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{corrupt, parts};
use crate::clock::Now;
use crate::error::StoreError;
use crate::key::RecordId;
use crate::record::{
    FencingToken, MemberDigests, Observation, Outcome, Owner, OwnerLabel, Payload, Record,
    Timestamp,
};
use crate::store::transitions::{self, At, Purge};
use crate::store::{
    AttemptLog, Attempts, ClaimOutcome, ClaimRequest, FencedWrite, Granted, Resolution, Resolved,
    SavedStep,
};

/// First line of an entry: the name and version of its format.
const FORMAT: &[u8] = b"idem-cas/1\n";

/// Number of an entry of the audit.
pub(super) type AuditNumber = [u8; 16];

/// A recovery input, and when it is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Input {
    pub(super) payload: Payload,
    pub(super) recoveries: u32,
    pub(super) due_at: Timestamp,
}

/// What an entry holds, at a time. An entry that is not there holds nothing.
#[derive(Debug, Clone)]
pub(super) struct Slot {
    pub(super) now: Now,
    /// The record. It may have expired.
    pub(super) record: Option<Record>,
    /// Fencing token of the last record that was deleted.
    pub(super) tombstone: Option<FencingToken>,
    steps: BTreeMap<String, Payload>,
    log: AttemptLog,
    members: Option<MemberDigests>,
    pub(super) input: Option<Input>,
    /// Manual changes that took effect, and whose entries in the audit may still be intentions.
    pub(super) audited: Vec<AuditNumber>,
}

impl Slot {
    pub(super) fn empty(now: Now) -> Self {
        Self {
            now,
            record: None,
            tombstone: None,
            steps: BTreeMap::new(),
            log: AttemptLog::default(),
            members: None,
            input: None,
            audited: Vec::new(),
        }
    }

    /// An entry that cannot be read is an error, and never absent: the body would run again.
    pub(super) fn from_bytes(id: &RecordId, bytes: &[u8], now: Now) -> Result<Self, StoreError> {
        let mut slot = Self::empty(now);
        if bytes.is_empty() {
            return Ok(slot);
        }
        let mut bytes = bytes.strip_prefix(FORMAT).ok_or_else(corrupt)?;
        let (mut owner, mut began_at, mut history) = (None, None, String::new());
        while !bytes.is_empty() {
            let (tag, part) = parts::take(&mut bytes).ok_or_else(corrupt)?;
            match tag {
                b'R' => slot.record = Some(Record::from_bytes(id, part, now.earliest)?),
                b'T' => {
                    let token = parts::number(part).ok_or_else(corrupt)?;
                    slot.tombstone = Some(FencingToken::from_number(token));
                }
                b'S' => {
                    let (name, payload) = read_step(part).ok_or_else(corrupt)?;
                    slot.steps.insert(name, payload);
                }
                b'O' => {
                    let label = parts::text(part).ok_or_else(corrupt)?;
                    owner = Some(OwnerLabel::new(label).map_err(|_| corrupt())?);
                }
                b'B' => {
                    let at = parts::number(part).ok_or_else(corrupt)?;
                    began_at = Some(Timestamp::from_micros(at));
                }
                b'H' => history = parts::text(part).ok_or_else(corrupt)?,
                b'M' => {
                    slot.members = Some(MemberDigests::from_bytes(part).ok_or_else(corrupt)?);
                }
                b'I' => slot.input = Some(read_input(part).ok_or_else(corrupt)?),
                b'A' => slot.audited.push(part.try_into().map_err(|_| corrupt())?),
                _ => return Err(corrupt()),
            }
        }
        slot.log = AttemptLog::from_parts(owner, began_at, history);
        Ok(slot)
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = FORMAT.to_vec();
        let mut push = |tag, part: &[u8]| parts::push(&mut bytes, tag, part);
        if let Some(record) = &self.record {
            push(b'R', &record.to_bytes());
        }
        if let Some(token) = self.tombstone {
            push(b'T', &token.number().to_be_bytes());
        }
        for (name, payload) in &self.steps {
            let mut step = Vec::new();
            parts::push(&mut step, b'N', name.as_bytes());
            step.extend_from_slice(&payload.to_bytes());
            push(b'S', &step);
        }
        if let Some(owner) = self.log.owner() {
            push(b'O', owner.as_str().as_bytes());
        }
        if let Some(began_at) = self.log.began_at() {
            push(b'B', &began_at.as_micros().to_be_bytes());
        }
        if !self.log.history().is_empty() {
            push(b'H', self.log.history().as_bytes());
        }
        if let Some(members) = &self.members {
            push(b'M', members.as_bytes());
        }
        if let Some(input) = &self.input {
            let mut part = input.due_at.as_micros().to_be_bytes().to_vec();
            part.extend_from_slice(&input.recoveries.to_be_bytes());
            part.extend_from_slice(&input.payload.to_bytes());
            push(b'I', &part);
        }
        for number in &self.audited {
            push(b'A', number);
        }
        match bytes.len() {
            // An entry that was never there stays away.
            length if length == FORMAT.len() => Vec::new(),
            _ => bytes,
        }
    }

    /// The record, unless it has expired.
    pub(super) fn live(&self) -> Option<&Record> {
        self.record.as_ref().filter(|record| !record.is_expired())
    }

    /// Applies a transition to the record, unless it has expired, and keeps its history.
    fn change<T>(
        &mut self,
        label: Option<&OwnerLabel>,
        transition: impl FnOnce(At<'_>) -> T,
    ) -> Option<T> {
        let record = self.record.as_mut().filter(|it| !it.is_expired())?;
        let before = record.observation();
        let answer = transition(At::new(record, self.now));
        self.log.follow(&before, record, label);
        Some(answer)
    }

    pub(super) fn claim(&mut self, claim: &ClaimRequest) -> ClaimOutcome {
        let label = claim.owner_label.as_ref();
        let answer = self.change(label, |at| transitions::claim(at, claim));
        let answer = answer.unwrap_or_else(|| self.begin(claim));
        if let ClaimOutcome::Granted(_) = answer {
            self.members.clone_from(&claim.members);
        }
        answer
    }

    pub(super) fn take_over(
        &mut self,
        observed: &Observation,
        claim: &ClaimRequest,
    ) -> ClaimOutcome {
        let label = claim.owner_label.as_ref();
        let answer = self.change(label, |at| transitions::take_over(at, observed, claim));
        answer.unwrap_or_else(|| self.claim(claim))
    }

    /// Creates the record of a first claim, in place of an expired one or a tombstone if there is one.
    fn begin(&mut self, claim: &ClaimRequest) -> ClaimOutcome {
        self.delete();
        let record = transitions::begin(claim, self.tombstone, self.now);
        let granted = Granted::on(&record);
        *self = Self {
            record: Some(record),
            log: AttemptLog::begin(claim.owner_label.as_ref()),
            audited: std::mem::take(&mut self.audited),
            ..Self::empty(self.now)
        };
        ClaimOutcome::Granted(granted)
    }

    /// Leaves a tombstone in place of the record.
    pub(super) fn delete(&mut self) {
        let deleted = self.record.as_ref().map(|record| record.fencing_token);
        *self = Self {
            tombstone: self.tombstone.max(deleted),
            audited: std::mem::take(&mut self.audited),
            ..Self::empty(self.now)
        };
    }

    /// Applies a write that only an owner may make.
    pub(super) fn write(&mut self, transition: impl FnOnce(At<'_>) -> FencedWrite) -> FencedWrite {
        self.change(None, transition).unwrap_or(FencedWrite::Fenced)
    }

    pub(super) fn complete(&mut self, owner: &Owner, outcome: &Outcome) -> FencedWrite {
        self.write(|at| transitions::complete(at, owner, outcome))
    }

    pub(super) fn complete_for(
        &mut self,
        owner: &Owner,
        outcome: &Outcome,
        payload_for: Duration,
    ) -> FencedWrite {
        self.write(|at| transitions::complete_for(at, owner, outcome, payload_for))
    }

    pub(super) fn resolve(&mut self, observed: &Observation, resolution: &Resolution) -> Resolved {
        let resolved = self.change(None, |at| transitions::resolve(at, observed, resolution));
        let resolved = resolved.unwrap_or(Resolved::Stale);
        if resolved == Resolved::Done && *resolution == Resolution::Erase {
            self.delete();
        }
        resolved
    }

    /// Purges the record, as of the earlier of the store's clock and this time. Returns it as it was, if it was due.
    pub(super) fn purge(&mut self, as_of: Timestamp) -> Option<(Purge, Record)> {
        let now = self.now.earliest.min(as_of);
        let record = self.record.as_mut()?;
        record.read_at = now;
        let purge = transitions::purge(record);
        let purged = record.clone();
        match purge {
            Purge::NotDue => return None,
            Purge::Interrupted | Purge::Forgotten => {}
            Purge::Expired => self.delete(),
        }
        Some((purge, purged))
    }

    fn owned(&self, owner: &Owner) -> bool {
        self.live().is_some_and(|record| owner.may_write(record))
    }

    /// Saves a step. A saved step is never overwritten.
    pub(super) fn save_step(
        &mut self,
        owner: &Owner,
        name: &str,
        payload: &Payload,
    ) -> FencedWrite {
        if !self.owned(owner) {
            return FencedWrite::Fenced;
        }
        if !self.steps.contains_key(name) {
            self.steps.insert(name.to_owned(), payload.clone());
        }
        FencedWrite::Applied
    }

    pub(super) fn saved_steps(&self, owner: &Owner) -> Option<Vec<SavedStep>> {
        let steps = self.steps.iter().map(|(name, payload)| SavedStep {
            name: name.clone(),
            payload: payload.clone(),
        });
        self.owned(owner).then(|| steps.collect())
    }

    pub(super) fn attempts(&self) -> Option<Attempts> {
        let attempts = self.log.attempts(self.live()?.clone());
        Some(attempts.with_members(self.members.clone()))
    }

    pub(super) fn note_replay(&mut self, token: FencingToken, by: Option<&OwnerLabel>) -> bool {
        let record = self.record.as_ref().filter(|it| !it.is_expired());
        let record = record.filter(|it| it.fencing_token == token);
        record.is_some_and(|record| self.log.note_replay(record, by))
    }

    /// Label of the owner of the current or last attempt.
    pub(super) fn owner(&self) -> Option<&OwnerLabel> {
        self.log.owner()
    }

    /// Saves a recovery input, due at this time or at its earlier due time if that is later.
    pub(super) fn save_input(
        &mut self,
        owner: &Owner,
        payload: &Payload,
        due_at: Timestamp,
    ) -> FencedWrite {
        if !self.owned(owner) {
            return FencedWrite::Fenced;
        }
        let saved = self.input.as_ref();
        self.input = Some(Input {
            payload: payload.clone(),
            recoveries: saved.map_or(0, |it| it.recoveries),
            due_at: saved.map_or(due_at, |it| it.due_at.max(due_at)),
        });
        FencedWrite::Applied
    }
}

fn read_step(mut part: &[u8]) -> Option<(String, Payload)> {
    let (_, name) = parts::take(&mut part)?;
    Some((parts::text(name)?, Payload::from_bytes(part)?))
}

fn read_input(part: &[u8]) -> Option<Input> {
    let (due_at, part) = part.split_first_chunk()?;
    let (recoveries, part) = part.split_first_chunk()?;
    Some(Input {
        due_at: Timestamp::from_micros(i64::from_be_bytes(*due_at)),
        recoveries: u32::from_be_bytes(*recoveries),
        payload: Payload::from_bytes(part)?,
    })
}
