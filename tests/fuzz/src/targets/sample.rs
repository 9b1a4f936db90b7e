//! Records built from bytes, and an owner for the records of one key.

use std::time::Duration;

use arbitrary::{Result, Unstructured};
use idem_store::key::{Identity, Key, Operation, RecordId, Scope};
use idem_store::record::{
    ClaimId, Digest, FencingToken, OnCrash, Payload, Record, RecordState, Timestamp, micros,
};
use idem_store::store::ClaimRequest;

/// Builds a record as a store writes it. Its numbers are not negative, because stores write none that are.
pub(super) fn record(bytes: &mut Unstructured<'_>) -> Result<Record> {
    let identity = identity(bytes)?;
    let state = *bytes.choose(&[
        RecordState::Running,
        RecordState::Released,
        RecordState::Completed,
        RecordState::Failed,
        RecordState::Unrecorded,
        RecordState::Interrupted,
    ])?;
    let is_owned = matches!(state, RecordState::Running | RecordState::Interrupted);
    let has_claim_id = is_owned || state != RecordState::Released && bytes.arbitrary()?;
    let has_payload = matches!(state, RecordState::Completed | RecordState::Failed);
    Ok(Record {
        id: RecordId::of(&identity),
        identity,
        fingerprint: Digest::new(bytes.arbitrary()?, bytes.arbitrary()?, &bytes.arbitrary()?),
        state,
        payload: if has_payload {
            Some(payload(bytes)?)
        } else {
            None
        },
        claim_id: match has_claim_id {
            true => Some(ClaimId::from_bytes(bytes.arbitrary()?)),
            false => None,
        },
        fencing_token: FencingToken::from_number(number(bytes)?),
        attempt: bytes.int_in_range(1..=u32::MAX)?,
        lease_until: time(bytes)?,
        retention: Duration::from_micros(number(bytes)?.cast_unsigned()),
        payload_for: None,
        on_crash: *bytes.choose(&[OnCrash::Rerun, OnCrash::Refuse, OnCrash::Reconcile])?,
        first_claimed_at: time(bytes)?,
        ended_at: match state.is_ended() || state == RecordState::Released {
            true => Some(time(bytes)?),
            false => None,
        },
        read_at: time(bytes)?,
    })
}

fn identity(bytes: &mut Unstructured<'_>) -> Result<Identity> {
    let scope = Scope::new(bytes.arbitrary::<&str>()?).unwrap_or_default();
    let operation = Operation::new(bytes.arbitrary::<String>()?);
    Ok(Identity {
        scope,
        operation: operation.unwrap_or_else(|_| this_operation()),
        key: Key::new(bytes.arbitrary::<&str>()?).unwrap_or_else(|_| this_key()),
    })
}

/// Builds an encoded result.
pub(super) fn payload(bytes: &mut Unstructured<'_>) -> Result<Payload> {
    Ok(Payload {
        codec: bytes.arbitrary::<String>()?.into(),
        bytes: bytes.arbitrary::<&[u8]>()?.into(),
    })
}

fn number(bytes: &mut Unstructured<'_>) -> Result<i64> {
    bytes.int_in_range(0..=i64::MAX)
}

fn time(bytes: &mut Unstructured<'_>) -> Result<Timestamp> {
    Ok(Timestamp::from_micros(number(bytes)?))
}

fn this_operation() -> Operation {
    Operation::new("fuzz").expect("a valid name")
}

fn this_key() -> Key {
    Key::new("key").expect("a valid key")
}

/// Claim of the key that the targets use.
pub(super) fn claim(fingerprint: Digest) -> ClaimRequest {
    let identity = Identity {
        scope: Scope::none(),
        operation: this_operation(),
        key: this_key(),
    };
    ClaimRequest {
        id: RecordId::of(&identity),
        identity,
        fingerprint,
        claim_id: ClaimId::from_bytes([1; 16]),
        lease: Duration::from_secs(60),
        retention: Duration::from_secs(3600),
        on_crash: OnCrash::Rerun,
        owner_label: None,
        members: None,
    }
}

/// Checks what every reader promises of the records that it returns.
pub(super) fn check(record: &Record) {
    assert_eq!(record.id, RecordId::of(&record.identity));
    assert_ne!(record.attempt, 0);
    assert_eq!(record.state.is_ended(), record.outcome().is_some());
    assert_eq!(
        record.payload.is_some(),
        matches!(record.state, RecordState::Completed | RecordState::Failed)
    );
    // None of these may overflow.
    let _ = (
        record.is_expired(),
        record.is_lapsed(),
        micros(record.retention),
    );
    let observation = record.observation();
    assert_eq!(observation.to_string().parse(), Ok(observation));
}
