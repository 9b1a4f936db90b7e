//! All states of the small setups, and the proof that defects are found.

use std::thread;

use idem_explore::{Mutant, Search, Setup, search};

/// Number of states of each small setup. Another number means that the protocol or the search has changed.
const STATES: &[(&str, u64)] = &[
    ("rerun, time", 10_762),
    ("rerun, renewal", 23_738),
    ("rerun, messages", 45_377),
    ("rerun, operator", 33_472),
    ("refuse, crash", 13_914),
    ("refuse, operator", 123_993),
    ("tx, messages", 20_057),
    ("tx, calls", 17_824),
];

/// Each defect, with the setup that shows it and the number of steps of the shortest way there.
const FOUND: &[(Mutant, &str, usize)] = &[
    (Mutant::CompletesWithoutFencing, "rerun, time", 11),
    (Mutant::OverwritesOutcome, "rerun, time", 15),
    (Mutant::RenewsWithoutFencing, "rerun, renewal", 9),
    (Mutant::TakesOverWithoutCompare, "rerun, renewal", 11),
    (Mutant::TakesOverLiveLease, "rerun, time", 7),
    (Mutant::ClaimTakesOver, "rerun, messages", 5),
    (Mutant::ReleasesForNewClaim, "rerun, time", 10),
    (Mutant::ForgetsClaimId, "rerun, messages", 3),
    (Mutant::RepeatedClaimGetsNewToken, "rerun, messages", 3),
    (Mutant::ForgetsDeletedToken, "rerun, operator", 9),
    (Mutant::ResolvesWithoutCompare, "rerun, operator", 8),
    (Mutant::PurgesUnknown, "refuse, operator", 7),
    (Mutant::ResolutionKeepsOwner, "rerun, operator", 11),
    (Mutant::IgnoresLocks, "tx, messages", 10),
    (Mutant::CommitsDataAlone, "tx, messages", 1),
    (Mutant::ReturnsLostValue, "rerun, time", 11),
    (Mutant::ReturnsValueAfterLease, "rerun, messages", 9),
    (Mutant::LateAnswerReleases, "rerun, messages", 9),
    (Mutant::DropReleases, "refuse, crash", 10),
    (Mutant::UnknownErrorReleases, "refuse, crash", 10),
    (Mutant::TakesOverRefused, "refuse, crash", 11),
    (Mutant::WaitsForLapsed, "rerun, time", 2),
    (Mutant::BelievesCommit, "tx, messages", 6),
];

/// Runs a check for each item, on two threads.
fn each<T: Sync>(all: &[T], check: impl Fn(&T) + Sync) {
    let (even, odd): (Vec<_>, Vec<_>) = all.iter().enumerate().partition(|(at, _)| at % 2 == 0);
    thread::scope(|scope| {
        for part in [even, odd] {
            let check = &check;
            scope.spawn(move || part.into_iter().for_each(|(_, item)| check(item)));
        }
    });
}

fn searched(name: &str, mutant: Option<Mutant>) -> Search {
    let setup = Setup::SMALL.iter().find(|it| it.name == name);
    search(setup.expect("a setup of this name"), mutant, |_| {})
}

#[test]
fn every_state_of_the_small_setups_keeps_the_promises() {
    assert_eq!(STATES.len(), Setup::SMALL.len());
    each(STATES, |(name, states)| {
        let search = searched(name, None);
        if let Some(found) = &search.found {
            panic!("{name}: {}\n{}", found.promise, found.trace.join("\n"));
        }
        assert_eq!(search.states, *states, "{name}");
        assert!(
            search.steps > search.states && search.depth > 10,
            "{search:?}"
        );
    });
}

#[test]
fn each_defect_is_found_by_the_shortest_way() {
    let named: Vec<_> = FOUND.iter().map(|(mutant, ..)| *mutant).collect();
    assert_eq!(named, Mutant::ALL);
    each(FOUND, |(mutant, name, steps)| {
        let found = searched(name, Some(*mutant)).found;
        let found = found.unwrap_or_else(|| panic!("`{}` is not found", mutant.about()));
        assert_eq!(
            found.trace.len(),
            *steps,
            "{mutant:?}: {}\n{}",
            found.promise,
            found.trace.join("\n")
        );
    });
}

#[test]
fn a_search_gives_the_same_numbers_each_time() {
    let numbers = || {
        let search = searched("refuse, crash", Some(Mutant::DropReleases));
        (
            search.states,
            search.steps,
            search.depth,
            search.found.map(|it| it.trace),
        )
    };
    assert_eq!(numbers(), numbers());
}
