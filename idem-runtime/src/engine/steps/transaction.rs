//! Steps whose effect is SQL in the database of the records: effect and step are committed together, so there is no
//! moment at which one is there without the other, and a step is never unknown.
//!
//! The record is not held while the step runs, or the heartbeat would wait for it: saving the step, the last statement
//! before the commit, is what finds out that another call has taken over.

use std::pin::Pin;
use std::sync::Arc;

use tracing::Span;

use super::StepStart;
use crate::codec::{self, EncodeError, StoredValue};
use crate::engine::timing::bounded;
use crate::engine::transaction::reentrancy::{self, ReentrancyGuard};
use crate::engine::{Attempt, Idem};
use crate::error::{Error, InvalidCall, StoreError};
use crate::record::{Owner, Payload};
use crate::store::{FencedWrite, TransactionalStore};

impl Attempt {
    /// A [`step`](Self::step) that runs in a transaction of the database that the records are in: what it changes
    /// through the connection that it is given and the fact that it is done are committed together.
    ///
    /// ```no_run
    /// # #[cfg(feature = "sqlite")]
    /// # async fn example() -> Result<(), idem_runtime::Error> {
    /// # use std::time::Duration;
    /// # use idem_runtime::{Call, Error, RunOptions, Idem, SqliteStore};
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
    ///     let receipt = attempt.step("charge", async || charge(&key).await).await?;
    ///     Ok::<_, Error>((parcel, receipt))
    /// })
    /// .await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The handle is the one that the call was made with, or a clone of it, and on a SQL store: any other store is a
    /// compile error.
    ///
    /// # What is guaranteed
    ///
    /// - The step's effect in this database happens **exactly once** per record. A crash before the commit has undone
    ///   it, after the commit it is saved.
    /// - An `Err`, a panic and a dropped future roll it back: nothing has happened, and nothing is unknown. After an
    ///   `Err` of the step it may be run again under its name, such as where the database rolled it back in favour of
    ///   another transaction.
    /// - Where another call took over while the step ran, its commit is refused, and it is rolled back.
    /// - Where the commit was not acknowledged, the store is asked what became of it.
    ///
    /// What the step does elsewhere is not promised anything: that is for [`step`](Self::step).
    ///
    /// The lease is renewed meanwhile, as ever, but on SQLite, where nobody else writes while a transaction is open:
    /// keep the step shorter than the lease there. Calls and steps on the same handle are refused in the step's body,
    /// since they could wait for the transaction that waits for them, unless they join it by `tx`.
    ///
    /// # Cost
    ///
    /// One transaction, and in it one statement beside the step's own.
    ///
    /// # Errors
    /// What the step returned, or in its error type:
    /// - [`Error::InvalidCall`] where the handle is on another store, the result cannot be encoded or is over the limit
    ///   (the step was rolled back), and where [`step`](Self::step) says so;
    /// - [`Error::Store`] where earlier steps could not be read, no transaction be opened, or it could not be committed;
    ///   nothing has happened then, unless the store could not even be asked whether it was committed. The next
    ///   attempt finds out;
    /// - [`Error::Decode`] where what is stored does not fit `T`; nothing ran;
    /// - [`Error::LeaseLost`] where another call owns the record; the step was rolled back.
    ///
    /// # Cancel safety
    /// Dropped, it is rolled back, unless the commit is under way already, which then holds or does not: the next
    /// attempt finds out.
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
            Ok(StartedStep::Run(step)) => step,
            Ok(StartedStep::Saved(payload)) => {
                return codec::decode(&payload).map_err(|error| E::from(error.into()));
            }
            Err(error) => return Err(error.into()),
        };
        let span = Span::none();
        let connection = &mut *step.transaction;
        // The closure may act before it gives its future.
        let body = async { run(connection).await };
        let value =
            match ReentrancyGuard::new(body, reentrancy::address(self.engine()), &span).await {
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
    ) -> Boxed<'a, Result<StartedStep<S>, Error>> {
        Box::pin(async move {
            if !std::ptr::eq(self.engine(), &raw const **idem.engine()) {
                return Err(InvalidCall::OtherStore.into());
            }
            let owner = match self.open_step(name, "step_tx").await? {
                StepStart::Saved(payload) => return Ok(StartedStep::Saved(payload)),
                StepStart::Run(owner) => owner,
            };
            let transaction = self.persist(|| Box::pin(idem.store.begin())).await;
            if transaction.is_err() {
                self.free_step(name);
            }
            Ok(StartedStep::Run(Step {
                transaction: transaction?,
                store: Arc::clone(&idem.store),
                attempt: self.clone(),
                owner,
                name: name.into(),
            }))
        })
    }

    /// The step did nothing, and may run again.
    fn free_step(&self, name: &str) {
        self.call().steps.book().pages().used.remove(name);
    }

    /// What became of a step whose commit was not acknowledged; none where the record is another's.
    async fn find_step(&self, owner: &Owner, name: &str) -> Result<Option<bool>, StoreError> {
        let engine = self.engine();
        let lease = self.call().request.lease;
        // A commit that is still under way holds the record: renewing it waits for the end of that.
        let renewed = self.persist(|| engine.store.renew(owner, lease)).await?;
        let (FencedWrite::Applied, Some(store)) = (renewed, engine.store.steps()) else {
            return Ok(None);
        };
        let saved = self.persist(|| store.saved_steps(owner)).await?;
        Ok(saved.map(|steps| steps.iter().any(|step| step.name == name)))
    }
}

type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

enum StartedStep<S: TransactionalStore> {
    /// An earlier attempt has finished it.
    Saved(Payload),
    Run(Step<S>),
}

/// A step in its transaction. Dropped, it is rolled back.
struct Step<S: TransactionalStore> {
    transaction: S::Transaction<'static>,
    store: Arc<S>,
    attempt: Attempt,
    /// None where the body runs without protection.
    owner: Option<Owner>,
    name: Box<str>,
}

impl<S: TransactionalStore> Step<S> {
    /// Commits what the step did, with what it came to.
    fn commit(
        mut self,
        encoded: Result<Payload, EncodeError>,
    ) -> Boxed<'static, Result<(), Error>> {
        Box::pin(async move {
            let saved = match encoded {
                Ok(payload) => self.save(&payload).await,
                Err(error) => {
                    let step = self.name.to_string();
                    let reason = error.to_string();
                    Err(InvalidCall::StepResult { step, reason }.into())
                }
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
            let limit = attempt.engine().policy.store_timeout;
            let Err(failed) = bounded(limit, Box::pin(store.commit(transaction))).await else {
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
                // It is saved or it is not, and the next attempt sees which.
                Err(_) => Err(failed.into()),
            }
        })
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
        let limit = self.attempt.engine().policy.store_timeout;
        let step = self
            .store
            .save_step_in(&mut self.transaction, owner, &self.name, payload);
        match bounded(limit, Box::pin(step)).await? {
            FencedWrite::Applied => Ok(()),
            FencedWrite::Fenced => {
                self.attempt.lose();
                Err(Error::LeaseLost)
            }
        }
    }

    /// Rolls back. Where the database does not answer it does so by itself.
    fn undo(self) -> Boxed<'static, ()> {
        Box::pin(async move {
            let limit = self.attempt.engine().policy.store_timeout;
            let rolled_back = self.store.rollback(self.transaction);
            let _ = bounded(limit, Box::pin(rolled_back)).await;
            self.attempt.free_step(&self.name);
        })
    }
}
