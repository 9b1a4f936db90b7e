//! The protocol: decides which call runs a body, stores the result, and answers duplicate calls.
//!
//! A call goes through three phases. [`claim`] ends when the call owns the record or knows the stored outcome.
//! [`running`] polls the body, sends heartbeats, and has the guard that notices a dropped body. [`settle`] writes the
//! outcome to the store, even if the caller is dropped. All three work on bytes. [`typed`] is the thin layer that knows
//! the user's types; expanded macros call it.

mod attempt;
mod call;
mod claim;
mod install;
mod issue;
mod provenance;
mod purger;
mod records;
mod recovery;
mod run_options;
mod running;
mod settle;
mod singleflight;
mod steps;
mod timing;
pub(crate) mod transaction;
pub(crate) mod typed;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

pub use self::attempt::Attempt;
pub use self::call::Call;
pub use self::install::AlreadyInstalled;
pub use self::provenance::{Provenance, Source, with_provenance};
pub use self::purger::PurgerGuard;
pub use self::records::Records;
pub use self::recovery::{Recovery, RecoveryGuard};
pub use self::run_options::RunOptions;
pub use self::typed::{ErrorKind, Reconciled};

pub(crate) use self::install::default_engine;

use self::claim::{GiveBack, MAX_ORPHANS};
use self::singleflight::SingleFlight;
use crate::codec::{Codec, StoredValue};
use crate::error::Error;
use crate::fingerprint::Secret;
use crate::policy::{OnStoreError, Policy};
use crate::store::{Store, TransactionalStore};

/// A handle on a store, with the policy for the calls made through it. Cheap to clone.
///
/// `Idem` without a parameter is a handle on any store; [`erased`](Self::erased) converts a typed handle into one.
///
/// Use **one** handle (and its clones) for a store in a process. A call that waits for another call is woken if both
/// use clones of one handle. Calls through unrelated handles poll the store.
pub struct Idem<S: Store + ?Sized = dyn Store> {
    engine: Arc<Engine>,
    store: Arc<S>,
}

/// State shared by all clones of a handle.
pub(crate) struct Engine {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) policy: Policy,
    /// The first secret signs new digests; stored digests are checked against all of them.
    pub(crate) secrets: Vec<Secret>,
    pub(crate) singleflight: SingleFlight,
    /// Abandoned claims: the calls that made them were dropped.
    pub(crate) give_back: GiveBack,
    /// Permits for tasks that wait for the store's answers to abandoned claims.
    pub(crate) orphans: Arc<Semaphore>,
}

impl<S: Store> Idem<S> {
    /// A handle on this store with the default [`Policy`].
    pub fn new(store: S) -> Self {
        Self::builder(store).build()
    }

    /// A builder for a handle on this store, to set its policy.
    pub fn builder(store: S) -> Builder<S> {
        Builder {
            store,
            policy: Policy::default(),
            secrets: Vec::new(),
        }
    }
}

impl<S: Store> From<Idem<S>> for Idem {
    fn from(idem: Idem<S>) -> Self {
        idem.erased()
    }
}

impl<S: TransactionalStore> Idem<S> {
    /// Runs a body once for this call, in a transaction of the store's database. Equivalent to `#[idempotent(tx = tx)]`
    /// without the macro. The body is given the connection. The body's changes, the record of the key and the result
    /// are committed together.
    ///
    /// An `Err` rolls back all that the body did, and the next call runs the body again. An error that matches
    /// [`replay_err`](RunOptions::replay_err) also rolls the body back, but the error itself is stored, committed and
    /// replayed.
    ///
    /// # Errors
    /// The body's error, or an [`Error`] in the caller's error type: [`Error::Store`] if the transaction could not be
    /// committed, [`Error::InvalidCall`] if the call or its options set crash handling or a lease, or if the call is
    /// made in the body of another transaction on the same store.
    ///
    /// # Cancel safety
    /// Dropping the future rolls back, unless the commit is already in progress. That commit then succeeds or fails as
    /// a whole.
    ///
    /// # Example
    /// ```no_run
    /// # #[cfg(feature = "sqlite")]
    /// # async fn example() -> Result<(), idem_runtime::Error> {
    /// # use std::time::Duration;
    /// # let order = "order-1";
    /// use idem_runtime::{Call, Error, RunOptions, Idem, SqliteStore};
    ///
    /// let idem = Idem::new(SqliteStore::open("shop.db").await?);
    /// let call = Call::new("orders.place", order, order, Duration::from_secs(86_400));
    /// let placed: Result<u64, Error> = idem
    ///     .run_in_transaction(call, RunOptions::new(), async |tx, attempt| {
    ///         // SQL through `tx`, such as `sqlx::query("INSERT ...").execute(&mut *tx).await?`.
    ///         let _ = (tx, attempt.number());
    ///         Ok(1)
    ///     })
    ///     .await;
    /// # let _ = placed;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn run_in_transaction<T, E>(
        &self,
        call: Call,
        options: RunOptions<'_, T, E>,
        body: impl AsyncFnOnce(&mut S::Connection, Attempt) -> Result<T, E>,
    ) -> Result<T, E>
    where
        T: StoredValue,
        E: From<Error>,
    {
        let (call, values, errors, judge) = options.in_transaction(call);
        let transactions = transaction::transactions(self);
        let entered = transaction::enter(transactions, call, values, errors).await;
        run_options::run_in_transaction(entered, judge, body).await
    }

    /// Runs a body once for this call in the caller's open transaction, through a savepoint. The caller must have begun
    /// the transaction on this connection with sqlx's `begin` or `begin_with`. The caller commits or rolls back the
    /// transaction; a rollback removes the record as well.
    ///
    /// # Errors
    /// As for [`run_in_transaction`](Self::run_in_transaction). Also
    /// [`InvalidCall::NoTransaction`](crate::error::InvalidCall::NoTransaction) if the connection is in no transaction,
    /// or in one that was begun by SQL text: sqlx does not know of such a transaction, and would end it with the call.
    ///
    /// An error of the store may have undone the caller's whole transaction: roll it back and begin a new one. On MySQL
    /// and MariaDB, statements after a deadlock would each commit separately. They are therefore made to fail until the
    /// caller ends the transaction.
    ///
    /// # Cancel safety
    /// Dropping the future rolls back to the savepoint before the connection is used again; the caller's earlier
    /// statements stay. On MySQL and MariaDB this covers only the statements that idem sends. If a statement of the
    /// *body* is dropped while sqlx prepares it, the connection's protocol is out of sync: close a connection on which
    /// that may have happened.
    pub async fn join_transaction<T, E>(
        &self,
        connection: &mut S::Connection,
        call: Call,
        options: RunOptions<'_, T, E>,
        body: impl AsyncFnOnce(&mut S::Connection, Attempt) -> Result<T, E>,
    ) -> Result<T, E>
    where
        T: StoredValue,
        E: From<Error>,
    {
        let (call, values, errors, judge) = options.in_transaction(call);
        let transactions = transaction::transactions(self);
        let entered =
            transaction::join_connection(transactions, connection, call, values, errors).await;
        run_options::run_in_transaction(entered, judge, body).await
    }
}

impl<S: Store + ?Sized> Idem<S> {
    /// The store.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// The policy.
    pub fn policy(&self) -> &Policy {
        &self.engine.policy
    }

    /// Converts the handle into one with the store's type erased.
    pub fn erased(self) -> Idem {
        Idem {
            // Taken from the engine, where the store is already erased: a `dyn Store` cannot be erased again.
            store: Arc::clone(&self.engine.store),
            engine: self.engine,
        }
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Runs a body once for this call. Equivalent to `#[idempotent]` without the macro.
    ///
    /// Every `Err` of the body is treated as [`Transient`](ErrorKind::Transient) under
    /// [`OnCrash::Rerun`](crate::OnCrash::Rerun) and as [`Unknown`](ErrorKind::Unknown) otherwise.
    /// [`run_with`](Self::run_with) lets you classify errors.
    ///
    /// # Errors
    /// The body's error, or an [`Error`] in the caller's error type.
    ///
    /// # Cancel safety
    /// Dropping the future before the body was polled releases the claim. Dropping it while the body runs counts as a
    /// crash. Dropping it after the body ended loses nothing: the outcome is still recorded in the background.
    ///
    /// # Example
    /// ```
    /// use std::time::Duration;
    /// use idem_runtime::{Call, Error, Idem, MemoryStore};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Error> {
    /// let idem = Idem::new(MemoryStore::new());
    /// let greet = async |name: &str| -> Result<String, Error> {
    ///     let call = Call::new("greet", "key-1", name, Duration::from_secs(3600));
    ///     idem.run(call, async || Ok(format!("hello, {name}"))).await
    /// };
    /// let first = greet("ann").await?;
    /// let again = greet("ann").await?; // replayed
    /// assert_eq!(first, again);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn run<T, E>(
        &self,
        call: Call,
        body: impl AsyncFnOnce() -> Result<T, E>,
    ) -> Result<T, E>
    where
        T: StoredValue,
        E: From<Error>,
    {
        self.run_with(call, RunOptions::new(), async move |_| body().await)
            .await
    }

    /// Runs a body once for this call, with options for errors and crashes: [`RunOptions`] classify each `Err` and say
    /// what to do after a crash. The body is given its [`Attempt`].
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    ///
    /// # Cancel safety
    /// As for [`run`](Self::run).
    pub async fn run_with<T, E>(
        &self,
        call: Call,
        options: RunOptions<'_, T, E>,
        body: impl AsyncFnOnce(Attempt) -> Result<T, E>,
    ) -> Result<T, E>
    where
        T: StoredValue,
        E: From<Error>,
    {
        run_options::run(typed::handle(self), call, options, body).await
    }

    /// Administrative access to records: reads, lists, resolves and erases them.
    pub fn records(&self) -> Records<'_> {
        Records::new(&self.engine)
    }

    /// Starts a background task that deletes expired records about every `interval`, in batches of 1,000. The task runs
    /// for as long as the returned [`PurgerGuard`] lives.
    ///
    /// # Errors
    /// [`Error::NoRuntime`] outside of a tokio runtime.
    pub fn start_purger(&self, interval: Duration) -> Result<PurgerGuard, Error> {
        PurgerGuard::start(Arc::clone(&self.engine), interval)
    }
}

impl<S: Store + ?Sized> Clone for Idem<S> {
    fn clone(&self) -> Self {
        Self {
            engine: Arc::clone(&self.engine),
            store: Arc::clone(&self.store),
        }
    }
}

impl<S: Store + ?Sized> fmt::Debug for Idem<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Idem")
            .field("store", &self.store)
            .field("policy", &self.engine.policy)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("store", &self.store)
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}

/// Configures a handle. Created by [`Idem::builder`].
#[derive(Debug)]
pub struct Builder<S> {
    store: S,
    policy: Policy,
    secrets: Vec<Secret>,
}

impl<S: Store> Builder<S> {
    /// Lease duration: how long a claim stays valid without renewal. Default 30 s.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.policy.lease = lease;
        self
    }

    /// Maximum time that a duplicate waits for the running call. Default 0.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.policy.wait = wait;
        self
    }

    /// Time limit for one store call. Default 3 s.
    #[must_use]
    pub fn store_timeout(mut self, timeout: Duration) -> Self {
        self.policy.store_timeout = timeout;
        self
    }

    /// Total time for retries of a store call that fails. Default 6 s.
    #[must_use]
    pub fn store_patience(mut self, patience: Duration) -> Self {
        self.policy.store_patience = patience;
        self
    }

    /// Encoding of stored results. Default JSON.
    #[must_use]
    pub fn codec(mut self, codec: Codec) -> Self {
        self.policy.codec = codec;
        self
    }

    /// The largest encoded result that is stored, in bytes. Default 1 MiB.
    #[must_use]
    pub fn max_result_bytes(mut self, bytes: usize) -> Self {
        self.policy.max_result_bytes = bytes;
        self
    }

    /// Behaviour when the store cannot be reached for a claim. Default: the call fails.
    #[must_use]
    pub fn on_store_error(mut self, on_store_error: OnStoreError) -> Self {
        self.policy.on_store_error = on_store_error;
        self
    }

    /// Adds a secret that signs stored digests (HMAC), because an unsigned hash of a guessable request reveals the
    /// request.
    ///
    /// The first secret signs; later ones only verify, so that a secret can be rotated. To rotate, give every process
    /// the new secret after the old one, then before it. Remove the old one once the longest retention has passed. A
    /// process without the secret of a record returns [`Error::Decode`], and runs nothing.
    ///
    /// Under `key = fingerprint` the key itself is signed, so replacing the secret makes every request a new one.
    ///
    /// The secret also signs the tokens of [`issue`](Idem::issue), by the same rules.
    #[must_use]
    pub fn fingerprint_secret(mut self, secret: Secret) -> Self {
        self.secrets.push(secret);
        self
    }

    /// Replaces the whole policy.
    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// Builds the handle.
    pub fn build(self) -> Idem<S> {
        let store = Arc::new(self.store);
        Idem {
            engine: Arc::new(Engine {
                store: Arc::clone(&store) as Arc<dyn Store>,
                policy: self.policy,
                secrets: self.secrets,
                singleflight: SingleFlight::default(),
                give_back: GiveBack::default(),
                orphans: Arc::new(Semaphore::new(MAX_ORPHANS)),
            }),
            store,
        }
    }
}
