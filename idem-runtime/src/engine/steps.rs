//! The steps of a body: what is finished is saved under the record, and given back to a later attempt.

mod transaction;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use tokio::sync::OnceCell;

use super::Attempt;
use super::timing::persist;
use super::transaction::reentrancy;
use crate::codec::{self, EncodeError, StoredValue};
use crate::error::{Error, InvalidCall, StoreError};
use crate::key::is_name;
use crate::record::{Owner, Payload};
use crate::store::{FencedWrite, SavedStep, StepStore};

/// What a call knows of the steps of its body. Nothing is allocated before the first one.
#[derive(Debug, Default)]
pub(super) struct Steps(OnceLock<Box<Book>>);

#[derive(Debug, Default)]
struct Book {
    /// Whether the steps of earlier attempts were read.
    loaded: OnceCell<()>,
    pages: Mutex<Pages>,
    /// How many steps began, and neither were saved nor said that they failed.
    unknown: AtomicU32,
}

#[derive(Debug, Default)]
struct Pages {
    /// Steps of earlier attempts that were not asked for yet.
    saved: BTreeMap<String, Payload>,
    /// The names that this run has used.
    used: BTreeSet<Box<str>>,
}

impl Steps {
    /// Whether a step may have had its effect without being saved: nobody may say then that nothing was done.
    pub(super) fn are_unknown(&self) -> bool {
        self.0
            .get()
            .is_some_and(|book| book.unknown.load(Ordering::Acquire) > 0)
    }

    fn book(&self) -> &Book {
        self.0.get_or_init(Box::default)
    }
}

impl Book {
    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Attempt {
    /// Runs a part of the body once per record: what it returns is stored under the record, and given back to a later
    /// attempt without running it again. So a body that was killed, or failed, goes on behind its last finished step.
    ///
    /// ```
    /// # #[cfg(feature = "memory")]
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), idem_runtime::Error> {
    /// # use std::time::Duration;
    /// # use idem_runtime::{Call, Error, RunOptions, Idem, MemoryStore};
    /// # async fn reserve() -> Result<u64, Error> { Ok(7) }
    /// # async fn charge(key: &str) -> Result<String, Error> { Ok(key.to_owned()) }
    /// # let idem = Idem::new(MemoryStore::new());
    /// # let call = Call::new("checkout", "order-1", "one pair of shoes", Duration::from_secs(3600));
    /// idem.run_with(call, RunOptions::new(), async |attempt| {
    ///     let parcel = attempt.step("reserve", async || reserve().await).await?;
    ///     let key = attempt.step_downstream_key("charge");
    ///     let receipt = attempt.step("charge", async || charge(&key).await).await?;
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
    /// - A step whose result was stored does not run again for this record, whatever becomes of the attempt: it is kept
    ///   over a crash, a takeover and a release, until the record expires or is erased.
    /// - A crash **between the step's effect and its storing** runs the step again, as a crash in a body without steps
    ///   runs the body again. Send [`step_downstream_key`](Self::step_downstream_key) along with the effect, so that the
    ///   other side can tell.
    /// - An `Err` of the step is not stored. It is the body's to return or to handle.
    /// - A step that may have had its effect and was not stored is **unknown**: its result could not be encoded, was over
    ///   the limit, the store was out of reach, it panicked, or its future was dropped half way (by a time-out, a
    ///   `select!`, a `try_join!`). The body's `Err` then no longer releases the key: under `rerun` the next call runs
    ///   the body when the lease is over, under `refuse` and `reconcile` the record is interrupted. A body that returns
    ///   `Ok` nevertheless, or an error that `replay_err` names, is stored as usual.
    ///
    /// A step whose effect is SQL in the database of the records has none of these gaps as a
    /// [`step_tx`](Self::step_tx).
    ///
    /// # Names
    ///
    /// A step is found by its name: 1 to 255 bytes without control characters. Steps may come in any order, also at the
    /// same time, and may be left out. Each name stands for one step of a run, so steps in a loop number themselves, and
    /// whatever tries again does so inside of its step.
    ///
    /// A name that changes **with a deploy is a new step**: a record that was begun before it runs the step again. Keep
    /// the name while the effect is the same, and take another one when it is not. A step that was taken away leaves
    /// what it stored behind, unused. Where the type of the result changes, the new one must read what the old one wrote.
    ///
    /// # Cost
    ///
    /// One write to the store for each step, and one read for all of them in each attempt but the first.
    ///
    /// # Errors
    /// What the step returned, or in its error type:
    /// - [`Error::InvalidCall`] where the name is malformed or was used in this run, or the store keeps no steps; nothing
    ///   ran;
    /// - [`Error::Store`] where earlier steps could not be read, and nothing ran; or where the result could not be
    ///   stored, and the step is unknown;
    /// - [`Error::Unrecorded`] where the result could not be encoded or was over the limit: the step is unknown;
    /// - [`Error::Decode`] where what is stored does not fit `T`; nothing ran;
    /// - [`Error::LeaseLost`] where another call owns the record.
    ///
    /// # Cancel safety
    /// Dropped before it was polled, it has done nothing. Dropped later, the step is unknown, as above. A result that
    /// the step had come to by then is still stored in the background.
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
            Ok(StartedStep::Run(step)) => step,
            Ok(StartedStep::Saved(payload)) => {
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

    /// A key for the request that a step makes to another service: like [`downstream_key`](Self::downstream_key), and
    /// different for every step. It is derived from the record's identity and the step's name alone, so it is the same
    /// in every attempt.
    pub fn step_downstream_key(&self, step: &str) -> String {
        self.derived_key(b"idem/downstream-step/1", step)
    }

    /// Whether some step may have had its effect without being saved.
    pub(super) fn has_unknown_steps(&self) -> bool {
        self.call().steps.are_unknown()
    }

    async fn begin_step(&self, name: &str) -> Result<StartedStep, Error> {
        let owner = match self.open_step(name, "step").await? {
            StepStart::Saved(payload) => return Ok(StartedStep::Saved(payload)),
            StepStart::Run(owner) => owner,
        };
        let book = self.call().steps.book();
        book.unknown.fetch_add(1, Ordering::AcqRel);
        Ok(StartedStep::Run(RunningStep {
            attempt: self.clone(),
            owner,
            name: name.into(),
        }))
    }

    /// Takes the name for this run, and looks whether an earlier attempt has finished the step.
    async fn open_step(&self, name: &str, kind: &'static str) -> Result<StepStart, Error> {
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
        let book = self.call().steps.book();
        if let Some(owner) = &owner
            && self.number() > 1
        {
            let load = || self.load_steps(store, owner, book);
            book.loaded.get_or_try_init(load).await?;
        }
        let mut pages = book.pages();
        if !pages.used.insert(name.into()) {
            return Err(InvalidCall::StepReused(name.to_owned()).into());
        }
        Ok(match pages.saved.remove(name) {
            Some(payload) => StepStart::Saved(payload),
            None => StepStart::Run(owner),
        })
    }

    async fn load_steps(
        &self,
        store: &dyn StepStore,
        owner: &Owner,
        book: &Book,
    ) -> Result<(), Error> {
        let Some(steps) = self.persist(|| store.saved_steps(owner)).await? else {
            self.lose();
            return Err(Error::LeaseLost);
        };
        let steps = steps.into_iter();
        book.pages().saved = steps
            .map(|SavedStep { name, payload }| (name, payload))
            .collect();
        Ok(())
    }

    /// Takes a step of the store, and tries again for as long as the handle's patience lasts where that can help.
    async fn persist<'a, T>(
        &self,
        step: impl Fn() -> std::pin::Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>,
    ) -> Result<T, StoreError> {
        persist(&self.engine().policy, step).await
    }
}

/// A step whose name is taken.
enum StepStart {
    /// An earlier attempt has finished it.
    Saved(Payload),
    /// It is to run; whoever holds the record may save it, if anybody does.
    Run(Option<Owner>),
}

enum StartedStep {
    /// An earlier attempt has finished it.
    Saved(Payload),
    Run(RunningStep),
}

/// A step that has begun. Until it says otherwise, nobody knows what it did.
struct RunningStep {
    attempt: Attempt,
    /// None where the body runs without protection.
    owner: Option<Owner>,
    name: Box<str>,
}

impl RunningStep {
    /// What it did is known: it is saved, or the step itself said that it failed.
    fn settled(&self) {
        let book = self.attempt.call().steps.book();
        book.unknown.fetch_sub(1, Ordering::AcqRel);
    }

    /// The step was done and came to this.
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

/// A step that is done.
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
        let saved = attempt.persist(save).await;
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

/// A result on its way to the store. Dropped on the way, it goes on in the background: a step that is done need not be
/// done again because its caller went away.
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
            // Whether it could be saved is for the next attempt to see: nobody waits for this one any more.
            runtime.spawn(async move { finished.save().await });
        }
    }
}
