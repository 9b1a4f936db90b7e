//! `#[idempotent]` functions on the store.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use idem_dynamodb::DynamoDbStore;
use idem_runtime::{Error, Fingerprint, Idem, idempotent};
use serde::{Deserialize, Serialize};

use crate::emulator::Emulator;

static RUNS: AtomicU32 = AtomicU32::new(0);

#[derive(Clone, Fingerprint, Serialize, Deserialize)]
struct Charge {
    customer: String,
    cents: u64,
}

#[idempotent(key = key, ttl = "24h", name = "charges.create", wait = "20s", store = idem)]
async fn charge(idem: &Idem<DynamoDbStore>, key: &str, charge: Charge) -> Result<String, Error> {
    let run = RUNS.fetch_add(1, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_millis(50)).await;
    Ok(format!("receipt {run} for {} cents", charge.cents))
}

/// Two processes have handles and clients of their own.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "needs dynalite: cargo xtask test runs it"]
async fn duplicates_of_two_handles_run_the_body_once() -> anyhow::Result<()> {
    let dynalite = Emulator::dynalite().await?;
    let (store, _) = dynalite.store().await?;
    let order = || Charge {
        customer: "ann".to_owned(),
        cents: 500,
    };
    let other = store.clone();
    let handles = [Idem::new(store), Idem::new(other)];
    for key in ["order-1", "order-2", "order-3"] {
        let before = RUNS.load(Ordering::SeqCst);
        let mut calls = tokio::task::JoinSet::new();
        for n in 0..40 {
            let idem = handles[n % 2].clone();
            calls.spawn(async move { charge(&idem, key, order()).await });
        }
        let receipts = calls.join_all().await;
        let receipts: Result<Vec<_>, _> = receipts.into_iter().collect();
        let mut receipts = receipts?;
        receipts.dedup();
        assert_eq!(receipts, [format!("receipt {before} for 500 cents")]);
        assert_eq!(RUNS.load(Ordering::SeqCst), before + 1);
    }
    let misused = charge(
        &handles[0],
        "order-1",
        Charge {
            cents: 1,
            ..order()
        },
    )
    .await;
    assert!(matches!(misused, Err(Error::KeyReused)), "{misused:?}");
    Ok(())
}
