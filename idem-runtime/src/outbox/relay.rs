//! How a relay is set up, started and stopped.

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

/// What hands the messages of an outbox to handlers. Made by [`Outbox::relay`](super::Outbox::relay); does nothing
/// until it is [started](Self::start).
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
    /// What is told when it is started.
    wrong: Option<InvalidOutbox>,
}

/// A handler that knows how to read its payload.
pub(super) type Handler = Arc<dyn Fn(StoredMessage) -> HandlerFuture + Send + Sync>;
pub(super) type HandlerFuture = Pin<Box<dyn Future<Output = Result<(), Failure>> + Send>>;

/// Why a message was not handled.
#[derive(Debug)]
pub(super) enum Failure {
    /// It never will be, by this build.
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

/// Long enough for any wait, and short enough for the timer.
const DECADES: Duration = Duration::from_secs(60 * 60 * 24 * 365 * 30);
/// How many topics one relay polls for: each is a part of one statement.
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

    /// Hands the messages of a topic to this handler. `Ok` means that the message is done with. An error (anything that
    /// `?` turns into a boxed error, `anyhow::Error` too) or a panic means that it is to be handed out again.
    ///
    /// The handler runs as a task of its own. It is never cancelled, except where the [`RelayGuard`] is dropped or the
    /// runtime stops. Where its relay lost the lease it goes on, and what it returns counts for nothing.
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

    /// How long a relay is believed that says nothing; 30 s where nothing is said. It says something each third of it
    /// while a handler runs. After a crash the message is handed out again that much later.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.settings.lease = lease.min(DECADES);
        self
    }

    /// How many messages this relay handles at once; 16 where nothing is said.
    pub fn concurrency(mut self, messages: usize) -> Self {
        self.settings.concurrency = messages;
        self
    }

    /// How often a message is handed out before it is parked; 10 where nothing is said, at least once.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.settings.max_attempts = attempts.max(1);
        self
    }

    /// How long a message that failed waits: at random up to `first`, twice that after the second failure, and so on,
    /// up to `longest`. 1 s and 5 min where nothing is said. It is handed out when a relay looks for messages after
    /// that.
    pub fn backoff(mut self, first: Duration, longest: Duration) -> Self {
        self.settings.first_pause = first.min(DECADES);
        self.settings.longest_pause = longest.min(DECADES);
        self
    }

    /// How often an idle relay looks for messages that other processes enqueued; 500 ms where nothing is said. Those of
    /// its own process it looks for at once.
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.settings.poll_interval = interval.min(DECADES);
        self
    }

    /// Keeps delivered messages for so long, instead of deleting them: to be looked at, and so that the same
    /// [key](super::NewMessage::key) is not enqueued again. They are deleted by whichever relay runs then, within
    /// a minute or so.
    pub fn keep_delivered(mut self, retention: Duration) -> Self {
        self.settings.keep_delivered = Some(retention);
        self
    }

    /// Lets later messages of an ordering key go on without one that was parked. All relays of an outbox should agree.
    pub fn skip_parked(mut self) -> Self {
        self.settings.skip_parked = true;
        self
    }

    /// Starts the relay as a task of this tokio runtime. It polls until the guard is dropped or
    /// [shut down](RelayGuard::shutdown). A database that is out of reach is a warning event, and tried again with
    /// growing pauses.
    ///
    /// # Errors
    /// [`Error::NoRuntime`] outside of a tokio runtime, and [`Error::InvalidOutbox`] where a topic is malformed or has
    /// two handlers, none or over 100 have one, or the lease or the concurrency is zero.
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
        let shared = Arc::new(Shared {
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

/// What the tasks of a relay share.
pub(super) struct Shared {
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

/// A relay that runs. It stops when this is dropped: handlers are cancelled where they wait, and their messages are
/// handed out again once the lease is over. [`shutdown`](Self::shutdown) finishes what was begun instead.
#[must_use = "the relay stops when this is dropped"]
pub struct RelayGuard {
    task: JoinHandle<()>,
    shared: Arc<Shared>,
    detached: bool,
}

impl RelayGuard {
    /// Takes no further message, and waits until all handlers have ended and that is recorded. There is no limit on it;
    /// put one around it.
    ///
    /// # Cancel safety
    /// Dropped, the relay stops at once, as if its guard had been dropped.
    pub async fn shutdown(mut self) {
        self.shared.stop.send_replace(true);
        // The task neither panics nor is aborted but by the runtime's end.
        let _ = (&mut self.task).await;
    }

    /// Leaves the relay running until the runtime stops.
    pub fn detach(mut self) {
        self.detached = true;
    }

    /// What this relay has done so far.
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

/// What a relay has done since it was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct RelayStats {
    /// Messages that were handled, and are done with.
    pub delivered: u64,
    /// How often a handler returned an error or panicked.
    pub failed: u64,
    /// Messages that were parked.
    pub parked: u64,
    /// How often a message was somebody else's by the time its handler ended, or its end could not be recorded.
    pub lost: u64,
}
