//! What a call brings along, computed and kept before its body runs.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle as Runtime;

use super::Engine;
use super::handover::Progress;
use crate::error::{Error, InvalidCall};
use crate::fingerprint::{self, Fingerprint};
use crate::key::{Identity, Key, Operation, RecordId, Scope, ToKey, ToScope};
use crate::policy::OnStoreError;
use crate::record::{Digest, OnCrash, Token, micros};
use crate::store::ClaimRequest;

/// A call: operation, key, request, and how long its record is kept.
///
/// What is wrong with any of them is told when the call is made.
#[derive(Debug)]
pub struct Call(Result<Parts, Error>);

#[derive(Debug)]
struct Parts {
    operation: Operation,
    /// None: derived from the request.
    key: Option<Key>,
    scope: Scope,
    digest: Digest,
    ttl: Duration,
    lease: Option<Duration>,
    wait: Option<Duration>,
    on_crash: OnCrash,
    run_on_store_error: bool,
}

impl Call {
    /// A call of this operation, with this key, for this request; its record is kept for `ttl` after it ended.
    ///
    /// The operation's name must be the same wherever the same work is meant, and stay so over renames and deploys.
    pub fn new(
        operation: impl Into<Cow<'static, str>>,
        key: &(impl ToKey + ?Sized),
        request: &(impl Fingerprint + ?Sized),
        ttl: Duration,
    ) -> Self {
        Self(
            key.to_key()
                .map_err(Error::from)
                .and_then(|key| Parts::new(operation.into(), Some(key), request, ttl)),
        )
    }

    /// The same with the key derived from the request: a duplicate filter. The same request is a new one once its
    /// record's `ttl` is over.
    pub fn by_fingerprint(
        operation: impl Into<Cow<'static, str>>,
        request: &(impl Fingerprint + ?Sized),
        ttl: Duration,
    ) -> Self {
        Self(Parts::new(operation.into(), None, request, ttl))
    }

    /// Whose key it is, joined to the scope that the key itself may carry.
    #[must_use]
    pub fn scope(self, scope: &(impl ToScope + ?Sized)) -> Self {
        self.with(|parts| {
            parts.scope = parts.scope.join(&scope.to_scope()?);
            Ok(())
        })
    }

    /// How long a silent owner is believed, instead of the handle's.
    #[must_use]
    pub fn lease(self, lease: Duration) -> Self {
        self.with(|parts| {
            parts.lease = Some(lease);
            Ok(())
        })
    }

    /// How long to wait for another call that is running, instead of the handle's.
    #[must_use]
    pub fn wait(self, wait: Duration) -> Self {
        self.with(|parts| {
            parts.wait = Some(wait);
            Ok(())
        })
    }

    /// What happens after a crash, where this is the first claim of the record. Default
    /// [`Rerun`](OnCrash::Rerun).
    #[must_use]
    pub fn on_crash(self, on_crash: OnCrash) -> Self {
        self.with(|parts| {
            parts.on_crash = on_crash;
            Ok(())
        })
    }

    /// Run without any protection where the store cannot be reached, with a warning event.
    #[must_use]
    pub fn run_on_store_error(self) -> Self {
        self.with(|parts| {
            parts.run_on_store_error = true;
            Ok(())
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

    /// What the engine needs of the call.
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
        let fingerprint = engine
            .secrets
            .first()
            .map_or(parts.digest, |secret| secret.seal(&parts.digest));
        let by_fingerprint = parts.key.is_none();
        let key = parts
            .key
            .unwrap_or_else(|| Key::from_hash(&fingerprint.hash()));
        let identity = Identity {
            scope: key.scope().join(&parts.scope),
            operation: parts.operation,
            key,
        };
        let run_unprotected =
            parts.run_on_store_error || engine.policy.on_store_error == OnStoreError::Run;
        Ok(Arc::new(Prepared {
            wait: parts.wait.unwrap_or(engine.policy.wait),
            request: ClaimRequest {
                id: RecordId::of(&identity),
                identity,
                fingerprint,
                token: Token::random(),
                lease,
                retention: parts.ttl,
                on_crash: parts.on_crash,
            },
            digest: parts.digest,
            by_fingerprint,
            run_unprotected,
            progress: Progress::default(),
            engine,
            runtime,
        }))
    }

    /// The operation's name, for a span; empty where the call is malformed.
    pub(super) fn operation(&self) -> &str {
        self.0.as_ref().map_or("", |parts| parts.operation.as_str())
    }
}

impl Parts {
    fn new(
        operation: Cow<'static, str>,
        key: Option<Key>,
        request: &(impl Fingerprint + ?Sized),
        ttl: Duration,
    ) -> Result<Self, Error> {
        Ok(Self {
            operation: Operation::new(operation)?,
            key,
            scope: Scope::none(),
            digest: fingerprint::digest(request)?,
            ttl,
            lease: None,
            wait: None,
            on_crash: OnCrash::Rerun,
            run_on_store_error: false,
        })
    }
}

/// A call with everything frozen that its body could change, and all that its claim, its body and the calls that
/// follow it share: one allocation.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(super) engine: Arc<Engine>,
    pub(super) runtime: Runtime,
    pub(super) request: ClaimRequest,
    /// The digest of the request before any sealing.
    pub(super) digest: Digest,
    pub(super) wait: Duration,
    pub(super) by_fingerprint: bool,
    pub(super) run_unprotected: bool,
    pub(super) progress: Progress,
}
