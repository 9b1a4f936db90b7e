//! The end of a check: its report, or an assertion.

use std::fmt::Debug;

use crate::check::Check;
use crate::place::Place;
use crate::report::{Mode, Report};
use crate::run;

impl<'a, P: Place, T: Debug + 'a, E: Debug + 'a> Check<'a, P, T, E> {
    /// Runs the schedules, and returns what they found.
    pub fn report(&self) -> Report {
        run::all(self)
    }

    /// Asserts what the mode of the function promises: nothing for `rerun` without downstream keys.
    ///
    /// # Panics
    /// A mistake was found; the message is the [`Report`].
    #[track_caller]
    pub fn assert_promised(&self) {
        self.assert(&[
            Mode::Rerun,
            Mode::Refuse,
            Mode::Reconcile,
            Mode::Transactional,
        ]);
    }

    /// Asserts that the effect happens exactly once. Only `tx` promises that.
    ///
    /// # Panics
    /// A mistake was found, or the mode promises less; the message is the [`Report`].
    #[track_caller]
    pub fn assert_exactly_once(&self) {
        self.assert(&[Mode::Transactional]);
    }

    /// Asserts that the effect happens at most once. `on_crash = refuse` and `tx` promise that.
    ///
    /// # Panics
    /// A mistake was found, or the mode promises less; the message is the [`Report`].
    #[track_caller]
    pub fn assert_at_most_once(&self) {
        self.assert(&[Mode::Refuse, Mode::Transactional]);
    }

    /// Asserts that the body runs at least once, and that its receivers recognise each repetition by its downstream key.
    /// `rerun` and `reconcile` promise that the body runs; the keys are the body's work.
    ///
    /// # Panics
    /// A mistake was found, or the mode promises less; the message is the [`Report`].
    #[track_caller]
    pub fn assert_at_least_once_with_downstream_key(&self) {
        self.assert(&[Mode::Rerun, Mode::Reconcile, Mode::Transactional]);
    }

    #[track_caller]
    fn assert(&self, modes: &[Mode]) {
        let mut report = self.report();
        if let Some(mode) = report.mode
            && report.problem.is_none()
        {
            if !modes.contains(&mode) {
                report.problem = Some(promises_less(mode).to_owned());
            } else if !self.counts() {
                report.problem = Some(NO_EFFECTS.to_owned());
            }
        }
        assert!(report.is_clean(), "\n{report}\n");
        // `cargo test` shows it with `--show-output`.
        println!("{report}");
    }

    /// Returns true if the check counts effects.
    pub(crate) fn counts(&self) -> bool {
        self.count.is_some() || !self.providers.is_empty() || self.place.counts()
    }
}

const NO_EFFECTS: &str =
    "it counts no effects; add `.provider(&bank)` or `.effects(|| bank.charges())`";

/// What a mode promises, for a user who asks for more.
fn promises_less(mode: Mode) -> &'static str {
    match mode {
        Mode::Rerun => {
            "the mode `rerun` promises that the body runs at least once, so an effect may be repeated; use \
             `assert_at_least_once_with_downstream_key`, or choose `on_crash = refuse` for at most once or `tx = tx` for \
             exactly once"
        }
        Mode::Refuse => {
            "the mode `refuse` promises that the body runs at most once, and leaves a crash to an operator; use \
             `assert_at_most_once`, or choose `tx = tx` for exactly once"
        }
        Mode::Reconcile => {
            "the mode `reconcile` asks after a crash and is not safe from an owner that resumes after its lease; use \
             `assert_at_least_once_with_downstream_key`, or choose `on_crash = refuse` for at most once or `tx = tx` for \
             exactly once"
        }
        Mode::Transactional => "the mode `tx` promises exactly once; use `assert_exactly_once`",
    }
}
