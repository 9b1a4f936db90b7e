//! Claims, owners and outcomes for tests that use a store directly.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

use std::time::Duration;

use idem_runtime::error::StoreError;
use idem_runtime::key::{Identity, Operation, RecordId};
use idem_runtime::record::{ClaimId, Digest, Outcome, Owner, Payload, Record};
use idem_runtime::store::{ClaimOutcome, ClaimRequest, FencedWrite};
use idem_runtime::{Key, OnCrash, Scope, Store};

/// An hour.
pub const HOUR: Duration = Duration::from_secs(3600);

/// Claim of the record with this identity, with a lease and a retention of one hour each.
pub fn claim_of(identity: Identity) -> ClaimRequest {
    ClaimRequest {
        id: RecordId::of(&identity),
        identity,
        fingerprint: Digest::new(1, [0; 4], &[7; 32]),
        claim_id: ClaimId::random(),
        lease: HOUR,
        retention: HOUR,
        on_crash: OnCrash::Rerun,
        owner_label: None,
        members: None,
    }
}

/// Identity of the record with this key, in a scope if the text is not empty.
///
/// # Panics
///
/// Panics if the operation or the key is not valid.
pub fn identity(scope: &str, operation: &str, key: &str) -> Identity {
    Identity {
        scope: match scope {
            "" => Scope::none(),
            scope => Scope::from_stored(scope),
        },
        operation: Operation::new(operation.to_owned()).unwrap(),
        key: Key::new(key).unwrap(),
    }
}

/// Claim of the record of the operation `tests` with this key.
///
/// # Panics
///
/// Panics if the key is not valid.
pub fn claim(key: &str) -> ClaimRequest {
    claim_of(identity("", "tests", key))
}

/// Claim of a record that does not exist.
pub fn fresh() -> ClaimRequest {
    claim(&format!("{:032x}", rand::random::<u128>()))
}

/// Claim of the same record by another caller.
pub fn again(claim: &ClaimRequest) -> ClaimRequest {
    ClaimRequest {
        claim_id: ClaimId::random(),
        ..claim.clone()
    }
}

/// Makes a claim that must be granted.
///
/// # Panics
///
/// Panics if it is not granted.
pub async fn own(store: &(impl Store + ?Sized), claim: &ClaimRequest) -> Owner {
    match store.claim(claim).await.unwrap() {
        ClaimOutcome::Granted(granted) => Owner {
            id: claim.id,
            claim_id: claim.claim_id,
            fencing_token: granted.fencing_token,
        },
        ClaimOutcome::Existing(record) => panic!("the key is in use: {record:?}"),
    }
}

/// Ends the lease of a running record by hand, as if its owner had crashed long ago. A test that waits for a short lease
/// to end fails on a slow machine, because a live owner loses such a lease, too. Nothing happens if the record has changed
/// since it was read.
///
/// # Errors
///
/// The renewal fails.
///
/// # Panics
///
/// Panics if the record has no claim.
pub async fn end_lease(
    store: &(impl Store + ?Sized),
    record: &Record,
) -> Result<FencedWrite, StoreError> {
    let owner = Owner {
        id: record.id,
        claim_id: record.claim_id.unwrap(),
        fencing_token: record.fencing_token,
    };
    store.renew(&owner, Duration::ZERO).await
}

/// A result of these bytes.
pub fn outcome(bytes: &[u8]) -> Outcome {
    Outcome::Completed(Payload {
        codec: "json/1".into(),
        bytes: bytes.into(),
    })
}
