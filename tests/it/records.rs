//! Claims and outcomes for the tests of stores.

use std::time::Duration;

use idem_runtime::record::{ClaimId, Digest, Outcome, Owner, Payload};
use idem_runtime::store::{ClaimOutcome, ClaimRequest, ManualChange};
use idem_runtime::{Identity, Key, OnCrash, Operation, RecordId, Scope, Store, StoreError};

pub(crate) const HOUR: Duration = Duration::from_secs(3600);

/// Claim of the record with this key, with a lease and a retention of one hour each.
pub(crate) fn claim(key: &str) -> ClaimRequest {
    let identity = Identity {
        scope: Scope::none(),
        operation: Operation::new("tests").unwrap(),
        key: Key::new(key).unwrap(),
    };
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

pub(crate) fn outcome(bytes: &[u8]) -> Outcome {
    Outcome::Completed(Payload {
        codec: "json/1".into(),
        bytes: bytes.into(),
    })
}

/// Actor and reason of the manual changes in these tests.
pub(crate) fn by_hand() -> ManualChange {
    ManualChange::new("ann@tests", "asked the bank").unwrap()
}

/// Makes a claim that must be granted.
pub(crate) async fn own(store: &impl Store, claim: &ClaimRequest) -> Owner {
    match store.claim(claim).await.unwrap() {
        ClaimOutcome::Granted(granted) => Owner {
            id: claim.id,
            claim_id: claim.claim_id,
            fencing_token: granted.fencing_token,
        },
        ClaimOutcome::Existing(record) => panic!("{record:?} is in the way"),
    }
}

/// The error and its sources, as a log would show them.
pub(crate) fn full_text(error: &StoreError) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}
