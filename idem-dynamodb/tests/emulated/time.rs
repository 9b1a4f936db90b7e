//! Leases by the server's clock: a late owner, a clock that is an hour ahead, and a machine that was suspended.

use std::time::{Duration, Instant, SystemTime};

use idem_dynamodb::DynamoDbStore;
use idem_store::key::Identity;
use idem_store::record::{ClaimId, Digest, Outcome, Owner, Payload};
use idem_store::store::{ClaimOutcome, ClaimRequest, FencedWrite, Granted};
use idem_store::{Key, OnCrash, Operation, Record, RecordId, Scope, Store as _, Timestamp};

use crate::emulator::Emulator;

pub(crate) fn fresh(lease: Duration) -> ClaimRequest {
    let identity = Identity {
        scope: Scope::new("tenant-3").expect("it is a scope"),
        operation: Operation::new("charges.create".to_owned()).expect("it is a name"),
        key: Key::generate(),
    };
    ClaimRequest {
        id: RecordId::of(&identity),
        identity,
        fingerprint: Digest::new(1, [0; 4], &[1; 32]),
        claim_id: ClaimId::random(),
        lease,
        retention: Duration::from_secs(24 * 3600),
        on_crash: OnCrash::Rerun,
        owner_label: Some("web-1".parse().expect("it is a label")),
        members: None,
    }
}

pub(crate) fn granted(outcome: ClaimOutcome) -> Granted {
    match outcome {
        ClaimOutcome::Granted(granted) => granted,
        ClaimOutcome::Existing(record) => panic!("it exists: {:?}", record.state),
    }
}

pub(crate) fn owner(claim: &ClaimRequest, granted: &Granted) -> Owner {
    Owner {
        id: claim.id,
        claim_id: claim.claim_id,
        fencing_token: granted.fencing_token,
    }
}

pub(crate) fn outcome(size: usize) -> Outcome {
    let bytes: Vec<u8> = (0..size).map(|n| n as u8).collect();
    Outcome::Completed(Payload {
        codec: "json/1".into(),
        bytes: bytes.into(),
    })
}

/// Waits until the record has lapsed by the server's clock.
pub(crate) async fn lapsed(store: &DynamoDbStore, id: &RecordId) -> anyhow::Result<Record> {
    let began = Instant::now();
    loop {
        match store.get(id).await? {
            Some(record) if record.is_lapsed() => return Ok(record),
            _ => anyhow::ensure!(began.elapsed() < Duration::from_secs(20), "it never lapsed"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs dynalite: cargo xtask test runs it"]
async fn a_late_owner_is_fenced_and_its_result_is_not_stored() -> anyhow::Result<()> {
    let dynalite = Emulator::dynalite().await?;
    let (store, _) = dynalite.store().await?;
    for size in [10, 30_000] {
        let claim = fresh(Duration::from_millis(300));
        let sent = Instant::now();
        let late = owner(&claim, &granted(store.claim(&claim).await?));
        let observed = lapsed(&store, &claim.id).await?.observation();
        assert!(sent.elapsed() >= claim.lease, "the lease ended early");
        let next = ClaimRequest {
            claim_id: ClaimId::random(),
            ..claim.clone()
        };
        let taken = granted(store.take_over(&observed, &next).await?);
        let winner = owner(&next, &taken);
        assert!(winner.fencing_token > late.fencing_token);
        let (result, other) = (outcome(size), outcome(size + 1));
        assert_eq!(store.complete(&late, &other).await?, FencedWrite::Fenced);
        assert_eq!(
            store.complete(&winner, &result).await?,
            FencedWrite::Applied
        );
        assert_eq!(store.complete(&late, &other).await?, FencedWrite::Fenced);
        assert_eq!(
            store.complete(&winner, &result).await?,
            FencedWrite::Applied
        );
        let record = store.get(&claim.id).await?;
        assert_eq!(record.and_then(|it| it.outcome()), Some(result));
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs dynalite: cargo xtask test runs it"]
async fn a_server_that_is_an_hour_ahead_ends_no_lease_early() -> anyhow::Result<()> {
    const HOUR: Duration = Duration::from_secs(3600);
    let mut dynalite = Emulator::dynalite().await?;
    dynalite.set_ahead(HOUR).await?;
    let (store, _) = dynalite.store().await?;
    let ahead = store.now().await?.since(SystemTime::now().into());
    assert!(ahead.abs_diff(HOUR) < Duration::from_secs(3), "{ahead:?}");
    let claim = fresh(Duration::from_millis(400));
    let sent = Instant::now();
    store.claim(&claim).await?;
    lapsed(&store, &claim.id).await?;
    let lasted = sent.elapsed();
    assert!(lasted >= claim.lease, "it lasted {lasted:?}");
    assert!(lasted < Duration::from_secs(3), "it lasted {lasted:?}");
    Ok(())
}

/// A function of Lambda is suspended between two calls. Its clock may stand still meanwhile, which looks like a server whose
/// clock has jumped forward.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs dynalite: cargo xtask test runs it"]
async fn a_lease_that_was_written_after_a_suspension_is_corrected() -> anyhow::Result<()> {
    const SUSPENDED: Duration = Duration::from_secs(600);
    let mut dynalite = Emulator::dynalite().await?;
    let (store, _) = dynalite.store().await?;
    let lease = Duration::from_secs(60);
    let ends_in_time = |until: Timestamp, now: Timestamp| until >= now.after(lease);

    dynalite.set_ahead(SUSPENDED).await?;
    let claim = fresh(lease);
    let granted = granted(store.claim(&claim).await?);
    let before = store.now().await?;
    let record = store.get(&claim.id).await?.expect("it was claimed");
    let slack = Duration::from_secs(3);
    assert!(
        ends_in_time(record.lease_until.after(slack), before),
        "{record:?}"
    );
    assert_eq!(record.attempt, 1);

    dynalite.set_ahead(2 * SUSPENDED).await?;
    let owner = owner(&claim, &granted);
    assert_eq!(store.renew(&owner, lease).await?, FencedWrite::Applied);
    let before = store.now().await?;
    let record = store.get(&claim.id).await?.expect("it was renewed");
    assert!(
        ends_in_time(record.lease_until.after(slack), before),
        "{record:?}"
    );
    Ok(())
}
