//! The steps of a body: results of finished steps are saved with the record, and returned to later attempts.

mod transaction;

use std::collections::BTreeMap;

use super::Attempt;
use super::reentrancy;
use super::step_state::NameUsed;
use crate::codec::{self, EncodeError, StoredValue};
use crate::error::{Error, InvalidCall};
use crate::key::{Key, is_name};
use crate::record::{Owner, Payload};
use crate::store::{FencedWrite, SavedStep, StepStore};

impl Attempt {
    /// Runs a part of the body once per record. The step's result is stored with the record, and returned to a later
    /// attempt without running the step again. A body that was killed, or failed, therefore resumes after its last
    /// finished step.
    ///
    /// ```
    /// # #[cfg(feature = "memory")]
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), idem_runtime::Error> {
    /// # use std::time::Duration;
    /// # use idem_runtime::advanced::RunOptions;
    /// # use idem_runtime::{Call, Error, Idem, MemoryStore};
    /// # async fn reserve() -> Result<u64, Error> { Ok(7) }
    /// # async fn charge(key: &str) -> Result<String, Error> { Ok(key.to_owned()) }
    /// # let idem = Idem::new(MemoryStore::new());
    /// # let call = Call::new("checkout", "order-1", "one pair of shoes", Duration::from_secs(3600));
    /// idem.run_with(call, RunOptions::new(), async |attempt| {
    ///     let parcel = attempt.step("reserve", async || reserve().await).await?;
    ///     let key = attempt.step_downstream_key("charge");
    ///     let receipt = attempt.step("charge", async || charge(key.as_str()).await).await?;
    ///     Ok::<_, Error>((parcel, receipt))
    /// })
    /// .await?;
    /// # Ok(()) }
    /// # #[cfg(not(feature = "memory"))]
    /// # fn main() {}
    /// ```
    ///
    /// # What is guaranteed
    ///
    /// - A step whose result was stored does not run again for this record, even if the attempt fails. The result
    ///   survives a crash, a takeover and a release, until the record expires or is erased.
    /// - A crash **between the step's effect and the saving of its result** runs the step again, as a crash in a body
    ///   without steps runs the body again. Send [`step_downstream_key`](Self::step_downstream_key) along with the
    ///   effect, so that the other service can detect the duplicate.
    /// - An `Err` of the step is not stored. The body may return or handle it.
    /// - A step that may have had its effect but was not stored is **unknown**. Causes: the result could not be encoded
    ///   or was over the limit, the store was unreachable, the step panicked, or its future was dropped half way (by a
    ///   time-out, a `select!`, a `try_join!`). The body's `Err` then no longer releases the key: under `rerun` the
    ///   next call runs the body after the lease has lapsed, under `refuse` and `reconcile` the record is interrupted.
    ///   If the body still returns `Ok`, or an error that `replay_err` names, that result is stored as usual.
    ///
    /// A step whose effect is SQL in the database of the records can run as a [`step_tx`](Self::step_tx), which closes
    /// these gaps.
    ///
    /// # Names
    ///
    /// A step is found by its name: 1 to 255 bytes without control characters. Steps may run in any order or
    /// concurrently, and may be left out. Each name identifies one step of a run. Steps in a loop therefore need
    /// numbered names, and retries belong inside a step.
    ///
    /// A name that changes **with a deploy is a new step**: a record that was begun before the deploy runs the step
    /// again. Keep the name while the effect is the same, and change it when the effect changes. A removed step leaves
    /// its stored result behind, unused. If the type of the result changes, the new type must decode what the old one
    /// encoded.
    ///
    /// # Cost
    ///
    /// One write to the store for each step, and one read for all steps in each attempt after the first.
    ///
    /// # Errors
    /// The step's own error, or in its error type:
    /// - [`Error::InvalidCall`] if the name is malformed or was already used in this run, or if the store does not
    ///   support steps; nothing ran;
    /// - [`Error::Store`] if earlier steps could not be read, and nothing ran; or if the result could not be stored,
    ///   and the step is unknown;
    /// - [`Error::Unrecorded`] if the result could not be encoded or was over the limit: the step is unknown;
    /// - [`Error::Decode`] if the stored result does not fit `T`; nothing ran;
    /// - [`Error::LeaseLost`] if another call owns the record.
    ///
    /// # Cancel safety
    /// A future that is dropped before it was polled has done nothing. If it is dropped later, the step is unknown, as
    /// above. A result that the step had returned by then is still stored in the background.
    pub async fn step<T, E>(
        &self,
        name: &str,
        run: impl AsyncFnOnce() -> Result<T, E>,
    ) -> Result<T, E>
    where
        T: StoredValue,
        E: From<Error>,
    {
        let step = match Box::pin(self.begin_step(name)).await {
            Ok(Reserved::Run(step)) => step,
            Ok(Reserved::Saved(payload)) => {
                return codec::decode(&payload).map_err(|error| E::from(error.into()));
            }
            Err(error) => return Err(error.into()),
        };
        let value = match run().await {
            Ok(value) => value,
            Err(error) => {
                step.settled();
                return Err(error);
            }
        };
        let policy = &self.engine().policy;
        let encoded = policy.codec.encode(&value, policy.max_result_bytes);
        Box::pin(step.save(encoded)).await?;
        Ok(value)
    }

    /// Idempotency key for the request that a step makes to another service. Like
    /// [`downstream_key`](Self::downstream_key), but different for every step. It is derived only from the record's
    /// identity and the step's name, so it is the same in every attempt.
    pub fn step_downstream_key(&self, step: &str) -> Key {
        self.derived_key(b"idem/downstream-step/1", step)
    }

    /// True if some step may have had its effect without being saved.
    pub(super) fn has_unknown_steps(&self) -> bool {
        self.call().steps.are_unknown()
    }

    async fn begin_step(&self, name: &str) -> Result<Reserved<RunningStep>, Error> {
        let owner = match self.open_step(name, "step").await? {
            Reserved::Saved(payload) => return Ok(Reserved::Saved(payload)),
            Reserved::Run(owner) => owner,
        };
        self.call().steps.state().begin();
        Ok(Reserved::Run(RunningStep {
            attempt: self.clone(),
            owner,
            name: name.into(),
        }))
    }

    /// Reserves the name for this run, and checks whether an earlier attempt has finished the step. The owner of the
    /// record, if there is one, may save it.
    async fn open_step(
        &self,
        name: &str,
        kind: &'static str,
    ) -> Result<Reserved<Option<Owner>>, Error> {
        if !is_name(name) {
            return Err(InvalidCall::StepName.into());
        }
        if self.call().transactional {
            return Err(InvalidCall::NotTransactional(kind).into());
        }
        if reentrancy::is_polled(self.engine()) {
            return Err(InvalidCall::InsideTransaction.into());
        }
        let store = self.engine().store.steps();
        let store = store.ok_or(InvalidCall::StepsUnsupported)?;
        let owner = match (self.owner(), self.live_until()) {
            (Some(owner), Some(_)) => Some(owner),
            _ if self.is_unprotected() => None,
            _ => return Err(Error::LeaseLost),
        };
        let steps = self.call().steps.state();
        if let Some(owner) = &owner
            && self.number() > 1
        {
            steps.load(|| self.read_steps(store, owner)).await?;
        }
        match steps.reserve(name) {
            Ok(Some(payload)) => Ok(Reserved::Saved(payload)),
            Ok(None) => Ok(Reserved::Run(owner)),
            Err(NameUsed) => Err(InvalidCall::StepReused(name.to_owned()).into()),
        }
    }

    /// Reads the results of the steps that earlier attempts have finished.
    async fn read_steps(
        &self,
        store: &dyn StepStore,
        owner: &Owner,
    ) -> Result<BTreeMap<String, Payload>, Error> {
        let Some(steps) = self.engine().retry(|| store.saved_steps(owner)).await? else {
            self.lose();
            return Err(Error::LeaseLost);
        };
        let steps = steps.into_iter();
        let by_name = steps.map(|SavedStep { name, payload }| (name, payload));
        Ok(by_name.collect())
    }
}

/// A step whose name was reserved.
enum Reserved<Run> {
    /// An earlier attempt has finished the step.
    Saved(Payload),
    /// The step is to run.
    Run(Run),
}

/// A step that has begun. Until it is settled, its effect is unknown.
struct RunningStep {
    attempt: Attempt,
    /// None if the body runs without protection.
    owner: Option<Owner>,
    name: Box<str>,
}

impl RunningStep {
    /// Marks the step's effect as known: the result is saved, or the step itself returned an error.
    fn settled(&self) {
        self.attempt.call().steps.state().settle();
    }

    /// Saves the result of a finished step.
    async fn save(self, encoded: Result<Payload, EncodeError>) -> Result<(), Error> {
        let Some(owner) = self.owner else {
            tracing::warn!(
                target: "idem",
                operation = self.attempt.operation().as_str(),
                record = %self.attempt.record_id(),
                step = &*self.name,
                "a step of a body without protection is done and will not be remembered",
            );
            self.settled();
            return Ok(());
        };
        let payload = encoded.map_err(|error| {
            tracing::error!(
                target: "idem",
                operation = self.attempt.operation().as_str(),
                record = %self.attempt.record_id(),
                step = &*self.name,
                error = %error,
                "a step is done, but its result cannot be stored",
            );
            Error::Unrecorded
        })?;
        let mut saving = Saving(Some(Finished {
            step: self,
            owner,
            payload,
        }));
        let saved = saving.save().await;
        let Some(Finished { step, .. }) = saving.0.take() else {
            return Ok(());
        };
        match saved? {
            FencedWrite::Applied => step.settled(),
            FencedWrite::Fenced => {
                step.attempt.lose();
                return Err(Error::LeaseLost);
            }
        }
        Ok(())
    }
}

/// A finished step with its encoded result.
struct Finished {
    step: RunningStep,
    owner: Owner,
    payload: Payload,
}

impl Finished {
    async fn save(&self) -> Result<FencedWrite, Error> {
        let Self {
            step: RunningStep { attempt, name, .. },
            owner,
            payload,
        } = self;
        let store = attempt.engine().store.steps();
        let store = store.ok_or(InvalidCall::StepsUnsupported)?;
        let save = || store.save_step(owner, name, payload);
        let saved = attempt.engine().retry(save).await;
        if let Err(error) = &saved {
            tracing::error!(
                target: "idem",
                operation = attempt.operation().as_str(),
                record = %attempt.record_id(),
                step = &**name,
                error = ?error.kind(),
                "a step is done, but its result could not be stored",
            );
        }
        Ok(saved?)
    }
}

/// A result that is being saved. If it is dropped, saving continues in the background: a finished step need not run
/// again because its caller was dropped.
struct Saving(Option<Finished>);

impl Saving {
    async fn save(&self) -> Result<FencedWrite, Error> {
        match &self.0 {
            Some(finished) => finished.save().await,
            None => Ok(FencedWrite::Fenced),
        }
    }
}

impl Drop for Saving {
    fn drop(&mut self) {
        if let Some(finished) = self.0.take() {
            let runtime = finished.step.attempt.call().runtime.clone();
            // No caller waits for this any more; the next attempt sees whether saving succeeded.
            runtime.spawn(async move { finished.save().await });
        }
    }
}
