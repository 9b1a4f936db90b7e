//! Reads what became of a call, by its key: never runs anything, and writes nothing.

mod attach;

use std::borrow::Cow;
use std::fmt;
use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::runtime::Handle as Runtime;

use super::admission::Permit;
use super::call::identity;
use super::claim::Waited;
use super::decisions::{ReadState, on_read};
use super::progress::SharedOutcome;
use super::provenance::{Provenance, ResultSource};
use super::{Engine, Idem, OperationName};
use crate::codec::StoredValue;
use crate::codec::value::{Decode, ValueCodec};
use crate::codec::version::{self, StoredResult};
use crate::error::{Error, StoreError, StoreErrorKind};
use crate::fingerprint::{self, Fingerprint};
use crate::key::{Key, Operation, RecordId, Scope, ToKey, ToScope};
use crate::metrics::OperationMetrics;
use crate::record::{Digest, Outcome, Record};
use crate::store::Store;
use crate::timing::{Retries, bounded};

/// State of a key: what became of the call that used it.
///
/// Times are those of the store's clock, which may differ from the clock of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyStatus<T, E> {
    /// There is no outcome, and no call runs: the key was never used, its call was released because nothing was done, or its
    /// record has expired. A call in a transaction is absent, too, until the transaction is committed.
    Absent,
    /// A call is running, and its lease is valid.
    Running {
        /// Time of the first claim. The running attempt may be a later one.
        since: SystemTime,
        /// End of the lease, unless the call renews it.
        until: SystemTime,
    },
    /// The lease of the call has lapsed without an outcome, and the next call runs the body again: the owner crashed, or it
    /// stands still. Its effect may have happened.
    Lapsed {
        /// Time of the first claim.
        since: SystemTime,
        /// End of the lease.
        until: SystemTime,
    },
    /// The call has ended with this result.
    Ended(Result<T, E>, Provenance),
    /// The call crashed, and it is unknown whether its effect happened. An operator decides, or `reconcile` does when the
    /// call is repeated.
    Interrupted,
    /// The work was done, but its result could not be stored.
    Unrecorded,
    /// The call has ended, and its result is no longer kept. The key cannot be used again yet.
    Expired,
}

impl<T, E> KeyStatus<T, E> {
    /// The result, if the call has ended with one that is stored.
    pub fn result(self) -> Option<Result<T, E>> {
        match self {
            Self::Ended(result, _) => Some(result),
            _ => None,
        }
    }
}

/// A question for the outcome of a call. Made by [`Idem::outcome`] and [`Idem::outcome_of_request`].
///
/// Awaiting it reads the record once. [`attach`](Self::attach) also waits for a running call.
#[must_use = "await it, or call `attach`"]
pub struct OutcomeQuery<T, E> {
    inputs: Result<Inputs, Error>,
    values: Decode<T>,
    errors: Decode<E>,
}

struct Inputs {
    engine: Arc<Engine>,
    operation: Operation,
    key: Key,
    scope: Scope,
    /// The digest of the request, before any signing.
    digest: Option<Digest>,
}

/// The record that a query is about.
struct Lookup {
    engine: Arc<Engine>,
    id: RecordId,
    operation: Operation,
    digest: Option<Digest>,
}

/// What a lookup has found, after the fingerprints were compared.
enum Found {
    Record(Option<Box<Record>>),
    /// An outcome that a call of this process has shared.
    Shared(Arc<SharedOutcome>),
}

impl<S: Store + ?Sized> Idem<S> {
    /// Reads what became of the call of this operation with this key, without making the call. The types of its result are
    /// those of the operation's [`TypedOperation`](crate::TypedOperation), or are written out with a name:
    /// `idem.outcome::<Receipt, PaymentError>("payments.charge", &key)`. For a function without `replay_err`, the error
    /// type is [`NoError`](crate::NoError).
    ///
    /// The key is looked up in the scope that it [carries](crate::Key::scoped), joined to [that of the
    /// query](OutcomeQuery::scope). Whoever may ask for a scope sees its outcomes, whatever their requests were, unless the
    /// query names [the request](OutcomeQuery::request).
    ///
    /// Awaiting the query runs nothing and writes nothing: no record, no note of a replay. It costs one read of the store, which
    /// is retried as that of a call is. A call in a transaction is absent until its transaction is committed.
    ///
    /// # Errors
    /// [`Error::KeyReused`] if the query names another request than the record. [`Error::Decode`] if this build cannot read
    /// the stored result. [`Error::Overloaded`] if too many calls wait for the store. [`Error::InvalidKey`],
    /// [`Error::InvalidCall`], [`Error::Fingerprint`], [`Error::NoRuntime`], [`Error::Store`].
    ///
    /// # Cancel safety
    /// Cancel-safe: nothing is changed.
    ///
    /// # Example
    /// ```
    /// use std::time::Duration;
    /// use idem_runtime::{Call, Error, Idem, KeyStatus, MemoryStore, TypedOperation};
    ///
    /// const GREET: TypedOperation<String> = TypedOperation::new("greet");
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Error> {
    /// let idem = Idem::new(MemoryStore::new());
    /// assert_eq!(idem.outcome(GREET, "key-1").await?, KeyStatus::Absent);
    ///
    /// let call = Call::new(GREET, "key-1", "ann", Duration::from_secs(3600));
    /// idem.run(call, async || Ok::<_, Error>("hello, ann".to_owned())).await?;
    ///
    /// let status = idem.outcome(GREET, "key-1").request("ann").await?;
    /// assert_eq!(status.result(), Some(Ok("hello, ann".to_owned())));
    /// # Ok(())
    /// # }
    /// ```
    pub fn outcome<T, E>(
        &self,
        operation: impl OperationName<T, E>,
        key: &(impl ToKey + ?Sized),
    ) -> OutcomeQuery<T, E>
    where
        T: StoredValue,
        E: StoredValue,
    {
        let key = key.to_key().map_err(Error::from);
        self.query(operation, key.map(|key| (key, None)))
    }

    /// Reads what became of the call of this operation with this request, if its key is derived from the request: the
    /// function has `key = fingerprint`, or the call was made by [`Call::by_fingerprint`](crate::Call::by_fingerprint).
    /// Otherwise as [`outcome`](Self::outcome).
    pub fn outcome_of_request<T, E>(
        &self,
        operation: impl OperationName<T, E>,
        request: &(impl Fingerprint + ?Sized),
    ) -> OutcomeQuery<T, E>
    where
        T: StoredValue,
        E: StoredValue,
    {
        let digest = fingerprint::digest(request).map_err(Error::from);
        let of = digest.map(|digest| {
            let key = Key::from_hash(&self.engine().sign(&digest).hash());
            (key, Some(digest))
        });
        self.query(operation, of)
    }

    fn query<T, E>(
        &self,
        operation: impl OperationName<T, E>,
        of: Result<(Key, Option<Digest>), Error>,
    ) -> OutcomeQuery<T, E>
    where
        T: StoredValue,
        E: StoredValue,
    {
        let values = operation.values().unwrap_or(ValueCodec::stored());
        let name = Cow::Borrowed(operation.name());
        OutcomeQuery {
            inputs: of.and_then(|(key, digest)| Inputs::new(self, name, key, digest)),
            values: values.decode,
            errors: version::read_first,
        }
    }

    /// A query whose values are decoded by this function.
    #[cfg(feature = "http")]
    pub(crate) fn outcome_by<T>(
        &self,
        operation: Cow<'static, str>,
        key: Key,
        values: Decode<T>,
    ) -> OutcomeQuery<T, super::NoError> {
        OutcomeQuery {
            inputs: Inputs::new(self, operation, key, None),
            values,
            errors: version::read_first,
        }
    }
}

impl Inputs {
    fn new<S: Store + ?Sized>(
        idem: &Idem<S>,
        operation: Cow<'static, str>,
        key: Key,
        digest: Option<Digest>,
    ) -> Result<Self, Error> {
        Ok(Self {
            engine: Arc::clone(idem.engine()),
            operation: Operation::new(operation)?,
            key,
            scope: Scope::none(),
            digest,
        })
    }
}

impl<T, E> OutcomeQuery<T, E> {
    /// Sets the scope of the key. It is joined to the scope that the key itself may carry, as
    /// [`Call::scope`](crate::Call::scope) joins it.
    pub fn scope(self, scope: &(impl ToScope + ?Sized)) -> Self {
        self.with(|inputs| {
            inputs.scope = inputs.scope.join(&scope.to_scope()?);
            Ok(())
        })
    }

    /// Sets the request of the call. A record of another request is [`Error::KeyReused`], and nothing else of it is
    /// revealed.
    pub fn request(self, request: &(impl Fingerprint + ?Sized)) -> Self {
        self.with(|inputs| {
            inputs.digest = Some(fingerprint::digest(request)?);
            Ok(())
        })
    }

    /// Sets the [digest](crate::fingerprint::digest) of the request of the call, as [`request`](Self::request) does.
    pub fn fingerprint(self, digest: Digest) -> Self {
        self.with(|inputs| {
            inputs.digest = Some(digest);
            Ok(())
        })
    }

    /// Reads what became of the call, and waits while it runs, at most for this time. A call of this handle wakes the caller;
    /// for any other, the store is polled as duplicates of a call poll it. However many callers of a handle wait for one key,
    /// one of them polls.
    ///
    /// It never claims the key and never takes over. The answer is as that of the query itself:
    ///
    /// - [`Ended`](KeyStatus::Ended), [`Unrecorded`](KeyStatus::Unrecorded) or [`Interrupted`](KeyStatus::Interrupted) once
    ///   the call is.
    /// - [`Lapsed`](KeyStatus::Lapsed) once its lease has lapsed: repeat the call to have it done.
    /// - [`Absent`](KeyStatus::Absent) once the call was released or its record was deleted.
    /// - [`Running`](KeyStatus::Running) if it still runs when the time is over.
    ///
    /// # Errors
    /// Those of [`Idem::outcome`]. [`Error::KeyReused`] also if the record was deleted while this method waited, and its key
    /// is now that of another request. [`InvalidCall::OwnKey`](crate::error::InvalidCall::OwnKey) in the body of the call
    /// itself, and [`InvalidCall::InsideTransaction`](crate::error::InvalidCall::InsideTransaction) in that of a transaction
    /// on the same store.
    ///
    /// # Cancel safety
    /// Cancel-safe: nothing is changed, and another caller polls for those that wait.
    ///
    /// # Example
    /// ```
    /// use std::time::Duration;
    /// use idem_runtime::{Call, Error, Idem, MemoryStore, TypedOperation};
    ///
    /// const GREET: TypedOperation<String> = TypedOperation::new("greet");
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Error> {
    /// # let idem = Idem::new(MemoryStore::new());
    /// let call = Call::new(GREET, "key-1", "ann", Duration::from_secs(3600));
    /// let (greeting, status) = tokio::join!(
    ///     idem.run(call, async || {
    ///         tokio::time::sleep(Duration::from_millis(10)).await;
    ///         Ok::<_, Error>("hello, ann".to_owned())
    ///     }),
    ///     idem.outcome(GREET, "key-1").attach(Duration::from_secs(5)),
    /// );
    /// assert_eq!(status?.result(), Some(Ok(greeting?)));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn attach(self, wait: Duration) -> Result<KeyStatus<T, E>, Error> {
        let (found, waited) = self.inputs?.lookup()?.attach(wait).await?;
        found.decoded(waited, self.values, self.errors)
    }

    async fn read(self) -> Result<KeyStatus<T, E>, Error> {
        let found = self.inputs?.lookup()?.read().await?;
        found.decoded(Waited(false), self.values, self.errors)
    }

    /// Changes the inputs. The first error wins.
    fn with(mut self, change: impl FnOnce(&mut Inputs) -> Result<(), Error>) -> Self {
        if let Ok(inputs) = &mut self.inputs
            && let Err(error) = change(inputs)
        {
            self.inputs = Err(error);
        }
        self
    }
}

impl<T: 'static, E: 'static> IntoFuture for OutcomeQuery<T, E> {
    type Output = Result<KeyStatus<T, E>, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.read())
    }
}

impl<T, E> fmt::Debug for OutcomeQuery<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutcomeQuery").finish_non_exhaustive()
    }
}

impl Inputs {
    fn lookup(self) -> Result<Lookup, Error> {
        if Runtime::try_current().is_err() {
            return Err(Error::NoRuntime);
        }
        let identity = identity(self.operation, self.key, &self.scope);
        Ok(Lookup {
            id: RecordId::of(&identity),
            operation: identity.operation,
            digest: self.digest,
            engine: self.engine,
        })
    }
}

impl Lookup {
    /// Reads the record once, and compares the fingerprints.
    async fn read(&self) -> Result<Found, Error> {
        let record = self.first_read().await?;
        if let Some(record) = &record {
            self.compare(&record.fingerprint)?;
        }
        Ok(Found::Record(record.map(Box::new)))
    }

    /// Reads the record as a claim would: from a cache that has its outcome, or from the store once the read is admitted, and
    /// again for as long as the handle's patience lasts.
    async fn first_read(&self) -> Result<Option<Record>, Error> {
        let Engine { store, policy, .. } = &*self.engine;
        let cached = Box::pin(async { Ok(store.cached(&self.id).await) });
        if let Ok(Some(record)) = bounded(policy.store_timeout, cached).await {
            return Ok(Some(record));
        }
        let mut retries = Retries::within(policy.store_patience);
        loop {
            let permit = match store.immediate() {
                Some(_) => None,
                None => Some(self.admitted().await?),
            };
            match bounded(policy.store_timeout, store.get(&self.id)).await {
                Ok(record) => {
                    if let Some(permit) = permit {
                        permit.answered();
                    }
                    return Ok(record);
                }
                Err(error) => {
                    drop(permit);
                    // Boxed, because most reads need no timer.
                    Box::pin(retries.pause_after(error)).await?;
                }
            }
        }
    }

    /// Waits for the turn of this read among the claims, so that reads do not delay the calls that run.
    async fn admitted(&self) -> Result<Permit, Error> {
        let admission = &self.engine.admission;
        let capacity = self.engine.store.claim_concurrency().max(1);
        if let Some(permit) = admission.try_admit(capacity) {
            return Ok(permit);
        }
        // Boxed, because most reads are admitted at once.
        let admitted = Box::pin(admission.admit(&self.operation, None, |_| {}));
        admitted
            .await
            .map_err(|refused| self.engine.refusal(refused))
    }

    /// Refuses a record of another request, if the query names one.
    fn compare(&self, stored: &Digest) -> Result<(), Error> {
        match &self.digest {
            Some(digest) if !fingerprint::matches(stored, digest, &self.engine.secrets)? => {
                Err(Error::KeyReused)
            }
            _ => Ok(()),
        }
    }

    fn metrics(&self) -> OperationMetrics {
        OperationMetrics::of(self.operation.as_str())
    }
}

impl Found {
    /// The state of the record, with its result in the caller's types.
    fn decoded<T, E>(
        self,
        waited: Waited,
        values: Decode<T>,
        errors: Decode<E>,
    ) -> Result<KeyStatus<T, E>, Error> {
        let ended = match self {
            Self::Shared(ended) => Some(ended),
            Self::Record(None) => return Ok(KeyStatus::Absent),
            Self::Record(Some(record)) => {
                let (since, until) = (record.first_claimed_at.into(), record.lease_until.into());
                match on_read(&record) {
                    ReadState::Absent => return Ok(KeyStatus::Absent),
                    ReadState::Running => return Ok(KeyStatus::Running { since, until }),
                    ReadState::Lapsed => return Ok(KeyStatus::Lapsed { since, until }),
                    ReadState::Interrupted => return Ok(KeyStatus::Interrupted),
                    ReadState::Expired => return Ok(KeyStatus::Expired),
                    ReadState::Ended => SharedOutcome::of(&record).map(Arc::new),
                }
            }
        };
        let Some(ended) = ended else {
            let corrupt = "a record that has ended has no outcome, which no store writes; look at it with `idem show`";
            return Err(StoreError::new(StoreErrorKind::Corrupt, corrupt).into());
        };
        let result = match &ended.outcome {
            Outcome::Completed(payload) => Ok(values(StoredResult::new(payload, ended.kept_for))?),
            Outcome::Failed(payload) => Err(errors(StoredResult::new(payload, ended.kept_for))?),
            Outcome::Unrecorded => return Ok(KeyStatus::Unrecorded),
        };
        let source = ResultSource::from(waited);
        Ok(KeyStatus::Ended(result, ended.provenance(source)))
    }
}
