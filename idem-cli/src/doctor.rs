//! Checks of a store: its tables, its server and the clocks.

use std::time::{Duration, Instant, SystemTime};

use idem_runtime::Timestamp;
use idem_runtime::store::operator::{Finding, OperatorStore, Severity};
use serde_json::json;

use crate::End;
use crate::arguments::Doctor;
use crate::output::{self, one_line, print_json, shown};
use crate::stdout::outln;
use crate::target::Connection;

/// Number of times that the store's clock is read. The fastest answer counts.
const ROUNDS: usize = 5;
/// Difference of the clocks that is worth a warning.
const WORTH_A_WARNING: Duration = Duration::from_secs(1);
/// Difference above which one of the clocks is wrong.
const A_PROBLEM: Duration = Duration::from_secs(60);

pub(crate) async fn doctor(connection: &Connection, doctor: &Doctor) -> anyhow::Result<End> {
    let mut findings = connection.store.findings().await;
    findings.push(check_clock(&*connection.store).await);
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

/// One reading of the store's clock.
#[derive(Debug, Clone, Copy)]
struct Reading {
    /// Time of this machine before the store was asked.
    sent: Timestamp,
    store: Timestamp,
    round_trip: Duration,
}

async fn check_clock(store: &dyn OperatorStore) -> Finding {
    let mut best: Option<Reading> = None;
    for _ in 0..ROUNDS {
        let (sent, begun) = (Timestamp::from(SystemTime::now()), Instant::now());
        let store = match store.now().await {
            Ok(time) => time,
            Err(error) => {
                let error = output::error(&error);
                return Finding::problem(
                    "clock",
                    format!("the store's clock cannot be read: {error}"),
                    "repair this, then run the check again",
                );
            }
        };
        let reading = Reading {
            sent,
            store,
            round_trip: begun.elapsed(),
        };
        if best.is_none_or(|best| reading.round_trip < best.round_trip) {
            best = Some(reading);
        }
    }
    match best {
        Some(reading) => of_reading(reading),
        None => Finding::problem(
            "clock",
            "the store's clock was not read",
            "run the check again",
        ),
    }
}

/// The store read its clock at some moment of the round trip. The skew is known up to half of the round trip.
fn of_reading(reading: Reading) -> Finding {
    let half = reading.round_trip / 2;
    let middle = reading.sent.after(half);
    let (skew, direction) = match reading.store > middle {
        true => (reading.store.since(middle), "ahead of"),
        false => (middle.since(reading.store), "behind"),
    };
    let (skew, half) = (skew.as_secs_f64(), half.as_secs_f64());
    let found = format!(
        "the store's clock is {skew:.3} s {direction} this machine's, give or take {half:.3} s"
    );
    if skew > half + A_PROBLEM.as_secs_f64() {
        return Finding::problem(
            "clock",
            format!(
                "{found}. One of them is wrong. Leases and retentions are measured by the store's clock: while it is ahead, \
                 results seem to have expired and calls run again; while it is behind, leases last longer"
            ),
            "find out which clock is wrong, and synchronise it (NTP). While the store's clock is ahead, start no process that \
             purges and purge nothing by hand: it would delete results that calls still need",
        );
    }
    if skew > half + WORTH_A_WARNING.as_secs_f64() {
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

    #[test]
    fn a_skew_within_the_round_trip_is_no_finding() {
        let sent = Timestamp::from_micros(1_700_000_000_000_000);
        let read = |store_after: i64, round_trip| {
            of_reading(Reading {
                sent,
                store: Timestamp::from_micros(sent.as_micros() + store_after * 1000),
                round_trip: Duration::from_millis(round_trip),
            })
        };
        assert_eq!(read(5, 10).severity, Severity::Ok);
        assert_eq!(read(900, 10).severity, Severity::Ok);
        assert_eq!(read(2_400, 3_000).severity, Severity::Ok);
        let ahead = read(2_005, 10);
        assert_eq!(ahead.severity, Severity::Warning);
        assert!(ahead.found.contains("2.000 s ahead of"), "{ahead:?}");
        let behind = read(-59_995, 10);
        assert!(behind.found.contains("60.000 s behind"), "{behind:?}");
        assert!(behind.found.contains("give or take 0.005 s"), "{behind:?}");
        assert_eq!(behind.severity, Severity::Warning);
    }

    #[test]
    fn a_difference_of_more_than_a_minute_is_a_problem() {
        for direction in [-1, 1] {
            let sent = Timestamp::from_micros(1_700_000_000_000_000);
            let finding = of_reading(Reading {
                sent,
                store: Timestamp::from_micros(sent.as_micros() + direction * 61_000_000),
                round_trip: Duration::from_millis(10),
            });
            assert_eq!(finding.severity, Severity::Problem, "{finding:?}");
        }
    }
}
