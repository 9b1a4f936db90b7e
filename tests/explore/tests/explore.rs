//! All states of the small setups, and the proof that defects are found.

use std::thread;

use idem_explore::{Search, Setup, search};
use idem_reference::{Defect, Tool};

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
const FOUND: &[(Defect, &str, usize)] = &[
    (Defect::CompletesWithoutFencing, "rerun, time", 11),
    (Defect::RenewsWithoutFencing, "rerun, renewal", 9),
    (Defect::ReleasesWithoutFencing, "rerun, time", 10),
    (Defect::OverwritesOutcomeOfOthers, "rerun, time", 15),
    (Defect::TakesOverUnseen, "rerun, renewal", 11),
    (Defect::TakesOverLiveLease, "rerun, time", 7),
    (Defect::TakesOverRefused, "refuse, crash", 11),
    (Defect::ClaimTakesOver, "rerun, messages", 5),
    (Defect::ForgetsClaimId, "rerun, messages", 3),
    (Defect::RepeatedClaimGetsNewToken, "rerun, messages", 3),
    (Defect::ForgetsDeletedToken, "rerun, operator", 9),
    (Defect::ResolvesUnseen, "rerun, operator", 8),
    (Defect::ResolutionKeepsOwner, "rerun, operator", 11),
    (Defect::PurgesUnknown, "refuse, operator", 7),
    (Defect::IgnoresLocks, "tx, messages", 10),
    (Defect::CommitsRowsAlone, "tx, messages", 1),
    (Defect::ReturnsLostValue, "rerun, time", 11),
    (Defect::ReturnsValueAfterLease, "rerun, messages", 9),
    (Defect::LateAnswerReleases, "rerun, messages", 9),
    (Defect::DropReleases, "refuse, crash", 10),
    (Defect::UnknownErrorReleases, "refuse, crash", 10),
    (Defect::WaitsForLapsed, "rerun, time", 2),
    (Defect::BelievesCommit, "tx, messages", 6),
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

fn searched(name: &str, defect: Option<Defect>) -> Search {
    let setup = Setup::SMALL.iter().find(|it| it.name == name);
    search(setup.expect("a setup of this name"), defect, |_| {})
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
    let named: Vec<_> = FOUND.iter().map(|(defect, ..)| *defect).collect();
    assert_eq!(named, Defect::of(Tool::Exploration));
    each(FOUND, |(defect, name, steps)| {
        let found = searched(name, Some(*defect)).found;
        let found = found.unwrap_or_else(|| panic!("`{}` is not found", defect.about()));
        assert_eq!(
            found.trace.len(),
            *steps,
            "{defect:?}: {}\n{}",
            found.promise,
            found.trace.join("\n")
        );
    });
}

#[test]
fn a_search_gives_the_same_numbers_each_time() {
    let numbers = || {
        let search = searched("refuse, crash", Some(Defect::DropReleases));
        (
            search.states,
            search.steps,
            search.depth,
            search.found.map(|it| it.trace),
        )
    };
    assert_eq!(numbers(), numbers());
}
