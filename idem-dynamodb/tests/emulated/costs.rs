//! Requests of each kind of call, as the table in the README has them.

use std::time::Duration;

use idem_store::Store as _;
use idem_store::record::{ClaimId, Payload};
use idem_store::store::{ClaimOutcome, ClaimRequest, FencedWrite, StepStore as _};

use crate::emulator::Emulator;
use crate::time::{fresh, granted, lapsed, outcome, owner};

const LEASE: Duration = Duration::from_secs(60);

async fn replayed(
    store: &idem_dynamodb::DynamoDbStore,
    claim: &ClaimRequest,
) -> anyhow::Result<()> {
    let again = ClaimRequest {
        claim_id: ClaimId::random(),
        ..claim.clone()
    };
    match store.claim(&again).await? {
        ClaimOutcome::Existing(record) => assert!(record.payload.is_some()),
        ClaimOutcome::Granted(_) => panic!("the body would run again"),
    }
    Ok(())
}

/// On moto, which returns the item with a failed condition, as DynamoDB does.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs moto: cargo xtask test runs it"]
async fn requests_are_those_of_the_readme() -> anyhow::Result<()> {
    let moto = Emulator::moto().await?;
    let (store, requests) = moto.store().await?;
    let readme = include_str!("../../README.md");
    let check = |what: &str| {
        let row = format!("| {what} | {} |", requests.take());
        assert!(readme.contains(&row), "the README has no row `{row}`");
    };
    requests.take();

    let claim = fresh(LEASE);
    let first = owner(&claim, &granted(store.claim(&claim).await?));
    assert_eq!(
        store.complete(&first, &outcome(100)).await?,
        FencedWrite::Applied
    );
    check("first call");
    replayed(&store, &claim).await?;
    check("replay");

    let large = fresh(LEASE);
    let second = owner(&large, &granted(store.claim(&large).await?));
    let payload = Payload {
        codec: "json/1".into(),
        bytes: vec![7; 100].into(),
    };
    requests.take();
    assert_eq!(
        store.save_step(&second, "reserve", &payload).await?,
        FencedWrite::Applied
    );
    check("a step");
    assert_eq!(store.renew(&second, LEASE).await?, FencedWrite::Applied);
    check("a renewal");
    assert_eq!(
        store.complete(&second, &outcome(30_000)).await?,
        FencedWrite::Applied
    );
    check("completion with 30 KB");
    replayed(&store, &large).await?;
    check("replay of 30 KB");

    let brief = fresh(Duration::from_millis(100));
    store.claim(&brief).await?;
    lapsed(&store, &brief.id).await?;
    requests.take();
    let next = ClaimRequest {
        claim_id: ClaimId::random(),
        ..brief
    };
    let ClaimOutcome::Existing(record) = store.claim(&next).await? else {
        panic!("a claim takes nothing over")
    };
    granted(store.take_over(&record.observation(), &next).await?);
    check("claim of a lapsed record, and takeover");

    let read_first = store.clone().with_read_first();
    replayed(&read_first, &claim).await?;
    check("replay, with `with_read_first`");
    Ok(())
}
