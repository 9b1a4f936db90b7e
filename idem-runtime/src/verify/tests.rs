//! Checks of a store in memory.
#![cfg(feature = "sqlite")]

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::*;
use crate::advanced::RunOptions;
use crate::{Call, Error, Idem, OnCrash, SqliteStore};

const TTL: Duration = Duration::from_secs(3600);
const POST: TypedOperation<u64> = TypedOperation::new("letters.post");

/// Stores the number 7 under `letters.post`, and the step `stamp` of a call that may run again.
async fn store() -> Result<SqliteStore, Error> {
    let store = SqliteStore::in_memory().await?;
    let idem = Idem::new(store.clone());
    let call = Call::new(POST, "order-1", &(), TTL);
    idem.run(call, async || Ok::<u64, Error>(7)).await?;
    let call = Call::new(POST, "order-2", &(), TTL).on_crash(OnCrash::Refuse);
    let unfinished = idem.run_with(call, RunOptions::new(), async |attempt| {
        attempt
            .step("stamp", async || Ok::<_, Error>("blue".to_owned()))
            .await?;
        Err::<u64, Error>(Error::LeaseLost)
    });
    assert!(unfinished.await.is_err());
    Ok(store)
}

#[tokio::test]
async fn all_that_this_build_decodes_passes() {
    let store = store().await.unwrap();
    let verification = Verification::new().operation(POST);
    let report = verification
        .clone()
        .step::<String>("letters.post", "stamp")
        .run(&store)
        .await;
    let report = report.unwrap();
    assert!(report.is_passed(), "{report}");
    assert_eq!(report.checked, 2);
    // A step without a type is no success.
    let report = verification.run(&store).await.unwrap();
    assert!(!report.is_passed(), "{report}");
    assert_eq!((report.checked, report.failed, report.unchecked), (1, 0, 1));
    let report = Verification::new().run(&store).await.unwrap();
    assert_eq!((report.checked, report.unchecked), (0, 2));
    assert!(
        report.to_string().contains("unchecked: letters.post"),
        "{report}"
    );
}

#[derive(Debug, Serialize, Deserialize)]
struct Receipt {
    number: u64,
}

#[tokio::test]
async fn what_would_answer_decode_is_listed_without_values() {
    const CHANGED: TypedOperation<Receipt> = TypedOperation::new("letters.post");
    let store = store().await.unwrap();
    let verification = Verification::new()
        .operation(CHANGED)
        .step::<u64>("letters.post", "stamp");
    let report = verification.run(&store).await.unwrap();
    assert_eq!((report.checked, report.failed), (2, 2), "{report}");
    let mut parts: Vec<_> = report.failures.iter().map(|it| it.part.clone()).collect();
    parts.sort_by_key(|part| *part != StoredPart::Value);
    assert_eq!(parts, [StoredPart::Value, StoredPart::Step("stamp".into())]);
    assert!(!report.to_string().contains("blue"), "{report}");
    // The call answers as the report says.
    let call = Call::new(CHANGED, "order-1", &(), TTL);
    let idem = Idem::new(store.clone());
    let answer = idem.run(call, async || Ok::<_, Error>(Receipt { number: 8 }));
    assert!(matches!(answer.await, Err(Error::Decode(_))));
    let few = verification.max_failures(1).run(&store).await.unwrap();
    assert_eq!((few.failures.len(), few.failed), (1, 2));
}

#[tokio::test]
async fn every_page_is_read_and_stored_errors_need_a_type() {
    let store = SqliteStore::in_memory().await.unwrap();
    let idem = Idem::new(store.clone());
    for number in 0..u64::from(PAGE) + 3 {
        let call = Call::new(POST, &number, &(), TTL);
        idem.run(call, async || Ok::<_, Error>(number))
            .await
            .unwrap();
    }
    let report = Verification::new()
        .operation(POST)
        .run(&store)
        .await
        .unwrap();
    assert_eq!((report.checked, report.failed), (u64::from(PAGE) + 3, 0));
    let verification = Verification::new().operation(POST);
    let report = verification.run_without_steps(&store);
    assert_eq!(report.await.unwrap().checked, u64::from(PAGE) + 3);

    let record = idem
        .records()
        .find("letters.post", &0_u64)
        .await
        .unwrap()
        .unwrap();
    let failed = Record {
        state: RecordState::Failed,
        ..record
    };
    let check = |verification: Verification| {
        let mut report = VerificationReport::default();
        verification.check_result(&failed, &mut report);
        report.failed
    };
    const FAILING: TypedOperation<String, u64> = TypedOperation::new("letters.post");
    assert_eq!(check(Verification::new().operation(POST)), 1);
    assert_eq!(check(Verification::new().operation_with_errors(FAILING)), 0);
}

#[derive(Serialize)]
struct Panics;

impl<'de> Deserialize<'de> for Panics {
    fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        panic!("a type of the service")
    }
}

#[tokio::test]
async fn a_type_that_panics_is_a_failure() {
    const PANICS: TypedOperation<Panics> = TypedOperation::new("letters.post");
    let report = Verification::new()
        .operation(PANICS)
        .run(&store().await.unwrap())
        .await
        .unwrap();
    assert_eq!(report.failed, 1, "{report}");
    assert!(report.to_string().contains("panicked"), "{report}");
}
