//! Seeds over the real engine, and the proof that defects are found.

use std::thread;

use idem_sim::{Plan, StoreMutant, run, shrink};

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
    let mutant = Some(StoreMutant::OverwritesOutcome);
    let (plan, violation) = first_failure(StoreMutant::OverwritesOutcome, 100)
        .expect("the mutant is found within these seeds");
    let small = shrink(&plan, violation, mutant);
    assert!(small.actions.len() < plan.actions.len());
    let again = run(&small, mutant).violation.expect("the plan still fails");
    assert_eq!(again.rule, violation);
}

/// Each defect of the store, with the number of seeds within which it is found.
const FOUND_WITHIN: &[(StoreMutant, u64)] = &[
    (StoreMutant::CompletesWithoutFencing, 550),
    (StoreMutant::OverwritesOutcome, 30),
    (StoreMutant::TakesOverWithoutCompare, 50),
    (StoreMutant::TakesOverLiveLease, 50),
    (StoreMutant::ClaimTakesOver, 160),
    (StoreMutant::ReleasesForNewClaim, 150),
    (StoreMutant::LeaseByProcessClock, 90),
    (StoreMutant::RenewsNothing, 40),
    (StoreMutant::ForgetsClaimId, 60),
    (StoreMutant::RepeatedClaimGetsNewToken, 30),
    (StoreMutant::ForgetsDeletedToken, 30),
    (StoreMutant::ClaimsReleasedWithoutFingerprint, 30),
    (StoreMutant::ResolvesWithoutCompare, 170),
    (StoreMutant::PurgesUnknown, 30),
    (StoreMutant::LosesSteps, 30),
    (StoreMutant::StepsOutliveGeneration, 190),
    (StoreMutant::PostponesWithoutCompare, 510),
    (StoreMutant::CommitsRowsAlone, 30),
    (StoreMutant::IgnoresLocks, 160),
    (StoreMutant::BatchWaitsForLock, 160),
    (StoreMutant::PoolsDroppedBegin, 30),
    (StoreMutant::CompletesByClaimIdAlone, 760),
    (StoreMutant::CommitsStepRowsAlone, 30),
    (StoreMutant::KeepsDroppedJoin, 1170),
    (StoreMutant::DroppedJoinEndsTransaction, 140),
    (StoreMutant::EnqueuesAtOnce, 30),
    (StoreMutant::RelayIgnoresLease, 170),
    (StoreMutant::RelayIgnoresOrder, 30),
    (StoreMutant::RelayIgnoresClaimId, 980),
    (StoreMutant::ClaimsUnrecorded, 30),
];

#[test]
fn each_defect_of_the_store_is_found() {
    for mutant in StoreMutant::ALL {
        assert!(
            FOUND_WITHIN.iter().any(|(it, _)| *it == mutant),
            "{mutant:?} has no number of seeds"
        );
    }
    let numbers: Vec<_> = (0..FOUND_WITHIN.len() as u64).collect();
    each(&numbers, |number| {
        let (mutant, seeds) = FOUND_WITHIN[number as usize];
        assert!(
            first_failure(mutant, seeds).is_some(),
            "{mutant:?} survives {seeds} seeds"
        );
    });
}

/// The first plan under which the defect breaks a promise, and the promise.
fn first_failure(mutant: StoreMutant, seeds: u64) -> Option<(Plan, &'static str)> {
    (0..seeds).find_map(|seed| {
        let plan = Plan::of(seed);
        let violation = run(&plan, Some(mutant)).violation?;
        Some((plan, violation.rule))
    })
}
