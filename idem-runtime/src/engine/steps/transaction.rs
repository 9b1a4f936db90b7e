//! Steps whose effect is SQL in the database of the records. Effect and step are committed together: neither ever
//! exists without the other, so a step is never unknown.
//!
//! The record is not locked while the step runs, because the heartbeat would wait for the lock. A takeover by another
//! call is detected by the last statement before the commit, which saves the step.

use std::pin::Pin;
use std::sync::Arc;

use tokio::time::Instant;
use tracing::Span;

use super::Reserved;
use crate::codec::{self, EncodeError, StoredValue};
use crate::engine::interference::TransactionCall;
use crate::engine::reentrancy::{self, ReentrancyGuard};
use crate::engine::{Attempt, Idem, transaction};
use crate::error::{Error, InvalidCall, StoreError, StoreErrorKind};
use crate::record::{Owner, Payload};
use crate::store::{FencedWrite, TransactionalStore};
use crate::timing::bounded;

impl Attempt {
    /// A [`step`](Self::step) that runs in a transaction of the database that holds the records. The step's changes
    /// through the given connection, and the fact that the step is done, are committed together.
    ///
    /// ```no_run
    /// # #[cfg(feature = "sqlite")]
    /// # async fn example() -> Result<(), idem_runtime::Error> {
    /// # use std::time::Duration;
    /// # use idem_runtime::advanced::RunOptions;
    /// # use idem_runtime::{Call, Error, Idem, SqliteStore};
    /// # async fn charge(key: &str) -> Result<String, Error> { Ok(key.to_owned()) }
    /// # let idem = Idem::new(SqliteStore::open("shop.db").await?);
    /// # let call = Call::new("checkout", "order-1", "one pair of shoes", Duration::from_secs(3600));
    /// idem.run_with(call, RunOptions::new(), async |attempt| {
    ///     let parcel = attempt
    ///         .step_tx(&idem, "reserve", async |tx| {
    ///             // SQL through `tx`, such as `sqlx::query("UPDATE stock ...").execute(&mut *tx).await?`.
    ///             let _ = tx;
    ///             Ok::<_, Error>(7)
    ///         })
    ///         .await?;
    ///     let key = attempt.step_downstream_key("charge");
    ///     let receipt = attempt.step("charge", async || charge(key.as_str()).await).await?;
    ///     Ok::<_, Error>((parcel, receipt))
    /// })
    /// .await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The handle must be the one that the call was made with, or a clone of it, and must be on a SQL store. Any other
    /// store is a compile error.
    ///
    /// # What is guaranteed
    ///
    /// - The step's effect in this database happens **exactly once** per record. A crash before the commit rolls it
    ///   back; after the commit the step is saved.
    /// - An `Err`, a panic or a dropped future rolls the step back: nothing has happened, and nothing is unknown. After
    ///   an `Err` the step may run again under its name, for example if the database rolled it back in favour of
    ///   another transaction.
    /// - If another call took over while the step ran, the step's commit is refused, and the step is rolled back.
    /// - If the commit was not acknowledged, the store is asked whether it took effect.
    /// - If the database ended the transaction by itself, as after a deadlock, and the closure went on, the step fails
    ///   with [`StoreErrorKind::Conflict`](crate::error::StoreErrorKind::Conflict) and is not saved. Its other changes
    ///   are rolled back, except on SQLite if the pool is the application's.
    ///
    /// Effects outside of this database have no guarantee: use [`step`](Self::step) for them.
    ///
    /// The lease is renewed while the step runs, except on SQLite, where no other connection can write while a
    /// transaction is open. On SQLite, keep the step shorter than the lease. In the step's body, calls and steps on the
    /// same handle are refused, because they could wait for the transaction that waits for them. Calls that join the
    /// transaction through `tx` are allowed.
    ///
    /// # Cost
    ///
    /// One transaction, with one statement in addition to the step's own, and on SQLite three.
    ///
    /// # Errors
    /// The step's own error, or in its error type:
    /// - [`Error::InvalidCall`] if the handle is on another store, if the result cannot be encoded or is over the limit
    ///   (the step was rolled back), and in the cases listed at [`step`](Self::step);
    /// - [`Error::Store`] if earlier steps could not be read, no transaction could be opened, or the transaction could
    ///   not be committed. Nothing has happened then, unless the store could not be asked whether the commit took
    ///   effect. In that case the next attempt finds out;
    /// - [`Error::Decode`] if the stored result does not fit `T`; nothing ran;
    /// - [`Error::LeaseLost`] if another call owns the record; the step was rolled back.
    ///
    /// # Cancel safety
    /// Dropping the future rolls the step back, unless the commit is already in progress. That commit then succeeds or
    /// fails as a whole, and the next attempt finds out.
    pub async fn step_tx<S, T, E>(
        &self,
        idem: &Idem<S>,
        name: &str,
        run: impl AsyncFnOnce(&mut S::Connection) -> Result<T, E>,
    ) -> Result<T, E>
    where
        S: TransactionalStore,
        T: StoredValue,
        E: From<Error>,
    {
        let mut step = match self.begin_step_tx(idem, name).await {
            Ok(Reserved::Run(step)) => step,
            Ok(Reserved::Saved(payload)) => {
                return codec::decode(&payload).map_err(|error| E::from(error.into()));
            }
            Err(error) => return Err(error.into()),
        };
        let span = Span::none();
        let connection = &mut *step.transaction;
        // The closure may act before it returns its future.
        let body = async { run(connection).await };
        let address = reentrancy::address(self.engine());
        let value = match ReentrancyGuard::new(body, address, self.call().request.id, &span).await {
            Ok(value) => value,
            Err(error) => {
                step.undo().await;
                return Err(error);
            }
        };
        let policy = &self.engine().policy;
        let encoded = policy.codec.encode(&value, policy.max_result_bytes);
        step.commit(encoded).await?;
        Ok(value)
    }

    fn begin_step_tx<'a, S: TransactionalStore>(
        &'a self,
        idem: &'a Idem<S>,
        name: &'a str,
    ) -> Boxed<'a, Result<Reserved<TransactionStep<S>>, Error>> {
        Box::pin(async move {
            if !std::ptr::eq(self.engine(), &raw const **idem.engine()) {
                return Err(InvalidCall::OtherStore.into());
            }
            let owner = match self.open_step(name, "step_tx").await? {
                Reserved::Saved(payload) => return Ok(Reserved::Saved(payload)),
                Reserved::Run(owner) => owner,
            };
            let transaction = self.engine().retry(|| Box::pin(idem.store.begin())).await;
            if transaction.is_err() {
                self.free_step(name);
            }
            Ok(Reserved::Run(TransactionStep {
                transaction: transaction?,
                store: Arc::clone(&idem.store),
                attempt: self.clone(),
                owner,
                name: name.into(),
            }))
        })
    }

    /// Frees the name of a step that did nothing, so that the step may run again.
    fn free_step(&self, name: &str) {
        self.call().steps.state().free(name);
    }

    /// Checks whether an unacknowledged commit saved the step; none if another call owns the record.
    async fn find_step(&self, owner: &Owner, name: &str) -> Result<Option<bool>, StoreError> {
        let engine = self.engine();
        let lease = self.call().lease_at(Instant::now());
        // A commit in progress locks the record: the renewal waits until the commit ends.
        let renewed = self
            .engine()
            .retry(|| engine.store.renew(owner, lease))
            .await?;
        let (FencedWrite::Applied, Some(store)) = (renewed, engine.store.steps()) else {
            return Ok(None);
        };
        let saved = self.engine().retry(|| store.saved_steps(owner)).await?;
        Ok(saved.map(|steps| steps.iter().any(|step| step.name == name)))
    }
}

type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A step in its transaction. Dropping it rolls it back.
struct TransactionStep<S: TransactionalStore> {
    transaction: S::Transaction<'static>,
    store: Arc<S>,
    attempt: Attempt,
    /// None if the body runs without protection.
    owner: Option<Owner>,
    name: Box<str>,
}

impl<S: TransactionalStore> TransactionStep<S> {
    /// Commits the step's changes together with its result.
    fn commit(
        mut self,
        encoded: Result<Payload, EncodeError>,
    ) -> Boxed<'static, Result<(), Error>> {
        Box::pin(async move {
            let saved = match encoded {
                Ok(payload) => self.save(&payload).await,
                Err(error) => Err(self.not_stored(&error)),
            };
            if let Err(error) = saved {
                self.undo().await;
                return Err(error);
            }
            let Self {
                transaction,
                store,
                attempt,
                owner,
                name,
            } = self;
            let committed = transaction::commit(attempt.engine(), &*store, transaction).await;
            let Err(failed) = committed else {
                return Ok(());
            };
            let Some(owner) = owner else {
                return Err(failed.into());
            };
            match attempt.find_step(&owner, &name).await {
                Ok(Some(true)) => Ok(()),
                Ok(Some(false)) => {
                    attempt.free_step(&name);
                    Err(failed.into())
                }
                Ok(None) => {
                    attempt.lose();
                    Err(Error::LeaseLost)
                }
                // The next attempt sees whether the step was saved.
                Err(_) => Err(failed.into()),
            }
        })
    }

    /// The error of a step whose result cannot be stored. The step must be rolled back.
    fn not_stored(&self, reason: &dyn std::fmt::Display) -> Error {
        let step = self.name.to_string();
        let reason = reason.to_string();
        InvalidCall::StepResult { step, reason }.into()
    }

    async fn save(&mut self, payload: &Payload) -> Result<(), Error> {
        let Some(owner) = &self.owner else {
            tracing::warn!(
                target: "idem",
                operation = self.attempt.operation().as_str(),
                record = %self.attempt.record_id(),
                step = &*self.name,
                "a step of a body without protection is done and will not be remembered",
            );
            return Ok(());
        };
        let (engine, call) = (
            self.attempt.engine(),
            TransactionCall::SaveStep(owner, &self.name),
        );
        let connection = &mut *self.transaction;
        engine.interference.before(call, Some(connection)).await?;
        let limit = engine.policy.store_timeout;
        let step = self
            .store
            .save_step_in(&mut self.transaction, owner, &self.name, payload);
        match bounded(limit, Box::pin(step)).await {
            Ok(FencedWrite::Applied) => Ok(engine.interference.after(call, true).await?),
            Ok(FencedWrite::Fenced) => {
                self.attempt.lose();
                Err(Error::LeaseLost)
            }
            Err(error) if error.kind() == StoreErrorKind::TooLarge => Err(self.not_stored(&error)),
            Err(error) => Err(error.into()),
        }
    }

    /// Rolls back. If this fails, the database rolls back once the connection is lost.
    fn undo(self) -> Boxed<'static, ()> {
        Box::pin(async move {
            let limit = self.attempt.engine().policy.store_timeout;
            let rolled_back = self.store.rollback(self.transaction);
            let _ = bounded(limit, Box::pin(rolled_back)).await;
            self.attempt.free_step(&self.name);
        })
    }
}
