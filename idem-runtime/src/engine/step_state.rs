//! State of the steps of a call's body.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};

use tokio::sync::OnceCell;

use crate::error::Error;
use crate::mutex::lock;
use crate::record::Payload;

/// The steps of a call's body. Nothing is allocated before the first step.
#[derive(Debug, Default)]
pub(super) struct Steps(OnceLock<Box<StepState>>);

/// State of the steps, once there are any.
#[derive(Debug, Default)]
pub(super) struct StepState {
    /// Set once the steps of earlier attempts were read.
    loaded: OnceCell<()>,
    names: Mutex<StepNames>,
    /// Number of steps that began, and were neither saved nor failed with an error of their own.
    unknown: AtomicU32,
}

#[derive(Debug, Default)]
struct StepNames {
    /// Steps of earlier attempts that this run has not asked for yet.
    saved: BTreeMap<String, Payload>,
    /// The names that this run has used.
    used: BTreeSet<Box<str>>,
}

/// Error: this run has used the name of a step before.
pub(super) struct NameUsed;

impl Steps {
    /// True if a step may have had its effect without being saved. It is then unproven that nothing was done.
    pub(super) fn are_unknown(&self) -> bool {
        self.0
            .get()
            .is_some_and(|state| state.unknown.load(Ordering::Acquire) > 0)
    }

    pub(super) fn state(&self) -> &StepState {
        self.0.get_or_init(Box::default)
    }
}

impl StepState {
    /// Reads the steps of earlier attempts, unless this run has read them already.
    pub(super) async fn load<F>(&self, read: impl FnOnce() -> F) -> Result<(), Error>
    where
        F: Future<Output = Result<BTreeMap<String, Payload>, Error>>,
    {
        let load = || async move {
            let saved = read().await?;
            self.names().saved = saved;
            Ok(())
        };
        self.loaded.get_or_try_init(load).await.copied()
    }

    /// Reserves a name for this run. Returns the result of the step if an earlier attempt has finished it.
    pub(super) fn reserve(&self, name: &str) -> Result<Option<Payload>, NameUsed> {
        let mut names = self.names();
        if !names.used.insert(name.into()) {
            return Err(NameUsed);
        }
        Ok(names.saved.remove(name))
    }

    /// Frees the name of a step that did nothing, so that the step may run again.
    pub(super) fn free(&self, name: &str) {
        self.names().used.remove(name);
    }

    /// Marks one more step as unknown: it begins.
    pub(super) fn begin(&self) {
        self.unknown.fetch_add(1, Ordering::AcqRel);
    }

    /// Marks one step as known: its result is saved, or the step itself returned an error.
    pub(super) fn settle(&self) {
        self.unknown.fetch_sub(1, Ordering::AcqRel);
    }

    fn names(&self) -> MutexGuard<'_, StepNames> {
        lock(&self.names)
    }
}
