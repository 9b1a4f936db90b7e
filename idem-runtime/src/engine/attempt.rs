//! The view that a running body has of its attempt.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use super::Engine;
use super::prepared::Prepared;
use super::progress::SharedOutcome;
use super::reentrancy;
use crate::error::{Error, InvalidCall};
use crate::key::{Key, Operation, RecordId, Scope};
use crate::record::{FencingToken, OnCrash, Outcome, Owner, Record, Timestamp};
use crate::store::{FencedWrite, Granted};
use crate::timing::{DECADES, bounded, later};

/// A running attempt: its key, record, number and lease. Cheap to clone.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), idem_runtime::Error> {
/// use std::time::Duration;
/// use idem_runtime::advanced::RunOptions;
/// use idem_runtime::{Call, Error, Idem, MemoryStore};
///
/// let idem = Idem::new(MemoryStore::new());
/// let call = Call::new("charges.create", "order-1", &500_u64, Duration::from_secs(3600));
/// idem.run_with(call, RunOptions::new(), async |attempt| {
///     assert_eq!(attempt.number(), 1);
///     // The same in every attempt, so the bank recognises a repetition.
///     println!("Idempotency-Key: {}", attempt.downstream_key("bank").as_str());
///     Ok::<_, Error>(())
/// })
/// .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Attempt {
    call: Arc<Prepared>,
    /// None if the body runs without protection because the store could not be reached.
    fencing_token: Option<FencingToken>,
    number: u32,
    first_claimed_at: Timestamp,
    on_crash: OnCrash,
    /// True for the crashed attempt that `reconcile` is asked about, rather than the call's own.
    crashed: bool,
    /// True if the claim took the record over from an owner that crashed.
    has_taken_over: bool,
}

impl Attempt {
    /// The lease counts from *sending* the claim, so this process considers it expired no later than the store does.
    pub(super) fn granted(call: Arc<Prepared>, granted: &Granted, sent_at: Instant) -> Self {
        // A transaction holds its record until it ends.
        let lease = match call.transactional {
            true => DECADES,
            false => call.request.lease,
        };
        call.progress.run(later(sent_at, lease));
        Self {
            fencing_token: Some(granted.fencing_token),
            number: granted.attempt,
            first_claimed_at: granted.first_claimed_at,
            on_crash: granted.on_crash,
            crashed: false,
            has_taken_over: false,
            call,
        }
    }

    /// The attempt of a body that runs although the store could not be reached.
    pub(super) fn unprotected(call: Arc<Prepared>) -> Self {
        Self {
            fencing_token: None,
            number: 1,
            first_claimed_at: SystemTime::now().into(),
            on_crash: call.request.on_crash,
            crashed: false,
            has_taken_over: false,
            call,
        }
    }

    /// The crashed attempt, as passed to `reconcile`.
    pub(super) fn crashed(call: Arc<Prepared>, record: &Record) -> Self {
        Self {
            fencing_token: record.claim_id.map(|_| record.fencing_token),
            number: record.attempt,
            first_claimed_at: record.first_claimed_at,
            on_crash: record.on_crash,
            crashed: true,
            has_taken_over: false,
            call,
        }
    }

    /// The idempotency key.
    pub fn key(&self) -> &Key {
        &self.call.request.identity.key
    }

    /// Scope of the key: the key's own scope combined with the call's.
    pub fn scope(&self) -> &Scope {
        &self.call.request.identity.scope
    }

    /// The name of the operation.
    pub fn operation(&self) -> &Operation {
        &self.call.request.identity.operation
    }

    /// Time for which the outcome is kept. None if the body runs without a record.
    #[cfg(feature = "http")]
    pub(crate) fn kept_for(&self) -> Option<Duration> {
        self.fencing_token.map(|_| self.call.retention())
    }

    /// Id of the record in the store.
    pub fn record_id(&self) -> RecordId {
        self.call.request.id
    }

    /// True if this is an attempt of the call with this operation and key.
    #[cfg(feature = "http")]
    pub(crate) fn is_of(&self, scope: &Scope, operation: &str, key: &Key) -> bool {
        let identity = &self.call.request.identity;
        identity.key.as_str() == key.as_str()
            && identity.operation.as_str() == operation
            && identity.scope == *scope
    }

    /// Number of this attempt. The first is 1; each takeover, and each run after a release, adds one.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Fencing token: a number that grows with every claim of the key. An owner that was paused past its lease may
    /// still write to a resource. A resource that refuses any number lower than the highest it has seen is safe from
    /// such writes. None if the body runs without protection, under `on_store_error = run`.
    pub fn fencing_token(&self) -> Option<i64> {
        self.fencing_token.map(FencingToken::number)
    }

    /// Time of the key's first claim, by the store's clock.
    pub fn first_claimed_at(&self) -> SystemTime {
        self.first_claimed_at.into()
    }

    /// Idempotency key for a request that the body makes to another service. The key stays the same over attempts,
    /// takeovers, releases and the loss of the store's data. It differs for every `service`, and reveals nothing about
    /// the key it is derived from. It has the form of a UUID (version 8, RFC 9562), which every API that takes
    /// idempotency keys accepts.
    ///
    /// Under `key = fingerprint` the time of the first claim is hashed in as well, because an identical request counts
    /// as a new one after its ttl.
    pub fn downstream_key(&self, service: &str) -> Key {
        self.derived_key(b"idem/downstream/1", service)
    }

    /// Derives a key from the record's identity and this name. The prefix separates kinds of derived keys.
    pub(super) fn derived_key(&self, prefix: &[u8], name: &str) -> Key {
        let mut hasher = Sha256::new_with_prefix(prefix);
        hasher.update(self.call.request.id.as_bytes());
        if self.call.by_fingerprint {
            hasher.update(self.first_claimed_at.as_micros().to_be_bytes());
        }
        hasher.update(name);
        uuid_v8(&hasher.finalize().into())
    }

    /// Renews the lease. The toolkit renews it automatically every third of the lease while the body runs. Call this
    /// right before an effect that must not happen twice, to confirm that the lease is still held. In a transaction
    /// there is nothing to renew.
    ///
    /// # Errors
    /// [`Error::LeaseLost`] if another call took over, [`Error::Store`] if the store could not be reached,
    /// [`Error::InvalidCall`] in the body of a [`step_tx`](Self::step_tx), because the renewal could wait for that
    /// step's own transaction.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the lease renewed or not.
    pub async fn renew(&self) -> Result<(), Error> {
        match (self.owner(), self.live_until()) {
            // The transaction holds the record until it ends, and no other connection can change the record's row.
            (Some(_), Some(_)) if self.call.transactional => Ok(()),
            _ if reentrancy::is_polled(self.engine()) => Err(InvalidCall::InsideTransaction.into()),
            (Some(owner), Some(_)) => self.renew_as(&owner).await,
            _ => Err(Error::LeaseLost),
        }
    }

    /// True if this process still considers its lease valid. Turns false when another call took over, or when the store
    /// could not be reached for the length of the lease. The body is never cancelled because of it.
    pub fn is_live(&self) -> bool {
        self.live_until().is_some_and(|end| Instant::now() < end)
    }

    /// True unless the lease lasts until the process ends.
    pub(super) fn is_renewable(&self) -> bool {
        let Some(end) = self.call.lease_end() else {
            return true;
        };
        self.live_until().is_some_and(|until| until < end)
    }

    async fn renew_as(&self, owner: &Owner) -> Result<(), Error> {
        let engine = self.engine();
        let sent_at = Instant::now();
        let lease = self.call.lease_at(sent_at);
        // A renewal that hangs must leave time for another one before the lease expires.
        let limit = engine.policy.store_timeout.min(self.call.request.lease / 3);
        match bounded(limit, engine.store.renew(owner, lease)).await? {
            FencedWrite::Applied => {
                self.call.progress.prolong(later(sent_at, lease));
                Ok(())
            }
            FencedWrite::Fenced => {
                self.lose();
                Err(Error::LeaseLost)
            }
        }
    }

    /// Reports that the work is done, but its result cannot be stored.
    pub(super) fn report_unrecorded(&self, error: &dyn fmt::Display) {
        tracing::error!(
            target: "idem",
            operation = self.operation().as_str(),
            record = %self.record_id(),
            error = %error,
            "the work is done, but its result cannot be stored and will not be replayed",
        );
    }

    pub(super) fn lose(&self) {
        self.call.progress.lose();
    }

    /// Expiry of the lease, as far as this process knows; none if the lease is lost.
    pub(super) fn live_until(&self) -> Option<Instant> {
        if self.crashed {
            return None;
        }
        let end = self.call.progress.live_until();
        match self.engine().interference.leases_have_ended() {
            true => end.min(Some(Instant::now())),
            false => end,
        }
    }

    /// Owner whose token fences writes to the record; none if the attempt has no record to settle.
    pub(super) fn owner(&self) -> Option<Owner> {
        let fencing_token = self.fencing_token.filter(|_| !self.crashed)?;
        Some(Owner {
            id: self.call.request.id,
            claim_id: self.call.request.claim_id,
            fencing_token,
        })
    }

    /// True if the body runs although the store could not be reached.
    pub(super) fn is_unprotected(&self) -> bool {
        self.fencing_token.is_none() && !self.crashed
    }

    /// Marks the attempt as one that took its record over.
    pub(super) fn mark_taken_over(&mut self) {
        self.has_taken_over = true;
    }

    /// True if the claim took the record over from an owner that crashed.
    pub(super) fn has_taken_over(&self) -> bool {
        self.has_taken_over
    }

    /// The outcome of this attempt, for the calls that wait for it.
    pub(super) fn share(&self, outcome: Outcome) -> SharedOutcome {
        SharedOutcome {
            outcome,
            fingerprint: self.call.request.fingerprint,
            attempt: self.number,
            fencing_token: self.fencing_token,
            at: SystemTime::now(),
            age: Duration::ZERO,
            payload_for: self.call.replay_for(),
            kept_for: Some(
                self.call
                    .replay_for()
                    .unwrap_or_else(|| self.call.retention()),
            ),
        }
    }

    pub(super) fn on_crash(&self) -> OnCrash {
        self.on_crash
    }

    pub(super) fn call(&self) -> &Prepared {
        &self.call
    }

    pub(super) fn engine(&self) -> &Engine {
        &self.call.engine
    }
}

impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attempt")
            .field("operation", self.operation())
            .field("record", &self.record_id())
            .field("number", &self.number())
            .field("fencing_token", &self.fencing_token())
            .finish_non_exhaustive()
    }
}

/// Formats the first 122 bits of a hash as a UUID of version 8, RFC 9562 §5.8.
fn uuid_v8(hash: &[u8; 32]) -> Key {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash[..16]);
    Key::uuid(bytes, 8)
}
