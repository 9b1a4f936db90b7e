//! Payloads in items of their own.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::Context as _;
use aws_sdk_dynamodb::types::AttributeValue;
use idem_dynamodb::DynamoDbStore;
use idem_store::Store as _;
use idem_store::record::Payload;
use idem_store::store::{FencedWrite, StepStore as _};

use crate::emulator::{Emulator, Requests};
use crate::time::{fresh, granted, outcome, owner};

fn payload(size: usize, byte: u8) -> Payload {
    Payload {
        codec: "json/1".into(),
        bytes: vec![byte; size].into(),
    }
}

/// A call with a large step, which is saved twice, and a large result.
pub(crate) async fn large_step_and_result(store: &DynamoDbStore) -> anyhow::Result<()> {
    let claim = fresh(Duration::from_secs(60));
    let owner = owner(&claim, &granted(store.claim(&claim).await?));
    for step in [payload(1000, 7), payload(2000, 8)] {
        let saved = store.save_step(&owner, "reserve", &step).await?;
        assert_eq!(saved, FencedWrite::Applied);
    }
    let steps = store.saved_steps(&owner).await?;
    let steps = steps.context("the record has its owner")?;
    let [step] = &steps[..] else {
        panic!("{steps:?}")
    };
    assert_eq!(step.payload, payload(1000, 7));
    let result = outcome(30_000);
    assert_eq!(store.complete(&owner, &result).await?, FencedWrite::Applied);
    let record = store.get(&claim.id).await?;
    assert_eq!(record.and_then(|it| it.outcome()), Some(result));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs dynalite: cargo xtask test runs it"]
async fn an_ended_record_leaves_only_parts_that_expire() -> anyhow::Result<()> {
    let dynalite = Emulator::dynalite().await?;
    let (store, _) = dynalite.store().await?;
    large_step_and_result(&store).await?;
    let client = dynalite.client(&Requests::default());
    let tables = client.list_tables().send().await?.table_names;
    let table = tables.unwrap_or_default().pop();
    let scan = client.scan().set_table_name(table).send().await?;
    let mut items = scan.items.unwrap_or_default();
    items.sort_by_key(|it| it.get("sk").and_then(|it| it.as_s().ok()).cloned());
    let [head, part] = &items[..] else {
        panic!("{} items are left", items.len())
    };
    assert!(!head.contains_key("sp"), "the head still has steps");
    let seconds = |item: &HashMap<String, AttributeValue>| -> Option<i64> {
        item.get("ttl")?.as_n().ok()?.parse().ok()
    };
    assert!(seconds(part) > seconds(head), "the part expires first");
    Ok(())
}
