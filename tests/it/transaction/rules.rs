//! The public cases of stores with transactions, on each SQL store.

use idem_runtime::conformance::{self, Counters};
use idem_runtime::error::{StoreError, StoreErrorKind};
use idem_tests::{on_stores, places};

use self::defective::{Defect, defective};
use super::places::{Database, Orders};

mod defective;

on_stores! { [transactions] Database::open: every_rule_of_transactions_is_kept }

/// A counter has an order for each addition.
impl<S: Orders> Counters<S> for Database<S> {
    async fn add(&self, connection: &mut S::Connection, name: &str) -> Result<(), StoreError> {
        let added = S::order(connection, &name[..40], 1).await;
        added.map_err(|_| StoreError::new(StoreErrorKind::Other, "the order was not added"))
    }

    async fn committed(&self, name: &str) -> Result<u64, StoreError> {
        Ok(self.orders(&name[..40]).await.unsigned_abs())
    }
}

async fn every_rule_of_transactions_is_kept<S: Orders>(database: Database<S>) {
    let store = database.store();
    store.create_tables().await.unwrap();
    let report = conformance::run_transactional(&store, &database).await;
    let report = report.unwrap();
    assert_eq!(report.passed.len(), 13, "{report:?}");
}

/// Defects, each with a case that must find it.
const FOUND: [(Defect, &str); 8] = [
    (Defect::RollsBackAtCommit, "commit_shows_both"),
    (Defect::CommitsAtRollback, "rollback_leaves_neither"),
    (
        Defect::IgnoresSavepoint,
        "changes_are_undone_without_the_record",
    ),
    (Defect::CompletesForStrangers, "completion_is_fenced"),
    (Defect::GrantsEndedRecords, "claim_compares_the_fingerprint"),
    (Defect::ForgetsTheObservation, "lapsed_record_is_taken_over"),
    (Defect::SavesStepsAgain, "step_is_saved_with_its_changes"),
    (
        Defect::GrantsLeasesBesideTransactions,
        "open_transaction_excludes_others",
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn each_defect_of_transactions_is_found() {
    for (defect, case) in FOUND {
        let database = Database::open(places::sqlite()).await;
        let store = database.store();
        store.migrate().await.unwrap();
        let store = defective(store, defect);
        let failed = conformance::run_transactional(&store, &database).await;
        let failed = failed.expect_err("the store has a defect");
        let found: Vec<_> = failed.violations.iter().map(|it| it.case).collect();
        assert!(found.contains(&case), "{defect:?}: {failed}");
    }
}
