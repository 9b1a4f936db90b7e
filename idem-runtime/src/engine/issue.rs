//! Tokens that the service issues: keys that are good for one use, in one operation and scope, until they expire.
//!
//! A token is signed and not stored: operation, scope, 128 random bits, its time to live and its end are under an HMAC
//! of the handle's secret. So a forged one is refused before the store is asked, a token that is never used leaves no
//! record of its own, and used or unused is what the record of its operation says, by the same atomic claim as for any
//! other key.
//!
//! Its end is a point of the **store's** clock, read off a claim when it was issued. The claim is released at once, so
//! that its record is expired a moment later and the next purge removes it. The end is compared with the time at
//! which the store says that the token's record was first claimed. That time is part of what the claim decided: no
//! clock of a process is asked, and nothing can come in between. A record of a token outlives the token, so that one that
//! was used stays so until it could not be used any more.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle as Runtime;
use tokio::sync::oneshot;
use tracing::Instrument as _;

use super::timing::persist;
use super::{Engine, Idem};
use crate::error::{Error, InvalidCall, InvalidKey, StoreError, StoreErrorKind};
use crate::fingerprint::{self, Secret};
use crate::key::{Identity, Key, Operation, RecordId, Scope, ToScope, hex};
use crate::record::{ClaimId, OnCrash, Owner, Timestamp, micros};
use crate::store::{ClaimOutcome, ClaimRequest, Store};

/// What the HMAC is over begins with this, so that it is no other one of the same secret.
const DOMAIN: &[u8] = b"idem/issued/1";

/// How far the clocks of one store's servers may be apart: a cluster has several.
const SKEW: Duration = Duration::from_secs(60);

/// Retention of the record that the store's time is read off.
const MOMENT: Duration = Duration::from_millis(1);

/// Lease of that record's claim: longer than it takes to release it.
const LEASE: Duration = Duration::from_secs(30);

/// What a token says, its HMAC aside.
#[derive(Debug, Clone, Copy)]
pub(super) struct Issued {
    nonce: [u8; 16],
    /// The last moment at which it may be used first.
    pub(super) until: Timestamp,
    ttl: Duration,
}

impl<S: Store + ?Sized> Idem<S> {
    /// Issues a one-time token: a key that works in this operation and scope alone, where `#[idempotent(..., issued)]`
    /// or [`Call::issued`](super::Call::issued) asks for one, and whose first use comes within `ttl`, by the store's
    /// clock. It is 129 characters long.
    ///
    /// Give it out with the form or the checkout that it is for; whoever sends it does the work once, and whoever sends
    /// it again gets the stored result, also after the token has expired. A key that was not issued so is refused. The
    /// record is kept at least for the token's `ttl`, so that a used token stays used.
    ///
    /// The handle needs a [`fingerprint_secret`](super::Builder::fingerprint_secret), the same in all processes that
    /// issue and accept tokens. The operation is named as the function names it, `name = "..."`: a token that were good
    /// for any could be used once in each. The scope is all of the call's, the key's own included;
    /// [`Scope::none`] where there is none.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] without a secret, for a malformed name and for a `ttl` of zero; [`Error::InvalidKey`] for
    /// a malformed scope; [`Error::Store`] where the store's time could not be read; [`Error::NoRuntime`].
    ///
    /// # Cancel safety
    /// Nothing is left behind but a record that has expired, for the next purge.
    ///
    /// # Example
    /// ```
    /// use std::time::Duration;
    /// use idem_runtime::fingerprint::Secret;
    /// use idem_runtime::{Error, Idem, Key, MemoryStore, idempotent};
    ///
    /// #[idempotent(key = token, ttl = "24h", name = "charges.create", scope = user, store = idem, issued)]
    /// async fn charge(idem: &Idem, user: &str, token: &Key, cents: u64) -> Result<String, Error> {
    ///     Ok(format!("receipt for {cents} cents"))
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Error> {
    /// let secret = Secret::new("thirty-two random bytes, say here")?;
    /// let idem = Idem::builder(MemoryStore::new()).fingerprint_secret(secret).build().erased();
    ///
    /// let token = idem.issue("charges.create", "ann", Duration::from_secs(600)).await?;
    /// let receipt = charge(&idem, "ann", &token, 500).await?;
    /// assert_eq!(charge(&idem, "ann", &token, 500).await?, receipt); // replayed
    ///
    /// let made_up = charge(&idem, "ann", &Key::generate(), 500).await;
    /// assert!(matches!(made_up, Err(Error::InvalidKey(_))));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn issue(
        &self,
        operation: impl Into<Cow<'static, str>>,
        scope: &(impl ToScope + ?Sized),
        ttl: Duration,
    ) -> Result<Key, Error> {
        let operation = Operation::new(operation)?;
        issue(self.engine(), &operation, &scope.to_scope()?, ttl).await
    }
}

async fn issue(
    engine: &Arc<Engine>,
    operation: &Operation,
    scope: &Scope,
    ttl: Duration,
) -> Result<Key, Error> {
    if micros(ttl) == 0 {
        return Err(InvalidCall::ZeroTtl.into());
    }
    let secret = engine.secrets.first().ok_or(InvalidCall::NoSecret)?;
    let nonce: [u8; 16] = rand::random();
    let issued = Issued {
        nonce,
        until: now(engine, &nonce).await?.after(ttl),
        ttl,
    };
    Ok(issued.key(&secret.sign(&issued.signed(operation, scope))))
}

/// Reads the store's time, off a record that is claimed for this alone.
///
/// A separate task claims and releases the record. So the record is released even if the caller is dropped, and a purge
/// does not count it as abandoned.
async fn now(engine: &Arc<Engine>, nonce: &[u8; 16]) -> Result<Timestamp, Error> {
    let runtime = Runtime::try_current().map_err(|_| Error::NoRuntime)?;
    let identity = Identity {
        scope: Scope::none(),
        operation: Operation::new("idem.issue")?,
        key: Key::new(hex(nonce))?,
    };
    let request = ClaimRequest {
        id: RecordId::of(&identity),
        identity,
        fingerprint: fingerprint::digest(&())?,
        claim_id: ClaimId::random(),
        lease: LEASE,
        retention: MOMENT,
        on_crash: OnCrash::Rerun,
    };
    let (tell, told) = oneshot::channel();
    let engine = Arc::clone(engine);
    let task = async move {
        let policy = &engine.policy;
        let claimed = match persist(policy, || engine.store.claim(&request)).await {
            Ok(ClaimOutcome::Granted(granted)) => Ok(granted),
            Ok(ClaimOutcome::Existing(_)) => Err(StoreError::new(
                StoreErrorKind::Conflict,
                "the record that the store's time is read off belongs to somebody else",
            )),
            Err(error) => Err(error),
        };
        let granted = claimed.as_ref().ok().map(|granted| granted.fencing_token);
        // The caller may have been dropped.
        let _ = tell.send(claimed.map(|granted| granted.first_claimed_at));
        if let Some(fencing_token) = granted {
            let owner = Owner {
                id: request.id,
                claim_id: request.claim_id,
                fencing_token,
            };
            // Where the store stays out of reach, the record's lease lapses.
            let _ = persist(policy, || engine.store.release(&owner)).await;
        }
    };
    runtime.spawn(task.in_current_span());
    match told.await {
        Ok(now) => Ok(now?),
        // The runtime is stopping.
        Err(_) => Err(Error::NoRuntime),
    }
}

impl Issued {
    /// What the key of this call says, if it was issued for its operation and scope.
    pub(super) fn of(identity: &Identity, secrets: &[Secret]) -> Result<Self, Error> {
        if secrets.is_empty() {
            return Err(InvalidCall::NoSecret.into());
        }
        let (issued, tag) = Self::parse(identity.key.as_str()).ok_or(InvalidKey::NotIssued)?;
        // The one form that was issued: the same token in another would be another key, and claim once more.
        if issued.key(&tag).as_str() != identity.key.as_str() {
            return Err(InvalidKey::NotIssued.into());
        }
        let signed = issued.signed(&identity.operation, &identity.scope);
        if !secrets.iter().any(|secret| secret.signed(&signed, &tag)) {
            return Err(InvalidKey::NotIssued.into());
        }
        Ok(issued)
    }

    /// For how long the record of this token is kept at least: for as long as a claim of it could be in time.
    pub(super) fn retention(&self) -> Duration {
        self.ttl.saturating_add(SKEW)
    }

    fn signed(&self, operation: &Operation, scope: &Scope) -> Vec<u8> {
        let mut bytes = DOMAIN.to_vec();
        for part in [scope.as_str(), operation.as_str()] {
            bytes.extend_from_slice(&(part.len() as u32).to_be_bytes());
            bytes.extend_from_slice(part.as_bytes());
        }
        bytes.extend_from_slice(&self.said());
        bytes
    }

    fn said(&self) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes[..16].copy_from_slice(&self.nonce);
        bytes[16..24].copy_from_slice(&self.until.as_micros().to_be_bytes());
        bytes[24..].copy_from_slice(&micros(self.ttl).to_be_bytes());
        bytes
    }

    fn key(&self, tag: &[u8; 32]) -> Key {
        Key::issued(&self.said(), tag)
    }

    fn parse(text: &str) -> Option<(Self, [u8; 32])> {
        let digits = text.strip_prefix('t')?.as_bytes();
        let bytes: [u8; 64] = unhex(digits)?;
        let (nonce, rest) = bytes.split_first_chunk()?;
        let (until, rest) = rest.split_first_chunk()?;
        let (ttl, tag) = rest.split_first_chunk()?;
        let ttl = u64::try_from(i64::from_be_bytes(*ttl)).ok()?;
        let issued = Self {
            nonce: *nonce,
            until: Timestamp::from_micros(i64::from_be_bytes(*until)),
            ttl: Duration::from_micros(ttl),
        };
        Some((issued, tag.try_into().ok()?))
    }
}

fn unhex<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    if digits.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |at: usize| char::from(pair[at]).to_digit(16);
        *byte = (digit(0)? * 16 + digit(1)?) as u8;
    }
    Some(bytes)
}
