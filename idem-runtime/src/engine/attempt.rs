//! What a running body knows about itself.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use super::Engine;
use super::call::Prepared;
use super::timing::{DECADES, bounded, later};
use super::transaction::reentrancy;
use crate::error::{Error, InvalidCall};
use crate::key::{Key, Operation, RecordId, Scope};
use crate::record::{FencingToken, OnCrash, Owner, Record, Timestamp};
use crate::store::{FencedWrite, Granted};

/// A running attempt: what it is about, and whether it still owns its record. Cheap to clone.
#[derive(Clone)]
pub struct Attempt {
    call: Arc<Prepared>,
    /// None where the body runs without protection because the store could not be reached.
    fencing_token: Option<FencingToken>,
    number: u32,
    first_claimed_at: Timestamp,
    on_crash: OnCrash,
    /// It is not the call's own, but the one that the call is asked about.
    dead: bool,
}

impl Attempt {
    /// The lease counts from *sending* the claim, so this process never believes longer than the store does.
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
            dead: false,
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
            dead: false,
            call,
        }
    }

    /// The attempt that died, for whoever is asked what it did.
    pub(super) fn abandoned(call: Arc<Prepared>, record: &Record) -> Self {
        Self {
            fencing_token: record.claim_id.map(|_| record.fencing_token),
            number: record.attempt,
            first_claimed_at: record.first_claimed_at,
            on_crash: record.on_crash,
            dead: true,
            call,
        }
    }

    /// The idempotency key.
    pub fn key(&self) -> &Key {
        &self.call.request.identity.key
    }

    /// Whose key it is: the key's own scope and the call's.
    pub fn scope(&self) -> &Scope {
        &self.call.request.identity.scope
    }

    /// The name of the operation.
    pub fn operation(&self) -> &Operation {
        &self.call.request.identity.operation
    }

    /// What the record is found by in the store.
    pub fn record_id(&self) -> RecordId {
        self.call.request.id
    }

    /// Which attempt this is; the first is 1, and each takeover or run after a release is one more.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// A number that grows with every claim of the key: a resource that refuses anything lower than the highest it has
    /// seen is safe from an owner that was paused past its lease (a fencing token). None where the body runs without
    /// protection, under `on_store_error = run`.
    pub fn fencing_token(&self) -> Option<i64> {
        self.fencing_token.map(FencingToken::number)
    }

    /// When the key was first claimed, by the store's clock.
    pub fn first_claimed_at(&self) -> SystemTime {
        self.first_claimed_at.into()
    }

    /// A key for a request that the body makes to another service, stable over attempts, takeovers, releases and a
    /// lost store, different for every `service`, and telling nothing about the key it is derived from. It has the
    /// form of a UUID (version 8, RFC 9562), which every API that takes idempotency keys accepts.
    ///
    /// Under `key = fingerprint` the time of the first claim goes in as well, because there the same request is a new
    /// one after its ttl.
    pub fn downstream_key(&self, service: &str) -> String {
        self.derived_key(b"idem/downstream/1", service)
    }

    /// A key derived from the record's identity for whatever has this name, of the kind that the prefix tells apart.
    pub(super) fn derived_key(&self, prefix: &[u8], name: &str) -> String {
        let mut hasher = Sha256::new_with_prefix(prefix);
        hasher.update(self.call.request.id.as_bytes());
        if self.call.by_fingerprint {
            hasher.update(self.first_claimed_at.as_micros().to_be_bytes());
        }
        hasher.update(name);
        uuid_v8(&hasher.finalize().into())
    }

    /// Begins the lease anew. The toolkit does this by itself at a third of the lease while the body runs; call it
    /// before an effect that must not happen twice, to be sure. In a transaction there is nothing to renew.
    ///
    /// # Errors
    /// [`Error::LeaseLost`] where another call took over, [`Error::Store`] where the store could not be reached,
    /// [`Error::InvalidCall`] in the body of a [`step_tx`](Self::step_tx), whose transaction it could wait for.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the lease renewed or not.
    pub async fn renew(&self) -> Result<(), Error> {
        match (self.owner(), self.live_until()) {
            // The transaction holds the record until it ends, and its row cannot be reached from outside.
            (Some(_), Some(_)) if self.call.transactional => Ok(()),
            _ if reentrancy::is_polled(self.engine()) => Err(InvalidCall::InsideTransaction.into()),
            (Some(owner), Some(_)) => self.renew_as(&owner).await,
            _ => Err(Error::LeaseLost),
        }
    }

    /// Whether the lease still holds, as far as this process knows. Turns false when another call took over or the
    /// store could not be reached for the length of the lease. The body is never cancelled for it.
    pub fn is_live(&self) -> bool {
        self.live_until().is_some_and(|end| Instant::now() < end)
    }

    async fn renew_as(&self, owner: &Owner) -> Result<(), Error> {
        let engine = self.engine();
        let lease = self.call.request.lease;
        let sent_at = Instant::now();
        // A renewal that hangs must leave time for another one before the lease is over.
        let limit = engine.policy.store_timeout.min(lease / 3);
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

    pub(super) fn lose(&self) {
        self.call.progress.lose();
    }

    /// Until when the lease holds, as far as this process knows; none where it is lost.
    pub(super) fn live_until(&self) -> Option<Instant> {
        if self.dead {
            return None;
        }
        self.call.progress.live_until()
    }

    /// What fences its steps; none where it has no record to settle.
    pub(super) fn owner(&self) -> Option<Owner> {
        let fencing_token = self.fencing_token.filter(|_| !self.dead)?;
        Some(Owner {
            id: self.call.request.id,
            claim_id: self.call.request.claim_id,
            fencing_token,
        })
    }

    /// Whether its body runs although the store could not be reached.
    pub(super) fn is_unprotected(&self) -> bool {
        self.fencing_token.is_none() && !self.dead
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

/// The first 122 bits of a hash as a UUID of version 8, RFC 9562 §5.8.
fn uuid_v8(hash: &[u8; 32]) -> String {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash[..16]);
    bytes[6] = bytes[6] & 0x0f | 0x80;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex = crate::key::hex(&bytes);
    format!(
        "{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    )
}
