//! The background task that retries calls whose owner crashed, so that their work ends although no caller tries again.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::runtime::Handle as Runtime;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use super::timing::{DECADES, bounded};
use super::{Engine, Idem};
use crate::codec;
use crate::error::{DecodeError, Error, InvalidCall, StoreError};
use crate::key::{Operation, RecordId};
use crate::record::{ClaimId, OnCrash, Owner, Payload, Record, State};
use crate::store::{
    ClaimOutcome, ClaimRequest, RecoveryInput, RecoveryStore, Resolution, Resolved, Store,
};

/// Retries calls whose owner crashed, with their recovery inputs ([`Call::recover_with`](crate::Call::recover_with), or
/// `recover_with = EXPR` in `#[idempotent]`). Their work ends although no caller tries again.
///
#[cfg_attr(
    all(feature = "macros", feature = "sqlite"),
    doc = r#"
```
use idem_runtime::{Error, Idem, Recovery, SqliteStore, idempotent};
use serde::{Deserialize, Serialize};

#[derive(Clone, Serialize, Deserialize)]
struct Order { number: u64, article: String }

#[idempotent(key = order.number, ttl = "24h", name = "checkout", store = idem, skip(order), recover_with = order)]
async fn checkout(idem: &Idem<SqliteStore>, order: Order) -> Result<(), Error> {
    // Reserve, charge, ship.
    Ok(())
}

# #[tokio::main(flavor = "current_thread")]
# async fn main() -> Result<(), Box<dyn std::error::Error>> {
# let file = std::env::temp_dir().join(format!("idem-recovery-{}.db", std::process::id()));
let idem = Idem::new(SqliteStore::open(&file).await?);
let recovery = Recovery::new(&idem)
    .on("checkout", {
        let idem = idem.clone();
        move |order: Order| {
            let idem = idem.clone();
            async move { checkout(&idem, order).await }
        }
    })
    .start()?;
checkout(&idem, Order { number: 1, article: "lamp".into() }).await?;
recovery.shutdown().await;
# std::fs::remove_file(file)?;
# Ok(())
# }
```
"#
)]
/// A handler only makes the call again, with the same key and the same request. The call finds the record of the
/// crashed owner, takes it over, and proceeds like any call after a crash. With `rerun` the body runs again, and
/// finished steps return their saved results. With `reconcile` the call first asks what happened. Under `refuse`
/// nothing runs, and the record is marked INTERRUPTED.
///
/// Three kinds of records are recovered: a RUNNING record whose lease has lapsed, a record that a recovery left
/// RELEASED, and under `reconcile` an INTERRUPTED record. A call that ended with a transient error has returned that
/// error to its caller, and retrying it is left to the caller. Failed recoveries are retried with exponential back-off.
/// After the last one the record becomes INTERRUPTED, for an operator to examine.
///
/// Any number of processes may run a recovery for the same store and operation: only one of them begins each recovery.
#[must_use = "nothing is recovered before it is started"]
pub struct Recovery {
    engine: Arc<Engine>,
    handlers: Vec<(Operation, Handler)>,
    /// First error in an operation's name, returned by `start`.
    wrong: Option<InvalidCall>,
    settings: Settings,
}

#[derive(Debug, Clone, Copy)]
struct Settings {
    interval: Duration,
    max_attempts: u32,
    first_pause: Duration,
    longest_pause: Duration,
    concurrency: usize,
}

/// Future of a retried call: true if the call succeeded.
type Recovered = Pin<Box<dyn Future<Output = bool> + Send>>;
type Handler = Arc<dyn Fn(&Payload) -> Result<Recovered, DecodeError> + Send + Sync>;

/// Number of recovery inputs that are read at a time.
const BATCH: usize = 32;

/// Shortest pause. Without a pause, an input would be due again in every process before its call has claimed its
/// record.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);

/// The records whose calls this recovery is making.
type UnderWay = Arc<Mutex<HashSet<RecordId>>>;

impl Recovery {
    /// A recovery for the store of this handle.
    pub fn new<S: Store + ?Sized>(idem: &Idem<S>) -> Self {
        Self {
            engine: Arc::clone(idem.engine()),
            handlers: Vec::new(),
            wrong: None,
            settings: Settings {
                interval: Duration::from_secs(5),
                max_attempts: 8,
                first_pause: Duration::from_secs(10),
                longest_pause: Duration::from_secs(600),
                concurrency: 8,
            },
        }
    }

    /// Sets the handler that retries the calls of this operation. The handler gets the recovery input of the call. An
    /// input that cannot be decoded as `K` counts as a failed recovery.
    pub fn on<K, T, E, F>(
        mut self,
        operation: impl Into<Cow<'static, str>>,
        handler: impl Fn(K) -> F + Send + Sync + 'static,
    ) -> Self
    where
        K: DeserializeOwned,
        F: Future<Output = Result<T, E>> + Send + 'static,
    {
        let handler: Handler = Arc::new(move |payload| {
            let called = handler(codec::decode(payload)?);
            Ok(Box::pin(async move { called.await.is_ok() }))
        });
        match Operation::new(operation.into()) {
            Ok(operation) => self.handlers.push((operation, handler)),
            Err(wrong) => self.wrong = self.wrong.or(Some(wrong)),
        }
        self
    }

    /// Approximate interval between two searches for calls to recover. Default 5 s. It limits the time between the end
    /// of a record's lease and its recovery.
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.settings.interval = interval;
        self
    }

    /// Maximum number of recoveries of a call before its record becomes INTERRUPTED; at least 1. Default 8.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.settings.max_attempts = attempts.max(1);
        self
    }

    /// Pauses after failed recoveries: the first pause, and the longest. Each pause is twice as long as the one before.
    /// Default 10 s and 10 min; at least 1 ms each. Choose more than a claim takes: a call that has not claimed its
    /// record yet is due again after its pause, and other processes cannot see that it is already running.
    pub fn backoff(mut self, first: Duration, longest: Duration) -> Self {
        self.settings.first_pause = first;
        self.settings.longest_pause = longest;
        self
    }

    /// Maximum number of calls that run concurrently, at least 1. Default 8. A call that hangs occupies its slot, so
    /// set time limits inside its body.
    pub fn concurrency(mut self, calls: usize) -> Self {
        self.settings.concurrency = calls.max(1);
        self
    }

    /// Starts a background task that recovers calls for as long as the returned guard lives.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if the store cannot save recovery inputs, if an operation's name is malformed, or if a
    /// pause is shorter than 1 ms; [`Error::NoRuntime`] outside of a tokio runtime.
    pub fn start(self) -> Result<RecoveryGuard, Error> {
        let runtime = Runtime::try_current().map_err(|_| Error::NoRuntime)?;
        if let Some(wrong) = self.wrong {
            return Err(wrong.into());
        }
        if self.engine.store.recovery().is_none() {
            return Err(InvalidCall::NoRecovery.into());
        }
        let Settings {
            first_pause,
            longest_pause,
            ..
        } = self.settings;
        if first_pause.min(longest_pause) < SHORTEST_PAUSE {
            return Err(InvalidCall::ShortPause.into());
        }
        let (stop, stopped) = watch::channel(false);
        let task = runtime.spawn(self.run(stopped));
        Ok(RecoveryGuard {
            stop,
            task: Some(task),
        })
    }

    async fn run(self, mut stopped: watch::Receiver<bool>) {
        // Dropped with the task; dropping it aborts the calls as well.
        let mut calls = JoinSet::new();
        let under_way = UnderWay::default();
        let interval = self.settings.interval.min(DECADES);
        loop {
            // Jittered, so that the processes of a service do not search at the same time.
            let pause = interval.mul_f64(0.5 + 0.5 * rand::random::<f64>());
            let stop = async { stopped.wait_for(|stop| *stop).await.map(drop) };
            match tokio::time::timeout(pause, stop).await {
                Ok(Ok(())) => break,
                // Detached: no guard is left that could stop the task.
                Ok(Err(_)) => tokio::time::sleep(pause).await,
                Err(_) => {}
            }
            for (operation, handler) in &self.handlers {
                let calls = Calls {
                    handler,
                    tasks: &mut calls,
                    under_way: &under_way,
                };
                let polled = self.poll(operation, calls, &stopped).await;
                if let Err(error) = polled {
                    tracing::warn!(
                        target: "idem",
                        operation = operation.as_str(),
                        error = ?error.kind(),
                        "looking for calls to recover failed, trying again at the next interval",
                    );
                }
            }
        }
        while calls.join_next().await.is_some() {}
    }

    /// Handles all due recovery inputs of one operation.
    async fn poll(
        &self,
        operation: &Operation,
        mut calls: Calls<'_>,
        stopped: &watch::Receiver<bool>,
    ) -> Result<(), StoreError> {
        let Some(store) = self.engine.store.recovery() else {
            return Ok(());
        };
        let limit = self.engine.policy.store_timeout;
        while !*stopped.borrow() {
            while calls.tasks.try_join_next().is_some() {}
            while calls.tasks.len() >= self.settings.concurrency {
                calls.tasks.join_next().await;
            }
            // Joining a call may have taken long.
            if *stopped.borrow() {
                break;
            }
            let room = (self.settings.concurrency - calls.tasks.len()).min(BATCH);
            let due = bounded(limit, store.due(operation, room as u32)).await?;
            for input in &due {
                if calls.is_under_way(input) {
                    // The call has not claimed its record yet. That does not count as a failed attempt.
                    let pause = self.settings.first_pause.max(self.settings.interval);
                    bounded(limit, store.postpone(input, pause, false)).await?;
                    continue;
                }
                match self.inspect(store, operation, input).await {
                    Ok(true) => calls.make(operation, input),
                    Ok(false) => {}
                    Err(error) if error.is_retryable() => return Err(error),
                    Err(error) => {
                        tracing::error!(
                            target: "idem",
                            operation = operation.as_str(),
                            record = %input.id,
                            error = ?error.kind(),
                            "a record cannot be recovered as it is, an operator must examine it",
                        );
                        // Postponed, so that this record does not block the ones behind it.
                        let pause = self.settings.longest_pause;
                        bounded(limit, store.postpone(input, pause, false)).await?;
                    }
                }
            }
            if due.len() < room {
                break;
            }
        }
        Ok(())
    }

    /// Decides whether this process should retry the call now.
    async fn inspect(
        &self,
        store: &dyn RecoveryStore,
        operation: &Operation,
        input: &RecoveryInput,
    ) -> Result<bool, StoreError> {
        let limit = self.engine.policy.store_timeout;
        let settings = &self.settings;
        let record = bounded(limit, self.engine.store.get(&input.id)).await?;
        let record = record.filter(|it| it.first_claimed_at == input.first_claimed_at);
        let Some(record) = record.filter(|it| is_open(it, input)) else {
            bounded(limit, store.forget(input)).await?;
            return Ok(false);
        };
        if record.state == State::Running && !record.is_lapsed() {
            let left = record.lease_until.since(record.read_at);
            bounded(limit, store.postpone(input, left, false)).await?;
            return Ok(false);
        }
        if input.recoveries >= settings.max_attempts || record.on_crash == OnCrash::Refuse {
            if record.state == State::Interrupted || self.interrupt(&record).await? {
                bounded(limit, store.forget(input)).await?;
                tracing::error!(
                    target: "idem",
                    operation = operation.as_str(),
                    record = %input.id,
                    recoveries = input.recoveries,
                    "the call could not be recovered and is interrupted, an operator must resolve it",
                );
            } else {
                bounded(limit, store.postpone(input, settings.interval, false)).await?;
            }
            return Ok(false);
        }
        let doublings = 1_u32.checked_shl(input.recoveries).unwrap_or(u32::MAX);
        let pause = settings
            .first_pause
            .saturating_mul(doublings)
            .min(settings.longest_pause);
        // Compare-and-swap: the first process to postpone the input makes the call. If it crashes as well, the next one
        // retries after the pause.
        let ours = bounded(limit, store.postpone(input, pause, true)).await?;
        Ok(ours == Resolved::Done)
    }

    /// Marks a record without an owner as INTERRUPTED. False if the record changed in the meantime.
    async fn interrupt(&self, record: &Record) -> Result<bool, StoreError> {
        let limit = self.engine.policy.store_timeout;
        let store = &self.engine.store;
        if record.state != State::Released {
            let observed = record.observation();
            let resolved = bounded(limit, store.resolve(&observed, &Resolution::Interrupt)).await?;
            return Ok(resolved == Resolved::Done);
        }
        // Only an owner can interrupt a released record, so it is claimed first.
        let claim = ClaimRequest {
            id: record.id,
            identity: record.identity.clone(),
            fingerprint: record.fingerprint,
            claim_id: ClaimId::random(),
            lease: self.engine.policy.lease,
            retention: record.retention,
            on_crash: record.on_crash,
        };
        let ClaimOutcome::Granted(granted) = bounded(limit, store.claim(&claim)).await? else {
            return Ok(false);
        };
        let owner = Owner {
            id: record.id,
            claim_id: claim.claim_id,
            fencing_token: granted.fencing_token,
        };
        bounded(limit, store.interrupt(&owner)).await?;
        Ok(true)
    }
}

/// True if there is still something to recover.
fn is_open(record: &Record, input: &RecoveryInput) -> bool {
    match record.state {
        State::Running => true,
        // Released by a recovery. Without a recovery, the release was reported to the caller.
        State::Released => input.recoveries > 0,
        // `reconcile` can still be asked what happened.
        State::Interrupted => record.on_crash == OnCrash::Reconcile,
        State::Completed | State::Failed | State::Unrecorded => false,
    }
}

/// The calls that a recovery makes with one handler.
struct Calls<'a> {
    handler: &'a Handler,
    tasks: &'a mut JoinSet<()>,
    under_way: &'a UnderWay,
}

impl Calls<'_> {
    fn is_under_way(&self, input: &RecoveryInput) -> bool {
        lock(self.under_way).contains(&input.id)
    }

    fn make(&mut self, operation: &Operation, input: &RecoveryInput) {
        lock(self.under_way).insert(input.id);
        let (operation, handler) = (operation.clone(), Arc::clone(self.handler));
        let under_way = Arc::clone(self.under_way);
        self.tasks
            .spawn(call(operation, handler, input.clone(), under_way));
    }
}

fn lock(under_way: &UnderWay) -> MutexGuard<'_, HashSet<RecordId>> {
    under_way.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Retries a call.
async fn call(operation: Operation, handler: Handler, input: RecoveryInput, under_way: UnderWay) {
    let recovery = input.recoveries + 1;
    tracing::info!(
        target: "idem",
        operation = operation.as_str(),
        record = %input.id,
        recovery,
        "retrying a call whose owner crashed",
    );
    let mut run = RecoveryRun {
        operation,
        input,
        under_way,
        ended_well: false,
    };
    match handler(&run.input.payload) {
        Ok(called) => run.ended_well = called.await,
        Err(error) => tracing::error!(
            target: "idem",
            operation = run.operation.as_str(),
            record = %run.input.id,
            %error,
            "the recovery input of the call does not fit its handler",
        ),
    }
}

/// A retry in progress. When dropped, it reports a failed recovery, also after a panic.
struct RecoveryRun {
    operation: Operation,
    input: RecoveryInput,
    under_way: UnderWay,
    ended_well: bool,
}

impl Drop for RecoveryRun {
    fn drop(&mut self) {
        lock(&self.under_way).remove(&self.input.id);
        if !self.ended_well {
            tracing::warn!(
                target: "idem",
                operation = self.operation.as_str(),
                record = %self.input.id,
                recovery = self.input.recoveries + 1,
                "a recovery did not end well",
            );
        }
    }
}

/// A running [`Recovery`]. Dropping it stops the task and aborts the calls it is making, as in a crash.
#[derive(Debug)]
#[must_use = "recovering stops when this is dropped"]
pub struct RecoveryGuard {
    stop: watch::Sender<bool>,
    task: Option<JoinHandle<()>>,
}

impl RecoveryGuard {
    /// Begins no more calls, and waits for the running ones.
    ///
    /// # Cancel safety
    /// Dropping the future aborts the running calls, as in a crash.
    pub async fn shutdown(mut self) {
        self.stop.send_replace(true);
        if let Some(task) = &mut self.task {
            // The task does not panic, and is not aborted while this waits.
            let _ = task.await;
        }
    }

    /// Leaves the task running until the runtime stops.
    pub fn detach(mut self) {
        self.task = None;
    }
}

impl Drop for RecoveryGuard {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

impl fmt::Debug for Recovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let operations = self.handlers.iter().map(|(operation, _)| operation);
        f.debug_struct("Recovery")
            .field("operations", &operations.collect::<Vec<_>>())
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}
