//! The task that makes calls again whose owner died, so that their work ends although no caller tries again.

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

/// Makes calls again whose owner died, with their recovery inputs ([`Call::recover_with`](crate::Call::recover_with),
/// or `recover_with = EXPR` in `#[idempotent]`): their work ends although no caller tries again.
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
/// A handler just makes the call again, with the same key and the same request. The call finds the record of the owner
/// that died, takes it over, and goes on as any call after a crash: with `rerun` the body runs again, and finished steps
/// are given back; with `reconcile` it is asked what happened first. Under `refuse` nothing is run, and the record is
/// marked INTERRUPTED.
///
/// What is recovered: a record that is RUNNING with a lease that is over, one that a recovery left RELEASED, and under
/// `reconcile` one that is INTERRUPTED. A call that ended with a transient error has told its caller so, and is left to
/// the caller. Failed recoveries are repeated after growing pauses, and after the last one the record is INTERRUPTED,
/// for a person to look at.
///
/// Any number of processes may run one for the same store and operation: each recovery is begun by one of them.
#[must_use = "nothing is recovered before it is started"]
pub struct Recovery {
    engine: Arc<Engine>,
    handlers: Vec<(Operation, Handler)>,
    /// What was wrong with an operation's name, told at the start.
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

/// Whether a call that was made again has ended well.
type Recovered = Pin<Box<dyn Future<Output = bool> + Send>>;
type Handler = Arc<dyn Fn(&Payload) -> Result<Recovered, DecodeError> + Send + Sync>;

/// How many values are read at a time.
const BATCH: usize = 32;

/// Shortest pause. Without a pause a value is due again, in every process, before its call has claimed its record.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);

/// The records whose calls this recovery is making.
type UnderWay = Arc<Mutex<HashSet<RecordId>>>;

impl Recovery {
    /// One for the store of this handle.
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

    /// Makes the calls of this operation again by this handler, which gets the recovery input of the call. An input
    /// that does not fit `K` counts as a recovery that failed.
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

    /// How often to look, about. Default 5 s. A record is recovered at most that much later than its lease ends.
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.settings.interval = interval;
        self
    }

    /// How often a call is made again before the record is INTERRUPTED; at least 1. Default 8.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.settings.max_attempts = attempts.max(1);
        self
    }

    /// How long to wait after the first recovery that failed, and at most after a later one; each pause is twice as long
    /// as the one before. Default 10 s and 10 min, at least 1 ms each. Choose more than a claim takes: a call that has not
    /// claimed its record yet is due again after its pause, and other processes do not see that it is under way.
    pub fn backoff(mut self, first: Duration, longest: Duration) -> Self {
        self.settings.first_pause = first;
        self.settings.longest_pause = longest;
        self
    }

    /// How many calls to make at once, at least 1. Default 8. A call that hangs keeps its place: bound what its body waits
    /// for.
    pub fn concurrency(mut self, calls: usize) -> Self {
        self.settings.concurrency = calls.max(1);
        self
    }

    /// Starts a task that recovers for as long as the returned guard lives.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] where the store cannot save recovery inputs, an operation's name is malformed, or a
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
        // Dropped with the task, which ends the calls as well.
        let mut calls = JoinSet::new();
        let under_way = UnderWay::default();
        let interval = self.settings.interval.min(DECADES);
        loop {
            // Jittered, so that the processes of a service do not look in step.
            let pause = interval.mul_f64(0.5 + 0.5 * rand::random::<f64>());
            let stop = async { stopped.wait_for(|stop| *stop).await.map(drop) };
            match tokio::time::timeout(pause, stop).await {
                Ok(Ok(())) => break,
                // Detached: nobody will ever stop it.
                Ok(Err(_)) => tokio::time::sleep(pause).await,
                Err(_) => {}
            }
            for (operation, handler) in &self.handlers {
                let calls = Calls {
                    handler,
                    tasks: &mut calls,
                    under_way: &under_way,
                };
                let looked = self.look(operation, calls, &stopped).await;
                if let Err(error) = looked {
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

    /// Goes over all that is due of one operation.
    async fn look(
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
            // That may have taken long.
            if *stopped.borrow() {
                break;
            }
            let room = (self.settings.concurrency - calls.tasks.len()).min(BATCH);
            let due = bounded(limit, store.due(operation, room as u32)).await?;
            for input in &due {
                if calls.is_under_way(input) {
                    // The call has not claimed its record yet. That is no failed attempt.
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
                            "a record cannot be recovered as it is, somebody has to look at it",
                        );
                        // It must not stand in the way of those behind it.
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

    /// Whether this call is to be made again, by us.
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
                    "the call could not be recovered and is interrupted, somebody has to look at it",
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
        // Whoever gets this far first makes the call; should it die as well, the next one makes it after the pause.
        let ours = bounded(limit, store.postpone(input, pause, true)).await?;
        Ok(ours == Resolved::Done)
    }

    /// Marks a record INTERRUPTED that nobody owns. False where it changed in the meantime.
    async fn interrupt(&self, record: &Record) -> Result<bool, StoreError> {
        let limit = self.engine.policy.store_timeout;
        let store = &self.engine.store;
        if record.state != State::Released {
            let observed = record.observation();
            let resolved = bounded(limit, store.resolve(&observed, &Resolution::Interrupt)).await?;
            return Ok(resolved == Resolved::Done);
        }
        // Only its owner can interrupt a record that is free, so it gets one.
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

/// Whether there is still something to recover.
fn is_open(record: &Record, input: &RecoveryInput) -> bool {
    match record.state {
        State::Running => true,
        // A recovery left it so; else its caller was told.
        State::Released => input.recoveries > 0,
        // It can still be asked what happened.
        State::Interrupted => record.on_crash == OnCrash::Reconcile,
        State::Completed | State::Failed | State::Unrecorded => false,
    }
}

/// The calls that a recovery makes, all of one handler here.
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

/// Makes a call again.
async fn call(operation: Operation, handler: Handler, input: RecoveryInput, under_way: UnderWay) {
    let recovery = input.recoveries + 1;
    tracing::info!(
        target: "idem",
        operation = operation.as_str(),
        record = %input.id,
        recovery,
        "making a call again whose owner died",
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

/// Tells of a recovery that failed, by a panic as well.
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

/// A running [`Recovery`]. It stops when this is dropped, and the calls that it is making stop with it, as after a crash.
#[derive(Debug)]
#[must_use = "recovering stops when this is dropped"]
pub struct RecoveryGuard {
    stop: watch::Sender<bool>,
    task: Option<JoinHandle<()>>,
}

impl RecoveryGuard {
    /// Begins no more calls, and waits for those that are under way.
    ///
    /// # Cancel safety
    /// Dropping the future stops the calls that are under way, as after a crash.
    pub async fn shutdown(mut self) {
        self.stop.send_replace(true);
        if let Some(task) = &mut self.task {
            // It neither panics nor is it aborted while this waits.
            let _ = task.await;
        }
    }

    /// Leaves it running until the runtime stops.
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
