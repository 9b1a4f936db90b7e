//! The inputs of a call, computed and frozen before its body runs.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::runtime::Handle as Runtime;

use super::Engine;
use super::issue::Issued;
use super::singleflight::Progress;
use super::steps::Steps;
use crate::codec::Codec;
use crate::error::{Error, InvalidCall, InvalidKey};
use crate::fingerprint::{self, Fingerprint};
use crate::key::{Identity, Key, Operation, RecordId, Scope, ToKey, ToScope};
use crate::policy::OnStoreError;
use crate::record::{ClaimId, Digest, OnCrash, Payload, Timestamp, micros};
use crate::store::ClaimRequest;

/// A call: operation, key, request, and how long its record is kept.
///
/// Errors in any of them are stored in the `Call` and returned when it runs.
#[derive(Debug)]
pub struct Call(Result<Parts, Error>);

#[derive(Debug)]
struct Parts {
    operation: Operation,
    /// None: the key is derived from the request.
    key: Option<Key>,
    scope: Scope,
    digest: Digest,
    ttl: Duration,
    lease: Option<Duration>,
    wait: Option<Duration>,
    on_crash: OnCrash,
    run_on_store_error: bool,
    recovery_input: Option<Payload>,
    issued: bool,
    transactional: bool,
}

/// Lease in the record of a transactional call. It has no effect on claims: the record is invisible to others until the
/// transaction ends. It is short because purging examines a record one lease after its retention.
const OF_TRANSACTIONS: Duration = Duration::from_secs(60);

impl Call {
    /// Creates a call of this operation, with this key, for this request. Its record is kept for `ttl` after the
    /// outcome.
    ///
    /// The operation's name must be the same in all code that means the same work, and must not change with renames and
    /// deploys.
    pub fn new(
        operation: impl Into<Cow<'static, str>>,
        key: &(impl ToKey + ?Sized),
        request: &(impl Fingerprint + ?Sized),
        ttl: Duration,
    ) -> Self {
        Self(key.to_key().map_err(Error::from).and_then(|key| {
            let operation = Operation::new(operation)?;
            Ok(Parts::new(
                operation,
                Some(key),
                fingerprint::digest(request)?,
                ttl,
            ))
        }))
    }

    /// Creates a call for a request that was fingerprinted already.
    #[cfg(feature = "http")]
    pub(crate) fn of_digest(
        operation: Cow<'static, str>,
        key: Key,
        digest: Digest,
        ttl: Duration,
    ) -> Self {
        let operation = Operation::new(operation).map_err(Error::from);
        Self(operation.map(|operation| Parts::new(operation, Some(key), digest, ttl)))
    }

    /// Creates a call whose key is derived from the request, as a duplicate filter. An identical request counts as a
    /// new one once the record's `ttl` has passed.
    pub fn by_fingerprint(
        operation: impl Into<Cow<'static, str>>,
        request: &(impl Fingerprint + ?Sized),
        ttl: Duration,
    ) -> Self {
        let parts = || {
            let operation = Operation::new(operation)?;
            Ok(Parts::new(
                operation,
                None,
                fingerprint::digest(request)?,
                ttl,
            ))
        };
        Self(parts())
    }

    /// Sets the scope of the key. It is joined to the scope that the key itself may carry.
    #[must_use]
    pub fn scope(self, scope: &(impl ToScope + ?Sized)) -> Self {
        self.with(|parts| {
            parts.scope = parts.scope.join(&scope.to_scope()?);
            Ok(())
        })
    }

    /// Lease duration: how long a claim stays valid without renewal. Overrides the handle's.
    #[must_use]
    pub fn lease(self, lease: Duration) -> Self {
        self.with(|parts| {
            parts.lease = Some(lease);
            Ok(())
        })
    }

    /// Maximum time to wait for another running call. Overrides the handle's.
    #[must_use]
    pub fn wait(self, wait: Duration) -> Self {
        self.with(|parts| {
            parts.wait = Some(wait);
            Ok(())
        })
    }

    /// Policy after a crash, if this call is the first to claim the record. Default [`Rerun`](OnCrash::Rerun).
    #[must_use]
    pub fn on_crash(self, on_crash: OnCrash) -> Self {
        self.with(|parts| {
            parts.on_crash = on_crash;
            Ok(())
        })
    }

    /// Runs the body without any protection if the store cannot be reached, and logs a warning.
    #[must_use]
    pub fn run_on_store_error(self) -> Self {
        self.with(|parts| {
            parts.run_on_store_error = true;
            Ok(())
        })
    }

    /// Saves recovery input with the record before the body runs. A [`Recovery`](crate::Recovery) retries the call with
    /// this input after its owner crashed. The input is kept until the record has an outcome. It is stored as JSON,
    /// unencrypted: anyone with access to the store can read it.
    ///
    /// The call returns [`Error::InvalidCall`] if the store cannot save the input, if the input is over the handle's
    /// limit for results, or if it cannot be encoded exactly (NaN, an infinity, `Some(None)`).
    ///
    /// The type that will decode the input is not known here. A type that buffers (internally tagged and untagged
    /// enums, flattened fields) decodes neither 128-bit integers nor map keys that are not strings. An untagged variant
    /// of a float accepts integers beyond 64 bits. Encode such values as strings.
    #[must_use]
    pub fn recover_with(self, input: &(impl Serialize + ?Sized)) -> Self {
        self.with(|parts| {
            let input = Codec::Json.encode_unread(input, usize::MAX);
            parts.recovery_input =
                Some(input.map_err(|error| InvalidCall::RecoveryInput(error.to_string()))?);
            Ok(())
        })
    }

    /// Accepts only a key that [`Idem::issue`](super::Idem::issue) issued for this operation and scope, and that is
    /// first used before it expires. Such a call never runs without a claim, even if the handle allows it when the
    /// store is unreachable.
    #[must_use]
    pub fn issued(self) -> Self {
        self.with(|parts| {
            parts.issued = true;
            Ok(())
        })
    }

    /// Converts the call into a transactional one.
    pub(super) fn transactional(self) -> Self {
        self.with(|parts| {
            let stray = if parts.on_crash != OnCrash::Rerun {
                "on_crash"
            } else if parts.lease.is_some() {
                "lease"
            } else if parts.run_on_store_error {
                "on_store_error"
            } else if parts.recovery_input.is_some() {
                "recover_with"
            } else {
                parts.lease = Some(OF_TRANSACTIONS);
                parts.transactional = true;
                return Ok(());
            };
            Err(InvalidCall::NotTransactional(stray).into())
        })
    }

    #[doc(hidden)]
    #[must_use]
    pub fn failed(self, error: Error) -> Self {
        self.with(|_| Err(error))
    }

    /// The first error wins; later ones are mostly its consequences.
    fn with(self, change: impl FnOnce(&mut Parts) -> Result<(), Error>) -> Self {
        Self(self.0.and_then(|mut parts| {
            change(&mut parts)?;
            Ok(parts)
        }))
    }

    /// Validates and freezes the call for the engine.
    pub(super) fn prepare(
        self,
        engine: Arc<Engine>,
        runtime: Runtime,
    ) -> Result<Arc<Prepared>, Error> {
        let parts = self.0?;
        let lease = parts.lease.unwrap_or(engine.policy.lease);
        // Stores count whole microseconds.
        if micros(parts.ttl) == 0 {
            return Err(InvalidCall::ZeroTtl.into());
        }
        if micros(lease) == 0 {
            return Err(InvalidCall::ZeroLease.into());
        }
        if let Some(input) = &parts.recovery_input {
            if engine.store.recovery().is_none() {
                return Err(InvalidCall::NoRecovery.into());
            }
            let limit = engine.policy.max_result_bytes;
            if input.bytes.len() > limit {
                let message = format!(
                    "it has {} bytes, and the limit is {limit}",
                    input.bytes.len()
                );
                return Err(InvalidCall::RecoveryInput(message).into());
            }
        }
        let fingerprint = engine
            .secrets
            .first()
            .map_or(parts.digest, |secret| secret.sign_digest(&parts.digest));
        let by_fingerprint = parts.key.is_none();
        let key = parts
            .key
            .unwrap_or_else(|| Key::from_hash(&fingerprint.hash()));
        let identity = Identity {
            scope: key.scope().join(&parts.scope),
            operation: parts.operation,
            key,
        };
        let issued = parts
            .issued
            .then(|| Issued::of(&identity, &engine.secrets))
            .transpose()?;
        let run_unprotected = issued.is_none()
            && !parts.transactional
            && (parts.run_on_store_error || engine.policy.on_store_error == OnStoreError::Run);
        Ok(Arc::new(Prepared {
            wait: parts.wait.unwrap_or(engine.policy.wait),
            request: ClaimRequest {
                id: RecordId::of(&identity),
                identity,
                fingerprint,
                claim_id: ClaimId::random(),
                lease,
                retention: issued.map_or(parts.ttl, |issued| parts.ttl.max(issued.retention())),
                on_crash: parts.on_crash,
            },
            digest: parts.digest,
            by_fingerprint,
            run_unprotected,
            recovery_input: parts.recovery_input,
            first_until: issued.map(|issued| issued.until),
            transactional: parts.transactional,
            progress: Progress::default(),
            steps: Steps::default(),
            engine,
            runtime,
        }))
    }

    /// The operation's name, for a span; empty if the call is malformed.
    pub(super) fn operation(&self) -> &str {
        self.0.as_ref().map_or("", |parts| parts.operation.as_str())
    }
}

impl Parts {
    fn new(operation: Operation, key: Option<Key>, digest: Digest, ttl: Duration) -> Self {
        Self {
            operation,
            key,
            scope: Scope::none(),
            digest,
            ttl,
            lease: None,
            wait: None,
            on_crash: OnCrash::Rerun,
            run_on_store_error: false,
            recovery_input: None,
            issued: false,
            transactional: false,
        }
    }
}

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
    pub(super) by_fingerprint: bool,
    pub(super) run_unprotected: bool,
    /// Recovery input, saved with the record before the body runs.
    pub(super) recovery_input: Option<Payload>,
    /// The latest time, by the store's clock, at which the record may have been claimed first. Set for an issued key.
    pub(super) first_until: Option<Timestamp>,
    /// The call's effects and its record are committed together or not at all: there is no lease to renew.
    pub(super) transactional: bool,
    pub(super) progress: Progress,
    pub(super) steps: Steps,
}

impl Prepared {
    /// Refuses a record of an issued key that was first claimed after the key expired. Later attempts on a record that
    /// was claimed in time are allowed.
    pub(super) fn in_time(&self, first_claimed_at: Timestamp) -> Result<(), Error> {
        match self.first_until {
            Some(until) if first_claimed_at > until => Err(InvalidKey::Expired.into()),
            _ => Ok(()),
        }
    }
}
