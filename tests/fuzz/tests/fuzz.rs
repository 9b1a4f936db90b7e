//! Replays the inputs of every target, and a short round of mutations.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use idem_fuzz::{Round, TARGETS, Target, corpus};

/// Mutations of each target in the short round.
const MUTATIONS: usize = 400;

/// Runs inputs of a target. Names the input that fails.
fn run(target: &Target, inputs: impl IntoIterator<Item = Vec<u8>>) {
    for input in inputs {
        if catch_unwind(AssertUnwindSafe(|| (target.run)(&input))).is_err() {
            let input = input.escape_ascii();
            panic!(
                "`{}` fails on this input, add it to its corpus: {input}",
                target.name
            );
        }
    }
}

/// Runs a check for each target, on two threads.
fn each(check: impl Fn(&Target) + Sync) {
    let half = TARGETS.len().div_ceil(2);
    thread::scope(|scope| {
        for part in TARGETS.chunks(half) {
            let check = &check;
            scope.spawn(move || part.iter().for_each(check));
        }
    });
}

#[test]
fn every_known_input_passes() {
    each(|target| {
        let inputs = corpus::read(target.name).expect("the inputs are readable");
        assert!(inputs.len() >= 3, "`{}` has hardly an input", target.name);
        run(target, inputs);
    });
}

#[test]
fn a_short_round_of_mutations_passes() {
    each(|target| {
        let inputs = corpus::read(target.name).expect("the inputs are readable");
        run(target, Round::new(&inputs).take(MUTATIONS));
    });
}

#[test]
fn a_round_is_the_same_each_time_and_changes_its_inputs() {
    let inputs = [b"one".to_vec(), b"another".to_vec()];
    let round = || Round::new(&inputs).take(100).collect::<Vec<_>>();
    assert_eq!(round(), round());
    let changed = round().iter().filter(|it| !inputs.contains(it)).count();
    assert!(changed > 90, "{changed}");
}

#[test]
fn an_input_survives_its_way_through_a_file() {
    let all: Vec<u8> = (0..=255).collect();
    for input in [&all[..], b"", b"#", b" ", b"a ", b"\\x41", b"\n", b"\"'\\"] {
        corpus::check(input).expect("it comes back");
    }
}
