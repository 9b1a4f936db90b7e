//! Configures, starts and stops a relay.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::runtime::Handle as Runtime;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::message::Message;
use super::{is_name, poll_loop};
use crate::error::{DecodeError, Error, InvalidOutbox};
use crate::store::outbox::{Messages, Polling, StoredMessage};

/// Passes the messages of an outbox to handlers. Created by [`Outbox::relay`](super::Outbox::relay); does nothing until
/// it is [started](Self::start).
///
/// ```no_run
/// # #[derive(serde::Deserialize)] struct OrderPlaced { customer: String }
/// # async fn send_mail(to: &str) -> Result<(), std::io::Error> { Ok(()) }
/// # fn example(outbox: idem_runtime::outbox::Outbox) -> Result<(), idem_runtime::Error> {
/// use idem_runtime::outbox::Message;
///
/// let relay = outbox
///     .relay()
///     .on("order.placed", |message: Message<OrderPlaced>| async move {
///         send_mail(&message.payload.customer).await
///     })
///     .start()?;
/// # Ok(()) }
/// ```
#[must_use = "it relays nothing until it is started"]
pub struct Relay {
    messages: Arc<dyn Messages>,
    handlers: BTreeMap<String, Handler>,
    settings: Settings,
    /// First configuration error, returned by `start`.
    wrong: Option<InvalidOutbox>,
}

/// A handler that decodes its payload itself.
pub(super) type Handler = Arc<dyn Fn(StoredMessage) -> HandlerFuture + Send + Sync>;
pub(super) type HandlerFuture = Pin<Box<dyn Future<Output = Result<(), Failure>> + Send>>;

/// Reason for which a message was not handled.
#[derive(Debug)]
pub(super) enum Failure {
    /// The message cannot be decoded by this build, so a retry is useless.
    Unreadable(DecodeError),
    Failed(Box<dyn std::error::Error + Send + Sync>),
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Settings {
    pub(super) lease: Duration,
    pub(super) concurrency: usize,
    pub(super) max_attempts: u32,
    pub(super) first_pause: Duration,
    pub(super) longest_pause: Duration,
    pub(super) poll_interval: Duration,
    pub(super) keep_delivered: Option<Duration>,
    pub(super) skip_parked: bool,
}

/// Longer than any practical wait, and short enough for the timer.
const DECADES: Duration = Duration::from_secs(60 * 60 * 24 * 365 * 30);
/// Maximum number of topics for which one relay polls: each is part of one statement.
const MAX_TOPICS: usize = 100;

impl Relay {
    pub(super) fn new(messages: Arc<dyn Messages>) -> Self {
        Self {
            messages,
            handlers: BTreeMap::new(),
            settings: Settings {
                lease: Duration::from_secs(30),
                concurrency: 16,
                max_attempts: 10,
                first_pause: Duration::from_secs(1),
                longest_pause: Duration::from_secs(5 * 60),
                poll_interval: Duration::from_millis(500),
                keep_delivered: None,
                skip_parked: false,
            },
            wrong: None,
        }
    }

    /// Sets the handler for the messages of a topic. `Ok` means that the message is handled. After an error or a panic
    /// the message is delivered again. Every error type that `?` can box is accepted, `anyhow::Error` too.
    ///
    /// The handler runs as a separate task. It is cancelled only if the [`RelayGuard`] is dropped or the runtime stops.
    /// If its relay loses the lease, the handler continues, but its result is ignored.
    pub fn on<T, F, Fut, E>(mut self, topic: impl Into<String>, handler: F) -> Self
    where
        T: DeserializeOwned + Send + 'static,
        F: Fn(Message<T>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let topic = topic.into();
        let handler = Arc::new(handler);
        let erased: Handler = Arc::new(move |stored| {
            let handler = Arc::clone(&handler);
            Box::pin(async move {
                let message = Message::read(stored).map_err(Failure::Unreadable)?;
                let handling = handler(message);
                handling
                    .await
                    .map_err(|error| Failure::Failed(error.into()))
            })
        });
        if !is_name(&topic) {
            self.wrong.get_or_insert(InvalidOutbox::Topic);
        } else if self.handlers.insert(topic.clone(), erased).is_some() {
            self.wrong.get_or_insert(InvalidOutbox::TwoHandlers(topic));
        }
        self
    }

    /// Lease duration: how long a message stays claimed without renewal. Default 30 s. The relay renews it at a third
    /// of its length while a handler runs. After a crash the message is delivered again once the lease has lapsed.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.settings.lease = lease.min(DECADES);
        self
    }

    /// Maximum number of messages that this relay handles concurrently. Default 16.
    pub fn concurrency(mut self, messages: usize) -> Self {
        self.settings.concurrency = messages;
        self
    }

    /// Maximum number of deliveries of a message before it is parked; at least 1. Default 10.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.settings.max_attempts = attempts.max(1);
        self
    }

    /// Pauses after failures, drawn at random (full jitter). The upper limit of a pause is `first` after the first
    /// failure, twice that after the second, and so on, up to `longest`. Default 1 s and 5 min. The message is
    /// delivered at the first poll after the pause.
    pub fn backoff(mut self, first: Duration, longest: Duration) -> Self {
        self.settings.first_pause = first.min(DECADES);
        self.settings.longest_pause = longest.min(DECADES);
        self
    }

    /// Interval at which an idle relay polls for messages that other processes enqueued. Default 500 ms. An enqueue in
    /// the relay's own process wakes it.
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.settings.poll_interval = interval.min(DECADES);
        self
    }

    /// Keeps delivered messages for this long, instead of deleting them. Kept messages can be inspected, and prevent
    /// enqueuing the same [key](super::NewMessage::key) again. Any running relay deletes them afterwards, within about
    /// a minute.
    pub fn keep_delivered(mut self, retention: Duration) -> Self {
        self.settings.keep_delivered = Some(retention);
        self
    }

    /// Lets later messages of an ordering key be delivered although an earlier one is parked. Set it equally on all
    /// relays of an outbox.
    pub fn skip_parked(mut self) -> Self {
        self.settings.skip_parked = true;
        self
    }

    /// Starts the relay as a task of this tokio runtime. The relay polls until the guard is dropped or [shut
    /// down](RelayGuard::shutdown). If the database is unreachable, the relay logs a warning event and retries with
    /// back-off.
    ///
    /// # Errors
    /// [`Error::NoRuntime`] outside of a tokio runtime. [`Error::InvalidOutbox`] if a topic is malformed or has two
    /// handlers, if there is no handler or over 100 topics, or if the lease or the concurrency is zero.
    pub fn start(self) -> Result<RelayGuard, Error> {
        if let Some(wrong) = self.wrong {
            return Err(wrong.into());
        }
        let topics: Vec<&str> = self.handlers.keys().map(String::as_str).collect();
        if topics.is_empty() {
            return Err(InvalidOutbox::NoHandler.into());
        }
        if topics.len() > MAX_TOPICS {
            return Err(InvalidOutbox::TooManyTopics.into());
        }
        if self.settings.lease < Duration::from_millis(1) {
            return Err(InvalidOutbox::ZeroLease.into());
        }
        if self.settings.concurrency == 0 {
            return Err(InvalidOutbox::ZeroConcurrency.into());
        }
        let runtime = Runtime::try_current().map_err(|_| Error::NoRuntime)?;
        let shared = Arc::new(RelayShared {
            polling: self.messages.polling(&topics, self.settings.skip_parked),
            messages: self.messages,
            handlers: self.handlers,
            settings: self.settings,
            counters: Counters::default(),
            stop: watch::Sender::new(false),
        });
        Ok(RelayGuard {
            task: runtime.spawn(poll_loop::run(Arc::clone(&shared))),
            shared,
            detached: false,
        })
    }
}

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relay")
            .field("topics", &self.handlers.keys())
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// State shared by the tasks of a relay.
pub(super) struct RelayShared {
    pub(super) messages: Arc<dyn Messages>,
    pub(super) polling: Polling,
    pub(super) handlers: BTreeMap<String, Handler>,
    pub(super) settings: Settings,
    pub(super) counters: Counters,
    pub(super) stop: watch::Sender<bool>,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) delivered: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) parked: AtomicU64,
    pub(super) lost: AtomicU64,
}

impl Counters {
    pub(super) fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// A running relay. Dropping it stops the relay: handlers are cancelled at their next await point, and their messages
/// are delivered again once the lease has lapsed. Use [`shutdown`](Self::shutdown) to finish the running handlers
/// instead.
#[must_use = "the relay stops when this is dropped"]
pub struct RelayGuard {
    task: JoinHandle<()>,
    shared: Arc<RelayShared>,
    detached: bool,
}

impl RelayGuard {
    /// Takes no further message, and waits until all handlers have ended and their results are recorded. This has no
    /// time limit; add one around it if needed.
    ///
    /// # Cancel safety
    /// Dropping the future stops the relay immediately, as if its guard had been dropped.
    pub async fn shutdown(mut self) {
        self.shared.stop.send_replace(true);
        // The task does not panic, and is aborted only if the runtime ends.
        let _ = (&mut self.task).await;
    }

    /// Leaves the relay running until the runtime stops.
    pub fn detach(mut self) {
        self.detached = true;
    }

    /// Counters of this relay so far.
    pub fn stats(&self) -> RelayStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Counters {
            delivered,
            failed,
            parked,
            lost,
        } = &self.shared.counters;
        RelayStats {
            delivered: read(delivered),
            failed: read(failed),
            parked: read(parked),
            lost: read(lost),
        }
    }
}

impl Drop for RelayGuard {
    fn drop(&mut self) {
        if !self.detached {
            self.task.abort();
        }
    }
}

impl fmt::Debug for RelayGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RelayGuard")
            .field("topics", &self.shared.handlers.keys())
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

/// Counters of a relay since it was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct RelayStats {
    /// Messages that were handled successfully.
    pub delivered: u64,
    /// Number of times that a handler returned an error or panicked.
    pub failed: u64,
    /// Messages that were parked.
    pub parked: u64,
    /// Number of messages that another relay had taken over by the time their handler ended, or whose end could not be
    /// recorded.
    pub lost: u64,
}
