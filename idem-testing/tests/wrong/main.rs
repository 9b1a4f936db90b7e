//! Wrong functions, each with the story that the check tells about it. `UPDATE_EXPECT=1` writes the stories.

mod effects;
mod keys;
mod modes;
mod problems;
mod recoveries;
mod requests;
mod results;
mod services;
mod steps;
mod tasks;
mod transactions;

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use expect_test::{Expect, expect};
use idem_runtime::{
    Attempt, Error, Fingerprint, Idem, Reconciled, Recovery, SqliteStore, idempotent,
};
use idem_testing::{
    Check, Clock, Finding, Place, Provider, ProviderError, Sqlite, check, check_consumer_on,
    check_on,
};
use serde::{Deserialize, Serialize};

#[derive(Debug, thiserror::Error, Serialize, Deserialize)]
enum Fail {
    #[error("the card was declined")]
    Declined,
    #[error("the bank is busy")]
    Busy,
    #[error("it exists already")]
    Exists,
    #[error("the provider failed")]
    Provider,
    #[error(transparent)]
    #[serde(skip)]
    Idem(#[from] Error),
}

impl From<ProviderError> for Fail {
    fn from(_: ProviderError) -> Self {
        Self::Provider
    }
}

/// Asserts that the check finds this mistake first, and compares its report.
fn finds<'a, P: Place, T: Debug + 'a, E: Debug + 'a>(
    check: &Check<'a, P, T, E>,
    finding: Finding,
    story: &Expect,
) {
    let report = check.report();
    assert_eq!(report.findings[0].finding, finding, "{report}");
    shows(check, finding, story);
}

/// Asserts that the check finds this mistake, and compares its story.
fn shows<'a, P: Place, T: Debug + 'a, E: Debug + 'a>(
    check: &Check<'a, P, T, E>,
    finding: Finding,
    story: &Expect,
) {
    let report = check.report();
    let Some(found) = report.findings.iter().find(|it| it.finding == finding) else {
        panic!("{report}");
    };
    story.assert_eq(&found.to_string());
    // A snapshot must not depend on the run.
    let again = check.report();
    assert_eq!(again.to_string(), report.to_string(), "the stories differ");
}

/// Asserts that the check finds these mistakes and no other. The polls of a real database differ from run to run, so there is
/// no snapshot.
fn finds_on_a_database<'a, P: Place, T: Debug + 'a, E: Debug + 'a>(
    check: &Check<'a, P, T, E>,
    findings: &[Finding],
) {
    let report = check.report();
    let found: Vec<_> = report.findings.iter().map(|it| it.finding).collect();
    assert_eq!(found, findings, "{report}");
}

/// Number that is another one in each call of a process, as a random number is.
fn ticket() -> u64 {
    static TICKETS: AtomicU64 = AtomicU64::new(0);
    TICKETS.fetch_add(1, Ordering::Relaxed)
}
