//! The protocol: who may run a body, what becomes of its result, and what a duplicate is told.
//!
//! A call goes through [`claim`] (until it owns the record or knows the answer), [`running`] (the body, its heartbeat
//! and the guard that notices when it is dropped) and [`settle`] (the outcome reaches the store, whatever happens to
//! the caller). All three work on bytes; [`typed`] is the thin layer that knows the user's types, and what expanded
//! macros call.

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

/// A handle on a store, with the policy of the calls that go through it. Cheap to clone.
///
/// `Idem` alone, without a parameter, is a handle on any store; [`erased`](Self::erased) makes it of another.
///
/// Use **one** handle (and its clones) for a store in a process: calls through clones of one handle that wait for each
/// other are woken, calls through unrelated handles poll the store.
pub struct Idem<S: Store + ?Sized = dyn Store> {
    engine: Arc<Engine>,
    store: Arc<S>,
}

/// What all clones of a handle share.
pub(crate) struct Engine {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) policy: Policy,
    /// The first signs new digests; all of them are tried on stored ones.
    pub(crate) secrets: Vec<Secret>,
    pub(crate) singleflight: SingleFlight,
    /// Claims whose calls have gone.
    pub(crate) give_back: GiveBack,
    /// Room for tasks that wait for the answers to such claims.
    pub(crate) orphans: Arc<Semaphore>,
}

impl<S: Store> Idem<S> {
    /// A handle on this store with the default [`Policy`].
    pub fn new(store: S) -> Self {
        Self::builder(store).build()
    }

    /// A handle on this store with a policy of its own.
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
    /// Runs a body once for this call in a transaction of the store's database: what `#[idempotent(tx = tx)]` does,
    /// without the macro. The body is given the connection; what it changes there, the record of the key and the
    /// result are committed together.
    ///
    /// An `Err` rolls back all that the body did, and the next call runs it again; one that
    /// [`replay_err`](RunOptions::replay_err) matches also, but the error is stored and committed, and given again.
    ///
    /// # Errors
    /// What the body returned, or an [`Error`] in the caller's error type: [`Error::Store`] where the transaction could
    /// not be committed, and [`Error::InvalidCall`] where the call or its options say something of crashes or leases,
    /// or the call is made in the body of another transaction on the same store.
    ///
    /// # Cancel safety
    /// Dropping the future rolls back, unless the commit is under way already, which then holds or does not.
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

    /// Runs a body once for this call in the transaction that the caller has begun on this connection with sqlx's
    /// `begin` or `begin_with`, through a savepoint. The caller commits the transaction, or rolls it back and with it the
    /// record.
    ///
    /// # Errors
    /// As for [`run_in_transaction`](Self::run_in_transaction), and
    /// [`InvalidCall::NoTransaction`](crate::error::InvalidCall::NoTransaction) where the connection is in no
    /// transaction, or in one that was begun by SQL text: sqlx does not know of it, and would end it with the call.
    ///
    /// An error of the store may have undone the caller's whole transaction: give it back and begin anew. On MySQL and
    /// MariaDB the statements that follow a deadlock would commit one by one; they fail instead until the caller ends
    /// the transaction.
    ///
    /// # Cancel safety
    /// Dropping the future rolls back to the savepoint before the connection is used again; the caller's own statements
    /// before it stay. On MySQL and MariaDB that holds for what idem sends; a statement of the *body* that is dropped
    /// while sqlx prepares it leaves the connection out of step, so close a connection on which that may have happened.
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

    /// The same handle, forgetting which store it is on.
    pub fn erased(self) -> Idem {
        Idem {
            // The store as the engine has it: one that is erased already cannot be erased again.
            store: Arc::clone(&self.engine.store),
            engine: self.engine,
        }
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Runs a body once for this call: what `#[idempotent]` does, without the macro.
    ///
    /// Every `Err` of the body is treated as [`Transient`](ErrorKind::Transient) under
    /// [`OnCrash::Rerun`](crate::OnCrash::Rerun) and as [`Unknown`](ErrorKind::Unknown) otherwise;
    /// [`run_with`](Self::run_with) says more.
    ///
    /// # Errors
    /// What the body returned, or an [`Error`] in the caller's error type.
    ///
    /// # Cancel safety
    /// Dropping the future before the body was polled gives the claim back. Dropping it while the body runs counts as
    /// a crash. Dropping it after the body ended loses nothing: the outcome is still recorded in the background.
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

    /// The same with a say in what each `Err` means and in what to do after a crash; the body is given its
    /// [`Attempt`].
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

    /// Looking at records, listing them, settling interrupted ones and erasing: what an operator needs.
    pub fn records(&self) -> Records<'_> {
        Records::new(&self.engine)
    }

    /// Starts a task that purges what is past its retention, about every `interval`, in batches of 1,000 records, for
    /// as long as the returned [`PurgerGuard`] lives.
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

/// Sets a handle up. Made by [`Idem::builder`].
#[derive(Debug)]
pub struct Builder<S> {
    store: S,
    policy: Policy,
    secrets: Vec<Secret>,
}

impl<S: Store> Builder<S> {
    /// How long a silent owner is believed. Default 30 s.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.policy.lease = lease;
        self
    }

    /// How long a duplicate waits for the call that is running. Default 0.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.policy.wait = wait;
        self
    }

    /// How long the store may take for one step. Default 3 s.
    #[must_use]
    pub fn store_timeout(mut self, timeout: Duration) -> Self {
        self.policy.store_timeout = timeout;
        self
    }

    /// How long a call goes on trying a store that fails. Default 6 s.
    #[must_use]
    pub fn store_patience(mut self, patience: Duration) -> Self {
        self.policy.store_patience = patience;
        self
    }

    /// How results are written. Default JSON.
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

    /// What happens when the store cannot be reached for a claim. Default: the call fails.
    #[must_use]
    pub fn on_store_error(mut self, on_store_error: OnStoreError) -> Self {
        self.policy.on_store_error = on_store_error;
        self
    }

    /// A secret that signs stored digests (HMAC), since a hash of a guessable request can be guessed. The first one
    /// given signs; further ones are read with, so that a secret can be replaced: give every process the new one behind
    /// the old one, then in front of it, and take the old one away once the longest retention is over. A process that
    /// does not have the secret of a record answers [`Error::Decode`], and runs nothing.
    ///
    /// Under `key = fingerprint` the key itself is signed, so replacing the secret makes every request a new one.
    ///
    /// It signs the tokens of [`issue`](Idem::issue) as well, by the same rules.
    #[must_use]
    pub fn fingerprint_secret(mut self, secret: Secret) -> Self {
        self.secrets.push(secret);
        self
    }

    /// The whole policy at once.
    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// The handle.
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
