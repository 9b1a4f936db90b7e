//! The table of cases that every store must pass.

use std::sync::Arc;

use idem_dynamodb::DynamoDbStore;
use idem_store::Operation;
use idem_store::conformance::{self, Case, Needs};
use idem_store::store::OperationStore;
use tokio::task::JoinSet;

use crate::emulator::{Emulator, is_endpoint_named};
use crate::parts::large_step_and_result;
use crate::rights::check_policy;

/// Number of cases that run concurrently.
const CONCURRENT: usize = 8;

/// Runs these cases, and returns their number.
async fn run(store: DynamoDbStore, is_wanted: impl Fn(&Case) -> bool) -> usize {
    let store = Arc::new(store);
    let mut cases = conformance::cases()
        .iter()
        .filter(|it| it.applies_to(&*store) && is_wanted(it));
    let (mut running, mut passed, mut violations) = (JoinSet::new(), 0, Vec::new());
    loop {
        while running.len() < CONCURRENT
            && let Some(case) = cases.next()
        {
            running.spawn(case.run(store.clone()));
        }
        match running.join_next().await {
            None => break,
            Some(Ok(Ok(()))) => passed += 1,
            Some(Ok(Err(violation))) => violations.push(violation.to_string()),
            Some(Err(panic)) => violations.push(panic.to_string()),
        }
    }
    println!("{passed} cases passed");
    assert!(violations.is_empty(), "{}", violations.join("\n"));
    passed
}

/// All cases but those of the audit, which needs transactions. The requests that they send are those that the policy allows.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "needs dynalite: cargo xtask test runs it"]
async fn dynalite_passes_every_case_but_those_of_the_audit() -> anyhow::Result<()> {
    let dynalite = Emulator::dynalite().await?;
    let (store, requests) = dynalite.store().await?;
    requests.take();
    let name = Operation::new("charges.create".to_owned())?;
    store.note_operation(&name).await?;
    store.note_operation(&name).await?;
    assert_eq!(OperationStore::operations(&store).await?, [name]);
    large_step_and_result(&store).await?;
    let passed = run(store, |it| it.needs() != Needs::Audit).await;
    assert!(passed > 130, "only {passed} cases ran");
    check_policy(&requests.names())
}

/// The cases of the audit. At another endpoint than moto, which is slow, all cases.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "needs moto: cargo xtask test runs it"]
async fn moto_passes_the_cases_of_the_audit() -> anyhow::Result<()> {
    let moto = Emulator::moto().await?;
    let (store, _) = moto.store().await?;
    let is_wanted = |it: &Case| it.needs() == Needs::Audit || is_endpoint_named();
    let passed = run(store, is_wanted).await;
    assert!(passed >= 6, "only {passed} cases ran");
    Ok(())
}
