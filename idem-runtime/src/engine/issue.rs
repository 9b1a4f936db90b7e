//! Issued keys: keys that the service issues for one use, in one operation and scope, until they expire.
//!
//! An issued key is signed and not stored. An HMAC under the handle's secret covers operation, scope, 128 random bits,
//! the time to live and the expiry. A forged key is therefore refused before the store is asked. A key that is never
//! used leaves no record. The record of the call shows whether a key was used, by the same atomic claim as for any
//! other key.
//!
//! The expiry is a time of the **store's** clock, which is read when the key is issued. The expiry is compared with the
//! store's time of the first claim of the key's record. The claim itself returns that time, so no process clock is
//! involved and no race can come between check and claim. The record of a key outlives the key: a used
//! key stays marked as used until it could not be used any more.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle as Runtime;

use super::{Engine, Idem};
use crate::error::{Error, InvalidCall, InvalidKey};
use crate::fingerprint::Secret;
use crate::key::{Identity, Key, Operation, Scope, ToScope, hex};
use crate::random;
use crate::record::{Timestamp, micros};
use crate::store::Store;

/// Prefix of the signed bytes (domain separation), so that this HMAC differs from every other use of the secret.
const DOMAIN: &[u8] = b"idem/issued/1";

/// Maximum clock difference between the servers of one store: a cluster has several clocks.
const SKEW: Duration = Duration::from_secs(60);

/// Contents of an issued key, without its HMAC.
#[derive(Debug, Clone, Copy)]
pub(super) struct Issued {
    nonce: [u8; 16],
    /// Latest time of the first use.
    pub(super) until: Timestamp,
    ttl: Duration,
}

impl<S: Store + ?Sized> Idem<S> {
    /// Issues a key that is valid for one use, only in this operation and scope. It is accepted where
    /// `#[idempotent(..., issued)]` or [`Call::issued`](super::Call::issued) requires an issued key, if its first use
    /// comes within `ttl` by the store's clock. The key is 129 characters long.
    ///
    /// Send the key with the form or the checkout that it is for. The first request with the key does the work.
    /// Every later request with it gets the stored result, even after the key has expired. A key that was not issued
    /// this way is refused. The record is kept at least for the key's `ttl`, so that a used key stays used.
    ///
    /// The handle needs a [`fingerprint_secret`](super::IdemBuilder::fingerprint_secret), the same in all processes
    /// that issue and accept keys. The operation is named as the function names it, `name = "..."`: a key valid for
    /// any operation could be used once in each. The scope is the call's whole scope, the key's own scope included; use
    /// [`Scope::none`] if there is none.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] without a secret, for a malformed name and for a `ttl` of zero; [`Error::InvalidKey`] for
    /// a malformed scope; [`Error::Store`] if the store's time could not be read; [`Error::NoRuntime`] outside of a
    /// tokio runtime.
    ///
    /// # Cancel safety
    /// Issuing writes nothing. If the future is dropped, nothing is left behind.
    ///
    /// # Example
    /// ```
    /// use std::time::Duration;
    /// use idem_runtime::fingerprint::Secret;
    /// use idem_runtime::{Error, Idem, Key, MemoryStore, idempotent};
    ///
    /// #[idempotent(key = key, ttl = "24h", name = "charges.create", scope = user, store = idem, issued)]
    /// async fn charge(idem: &Idem, user: &str, key: &Key, cents: u64) -> Result<String, Error> {
    ///     Ok(format!("receipt for {cents} cents"))
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Error> {
    /// let secret = Secret::new("thirty-two random bytes, say here")?;
    /// let idem = Idem::builder(MemoryStore::new()).fingerprint_secret(secret).build().erased();
    ///
    /// let key = idem.issue("charges.create", "ann", Duration::from_secs(600)).await?;
    /// let receipt = charge(&idem, "ann", &key, 500).await?;
    /// assert_eq!(charge(&idem, "ann", &key, 500).await?, receipt); // replayed
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
    // The retries need its timers.
    Runtime::try_current().map_err(|_| Error::NoRuntime)?;
    let now = engine.retry(|| engine.store.now()).await?;
    let issued = Issued {
        nonce: random::bytes(),
        until: now.after(ttl),
        ttl,
    };
    Ok(issued.key(&secret.sign(&issued.signed(operation, scope))))
}

impl Issued {
    /// Parses and verifies the key of this call as one that was issued for its operation and scope.
    pub(super) fn of(identity: &Identity, secrets: &[Secret]) -> Result<Self, Error> {
        if secrets.is_empty() {
            return Err(InvalidCall::NoSecret.into());
        }
        let (issued, tag) = Self::parse(identity.key.as_str()).ok_or(InvalidKey::NotIssued)?;
        // Only the exact text that was issued is accepted. Another spelling of the key would be another key, with a
        // second claim.
        if issued.key(&tag).as_str() != identity.key.as_str() {
            return Err(InvalidKey::NotIssued.into());
        }
        let signed = issued.signed(&identity.operation, &identity.scope);
        if !secrets.iter().any(|secret| secret.verify(&signed, &tag)) {
            return Err(InvalidKey::NotIssued.into());
        }
        Ok(issued)
    }

    /// Minimum retention of this key's record: as long as a claim with the key could be accepted.
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
        let bytes: [u8; 64] = hex::decode(text.strip_prefix('t')?)?;
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
