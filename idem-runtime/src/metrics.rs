//! Numbers about calls, stores, caches and outboxes, for Prometheus or OpenTelemetry (feature `metrics`).
//!
//! The numbers go to the recorder of the [`metrics`](https://docs.rs/metrics) facade, which the program chooses: an
//! exporter for Prometheus, a bridge to OpenTelemetry, or a recorder of its own. Without a recorder they go nowhere, and
//! a call makes no allocation for them.
//!
//! [`METRICS`] lists all of them, with their labels and units. A label never has a key, a scope or a stored value. The
//! label `operation` has the names that the code gives to its operations. A program that makes up such names while it
//! runs gets [`OTHER_OPERATIONS`] after the first [`MAX_OPERATIONS`] names, so that the number of time series is bounded.
//!
#![cfg_attr(
    all(feature = "metrics", feature = "memory"),
    doc = r#"
```
use idem_runtime::{Idem, MemoryStore, metrics};

// Install a recorder first, for example `PrometheusBuilder::new().install_recorder()`.
// A new handle describes the metrics to the recorder. `describe` does it again, for a recorder that came later.
let idem = Idem::new(MemoryStore::new());
metrics::describe();
assert!(metrics::METRICS.iter().any(|metric| metric.name == "idem_calls_total"));
# let _ = idem;
```
"#
)]

#[cfg(feature = "metrics")]
mod list;
mod outcome;
#[cfg_attr(feature = "metrics", path = "metrics/recorded.rs")]
#[cfg_attr(
    all(
        feature = "metrics",
        not(all(
            feature = "cache",
            feature = "http",
            feature = "redis",
            feature = "outbox",
            any(feature = "sqlite", feature = "postgres", feature = "mysql")
        ))
    ),
    expect(dead_code, reason = "some metrics are of other features")
)]
#[cfg_attr(not(feature = "metrics"), path = "metrics/unrecorded.rs")]
pub(crate) mod sink;

#[cfg(feature = "metrics")]
pub use self::list::{BATCH_BUCKETS, DURATION_BUCKETS, METRICS, Metric, MetricKind, describe};
pub use self::outcome::CallOutcome;
#[cfg(feature = "metrics")]
pub use self::sink::{INVALID_OPERATION, MAX_OPERATIONS, OTHER_OPERATIONS};

#[cfg(all(feature = "cache", feature = "redis"))]
pub(crate) use self::sink::CacheAction;
pub(crate) use self::sink::{OperationMetrics, Raised, Timer};

/// A part of a call whose duration is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Timed {
    /// From sending a claim until the store answers or the call gives up, with retries.
    Claim,
    /// From the first poll of the body to its end.
    Body,
    /// From the end of the body to the store's acknowledgement, as far as the caller waits for it.
    Complete,
    /// From the first wait for another call to the end of claiming.
    Wait,
}

/// A number of calls that rises and falls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    /// Calls that have a claim which they have not settled yet.
    LeasesHeld,
    /// Calls that wait for another call.
    WaitingCallers,
    /// Calls that wait until the store can work on their claims.
    QueuedCalls,
}

#[cfg(all(feature = "cache", feature = "redis"))]
impl CacheAction {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Reading => "reading",
            Self::Writing => "writing",
        }
    }
}

/// A call that waits for another call. Dropping it ends the wait.
pub(crate) struct Waiting {
    timer: Option<Timer>,
    _raised: Raised,
}

impl Waiting {
    pub(crate) fn begin(metrics: OperationMetrics) -> Self {
        Self {
            timer: Some(metrics.start(Timed::Wait)),
            _raised: metrics.raise(Level::WaitingCallers),
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(timer) = self.timer.take() {
            timer.stop();
        }
    }
}
