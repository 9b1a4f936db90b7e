//! Stands for `recorded` without the feature `metrics`: records nothing, and costs nothing.

use std::time::Duration;

use tokio::time::Instant;

use super::{CallOutcome, Level, Timed};

#[derive(Debug, Clone, Copy)]
pub(crate) struct OperationMetrics;

impl OperationMetrics {
    pub(crate) fn of(_: &str) -> Self {
        Self
    }

    pub(crate) fn count(self, _: CallOutcome) {}

    #[cfg(feature = "http")]
    pub(crate) fn count_refused(self, _problem: &'static str) {}

    pub(crate) fn count_recovery(self, _result: &'static str) {}

    pub(crate) fn start(self, _: Timed) -> Timer {
        Timer
    }

    pub(crate) fn start_at(self, _: Timed, _: Instant) -> Timer {
        Timer
    }

    pub(crate) fn raise(self, _: Level) -> Raised {
        Raised
    }
}

pub(crate) struct Timer;

impl Timer {
    pub(crate) fn stop(self) {}
}

#[derive(Debug)]
pub(crate) struct Raised;

/// Dropping it has a meaning with the feature.
impl Drop for Raised {
    fn drop(&mut self) {}
}

#[cfg(all(feature = "cache", feature = "redis"))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CacheAction {
    Reading,
    Writing,
}

pub(crate) fn describe() {}

#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub(crate) fn waiting_statement() -> Raised {
    Raised
}

#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub(crate) fn batch(_: usize) {}

#[cfg(feature = "cache")]
pub(crate) fn cache_lookup(_hit: bool) {}

#[cfg(all(feature = "cache", feature = "redis"))]
pub(crate) fn open_circuit(_: CacheAction) -> Raised {
    Raised
}

pub(crate) fn purged(_removed: u64, _abandoned: u64, _interrupted: u64, _forgotten: u64) {}

pub(crate) fn purge_lag(_: Duration) {}

pub(crate) fn store_clock_ahead(_: Duration) {}
