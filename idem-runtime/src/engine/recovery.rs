//! The background task that retries calls whose owner crashed, so that their work ends although no caller tries again.

mod call;
mod search;

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;

use self::call::Handler;
use self::search::RecoverySearch;
use super::{Engine, Idem};
use crate::codec;
use crate::error::{Error, InvalidCall};
use crate::key::Operation;
use crate::store::Store;
use crate::worker::{Handlers, Schedule, Settings, WorkerGuard, jittered};

/// Shortest pause. Without a pause, an input would be due again in every process before its call has claimed its
/// record.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);

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
recovery.stop().await;
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
#[must_use = "nothing is recovered before the recovery is started"]
pub struct Recovery {
    engine: Arc<Engine>,
    handlers: Handlers<(Operation, Handler), InvalidCall>,
    settings: Settings,
}

impl Recovery {
    /// Creates a recovery for the store of this handle.
    pub fn new<S: Store + ?Sized>(idem: &Idem<S>) -> Self {
        Self {
            engine: Arc::clone(idem.engine()),
            handlers: Handlers::new(),
            settings: Settings {
                poll_interval: Duration::from_secs(5),
                concurrency: 8,
                max_attempts: 8,
                first_pause: Duration::from_secs(10),
                longest_pause: Duration::from_secs(600),
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
            Ok(operation) => {
                let name = operation.as_str().to_owned();
                self.handlers
                    .add(name, (operation, handler), InvalidCall::TwoHandlers);
            }
            Err(mistake) => self.handlers.refuse(mistake.into()),
        }
        self
    }

    /// Approximate interval between two searches for calls to recover. Default 5 s. It limits the time between the end
    /// of a record's lease and its recovery.
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.settings.poll_interval = interval;
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

    /// Maximum number of calls that run concurrently. Default 8. A call that hangs occupies its slot, so
    /// set time limits inside its body.
    pub fn concurrency(mut self, calls: usize) -> Self {
        self.settings.concurrency = calls;
        self
    }

    /// Starts the recovery as a background task of this tokio runtime. If the store fails, the recovery logs a warning
    /// event and retries with back-off.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if the store cannot save recovery inputs, if an operation's name is malformed or has two
    /// handlers, if there is no handler, if a pause is shorter than 1 ms, or if the concurrency is zero;
    /// [`Error::NoRuntime`] outside of a tokio runtime.
    pub fn start(self) -> Result<RecoveryGuard, Error> {
        if self.engine.store.recovery().is_none() {
            return Err(InvalidCall::NoRecovery.into());
        }
        let settings = self.settings;
        if settings.first_pause.min(settings.longest_pause) < SHORTEST_PAUSE {
            return Err(InvalidCall::ShortPause.into());
        }
        if settings.concurrency == 0 {
            return Err(InvalidCall::ZeroConcurrency.into());
        }
        let handlers = self.handlers.checked(InvalidCall::NoHandler)?;
        let schedule = Schedule {
            first: jittered(settings.poll_interval),
            interval: settings.poll_interval,
            concurrency: settings.concurrency,
        };
        let worker = WorkerGuard::start(schedule, |stop| {
            let handlers = handlers.into_values().collect();
            RecoverySearch::new(self.engine, handlers, settings, stop)
        });
        Ok(RecoveryGuard { worker: worker? })
    }
}

impl fmt::Debug for Recovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recovery")
            .field("operations", &self.handlers.names().collect::<Vec<_>>())
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// A running [`Recovery`]. Dropping the guard stops the recovery without waiting: the calls that it is making are
/// aborted, as in a crash.
#[derive(Debug)]
#[must_use = "dropping the guard stops the recovery; keep it, or call `detach`"]
pub struct RecoveryGuard {
    worker: WorkerGuard,
}

impl RecoveryGuard {
    /// Begins no more calls, and waits for the running ones.
    ///
    /// # Cancel safety
    /// Dropping the future stops the recovery without waiting, as dropping the guard does.
    pub async fn stop(self) {
        self.worker.stop().await;
    }

    /// Leaves the recovery running for as long as its tokio runtime.
    pub fn detach(self) {
        self.worker.detach();
    }
}
