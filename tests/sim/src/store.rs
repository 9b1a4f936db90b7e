//! The simulated store as a process sees it: every call is a message, and its answer may never come.

// The batcher of the SQL stores and its `flushers`, compiled once more: they are private in the runtime.
#[rustfmt::skip]
#[expect(
    unexpected_cfgs,
    reason = "the module for database servers depends on features of the runtime"
)]
#[path = "../../../idem-runtime/src/store/sql/batch.rs"]
mod batch;
mod batches;
mod connections;
#[rustfmt::skip]
#[path = "../../../idem-runtime/src/store/sql/flushers.rs"]
mod flushers;
pub(crate) mod outbox;

use std::fmt;
use std::future::pending;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use idem_reference::Defect;
use idem_runtime::Cached;
pub(crate) use idem_runtime::operator;
use idem_store::key::{Operation, RecordId};
use idem_store::record::{Observation, Outcome, Owner, Payload, Record};
use idem_store::store::{
    AuditFilter, AuditPage, AuditStore, ClaimOutcome, ClaimRequest, FencedWrite, Filter,
    ManualChange, Page, PageRequest, Purged, RecoveryInput, RecoveryStore, Resolution, Resolved,
    SavedStep, StepStore,
};
use idem_store::{Store, StoreError, StoreErrorKind, Timestamp};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use self::batches::Batches;
pub(crate) use self::connections::{SimConnection, SimTransaction};
use crate::message::{
    Answer, Begin, ConnectionId, PurgedBy, Reply, Request, Statement, wrong_reply,
};
use crate::mutex::lock;
use crate::plan::Setup;
use crate::world::{Queue, Shared, Unanswered};

/// Size of a cache: more than the records of a run need.
const CACHE_BYTES: usize = 1 << 20;

/// Number of connections on which a request is tried.
const TRIES: usize = 20;

/// A message on its way to the store.
pub(crate) struct Envelope {
    pub(crate) process: usize,
    pub(crate) connection: Option<ConnectionId>,
    pub(crate) request: Request,
    /// None if nobody waits for the answer.
    pub(crate) reply_to: Option<oneshot::Sender<Answer>>,
}

/// What a process gives to the network.
pub(crate) enum Sent {
    Request(Box<Envelope>),
    /// The caller of the request on this connection has left.
    CutOff(ConnectionId),
}

/// The messages and connections of a process.
#[derive(Clone)]
pub(crate) struct Endpoint {
    state: Arc<Mutex<EndpointState>>,
    has_sent: Arc<Notify>,
}

struct EndpointState {
    process: usize,
    /// False once the process was killed: what its drop guards send goes nowhere.
    is_alive: bool,
    sent: Vec<Sent>,
    idle: Vec<ConnectionId>,
    next: ConnectionId,
}

impl Endpoint {
    /// The endpoint of a process that has just started. Its connections have numbers of its own.
    pub(crate) fn new(process: usize, incarnation: u64) -> Self {
        let state = EndpointState {
            process,
            is_alive: true,
            sent: Vec::new(),
            idle: Vec::new(),
            next: (incarnation * 100 + process as u64) * 100_000,
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            has_sent: Arc::default(),
        }
    }

    /// Ends once a message was sent.
    pub(crate) async fn has_sent(&self) {
        self.has_sent.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, EndpointState> {
        lock(&self.state)
    }

    /// Takes the messages that were sent.
    pub(crate) fn take(&self) -> Vec<Sent> {
        std::mem::take(&mut self.lock().sent)
    }

    /// Takes the process off the network.
    pub(crate) fn kill(&self) {
        let mut state = self.lock();
        state.is_alive = false;
        state.sent.clear();
    }

    fn send(
        &self,
        connection: Option<ConnectionId>,
        request: Request,
        reply_to: Option<oneshot::Sender<Answer>>,
    ) {
        let mut state = self.lock();
        if state.is_alive {
            let process = state.process;
            state.sent.push(Sent::Request(Box::new(Envelope {
                process,
                connection,
                request,
                reply_to,
            })));
            self.has_sent.notify_one();
        }
    }

    /// The caller of the request on this connection has left.
    fn cut_off(&self, connection: ConnectionId) {
        let mut state = self.lock();
        if state.is_alive {
            state.sent.push(Sent::CutOff(connection));
            self.has_sent.notify_one();
        }
    }

    fn connect(&self) -> ConnectionId {
        let mut state = self.lock();
        state.idle.pop().unwrap_or_else(|| {
            state.next += 1;
            state.next
        })
    }

    fn give_back(&self, connection: ConnectionId) {
        self.lock().idle.push(connection);
    }

    /// Closes a connection, and thereby ends a transaction on it.
    fn close(&self, connection: ConnectionId) {
        let close = Request::InTransaction(Statement::Close);
        self.send(Some(connection), close, None);
    }

    /// Leaves a transaction open on some connections of the pool, as code that drops the future of its `BEGIN`.
    pub(crate) fn leave_open(&self, connections: usize) {
        let lent: Vec<_> = (0..connections).map(|_| self.connect()).collect();
        for connection in lent {
            let begin = Request::InTransaction(Statement::Begin(Begin::Foreign));
            self.send(Some(connection), begin, None);
            self.give_back(connection);
        }
    }
}

/// The store of one process.
#[derive(Clone)]
pub(crate) struct SimStore {
    process: usize,
    endpoint: Endpoint,
    shared: Shared,
    batches: Option<Batches>,
    /// The store behind a cache, if this one has a cache.
    cached: Option<Arc<Cached<Self>>>,
    defect: Option<Defect>,
    claim_concurrency: usize,
}

/// A request whose answer has not come. Dropping it tells the network that its caller has left.
struct Asking<'a> {
    endpoint: &'a Endpoint,
    connection: ConnectionId,
    is_over: bool,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.endpoint.cut_off(self.connection);
        }
    }
}

impl SimStore {
    pub(crate) fn new(
        process: usize,
        endpoint: Endpoint,
        shared: Shared,
        setup: &Setup,
        defect: Option<Defect>,
    ) -> Self {
        let store = Self {
            process,
            endpoint,
            shared,
            batches: setup.batches.then(Batches::new),
            cached: None,
            defect,
            claim_concurrency: setup.claim_concurrency,
        };
        let cached = setup.cache.map(|max_age| {
            let cached = Cached::with_capacity(store.clone(), CACHE_BYTES);
            Arc::new(cached.max_age(max_age))
        });
        Self { cached, ..store }
    }

    /// Sends a request on a connection, and waits for its answer: for ever if the answer is lost.
    async fn ask_on(&self, connection: ConnectionId, request: Request) -> Answer {
        let (tell, told) = oneshot::channel();
        self.endpoint.send(Some(connection), request, Some(tell));
        match told.await {
            Ok(answer) => answer,
            Err(_) => pending().await,
        }
    }

    /// Sends a request on a connection of the pool. If other code has left a transaction open there, the connection is
    /// closed, and another one is tried.
    async fn ask(&self, request: Request) -> Answer {
        for _ in 0..TRIES {
            match self.ask_once(request.clone()).await {
                Ok(Reply::NotAlone) => {}
                answer => return answer,
            }
        }
        let text = "other code has left a transaction open on each connection that was tried";
        Err(StoreError::new(StoreErrorKind::Unavailable, text))
    }

    /// Sends a request on a connection of the pool. A connection whose answer was not awaited is not used again.
    async fn ask_once(&self, request: Request) -> Answer {
        let connection = self.endpoint.connect();
        let mut asking = Asking {
            endpoint: &self.endpoint,
            connection,
            is_over: false,
        };
        let answer = self.ask_on(connection, request).await;
        asking.is_over = true;
        let answer = answer?;
        match &answer {
            Reply::NotAlone => self.endpoint.close(connection),
            _ => self.endpoint.give_back(connection),
        }
        Ok(answer)
    }

    /// Tells the observer that a claim is sent.
    fn claims(&self, queue: Queue) -> Unanswered {
        Unanswered::new(&self.shared, self.process, queue)
    }

    /// Remembers the lease that the store has acknowledged.
    fn acknowledge(&self, id: &RecordId, token: i64, sent_at: Instant, lease: Duration) {
        let mut world = self.shared.world();
        world.acknowledge(self.process, token, sent_at + lease);
        world.claim_is_acknowledged(id, token);
    }
}

impl fmt::Debug for SimStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimStore").finish_non_exhaustive()
    }
}

/// Sends a request, and takes the answer out of the reply of the expected kind.
macro_rules! ask {
    ($store:expr, $request:expr, $reply:path) => {
        match $store.ask($request).await? {
            $reply(answer) => Ok(answer),
            _ => Err(wrong_reply()),
        }
    };
}

#[async_trait]
impl Store for SimStore {
    fn claim_concurrency(&self) -> usize {
        self.claim_concurrency
    }

    async fn claim(&self, claim: &ClaimRequest) -> Result<ClaimOutcome, StoreError> {
        if let Some(cached) = &self.cached {
            return cached.claim(claim).await;
        }
        let _unanswered = self.claims(Queue::Claims);
        let sent_at = Instant::now();
        let single = async { ask!(self, Request::Claim(claim.clone()), Reply::Claim) };
        let outcome = match &self.batches {
            Some(batches) => batches.claim(self, claim, single).await?,
            None => single.await?,
        };
        if let ClaimOutcome::Granted(granted) = &outcome {
            let token = granted.fencing_token.number();
            self.acknowledge(&claim.id, token, sent_at, claim.lease);
        }
        Ok(outcome)
    }

    async fn take_over(
        &self,
        observed: &Observation,
        claim: &ClaimRequest,
    ) -> Result<ClaimOutcome, StoreError> {
        if let Some(cached) = &self.cached {
            return cached.take_over(observed, claim).await;
        }
        let _unanswered = self.claims(Queue::Claims);
        let sent_at = Instant::now();
        let request = Request::TakeOver(*observed, claim.clone());
        let outcome = ask!(self, request, Reply::Claim)?;
        if let ClaimOutcome::Granted(granted) = &outcome {
            let token = granted.fencing_token.number();
            self.acknowledge(&claim.id, token, sent_at, claim.lease);
        }
        Ok(outcome)
    }

    async fn renew(&self, owner: &Owner, lease: Duration) -> Result<FencedWrite, StoreError> {
        let sent_at = Instant::now();
        let fenced = ask!(self, Request::Renew(*owner, lease), Reply::Fenced)?;
        if fenced == FencedWrite::Applied {
            let token = owner.fencing_token.number();
            self.acknowledge(&owner.id, token, sent_at, lease);
        }
        Ok(fenced)
    }

    async fn complete(&self, owner: &Owner, outcome: &Outcome) -> Result<FencedWrite, StoreError> {
        let request = Request::Complete(*owner, outcome.clone());
        let single = async { ask!(self, request, Reply::Fenced) };
        let completed = match &self.batches {
            Some(batches) => batches.complete(self, owner, outcome, single).await?,
            None => single.await?,
        };
        if completed == FencedWrite::Applied {
            let token = owner.fencing_token.number();
            let mut world = self.shared.world();
            world.outcome_is_acknowledged(&owner.id, token);
        }
        Ok(completed)
    }

    async fn release(&self, owner: &Owner) -> Result<FencedWrite, StoreError> {
        ask!(self, Request::Release(*owner), Reply::Fenced)
    }

    async fn interrupt(&self, owner: &Owner) -> Result<FencedWrite, StoreError> {
        ask!(self, Request::Interrupt(*owner), Reply::Fenced)
    }

    async fn resolve(
        &self,
        observed: &Observation,
        resolution: &Resolution,
    ) -> Result<Resolved, StoreError> {
        if let Some(cached) = &self.cached {
            return cached.resolve(observed, resolution).await;
        }
        let request = Request::Resolve(*observed, resolution.clone());
        ask!(self, request, Reply::Resolved)
    }

    async fn get(&self, id: &RecordId) -> Result<Option<Record>, StoreError> {
        if let Some(cached) = &self.cached {
            return cached.get(id).await;
        }
        let record = ask!(self, Request::Get(*id), Reply::Record)?;
        Ok(record.map(|record| *record))
    }

    async fn list(&self, filter: &Filter, page: &PageRequest) -> Result<Page, StoreError> {
        ask!(
            self,
            Request::List(filter.clone(), page.clone()),
            Reply::Page
        )
    }

    async fn now(&self) -> Result<Timestamp, StoreError> {
        let now = ask!(self, Request::Now, Reply::Now)?;
        // Only the purger of a process asks. A relay asks as the store of an outbox.
        self.shared.world().clock_is_read(self.process);
        Ok(now)
    }

    async fn purge(&self, limit: u32, as_of: Timestamp) -> Result<Purged, StoreError> {
        if let Some(cached) = &self.cached {
            return cached.purge(limit, as_of).await;
        }
        let by = self.shared.world().purger_of(self.process);
        ask!(self, Request::Purge(limit, as_of, by), Reply::Purged)
    }

    fn audit(&self) -> Option<&dyn AuditStore> {
        Some(self)
    }

    fn recovery(&self) -> Option<&dyn RecoveryStore> {
        Some(self)
    }

    fn steps(&self) -> Option<&dyn StepStore> {
        Some(self)
    }
}

/// The simulated server keeps no audit: a manual change is a resolution.
#[async_trait]
impl AuditStore for SimStore {
    async fn resolve_manually(
        &self,
        observed: &Observation,
        resolution: &Resolution,
        _: &ManualChange,
    ) -> Result<Resolved, StoreError> {
        self.resolve(observed, resolution).await
    }

    async fn purge_manually(
        &self,
        limit: u32,
        change: &ManualChange,
    ) -> Result<Purged, StoreError> {
        if let Some(cached) = &self.cached {
            return AuditStore::purge_manually(&**cached, limit, change).await;
        }
        let request = Request::Purge(limit, Timestamp::MAX, PurgedBy::Operator);
        ask!(self, request, Reply::Purged)
    }

    async fn audit(&self, _: &AuditFilter, _: &PageRequest) -> Result<AuditPage, StoreError> {
        Err(wrong_reply())
    }
}

#[async_trait]
impl StepStore for SimStore {
    async fn save_step(
        &self,
        owner: &Owner,
        name: &str,
        payload: &Payload,
    ) -> Result<FencedWrite, StoreError> {
        let request = Request::SaveStep(*owner, name.to_owned(), payload.clone());
        ask!(self, request, Reply::Fenced)
    }

    async fn saved_steps(&self, owner: &Owner) -> Result<Option<Vec<SavedStep>>, StoreError> {
        ask!(self, Request::SavedSteps(*owner), Reply::Steps)
    }
}

#[async_trait]
impl RecoveryStore for SimStore {
    async fn save_input(
        &self,
        owner: &Owner,
        input: &Payload,
        lease: Duration,
    ) -> Result<FencedWrite, StoreError> {
        let request = Request::SaveInput(*owner, input.clone(), lease);
        ask!(self, request, Reply::Fenced)
    }

    async fn due(
        &self,
        operation: &Operation,
        limit: u32,
    ) -> Result<Vec<RecoveryInput>, StoreError> {
        ask!(self, Request::Due(operation.clone(), limit), Reply::Due)
    }

    async fn begin_recovery(
        &self,
        input: &RecoveryInput,
        by: Duration,
    ) -> Result<Resolved, StoreError> {
        let request = Request::BeginRecovery(input.clone(), by);
        ask!(self, request, Reply::Resolved)
    }

    async fn postpone(&self, input: &RecoveryInput, by: Duration) -> Result<Resolved, StoreError> {
        ask!(self, Request::Postpone(input.clone(), by), Reply::Resolved)
    }

    async fn forget(&self, input: &RecoveryInput) -> Result<Resolved, StoreError> {
        ask!(self, Request::Forget(input.clone()), Reply::Resolved)
    }
}
