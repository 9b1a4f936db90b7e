//! The list of metrics, and their descriptions for the recorder.

use ::metrics::{Unit, with_recorder};

/// A metric that this crate records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metric {
    /// Name, which ends with the unit, or with `_total` for a counter.
    pub name: &'static str,
    /// Kind.
    pub kind: MetricKind,
    /// Names of the labels.
    pub labels: &'static [&'static str],
    /// Description, which exporters show as HELP.
    pub help: &'static str,
    unit: Unit,
}

/// Kind of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum MetricKind {
    /// A number that only increases.
    Counter,
    /// A number that rises and falls.
    Gauge,
    /// A distribution.
    Histogram,
}

/// Upper bounds, in seconds, of buckets that fit the histograms of durations: from 100 µs to 1 min.
pub const DURATION_BUCKETS: &[f64] = &[
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0, 30.0, 60.0,
];

/// Upper bounds of buckets that fit `idem_batch_size`, whose maximum is 128.
pub const BATCH_BUCKETS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0];

macro_rules! metrics {
    ($($constant:ident: $kind:ident $name:literal [$($label:literal),*] $unit:ident $help:literal;)*) => {
        $(pub(super) const $constant: &str = $name;)*

        /// All metrics that this crate records.
        pub const METRICS: &[Metric] = &[$(Metric {
            name: $name,
            kind: MetricKind::$kind,
            labels: &[$($label),*],
            unit: Unit::$unit,
            help: $help,
        }),*];
    };
}

metrics! {
    CALLS: Counter "idem_calls_total" ["operation", "outcome"] Count
        "Calls that ended, by outcome.";
    CLAIM: Histogram "idem_claim_duration_seconds" ["operation"] Seconds
        "Time from sending a claim until the store answered it or the call gave up, with retries.";
    BODY: Histogram "idem_body_duration_seconds" ["operation"] Seconds
        "Time that bodies ran, from their first poll to their end.";
    COMPLETE: Histogram "idem_complete_duration_seconds" ["operation"] Seconds
        "Time from the end of a body until the store acknowledged its outcome or the caller stopped waiting for that.";
    WAIT: Histogram "idem_wait_duration_seconds" ["operation"] Seconds
        "Time that calls waited for another call with their key.";
    BATCH: Histogram "idem_batch_size" [] Count
        "Requests that shared one statement or one commit of a SQL store.";
    LEASES: Gauge "idem_leases_held" ["operation"] Count
        "Claims of this process that are not settled yet.";
    WAITING: Gauge "idem_waiting_callers" ["operation"] Count
        "Calls of this process that wait for another call with their key.";
    QUEUED: Gauge "idem_queued_calls" ["operation"] Count
        "Calls of this process that wait until the store can work on their claims.";
    WAITING_STATEMENTS: Gauge "idem_waiting_statements" [] Count
        "Statements of this process that wait for a connection of the pool of their SQL store.";
    PURGE_LAG: Gauge "idem_purge_lag_seconds" [] Seconds
        "Time since the purger of this process had last deleted everything that had expired, when it last tried.";
    STORE_CLOCK_AHEAD: Gauge "idem_store_clock_ahead_seconds" [] Seconds
        "Time by which the store's clock was ahead of the time that the purger of this process can explain, when it last looked.";
    PURGED: Counter "idem_purged_records_total" ["result"] Count
        "Records that the purger of this process removed, marked as interrupted, or took the outcome of (forgotten).";
    STUCK: Gauge "idem_stuck_records" ["operation", "state"] Count
        "Records without an outcome whose owner is gone (lapsed, interrupted), when a reporter last counted them.";
    STUCK_AGE: Gauge "idem_oldest_stuck_record_age_seconds" ["operation", "state"] Seconds
        "Time since the first claim of the oldest record without an outcome whose owner is gone, when a reporter last counted them.";
    RECOVERIES: Counter "idem_recoveries_total" ["operation", "result"] Count
        "Calls that the recovery of this process retried (succeeded, failed), or left to an operator (given_up).";
    OUTBOX: Gauge "idem_outbox_messages" ["outbox", "state"] Count
        "Messages of the outbox that wait for delivery, or are parked, when a relay last counted them.";
    OUTBOX_AGE: Gauge "idem_outbox_oldest_message_age_seconds" ["outbox"] Seconds
        "Age of the oldest message that waits for delivery, when a relay last counted them.";
    CACHE: Counter "idem_cache_lookups_total" ["result"] Count
        "Claims that a cache answered (hit) or sent to its store (miss).";
    REFUSED: Counter "idem_http_refused_total" ["operation", "problem"] Count
        "Requests that an HTTP layer refused before their key was claimed, by problem.";
    CIRCUIT: Gauge "idem_cache_circuits_open" ["action"] Count
        "Caches of this process that do without Redis because it failed.";
}

/// Describes all metrics to the current recorder: their help texts and units. Each new handle does this. Call it if the
/// recorder was installed later than the handle was made.
pub fn describe() {
    with_recorder(|recorder| {
        for metric in METRICS {
            let describe = match metric.kind {
                MetricKind::Counter => ::metrics::Recorder::describe_counter,
                MetricKind::Gauge => ::metrics::Recorder::describe_gauge,
                MetricKind::Histogram => ::metrics::Recorder::describe_histogram,
            };
            describe(
                recorder,
                metric.name.into(),
                Some(metric.unit),
                metric.help.into(),
            );
        }
    });
}
