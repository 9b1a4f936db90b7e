//! State that the calls of a handle share.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use super::admission::{Admission, Refused};
use super::detached_tasks::DetachedTasks;
use super::give_back::GiveBack;
use super::interference::Interferes;
use super::key_age::RestoredAt;
use super::named::NamedFunctions;
use super::operation_names::OperationNames;
use super::replay_notes::ReplayNotes;
use super::singleflight::SingleFlight;
use super::watch::Watches;
use crate::error::{Error, StoreError, StoreErrorKind};
use crate::fingerprint::Secret;
use crate::metrics::sink;
use crate::policy::Policy;
use crate::rated::Rated;
use crate::record::{Digest, OwnerLabel};
use crate::store::Store;
use crate::timing::{self, Retries};

/// Maximum number of claims of one handle that outlive their callers at the same time. A store that never answers would
/// otherwise collect one task for each failed call. Beyond the limit a claim is cancelled, and searched for later.
const MAX_ORPHANS: usize = 1024;

/// Grace period in which the answer to an abandoned claim is only waited for. During it, the calls of this process with
/// the claim's key wait as well. After it, they ask the store themselves, and the claim is searched for.
pub(super) const ANSWER_SOON: Duration = Duration::from_millis(250);

/// State shared by all clones of a handle.
pub(super) struct Engine {
    pub(super) store: Arc<dyn Store>,
    pub(super) policy: Policy,
    /// The first secret signs new digests; stored digests are checked against all of them.
    pub(super) secrets: Vec<Secret>,
    /// Label by which operators recognise this process.
    pub(super) owner_label: OwnerLabel,
    pub(super) replay_notes: ReplayNotes,
    /// Restore of the store, if it lost records.
    pub(super) restored_at: Option<RestoredAt>,
    pub(super) functions: NamedFunctions,
    pub(super) operation_names: OperationNames,
    pub(super) singleflight: SingleFlight,
    /// Keys that callers are attached to.
    pub(super) watches: Watches,
    /// Leased claims.
    pub(super) admission: Arc<Admission>,
    /// Claims in transactions, which wait for a connection each.
    pub(super) begins: Arc<Admission>,
    /// Tasks that callers do not cancel.
    pub(super) detached: DetachedTasks,
    /// Abandoned claims: the calls that made them were dropped.
    pub(super) give_back: Arc<GiveBack>,
    /// Permits for tasks that wait for the store's answers to abandoned claims.
    pub(super) orphans: Arc<Semaphore>,
    pub(super) left_to_lease: Rated,
    pub(super) unrenewed: Rated,
    pub(super) interference: Interferes,
}

impl Engine {
    pub(super) fn new(
        store: Arc<dyn Store>,
        policy: Policy,
        secrets: Vec<Secret>,
        owner_label: OwnerLabel,
        replay_notes: ReplayNotes,
        restored_at: Option<RestoredAt>,
    ) -> Self {
        sink::describe();
        Self {
            functions: NamedFunctions::default(),
            operation_names: OperationNames::new(store.operations().is_some()),
            singleflight: SingleFlight::default(),
            watches: Watches::default(),
            admission: Arc::new(Admission::new(&policy, ANSWER_SOON)),
            begins: Arc::new(Admission::new(&policy, ANSWER_SOON)),
            detached: DetachedTasks::default(),
            give_back: Arc::new(GiveBack::new(Arc::clone(&store), policy.store_timeout)),
            orphans: Arc::new(Semaphore::new(MAX_ORPHANS)),
            left_to_lease: Rated::default(),
            unrenewed: Rated::default(),
            store,
            policy,
            secrets,
            owner_label,
            replay_notes,
            restored_at,
            interference: Interferes::default(),
        }
    }

    /// The error of a call that got no answer from the store within this time, with what the store knows about the reason.
    pub(super) fn no_answer(&self, limit: Duration) -> StoreError {
        match self.store.bottleneck() {
            Some(reason) => StoreError::new(
                StoreErrorKind::Timeout,
                format!("the store gave no answer within {limit:?}: {reason}"),
            ),
            None => timing::timed_out(limit),
        }
    }

    /// The error of a call that was not admitted.
    pub(super) fn refusal(&self, refused: Refused) -> Error {
        match refused {
            Refused::Overloaded(retry_after) => Error::Overloaded { retry_after },
            Refused::Silent(patience) => self.no_answer(patience).into(),
        }
    }

    /// Runs a transition of the store, and retries it for as long as the handle's patience lasts.
    pub(super) async fn retry<'a, T>(
        &self,
        transition: impl Fn() -> Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>,
    ) -> Result<T, StoreError> {
        let retries = Retries::within(self.policy.store_patience);
        timing::retry(self.policy.store_timeout, retries, transition).await
    }

    /// Signs a digest, if the handle has a secret.
    pub(super) fn sign(&self, digest: &Digest) -> Digest {
        let secret = self.secrets.first();
        secret.map_or(*digest, |secret| secret.sign_digest(digest))
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
