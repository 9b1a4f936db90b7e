//! A frozen call.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::runtime::Handle as Runtime;
use tokio::time::Instant;

use super::Engine;
use super::admission::RETRY_AFTER;
use super::deadline::{Deadline, lease_within};
use super::key_age::{FirstClaimBy, KeyChecks};
use super::progress::Progress;
use super::singleflight::{SharedCall, SingleFlight};
use super::step_state::Steps;
use crate::error::{Error, InvalidKey};
use crate::key::RecordId;
use crate::metrics::OperationMetrics;
#[cfg(feature = "http")]
use crate::record::micros;
use crate::record::{Digest, Payload, Timestamp};
use crate::store::{ClaimRequest, ForgettingStore};

/// A frozen call: the body can change none of its inputs. Shared by its claim, its body and the calls that wait for it,
/// in one allocation.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(super) engine: Arc<Engine>,
    pub(super) runtime: Runtime,
    pub(super) request: ClaimRequest,
    /// The digest of the request before any signing.
    pub(super) digest: Digest,
    pub(super) wait: Duration,
    /// Time limit of the call. Boxed, because few calls have one.
    pub(super) deadline: Option<Box<Deadline>>,
    pub(super) by_fingerprint: bool,
    pub(super) run_unprotected: bool,
    /// Recovery input, saved with the record before the body runs. Boxed, because few calls have one.
    pub(super) recovery_input: Option<Box<Payload>>,
    /// Times of the key beside the retention of its record. Boxed, because few calls have any.
    pub(super) key_times: Option<Box<KeyTimes>>,
    /// The call's effects and its record are committed together or not at all: there is no lease to renew.
    pub(super) transactional: bool,
    /// Retention in microseconds, if the attempt has changed it; otherwise 0.
    pub(super) retained: AtomicU64,
    pub(super) progress: Progress,
    pub(super) steps: Steps,
    pub(super) metrics: OperationMetrics,
}

/// Times of a key beside the retention of its record.
#[derive(Debug)]
pub(super) struct KeyTimes {
    /// Time for which outcomes are replayed, if it is shorter than the retention of the record.
    pub(super) replay_for: Option<Duration>,
    /// The latest time, by the store's clock, at which the record may have been claimed first.
    pub(super) first_claim_by: Option<FirstClaimBy>,
    /// Checks before the claim of a key that may have been used before, without a record that shows it.
    pub(super) checks: Option<KeyChecks>,
}

impl KeyTimes {
    /// The times, if there are any.
    pub(super) fn boxed(self) -> Option<Box<Self>> {
        let has_any =
            self.replay_for.is_some() || self.first_claim_by.is_some() || self.checks.is_some();
        has_any.then(|| Box::new(self))
    }
}

impl Prepared {
    /// Time for which outcomes are replayed, if it is shorter than the retention of the record.
    pub(super) fn replay_for(&self) -> Option<Duration> {
        self.key_times.as_ref()?.replay_for
    }

    /// Checks before the claim of the key.
    pub(super) fn key_checks(&self) -> Option<KeyChecks> {
        self.key_times.as_ref()?.checks
    }

    /// Refuses a record that was first claimed after its key expired or became too old. Later attempts on a record that
    /// was claimed in time are allowed.
    pub(super) fn check_first_claim(&self, first_claimed_at: Timestamp) -> Result<(), Error> {
        match self.key_times.as_ref().and_then(|it| it.first_claim_by) {
            Some(FirstClaimBy::Issued(until)) if first_claimed_at > until => {
                Err(InvalidKey::Expired.into())
            }
            Some(FirstClaimBy::Made(until)) if first_claimed_at >= until => Err(Error::Expired),
            _ => Ok(()),
        }
    }

    /// The store that drops the payload of this call's outcome before its record expires, and the time for which it keeps
    /// the payload.
    pub(super) fn forgetting(&self) -> Option<(&dyn ForgettingStore, Duration)> {
        let replay_for = self.replay_for()?;
        Some((self.engine.store.forgetting()?, replay_for))
    }

    /// Retention of the call's record.
    pub(super) fn retention(&self) -> Duration {
        match self.retained.load(Ordering::Relaxed) {
            0 => self.request.retention,
            micros => Duration::from_micros(micros),
        }
    }

    /// Notes the retention that the attempt has set.
    #[cfg(feature = "http")]
    pub(super) fn retain_for(&self, retention: Duration) {
        let retained = micros(retention).unsigned_abs();
        self.retained.store(retained, Ordering::Relaxed);
    }

    /// Lease of a renewal that is sent at this time.
    pub(super) fn lease_at(&self, sent_at: Instant) -> Duration {
        lease_within(self.request.lease, sent_at, self.lease_end())
    }

    /// Time beyond which no lease is given, because the process ends.
    pub(super) fn lease_end(&self) -> Option<Instant> {
        self.deadline.as_ref()?.lease_end()
    }

    /// Time after which nothing is begun.
    pub(super) fn begin_by(&self) -> Option<Instant> {
        self.deadline.as_ref().map(|it| it.begin_by())
    }

    /// The earlier of this time and the call's deadline.
    pub(super) fn by_deadline(&self, time: Instant) -> Instant {
        self.begin_by().map_or(time, |begin_by| begin_by.min(time))
    }

    /// Time limit of a store call that is of no use after the call's deadline.
    pub(super) fn time_left(&self, limit: Duration) -> Duration {
        let left = self.begin_by().map(|it| it.duration_since(Instant::now()));
        left.map_or(limit, |left| left.min(limit))
    }

    /// Refuses to begin after the call's deadline.
    pub(super) fn check_deadline(&self) -> Result<(), Error> {
        match self.begin_by() {
            Some(begin_by) if Instant::now() >= begin_by => Err(Error::Overloaded {
                retry_after: RETRY_AFTER[0],
            }),
            _ => Ok(()),
        }
    }
}

impl SharedCall for Prepared {
    fn singleflight(&self) -> &SingleFlight {
        &self.engine.singleflight
    }

    fn record_id(&self) -> &RecordId {
        &self.request.id
    }

    fn digest(&self) -> &Digest {
        &self.digest
    }

    fn progress(&self) -> &Progress {
        &self.progress
    }

    fn store_timeout(&self) -> Duration {
        self.engine.policy.store_timeout
    }
}

impl Prepared {
    /// Warns that the record has become INTERRUPTED.
    pub(super) fn warn_interrupted(&self) {
        tracing::warn!(
            target: "idem",
            operation = self.request.identity.operation.as_str(),
            record = %self.request.id,
            "the call is interrupted: it is unknown whether its effect happened, so `reconcile` or an operator must \
             resolve its record",
        );
    }
}
