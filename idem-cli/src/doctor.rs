//! Checks of a store: its tables, its server and the clocks.

use std::time::Duration;

use idem_runtime::operator::{Finding, OperatorStore, Severity};
use serde_json::json;

use crate::End;
use crate::arguments::Doctor;
use crate::clock::{A_PROBLEM, Skew};
use crate::output::{self, one_line, print_json, shown};
use crate::stdout::outln;
use crate::target::Connection;

/// Difference of the clocks that is worth a warning.
const WORTH_A_WARNING: Duration = Duration::from_secs(1);

pub(crate) async fn doctor(connection: &Connection, doctor: &Doctor) -> anyhow::Result<End> {
    let mut findings = connection.store.findings().await;
    findings.push(check_clock(&*connection.store).await);
    if matches!(connection.has_anything().await, Ok(false)) {
        findings.push(nothing_there());
    }
    if connection.store.expires_by_itself() {
        findings.push(deletes_by_itself());
    }
    let worst = findings.iter().map(|it| it.severity).max();
    if doctor.form.json {
        let findings: Vec<_> = findings
            .iter()
            .map(|finding| {
                json!({
                    "check": finding.check,
                    "severity": finding.severity.as_str(),
                    "found": finding.found,
                    "remedy": finding.remedy,
                })
            })
            .collect();
        print_json(&json!({ "findings": findings }));
    } else {
        for finding in &findings {
            outln!("{:<8} {}", finding.severity.as_str(), finding.check);
            outln!("         {}", one_line(&finding.found));
            if let Some(remedy) = &finding.remedy {
                outln!("         To do: {}", shown(remedy));
            }
        }
    }
    Ok(match worst {
        Some(Severity::Problem) => End::Problem,
        _ => End::Done,
    })
}

async fn check_clock(store: &dyn OperatorStore) -> Finding {
    match Skew::read(store).await {
        Ok(skew) => of_skew(skew, store.expires_by_itself()),
        Err(error) => {
            let error = output::error(&error);
            Finding::problem(
                "clock",
                format!("the store's clock cannot be read: {error}"),
                "repair this, then run the check again",
            )
        }
    }
}

/// Finding that a Redis has nothing of idem's. A new service begins like this, so it is no problem.
fn nothing_there() -> Finding {
    Finding::warning(
        "records",
        "this database has nothing of idem's under the prefix: no record, and no entry of an audit",
        "check host and database number of the URL, and --prefix, unless the service has made no call yet, or all records have \
         expired",
    )
}

/// Finding that the store deletes expired records without a purge.
fn deletes_by_itself() -> Finding {
    Finding::ok(
        "expiry",
        "the store deletes expired records itself. A purger or a purge marks records whose owners are gone, and deletes what \
         the store has not deleted yet",
    )
}

fn of_skew(skew: Skew, expires_by_itself: bool) -> Finding {
    let found = format!("the store's clock is {skew}");
    if skew.exceeds(A_PROBLEM) {
        let remedy = match expires_by_itself {
            true => {
                "find out which clock is wrong, and synchronise it (NTP). While the store's clock is ahead, the store \
                 deletes results early, which nothing but the right time prevents"
            }
            false => {
                "find out which clock is wrong, and synchronise it (NTP). While the store's clock is ahead, start no process \
                 that purges and purge nothing manually: it would delete results that calls still need"
            }
        };
        return Finding::problem(
            "clock",
            format!(
                "{found}. One of them is wrong. Leases and retentions are measured by the store's clock: while it is ahead, \
                 results seem to have expired and calls run again; while it is behind, leases last longer"
            ),
            remedy,
        );
    }
    if skew.exceeds(WORTH_A_WARNING) {
        return Finding::warning(
            "clock",
            format!(
                "{found}. Leases and retentions are measured by the store's clock alone, so calls are right; the times \
                 that services and logs show differ by this"
            ),
            "synchronise both clocks (NTP). Set a clock back only slowly: a step back makes leases last longer",
        );
    }
    Finding::ok("clock", found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn difference(is_ahead: bool, seconds: u64) -> Skew {
        Skew {
            time: Duration::from_secs(seconds),
            is_ahead,
            margin: Duration::ZERO,
        }
    }

    #[test]
    fn the_remedy_for_a_clock_that_is_ahead_is_one_that_helps() {
        let remedy = |expires_by_itself| of_skew(difference(true, 61), expires_by_itself).remedy;
        let of_purged = remedy(false).expect("it is a problem");
        assert!(of_purged.contains("purge nothing manually"), "{of_purged}");
        let of_expiring = remedy(true).expect("it is a problem");
        assert!(
            of_expiring.contains("deletes results early"),
            "{of_expiring}"
        );
    }

    #[test]
    fn a_difference_of_more_than_a_minute_is_a_problem() {
        let severity = |is_ahead, seconds| of_skew(difference(is_ahead, seconds), false).severity;
        for is_ahead in [false, true] {
            assert_eq!(severity(is_ahead, 1), Severity::Ok);
            assert_eq!(severity(is_ahead, 60), Severity::Warning);
            assert_eq!(severity(is_ahead, 61), Severity::Problem);
        }
    }
}
