//! The cases of the contract.

use std::sync::Arc;

use idem_store::cas::CasStore;
use idem_store::conformance;
use outside_store::Server;

#[tokio::test(flavor = "multi_thread")]
async fn every_rule_is_kept() {
    let store = Arc::new(CasStore::new(Server::start()));
    let report = conformance::run_all(store).await.unwrap();
    assert!(report.inapplicable.is_empty(), "{report}");
    println!("{report}");
}
