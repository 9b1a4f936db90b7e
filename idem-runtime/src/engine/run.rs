//! The entry points without the macro.

use super::run_options::{ErrorClassifier, Reconciler, RunOptions, error_codec};
use super::transaction::{self, InTransaction};
use super::typed::{self, EngineRef, Entered, ErrorCodec, Running, enter, enter_reconciling};
use super::{Attempt, Call, Idem};
use crate::codec::StoredValue;
use crate::codec::value::ValueCodec;
use crate::error::Error;
use crate::record::OnCrash;
use crate::store::{Store, TransactionalStore};

impl<S: Store + ?Sized> Idem<S> {
    /// Runs a body once for this call. Equivalent to `#[idempotent]` without the macro.
    ///
    /// Every `Err` of the body is treated as [`Transient`](crate::advanced::Finality::Transient) under
    /// [`OnCrash::Rerun`] and as [`Unknown`](crate::advanced::Finality::Unknown) otherwise.
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
        run(typed::handle(self), call, options, body).await
    }

    /// Runs a body once for this call, in a task of its own: a caller that is dropped does not cancel it. Equivalent to
    /// `#[idempotent(detached)]` without the macro.
    ///
    /// The record is claimed in the caller's future, and the task starts with the body. If the caller is dropped from
    /// then on, for example because an HTTP client has disconnected, the body runs to its end and its outcome is stored.
    /// Body, value and error must be `Send + 'static`, because they may outlive the caller. [`detach`](Self::detach)
    /// has more on the task, and [`drain`](Self::drain) waits for it.
    ///
    /// There is no such method for transactions: a caller that is dropped rolls its transaction back, as if it had never
    /// called. To commit whatever the caller does, call [`run_in_transaction`](Self::run_in_transaction) in `detach`.
    ///
    /// # Errors
    /// As for [`run`](Self::run). Also [`Error::LeaseLost`] if the runtime was shut down before the body ended.
    ///
    /// # Cancel safety
    /// Dropping the future before the body has started releases the claim, and nothing runs. Dropping it later changes
    /// nothing.
    ///
    /// # Example
    /// ```
    /// use std::time::Duration;
    /// use idem_runtime::advanced::RunOptions;
    /// use idem_runtime::{Call, Error, Idem, MemoryStore};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Error> {
    /// # let idem = Idem::new(MemoryStore::new());
    /// let name = String::from("ann");
    /// let call = Call::new("greet", "key-1", &name, Duration::from_secs(3600));
    /// let body = async move |_| Ok::<_, Error>(format!("hello, {name}"));
    /// let greeting = idem.run_detached(call, RunOptions::new(), body).await?;
    /// # assert_eq!(greeting, "hello, ann");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn run_detached<T, E, F>(
        &self,
        call: Call,
        options: RunOptions<'static, T, E>,
        body: impl FnOnce(Attempt) -> F + Send + 'static,
    ) -> Result<T, E>
    where
        T: StoredValue + Send + 'static,
        E: From<Error> + Send + 'static,
        F: Future<Output = Result<T, E>> + Send + 'static,
    {
        let (running, classifier) = match claim(typed::handle(self), call, options).await {
            Ok(claimed) => claimed,
            Err(answer) => return answer,
        };
        let attempt = running.attempt();
        let on_crash = attempt.call().request.on_crash;
        // The closure may act before it returns its future.
        let body = async move { body(attempt).await };
        let classify = move |error: &E| classifier.classify(error, on_crash);
        running.finish_detached(body, classify).await
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
    /// committed, [`Error::InvalidCall`] if the call or its options set crash handling or a lease, if the call is made in
    /// the body of another transaction on the same store, or if a statement of the body committed the transaction
    /// ([`CommittedInBody`](crate::error::InvalidCall::CommittedInBody)).
    ///
    /// If the database ended the transaction while the body ran, as after a deadlock, and the body went on, the error is
    /// [`StoreErrorKind::Conflict`](crate::error::StoreErrorKind::Conflict). Nothing of the body remains, except on
    /// SQLite if the pool is the application's: there the statements after that are committed.
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
    /// use idem_runtime::advanced::RunOptions;
    /// use idem_runtime::{Call, Error, Idem, SqliteStore};
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
        let (call, values, errors, classifier) = options.in_transaction(call);
        let transactions = transaction::transactions(self);
        let entered = transaction::enter(transactions, call, values, errors).await;
        run_in_transaction(entered, classifier, body).await
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
    /// An error of the store may have undone the caller's whole transaction: roll it back and begin a new one.
    ///
    /// # Transactions that the database ends by itself
    /// MySQL and MariaDB roll the whole transaction back after a deadlock, for example, and SQLite if the disk is full. The
    /// connection goes on, and each later statement commits separately. The body must therefore give the errors of
    /// statements back. If it does not, the call fails with
    /// [`StoreErrorKind::Conflict`](crate::error::StoreErrorKind::Conflict), and there is no record. The statements
    /// that the body has sent since then are committed. Later ones of the caller are not: MySQL and MariaDB refuse
    /// writes until the caller ends the transaction, and on SQLite its `COMMIT` fails (unless `foreign_keys` is off).
    ///
    /// On MySQL and MariaDB, a statement that defines a table commits the caller's transaction half way. The call then
    /// fails with [`InvalidCall::CommittedInBody`](crate::error::InvalidCall::CommittedInBody), and its record is
    /// INTERRUPTED.
    ///
    /// # Cancel safety
    /// Dropping the future rolls back to the savepoint before the connection is used again; the caller's earlier
    /// statements stay. On MySQL and MariaDB this covers only the statements that idem sends. If a statement of the
    /// *body* is dropped while sqlx prepares it, the connection's protocol is out of sync: close a connection on which
    /// that may have happened.
    ///
    /// If the database had ended the transaction before, the caller's next statement fails, and so does each call that joins
    /// later. But on MySQL and MariaDB a future that is dropped can no longer make the connection refuse writes: end the
    /// transaction after that error.
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
        let (call, values, errors, classifier) = options.in_transaction(call);
        let transactions = transaction::transactions(self);
        let entered =
            transaction::join_connection(transactions, connection, call, values, errors).await;
        run_in_transaction(entered, classifier, body).await
    }
}

/// Runs a body without the macro.
async fn run<T, E>(
    engine: EngineRef,
    call: Call,
    options: RunOptions<'_, T, E>,
    body: impl AsyncFnOnce(Attempt) -> Result<T, E>,
) -> Result<T, E>
where
    T: StoredValue,
    E: From<Error>,
{
    let (mut running, classifier) = match claim(engine, call, options).await {
        Ok(claimed) => claimed,
        Err(answer) => return answer,
    };
    let attempt = running.attempt();
    let on_crash = attempt.call().request.on_crash;
    running.begin();
    let result = running.drive(body(attempt)).await;
    running
        .finish(result, |error| classifier.classify(error, on_crash))
        .await
}

/// A body that may run, and the classifier of its errors.
type ClaimedRun<'a, T, E> = (Running<T, E>, ErrorClassifier<'a, E>);

/// Claims the record of a call without the macro.
async fn claim<T, E>(
    engine: EngineRef,
    call: Call,
    options: RunOptions<'_, T, E>,
) -> Result<ClaimedRun<'_, T, E>, Result<T, E>>
where
    T: StoredValue,
    E: From<Error>,
{
    let RunOptions {
        classifier,
        values,
        stored,
        reconcile,
    } = options;
    let values = values.unwrap_or(ValueCodec::stored());
    let errors = error_codec(stored);
    let running = match reconcile {
        None => enter(engine, call, values, errors).await?,
        // Boxed, so that calls without `reconcile` do not carry its size.
        Some(reconcile) => {
            Box::pin(enter_and_reconcile(engine, call, values, errors, reconcile)).await?
        }
    };
    Ok((running, classifier))
}

/// Claims the record of a call, and asks `reconcile` about each crashed attempt.
async fn enter_and_reconcile<T, E>(
    engine: EngineRef,
    call: Call,
    values: ValueCodec<T>,
    errors: ErrorCodec<E>,
    mut reconcile: Reconciler<'_, T, E>,
) -> Result<Running<T, E>, Result<T, E>> {
    let call = call.on_crash(OnCrash::Reconcile);
    let mut entered = enter_reconciling(engine, call, values, errors).await?;
    loop {
        entered = match entered {
            Entered::Run(running) => return Ok(running),
            Entered::Reconcile(request) => {
                let answer = reconcile(request.attempt()).await;
                request.answer(answer).await?
            }
        };
    }
}

/// Runs a body without the macro, in a transaction that was entered.
async fn run_in_transaction<S: TransactionalStore, T, E>(
    entered: Result<InTransaction<'_, S, T, E>, Result<T, E>>,
    classifier: ErrorClassifier<'_, E>,
    body: impl AsyncFnOnce(&mut S::Connection, Attempt) -> Result<T, E>,
) -> Result<T, E> {
    let mut running = match entered {
        Ok(running) => running,
        Err(answer) => return answer,
    };
    let attempt = running.attempt();
    let (driver, connection) = running.parts();
    // The closure may act before it returns its future.
    let body = async { body(connection, attempt).await };
    let result = driver.drive(body).await;
    running
        .finish(result, |error| classifier.classify(error, OnCrash::Rerun))
        .await
}
