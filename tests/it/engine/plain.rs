//! A store with only the required methods, and no optional trait but that of steps.

use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt as _;
use idem_runtime::error::{InvalidCall, StoreError, StoreErrorKind};
use idem_runtime::key::RecordId;
use idem_runtime::record::{Observation, Outcome, Owner, Record, Timestamp};
use idem_runtime::store::{
    ClaimOutcome, ClaimRequest, FencedWrite, Filter, ForgettingStore, Granted, ImmediateStore,
    Page, PageRequest, Purged, Resolution, Resolved, StepStore,
};
use idem_runtime::{Call, Error, Idem, MemoryStore, OnCrash, Store};

/// State of a test beside a plain store.
pub(crate) trait Beside: Debug + Send + Sync + 'static {
    /// Answers a claim in the place of the store.
    fn granted(&self, _: &ClaimRequest) -> Option<Granted> {
        None
    }
}

impl Beside for () {}

#[derive(Debug)]
pub(crate) struct Plain<S, B = ()> {
    pub(crate) store: S,
    /// State of a test, for further traits that it implements.
    pub(crate) beside: B,
    is_immediate: bool,
    saves_steps: bool,
    /// Number of claims that the store says that it works on at the same time.
    concurrency: usize,
    is_resolved: bool,
}

impl<S> Plain<S> {
    /// A store without any optional trait.
    pub(super) fn new(store: S) -> Self {
        Self {
            saves_steps: false,
            ..Self::with(store, ())
        }
    }

    /// A store that does not wait: where the wrapped one does, it fails.
    pub(super) fn immediate(store: S) -> Self {
        Self {
            is_immediate: true,
            ..Self::new(store)
        }
    }
}

impl<S> Plain<S> {
    /// A store that works on this number of claims at the same time, and whose records somebody resolves.
    pub(super) fn working_on(concurrency: usize, store: S) -> Self {
        Self {
            concurrency,
            is_resolved: true,
            ..Self::new(store)
        }
    }
}

impl<S, B> Plain<S, B> {
    /// A store that saves steps, and for which a test implements further traits.
    pub(crate) fn with(store: S, beside: B) -> Self {
        Self {
            store,
            beside,
            is_immediate: false,
            saves_steps: true,
            concurrency: 64,
            is_resolved: false,
        }
    }
}

#[async_trait]
impl<S: Store, B: Beside> Store for Plain<S, B> {
    async fn claim(&self, claim: &ClaimRequest) -> Result<ClaimOutcome, StoreError> {
        match self.beside.granted(claim) {
            Some(granted) => Ok(ClaimOutcome::Granted(granted)),
            None => self.store.claim(claim).await,
        }
    }

    async fn take_over(
        &self,
        observed: &Observation,
        claim: &ClaimRequest,
    ) -> Result<ClaimOutcome, StoreError> {
        self.store.take_over(observed, claim).await
    }

    async fn renew(&self, owner: &Owner, lease: Duration) -> Result<FencedWrite, StoreError> {
        self.store.renew(owner, lease).await
    }

    async fn complete(&self, owner: &Owner, outcome: &Outcome) -> Result<FencedWrite, StoreError> {
        self.store.complete(owner, outcome).await
    }

    async fn release(&self, owner: &Owner) -> Result<FencedWrite, StoreError> {
        self.store.release(owner).await
    }

    async fn interrupt(&self, owner: &Owner) -> Result<FencedWrite, StoreError> {
        self.store.interrupt(owner).await
    }

    async fn resolve(
        &self,
        observed: &Observation,
        resolution: &Resolution,
    ) -> Result<Resolved, StoreError> {
        self.store.resolve(observed, resolution).await
    }

    async fn get(&self, id: &RecordId) -> Result<Option<Record>, StoreError> {
        self.store.get(id).await
    }

    async fn list(&self, filter: &Filter, page: &PageRequest) -> Result<Page, StoreError> {
        self.store.list(filter, page).await
    }

    async fn now(&self) -> Result<Timestamp, StoreError> {
        self.store.now().await
    }

    async fn purge(&self, limit: u32, as_of: Timestamp) -> Result<Purged, StoreError> {
        self.store.purge(limit, as_of).await
    }

    fn forgetting(&self) -> Option<&dyn ForgettingStore> {
        self.store.forgetting()
    }

    fn steps(&self) -> Option<&dyn StepStore> {
        self.store.steps().filter(|_| self.saves_steps)
    }

    fn immediate(&self) -> Option<&dyn ImmediateStore> {
        match self.is_immediate {
            true => Some(self),
            false => None,
        }
    }

    fn claim_concurrency(&self) -> usize {
        self.concurrency
    }

    fn can_resolve_manually(&self) -> bool {
        self.is_resolved
    }
}

/// First poll of a future of the wrapped store.
fn now<T>(done: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    let waits = || StoreError::new(StoreErrorKind::Unavailable, "it waits");
    done.now_or_never().unwrap_or_else(|| Err(waits()))
}

impl<S: Store, B: Beside> ImmediateStore for Plain<S, B> {
    fn claim_now(&self, claim: &ClaimRequest) -> Result<ClaimOutcome, StoreError> {
        now(self.store.claim(claim))
    }

    fn complete_now(&self, owner: &Owner, outcome: &Outcome) -> Result<FencedWrite, StoreError> {
        now(self.store.complete(owner, outcome))
    }

    fn release_now(&self, owner: &Owner) -> Result<FencedWrite, StoreError> {
        now(self.store.release(owner))
    }

    fn interrupt_now(&self, owner: &Owner) -> Result<FencedWrite, StoreError> {
        now(self.store.interrupt(owner))
    }
}

#[tokio::test]
async fn without_an_audit_a_call_under_refuse_does_not_run() {
    let idem = Idem::new(Plain::new(MemoryStore::new()));
    let call = Call::new("plain.refuse", "k", &(), Duration::from_secs(60));
    let call = call.on_crash(OnCrash::Refuse);
    let refused: Result<(), Error> = idem.run(call, async || panic!("must not run")).await;
    assert!(
        matches!(
            refused,
            Err(Error::InvalidCall(InvalidCall::NobodyResolves))
        ),
        "{refused:?}"
    );
    let found = idem.records().find("plain.refuse", "k").await;
    assert_eq!(found.unwrap(), None);
}
