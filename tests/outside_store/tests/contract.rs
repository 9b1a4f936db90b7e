//! The cases of the contract.

use std::sync::Arc;

use idem_store::conformance::{self, Needs};
use outside_store::RevisionStore;

#[tokio::test(flavor = "multi_thread")]
async fn every_rule_is_kept() {
    let store = Arc::new(RevisionStore::new());
    let report = conformance::run_all(store).await.unwrap();
    assert!(report.inapplicable.iter().all(|case| matches!(
        case.needs(),
        Needs::Recovery | Needs::Attempts | Needs::Audit
    )));
    println!("{report}");
}
