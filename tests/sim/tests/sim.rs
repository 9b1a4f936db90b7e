//! Seeds over the real engine, and the proof that defects are found.

use std::thread;

use idem_reference::{Defect, Tool};
use idem_sim::{Plan, run, shrink};

/// Seeds of the round that runs with all tests.
const SEEDS: u64 = 200;

/// Runs seeds on two threads.
fn each(seeds: &[u64], check: impl Fn(u64) + Sync) {
    let half = seeds.len().div_ceil(2);
    thread::scope(|scope| {
        for part in seeds.chunks(half.max(1)) {
            let check = &check;
            scope.spawn(move || part.iter().for_each(|seed| check(*seed)));
        }
    });
}

fn keeps_its_promises(seed: u64) {
    let report = run(&Plan::of(seed), None);
    if let Some(violation) = &report.violation {
        let plan = shrink(&Plan::of(seed), violation.rule, None);
        let story = run(&plan, None).trace.text();
        panic!("seed {seed}: {violation:?}\n{:#?}\n{story}", plan.setup);
    }
}

#[test]
fn the_promises_hold_under_two_hundred_seeds() {
    let seeds: Vec<_> = (0..SEEDS).collect();
    each(&seeds, keeps_its_promises);
}

#[test]
fn the_same_seed_gives_the_same_trace_byte_for_byte() {
    // On two threads, so that nothing of an earlier run on the thread can matter.
    each(&[3, 4, 5, 6, 7, 8], |seed| {
        let first = run(&Plan::of(seed), None);
        run(&Plan::of(seed + 1), None);
        let second = run(&Plan::of(seed), None);
        assert_eq!(first.trace.text(), second.trace.text(), "seed {seed}");
        assert_eq!(first.stats, second.stats, "seed {seed}");
        assert!(first.trace.text().lines().count() > 10, "seed {seed}");
    });
}

#[test]
fn a_shrunk_plan_breaks_the_same_promise_with_fewer_actions() {
    let defect = Some(Defect::OverwritesOutcome);
    let (plan, violation) = first_failure(Defect::OverwritesOutcome, 100)
        .expect("the defect is found within these seeds");
    let small = shrink(&plan, violation, defect);
    assert!(small.actions.len() < plan.actions.len());
    let again = run(&small, defect).violation.expect("the plan still fails");
    assert_eq!(again.rule, violation);
}

/// Each defect of the store, with the number of seeds within which it is found.
const FOUND_WITHIN: &[(Defect, u64)] = &[
    (Defect::CompletesWithoutFencing, 550),
    (Defect::OverwritesOutcome, 30),
    (Defect::TakesOverUnseen, 50),
    (Defect::TakesOverRenewedLease, 50),
    (Defect::ClaimTakesOver, 160),
    (Defect::ReleasesWithoutFencing, 150),
    (Defect::LeaseByProcessClock, 90),
    (Defect::RenewsNothing, 40),
    (Defect::ForgetsClaimId, 60),
    (Defect::RepeatedClaimGetsNewToken, 30),
    (Defect::CountsTokensFromOne, 30),
    (Defect::ClaimsReleasedWithoutFingerprint, 30),
    (Defect::ResolvesUnseen, 170),
    (Defect::PurgesUnknown, 30),
    (Defect::LosesSteps, 30),
    (Defect::StepsOutliveGeneration, 400),
    (Defect::RecoversTwice, 510),
    (Defect::CommitsRowsAlone, 30),
    (Defect::IgnoresLocks, 160),
    (Defect::BatchWaitsForLock, 160),
    (Defect::PoolsDroppedBegin, 30),
    (Defect::CompletesByClaimIdAlone, 1000),
    (Defect::CommitsStepRowsAlone, 30),
    (Defect::KeepsDroppedJoin, 1170),
    (Defect::DroppedJoinEndsTransaction, 140),
    (Defect::EnqueuesAtOnce, 30),
    (Defect::RelayIgnoresLease, 170),
    (Defect::RelayIgnoresOrder, 90),
    (Defect::RelayIgnoresClaimId, 980),
    (Defect::ClaimsUnrecorded, 30),
    (Defect::PurgesAsOfNow, 270),
    (Defect::CommitsEnded, 30),
    (Defect::KeepsAutocommit, 30),
    (Defect::JoinsEnded, 200),
    (Defect::EndedCallerWrites, 30),
    (Defect::WritesInForeignTransaction, 130),
    (Defect::ReadsUncommitted, 800),
];

#[test]
fn each_defect_of_the_store_is_found() {
    for defect in Defect::of(Tool::Simulation) {
        assert!(
            FOUND_WITHIN.iter().any(|(it, _)| *it == defect),
            "{defect:?} has no number of seeds"
        );
    }
    let numbers: Vec<_> = (0..FOUND_WITHIN.len() as u64).collect();
    each(&numbers, |number| {
        let (defect, seeds) = FOUND_WITHIN[number as usize];
        assert!(
            first_failure(defect, seeds).is_some(),
            "{defect:?} survives {seeds} seeds"
        );
    });
}

/// The first plan under which the defect breaks a promise, and the promise.
fn first_failure(defect: Defect, seeds: u64) -> Option<(Plan, &'static str)> {
    (0..seeds).find_map(|seed| {
        let plan = Plan::of(seed);
        let violation = run(&plan, Some(defect)).violation?;
        Some((plan, violation.rule))
    })
}
