//! The public cases of stores with transactions, on each SQL store.

use futures_util::future::join_all;
use idem_runtime::conformance::{self, Counters, Failed, TransactionalReport};
use idem_runtime::error::{StoreError, StoreErrorKind};
use idem_tests::{on_stores, places};

use self::defective::{Defect, End, defective};
use self::one_commit::{Claims, one_commit};
use super::places::{Database, Orders};

mod defective;
mod one_commit;

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
const FOUND: [(Defect, &str); 15] = [
    (Defect::RollsBackAtCommit, "commit_shows_both"),
    (Defect::CommitsAtRollback, "rollback_leaves_neither"),
    (Defect::CommitsAtDrop, "drop_leaves_neither"),
    (
        Defect::IgnoresSavepoint,
        "changes_are_undone_without_the_record",
    ),
    (
        Defect::ReplacesSavepoints,
        "changes_are_undone_without_the_record",
    ),
    (Defect::CompletesForStrangers, "completion_is_fenced"),
    (
        Defect::GrantsOtherRequests,
        "claim_compares_the_fingerprint",
    ),
    (Defect::RunsEndedRecordsAgain, "ended_record_is_replayed"),
    (Defect::ForgetsTheObservation, "lapsed_record_is_taken_over"),
    (Defect::SavesStepsAgain, "step_is_saved_with_its_changes"),
    (
        Defect::GrantsLeasesBesideTransactions,
        "open_transaction_excludes_others",
    ),
    (Defect::LosesJoinedCalls, "joined_call_ends_with_its_caller"),
    (
        Defect::JoinDecides(End::Commit),
        "joined_call_ends_with_its_caller",
    ),
    (
        Defect::JoinDecides(End::Rollback),
        "joined_rollback_keeps_the_caller",
    ),
    (Defect::KeepsDroppedJoins, "joined_drop_keeps_the_caller"),
];

/// Runs the cases on a store with this defect.
async fn run(defect: Defect) -> Result<TransactionalReport, Failed> {
    let database = Database::open(places::sqlite()).await;
    let store = database.store();
    store.migrate().await.unwrap();
    let store = defective(store, defect);
    conformance::run_transactional(&store, &database).await
}

#[tokio::test(flavor = "multi_thread")]
async fn each_defect_of_transactions_is_found() {
    let runs = FOUND.map(async |(defect, case)| (defect, case, run(defect).await));
    for (defect, case, run) in join_all(runs).await {
        let failed = run.expect_err("the store has a defect");
        let found: Vec<_> = failed.violations.iter().map(|it| it.case).collect();
        assert!(found.contains(&case), "{defect:?}: {failed}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_case_of_transactions_finds_a_defect() {
    // Not a defect: no transaction fails.
    let report = run(Defect::FailsAtFirst(0)).await.unwrap();
    let finds = |case: &&str| FOUND.iter().any(|(_, it)| it == case);
    let idle: Vec<_> = report.passed.iter().filter(|case| !finds(case)).collect();
    assert!(idle.is_empty(), "no defect is found by {idle:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_case_of_transactions_that_cannot_decide_is_repeated_twice() {
    run(Defect::FailsAtFirst(2)).await.unwrap();
    let failed = run(Defect::FailsAtFirst(3)).await.unwrap_err();
    let found = (failed.violations.len(), failed.inconclusive.len());
    assert_eq!((found, failed.passed), ((0, 1), 12), "{failed}");
}

/// Names of the cases that a store on a backend with one commit does not pass.
async fn broken(claims: Claims) -> Vec<&'static str> {
    let (store, counts) = one_commit(claims);
    let failed = conformance::run_transactional(&store, &counts).await;
    let failed = failed.expect_err("it is no store with transactions");
    assert_eq!(failed.inconclusive.len(), 0, "{failed}");
    failed.violations.iter().map(|it| it.case).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_optimistic_claim_excludes_nobody() {
    let broken = broken(Claims::Optimistic).await;
    assert_eq!(broken, ["open_transaction_excludes_others"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reserving_claim_is_visible_and_outlives_a_drop() {
    let broken = broken(Claims::Reserving).await;
    let expected = [
        "commit_shows_both",
        "drop_leaves_neither",
        "joined_call_ends_with_its_caller",
        "joined_drop_keeps_the_caller",
    ];
    assert_eq!(broken, expected);
}
