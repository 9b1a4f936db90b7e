//! The inputs of a call, computed and frozen before its body runs.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use serde::Serialize;
use tokio::runtime::Handle as Runtime;
use tokio::time::Instant;

use super::Engine;
use super::deadline::{Deadline, lease_within};
use super::issue::Issued;
use super::key_age::{FirstClaimBy, KeyChecks};
use super::named::NamedFunction;
use super::prepared::{KeyTimes, Prepared};
use super::progress::Progress;
use super::step_state::Steps;
use crate::codec::Codec;
use crate::error::{Error, InvalidCall};
use crate::fingerprint::{self, Fingerprint};
use crate::key::{Identity, Key, Operation, RecordId, Scope, ToKey, ToScope};
use crate::metrics::OperationMetrics;
use crate::policy::{OnStoreError, Policy};
use crate::record::{ClaimId, Digest, OnCrash, Payload, micros};
use crate::store::ClaimRequest;

/// A call: operation, key, request, and how long its record is kept.
///
/// Errors in any of them are stored in the `Call` and returned when it runs.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), idem_runtime::Error> {
/// use std::time::Duration;
/// use idem_runtime::{Call, Error, Idem, MemoryStore};
///
/// let idem = Idem::new(MemoryStore::new());
/// let cents = 500_u64;
/// let call = Call::new("charges.create", "order-1", &cents, Duration::from_secs(24 * 3600))
///     .scope("ann")
///     .wait(Duration::from_secs(5));
/// let receipt = idem.run(call, async || Ok::<_, Error>(format!("{cents} cents"))).await?;
/// assert_eq!(receipt, "500 cents");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Call(Result<CallInputs, Error>);

#[derive(Debug)]
struct CallInputs {
    operation: Operation,
    /// Path of the function that makes the call.
    function: Option<&'static str>,
    /// That function, if it has a `name`.
    named_function: Option<&'static NamedFunction>,
    /// None: the key is derived from the request.
    key: Option<Key>,
    scope: Scope,
    digest: Digest,
    ttl: Duration,
    remember: Option<Duration>,
    refuse_old_keys: Option<Duration>,
    lease: Option<Duration>,
    wait: Option<Duration>,
    deadline: Option<Deadline>,
    on_crash: OnCrash,
    run_on_store_error: bool,
    /// Boxed, because few calls have one.
    recovery_input: Option<Box<Payload>>,
    issued: bool,
    has_steps: bool,
    /// Canonical form of the request, if digests of its members are to be stored.
    members: Option<Vec<u8>>,
    transactional: bool,
}

/// Lease in the record of a transactional call. It has no effect on claims: the record is invisible to others until the
/// transaction ends. It is short because purging examines a record one lease after its retention.
const TRANSACTION_LEASE: Duration = Duration::from_secs(60);

impl Call {
    /// Creates a call of this operation, with this key, for this request. Its record is kept for `ttl` after the
    /// outcome, or for the time of [`remember`](Self::remember).
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
            Ok(CallInputs::new(
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
        Self(operation.map(|operation| CallInputs::new(operation, Some(key), digest, ttl)))
    }

    /// Creates a call whose key is derived from the request, as a duplicate filter. An identical request counts as a
    /// new one once the record's `ttl` has passed.
    pub fn by_fingerprint(
        operation: impl Into<Cow<'static, str>>,
        request: &(impl Fingerprint + ?Sized),
        ttl: Duration,
    ) -> Self {
        let inputs = || {
            let operation = Operation::new(operation)?;
            Ok(CallInputs::new(
                operation,
                None,
                fingerprint::digest(request)?,
                ttl,
            ))
        };
        Self(inputs())
    }

    /// Sets the scope of the key. It is joined to the scope that the key itself may carry.
    #[must_use]
    pub fn scope(self, scope: &(impl ToScope + ?Sized)) -> Self {
        self.with(|inputs| {
            inputs.scope = inputs.scope.join(&scope.to_scope()?);
            Ok(())
        })
    }

    /// Time for which the record is kept after the outcome, if that is longer than the `ttl`: both begin at the end of the
    /// work. The outcome is replayed for the `ttl`. After that a purge drops it from the record, and a call with the key
    /// gets [`Error::Expired`] instead of running the body again, until this time is over.
    ///
    /// A store whose [`forgetting`](crate::Store::forgetting) returns none keeps the outcome as long as the record, and a
    /// call gets the same error.
    ///
    /// The call returns [`Error::InvalidCall`] if this time is not longer than the `ttl`.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), idem_runtime::Error> {
    /// use std::time::Duration;
    /// use idem_runtime::{Call, Error, Idem, MemoryStore};
    ///
    /// const HOUR: Duration = Duration::from_secs(3600);
    /// let idem = Idem::new(MemoryStore::new());
    /// let call = || Call::new("charges.create", "order-1", &500_u64, HOUR).remember(24 * HOUR);
    /// let charge = async || Ok::<_, Error>("receipt".to_owned());
    /// idem.run(call(), charge).await?;
    ///
    /// tokio::time::sleep(HOUR).await;
    /// assert!(matches!(idem.run(call(), charge).await, Err(Error::Expired)));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn remember(self, remember: Duration) -> Self {
        self.with(|inputs| {
            inputs.remember = Some(remember);
            Ok(())
        })
    }

    /// Refuses a key that is too old to be new: the key is a UUID of version 7, or ends with one
    /// ([`Key::made_at`](crate::Key::made_at)), it has no record, and it was made longer ago than the retention of a record
    /// and this slack. The retention is the time of [`remember`](Self::remember), or the `ttl`. The call gets
    /// [`Error::Expired`], and nothing is stored. Off by default.
    ///
    /// The store's clock says how old the key is. The time in the key is that of its maker's clock, so the slack must cover
    /// clients whose clock is behind, forms that stay open, and queues that redeliver late. A key from the future is a
    /// normal one. Only a key that looks old costs more: two reads before the claim. Such a call is not made without a
    /// claim if the store is unreachable.
    #[must_use]
    pub fn refuse_old_keys(self, slack: Duration) -> Self {
        self.with(|inputs| {
            inputs.refuse_old_keys = Some(slack);
            Ok(())
        })
    }

    /// Lease duration: how long a claim stays valid without renewal. Overrides the handle's.
    #[must_use]
    pub fn lease(self, lease: Duration) -> Self {
        self.with(|inputs| {
            inputs.lease = Some(lease);
            Ok(())
        })
    }

    /// Maximum time to wait for another running call. Overrides the handle's.
    #[must_use]
    pub fn wait(self, wait: Duration) -> Self {
        self.with(|inputs| {
            inputs.wait = Some(wait);
            Ok(())
        })
    }

    /// Time after which nothing is begun, because nobody waits for the answer any more. A call that cannot send its claim
    /// before it, or whose claim is granted after it, ends with [`Error::Overloaded`]. A call that waits for another one
    /// stops waiting. A body that has begun is not interrupted. Default: none, so that the call waits until the store can
    /// serve it.
    ///
    /// Give it an [`Instant`](tokio::time::Instant), or a [`Deadline`] if the process ends at a known time.
    #[must_use]
    pub fn deadline(self, deadline: impl Into<Deadline>) -> Self {
        self.with(|inputs| {
            inputs.deadline = Some(deadline.into());
            Ok(())
        })
    }

    /// Policy after a crash, if this call is the first to claim the record. Default [`Rerun`](OnCrash::Rerun).
    #[must_use]
    pub fn on_crash(self, on_crash: OnCrash) -> Self {
        self.with(|inputs| {
            inputs.on_crash = on_crash;
            Ok(())
        })
    }

    /// Runs the body without any protection if the store cannot be reached, and logs a warning.
    #[must_use]
    pub fn run_on_store_error(self) -> Self {
        self.with(|inputs| {
            inputs.run_on_store_error = true;
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
        self.with(|inputs| {
            let input = Codec::Json.encode_unread(input, usize::MAX);
            let input = input.map_err(|error| InvalidCall::RecoveryInput(error.to_string()))?;
            inputs.recovery_input = Some(Box::new(input));
            Ok(())
        })
    }

    /// Accepts only a key that [`Idem::issue`](super::Idem::issue) issued for this operation and scope, and that is
    /// first used before it expires. Such a call never runs without a claim, even if the handle allows it when the
    /// store is unreachable.
    #[must_use]
    pub fn issued(self) -> Self {
        self.with(|inputs| {
            inputs.issued = true;
            Ok(())
        })
    }

    /// Declares that the body has [steps](super::Attempt::step). On a store that keeps no steps, the call is then refused
    /// with [`InvalidCall::StepsUnsupported`] before it begins, and not only at its first step, when the body may have had
    /// an effect.
    ///
    /// `#[idempotent]` declares it for a body that calls `step` or `step_tx` of its attempt.
    #[must_use]
    pub fn with_steps(self) -> Self {
        self.with(|inputs| {
            inputs.has_steps = true;
            Ok(())
        })
    }

    /// Converts the call into a transactional one.
    pub(super) fn transactional(self) -> Self {
        self.with(|inputs| {
            let stray = if inputs.on_crash != OnCrash::Rerun {
                "on_crash"
            } else if inputs.lease.is_some() {
                "lease"
            } else if inputs.run_on_store_error {
                "on_store_error"
            } else if inputs.recovery_input.is_some() {
                "recover_with"
            } else {
                inputs.lease = Some(TRANSACTION_LEASE);
                inputs.transactional = true;
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

    /// Sets the path of the function that makes the call, for its span. The attribute macro sets it.
    #[doc(hidden)]
    #[must_use]
    #[inline]
    pub fn function(self, path: &'static str) -> Self {
        self.with(|inputs| {
            inputs.function = Some(path);
            Ok(())
        })
    }

    /// Sets the function with a `name` that makes the call, also for its span. The attribute macro sets it.
    #[doc(hidden)]
    #[must_use]
    #[inline]
    pub fn named_function(self, function: &'static NamedFunction) -> Self {
        self.with(|inputs| {
            inputs.function = Some(function.path());
            inputs.named_function = Some(function);
            Ok(())
        })
    }

    /// Stores digests of the members of the request, so that an operator can learn which members of another request with
    /// this key differ: `idem explain --request` names them, and
    /// [`compare_members`](crate::fingerprint::compare_members) does. Give it the request of the call.
    ///
    /// Without this, a record has one fingerprint of the whole request. A first call and a replay hash the request once
    /// more, and the record has at most 1,024 bytes more: 8 for each member. No digests are stored of a request with more
    /// than 127 members at its first level.
    ///
    /// The handle needs a [`fingerprint_secret`](super::IdemBuilder::fingerprint_secret), with which the digests are
    /// signed: without one, a reader of the store could guess each member on its own. Otherwise the call is refused
    /// with [`InvalidCall::NoMemberSecret`].
    #[must_use]
    pub fn member_digests(self, request: &(impl Fingerprint + ?Sized)) -> Self {
        self.with(|inputs| {
            inputs.members = Some(fingerprint::canonical(request)?);
            Ok(())
        })
    }

    /// Stores digests of the members of a request with this canonical form, if there is one.
    #[cfg(feature = "http")]
    pub(crate) fn member_digests_of(self, canonical: Option<Vec<u8>>) -> Self {
        self.with(|inputs| {
            inputs.members = canonical;
            Ok(())
        })
    }

    /// Changes the inputs. The first error wins; later ones are mostly its consequences.
    fn with(mut self, change: impl FnOnce(&mut CallInputs) -> Result<(), Error>) -> Self {
        if let Ok(inputs) = &mut self.0
            && let Err(error) = change(inputs)
        {
            self.0 = Err(error);
        }
        self
    }

    /// Validates and freezes the call for the engine.
    pub(super) fn prepare(
        self,
        engine: Arc<Engine>,
        runtime: Runtime,
        metrics: OperationMetrics,
    ) -> Result<Arc<Prepared>, Error> {
        let inputs = self.0?;
        inputs.check(&engine)?;
        if let Some(function) = inputs.named_function {
            engine.functions.notice(&inputs.operation, function);
        }
        let by_fingerprint = inputs.key.is_none();
        let run_unprotected = inputs.may_run_unprotected(&engine.policy);
        let kept_for = inputs.remember.unwrap_or(inputs.ttl);
        let deadline = inputs.deadline.map(|deadline| match inputs.transactional {
            // There is no lease that could end with the process.
            true => Deadline::new(deadline.begin_by()),
            false => deadline,
        });
        let lease = inputs.lease(&engine.policy);
        let lease = match deadline.and_then(|it| it.lease_end()) {
            None => lease,
            end => lease_within(lease, Instant::now(), end),
        };
        let fingerprint = engine.sign(&inputs.digest);
        let key = inputs
            .key
            .unwrap_or_else(|| Key::from_hash(&fingerprint.hash()));
        let identity = identity(inputs.operation, key, &inputs.scope);
        let members = match inputs.members {
            None => None,
            Some(canonical) => {
                let secret = engine.secrets.first().ok_or(InvalidCall::NoMemberSecret)?;
                fingerprint::member_digests(&canonical, &fingerprint, secret)
            }
        };
        let issued = match inputs.issued {
            true => Some(Issued::of(&identity, &engine.secrets)?),
            false => None,
        };
        let retention = issued.map_or(kept_for, |issued| kept_for.max(issued.retention()));
        let first_claim_by = match issued {
            Some(issued) => Some(FirstClaimBy::Issued(issued.until)),
            None => inputs
                .refuse_old_keys
                .and_then(|slack| FirstClaimBy::made(&identity.key, retention, slack)),
        };
        let key_checks =
            KeyChecks::of(&identity.key, retention, first_claim_by, engine.restored_at);
        Ok(Arc::new(Prepared {
            wait: inputs.wait.unwrap_or(engine.policy.wait),
            deadline: deadline.map(Box::new),
            request: ClaimRequest {
                id: RecordId::of(&identity),
                identity,
                fingerprint,
                claim_id: ClaimId::random(),
                lease,
                retention,
                on_crash: inputs.on_crash,
                owner_label: Some(engine.owner_label.clone()),
                members,
            },
            digest: inputs.digest,
            by_fingerprint,
            run_unprotected: run_unprotected && key_checks.is_none(),
            recovery_input: inputs.recovery_input,
            key_times: KeyTimes {
                replay_for: inputs.remember.map(|_| inputs.ttl),
                first_claim_by,
                checks: key_checks,
            }
            .boxed(),
            transactional: inputs.transactional,
            retained: AtomicU64::new(0),
            progress: Progress::default(),
            steps: Steps::default(),
            metrics,
            engine,
            runtime,
        }))
    }

    /// Key of the call, in its scope. `None` if the call is malformed, or if its key follows from the request.
    #[cfg(feature = "http")]
    pub(crate) fn scoped_key(&self) -> Option<Key> {
        let inputs = self.0.as_ref().ok()?;
        Some(inputs.key.clone()?.scoped(&inputs.scope))
    }

    /// Path of the function that makes the call, if the macro has set it.
    pub(super) fn function_path(&self) -> Option<&'static str> {
        self.0.as_ref().ok()?.function
    }

    /// The operation's name, for spans and metrics; empty if the call is malformed.
    pub(super) fn operation(&self) -> &str {
        self.0
            .as_ref()
            .map_or("", |inputs| inputs.operation.as_str())
    }
}

impl CallInputs {
    fn new(operation: Operation, key: Option<Key>, digest: Digest, ttl: Duration) -> Self {
        Self {
            operation,
            function: None,
            named_function: None,
            key,
            scope: Scope::none(),
            digest,
            ttl,
            remember: None,
            refuse_old_keys: None,
            lease: None,
            wait: None,
            deadline: None,
            on_crash: OnCrash::Rerun,
            run_on_store_error: false,
            recovery_input: None,
            issued: false,
            has_steps: false,
            members: None,
            transactional: false,
        }
    }

    /// Refuses inputs that this handle cannot honour.
    fn check(&self, engine: &Engine) -> Result<(), Error> {
        // Stores count whole microseconds.
        if micros(self.ttl) == 0 {
            return Err(InvalidCall::ZeroTtl.into());
        }
        if self
            .remember
            .is_some_and(|it| micros(it) <= micros(self.ttl))
        {
            return Err(InvalidCall::ShortRemember.into());
        }
        if micros(self.lease(&engine.policy)) == 0 {
            return Err(InvalidCall::ZeroLease.into());
        }
        if self.on_crash == OnCrash::Refuse && !engine.store.can_resolve_manually() {
            return Err(InvalidCall::NobodyResolves.into());
        }
        if self.has_steps && engine.store.steps().is_none() {
            return Err(InvalidCall::StepsUnsupported.into());
        }
        let Some(input) = &self.recovery_input else {
            return Ok(());
        };
        if engine.store.recovery().is_none() {
            return Err(InvalidCall::NoRecovery.into());
        }
        let (length, limit) = (input.bytes.len(), engine.policy.max_result_bytes);
        if length > limit {
            let message = format!("it has {length} bytes, and the limit is {limit}");
            return Err(InvalidCall::RecoveryInput(message).into());
        }
        Ok(())
    }

    fn lease(&self, policy: &Policy) -> Duration {
        self.lease.unwrap_or(policy.lease)
    }

    /// True if the body may run although the store cannot be reached.
    fn may_run_unprotected(&self, policy: &Policy) -> bool {
        let is_allowed = self.run_on_store_error || policy.on_store_error == OnStoreError::Run;
        is_allowed && !self.issued && !self.transactional
    }
}

/// Identity of a call's record.
pub(super) fn identity(operation: Operation, key: Key, scope: &Scope) -> Identity {
    Identity {
        scope: key.scope().join(scope),
        operation,
        key,
    }
}
