//! The record of the key, and its calls, without what never changes.

use std::sync::LazyLock;
use std::time::Duration;

use crate::record::{
    self, ClaimId, Digest, FencingToken, Observation, OnCrash, Outcome, Payload, Record,
    RecordState, Timestamp,
};
use crate::setup::Mode;
use crate::store::ClaimRequest;

/// Units of time that a lease is valid, and that an outcome is kept.
pub(crate) const LEASE: i64 = 2;

/// A call, by the number of its claim id.
pub(crate) type Call = u8;
/// An outcome: the number of the call that made it, or one of the operator's.
pub(crate) type Value = u8;

/// Value that an operator records.
pub(crate) const BY_OPERATOR: Value = 30;

/// A record, without what never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Cell {
    pub(crate) state: RecordState,
    pub(crate) claim: Option<Call>,
    pub(crate) fencing_token: i64,
    pub(crate) attempt: u32,
    pub(crate) lease_until: i64,
    pub(crate) value: Option<Value>,
    pub(crate) first_claimed_at: i64,
    pub(crate) ended_at: Option<i64>,
    pub(crate) on_crash: OnCrash,
}

/// Owner of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Owner {
    pub(crate) call: Call,
    pub(crate) fencing_token: i64,
}

/// Observation of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Seen {
    pub(crate) is_interrupted: bool,
    pub(crate) claim: Option<Call>,
    pub(crate) fencing_token: i64,
    pub(crate) lease_until: i64,
}

static RECORD: LazyLock<Record> = LazyLock::new(|| {
    use idem_store::key::{Identity, Key, Operation, RecordId, Scope};

    let identity = Identity {
        scope: Scope::none(),
        operation: Operation::new("explore").expect("a valid name"),
        key: Key::new("key").expect("a valid key"),
    };
    Record {
        id: RecordId::of(&identity),
        identity,
        fingerprint: Digest::new(1, [0; 4], &[0; 32]),
        state: RecordState::Running,
        payload: None,
        claim_id: None,
        fencing_token: FencingToken::from_number(0),
        attempt: 1,
        lease_until: Timestamp::from_micros(0),
        retention: micros(LEASE),
        payload_for: None,
        on_crash: OnCrash::Rerun,
        first_claimed_at: Timestamp::from_micros(0),
        ended_at: None,
        read_at: Timestamp::from_micros(0),
    }
});

static PAYLOADS: LazyLock<Vec<Payload>> = LazyLock::new(|| {
    let payload = |value: Value| Payload {
        codec: "value/1".into(),
        bytes: [value].into(),
    };
    (0..=u8::MAX).map(payload).collect()
});

pub(crate) fn micros(units: i64) -> Duration {
    Duration::from_micros(units.unsigned_abs())
}

pub(crate) fn at(time: i64) -> Timestamp {
    Timestamp::from_micros(time)
}

pub(crate) fn claim_id(call: Call) -> ClaimId {
    ClaimId::from_bytes([call; 16])
}

/// The outcome of a body, or of an operator.
pub(crate) fn outcome(value: Value) -> Outcome {
    let payload = PAYLOADS[usize::from(value)].clone();
    match value > BY_OPERATOR {
        true => Outcome::Failed(payload),
        false => Outcome::Completed(payload),
    }
}

/// The claim of a call.
pub(crate) fn claim_of(call: Call, mode: Mode) -> ClaimRequest {
    ClaimRequest {
        id: RECORD.id,
        identity: RECORD.identity.clone(),
        fingerprint: RECORD.fingerprint,
        claim_id: claim_id(call),
        lease: micros(LEASE),
        retention: micros(LEASE),
        on_crash: match mode {
            Mode::Refuse => OnCrash::Refuse,
            Mode::Rerun | Mode::Tx => OnCrash::Rerun,
        },
        owner_label: None,
        members: None,
    }
}

impl Cell {
    /// The record as the store reads it at this time.
    pub(crate) fn record(&self, now: i64) -> Record {
        Record {
            state: self.state,
            payload: self.value.map(|value| PAYLOADS[usize::from(value)].clone()),
            claim_id: self.claim.map(claim_id),
            fencing_token: FencingToken::from_number(self.fencing_token),
            attempt: self.attempt,
            lease_until: at(self.lease_until),
            on_crash: self.on_crash,
            first_claimed_at: at(self.first_claimed_at),
            ended_at: self.ended_at.map(at),
            read_at: at(now),
            ..RECORD.clone()
        }
    }

    pub(crate) fn of(record: &Record) -> Self {
        Self {
            state: record.state,
            claim: record.claim_id.map(|id| id.as_bytes()[0]),
            fencing_token: record.fencing_token.number(),
            attempt: record.attempt,
            lease_until: record.lease_until.as_micros(),
            value: record.payload.as_ref().map(|payload| payload.bytes[0]),
            first_claimed_at: record.first_claimed_at.as_micros(),
            ended_at: record.ended_at.map(Timestamp::as_micros),
            on_crash: record.on_crash,
        }
    }

    pub(crate) fn seen(&self) -> Seen {
        Seen {
            is_interrupted: self.state == RecordState::Interrupted,
            claim: self.claim,
            fencing_token: self.fencing_token,
            lease_until: self.lease_until,
        }
    }

    pub(crate) fn observation(&self) -> Observation {
        self.record(0).observation()
    }
}

impl Seen {
    pub(crate) fn observation(&self) -> Observation {
        Observation {
            id: RECORD.id,
            state: match self.is_interrupted {
                true => RecordState::Interrupted,
                false => RecordState::Running,
            },
            claim_id: self.claim.map(claim_id),
            fencing_token: FencingToken::from_number(self.fencing_token),
            lease_until: at(self.lease_until),
        }
    }
}

impl Owner {
    pub(crate) fn stored(&self) -> record::Owner {
        record::Owner {
            id: RECORD.id,
            claim_id: claim_id(self.call),
            fencing_token: FencingToken::from_number(self.fencing_token),
        }
    }
}
