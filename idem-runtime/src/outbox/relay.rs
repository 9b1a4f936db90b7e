//! Configures, starts and stops a relay.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::de::DeserializeOwned;

use super::enqueue::is_name;
use super::message::Message;
use super::search::MessageSearch;
use super::shared::{Counters, Failure, Handler, RelaySettings, RelayShared, Shares};
use super::{Messages, Outbox};
use crate::error::{Error, InvalidOutbox};
use crate::timing::DECADES;
use crate::worker::{Handlers, Schedule, Settings, WorkerGuard};

/// Passes the messages of an outbox to handlers.
///
/// ```no_run
/// # #[derive(serde::Deserialize)] struct OrderPlaced { customer: String }
/// # async fn send_mail(to: &str) -> Result<(), std::io::Error> { Ok(()) }
/// # fn example(outbox: idem_runtime::outbox::Outbox) -> Result<(), idem_runtime::Error> {
/// use idem_runtime::outbox::{Message, Relay};
///
/// let relay = Relay::new(&outbox)
///     .on("order.placed", |message: Message<OrderPlaced>| async move {
///         send_mail(&message.payload.customer).await
///     })
///     .start()?;
/// # Ok(()) }
/// ```
#[must_use = "no message is delivered before the relay is started"]
pub struct Relay {
    messages: Arc<dyn Messages>,
    handlers: Handlers<Handler, InvalidOutbox>,
    settings: RelaySettings,
}

/// Maximum number of topics for which one relay polls: each is part of one statement.
const MAX_TOPICS: usize = 100;

impl Relay {
    /// Creates a relay for this outbox.
    pub fn new(outbox: &Outbox) -> Self {
        Self {
            messages: Arc::clone(&outbox.messages),
            handlers: Handlers::new(),
            settings: RelaySettings {
                worker: Settings {
                    poll_interval: Duration::from_millis(500),
                    concurrency: 16,
                    max_attempts: 10,
                    first_pause: Duration::from_secs(1),
                    longest_pause: Duration::from_secs(5 * 60),
                },
                lease: Duration::from_secs(30),
                keep_delivered: None,
                skip_parked: false,
                handler_timeout: Duration::from_secs(5 * 60),
            },
        }
    }

    /// Sets the handler for the messages of a topic. `Ok` means that the message is handled. After an error or a panic
    /// the message is delivered again. Every error type that `?` can box is accepted, `anyhow::Error` too.
    ///
    /// The handler runs as a separate task. It is cancelled only if the [`RelayGuard`] is dropped, the runtime stops, or
    /// it takes longer than [`handler_timeout`](Self::handler_timeout).
    /// If its relay loses the lease, the handler continues, but its result is ignored.
    pub fn on<T, F, Fut, E>(mut self, topic: impl Into<String>, handler: F) -> Self
    where
        T: DeserializeOwned + Send + 'static,
        F: Fn(Message<T>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
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
        let topic = topic.into();
        match is_name(&topic) {
            true => self.handlers.add(topic, erased, InvalidOutbox::TwoHandlers),
            false => self.handlers.refuse(InvalidOutbox::Topic),
        }
        self
    }

    /// Lease duration: how long a message stays claimed without renewal. Default 30 s. The relay renews it at a third
    /// of its length while a handler runs. After a crash the message is delivered again once the lease has lapsed.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.settings.lease = lease.min(DECADES);
        self
    }

    /// Maximum duration of one run of a handler. Default 5 min. After it the handler is cancelled at its current await,
    /// and the message is delivered again as after an error. A handler that blocks its thread cannot be cancelled: it
    /// runs on beside the next delivery.
    pub fn handler_timeout(mut self, limit: Duration) -> Self {
        self.settings.handler_timeout = limit;
        self
    }

    /// Maximum number of messages that this relay handles concurrently. Default 16. If the relay has several topics, each
    /// of them uses at most three quarters of it, so that one topic whose handlers hang does not stop the others.
    pub fn concurrency(mut self, messages: usize) -> Self {
        self.settings.worker.concurrency = messages;
        self
    }

    /// Maximum number of deliveries of a message before it is parked; at least 1. Default 10.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.settings.worker.max_attempts = attempts.max(1);
        self
    }

    /// Pauses after failures, drawn at random (full jitter). The upper limit of a pause is `first` after the first
    /// failure, twice that after the second, and so on, up to `longest`. Default 1 s and 5 min. The message is
    /// delivered at the first poll after the pause.
    pub fn backoff(mut self, first: Duration, longest: Duration) -> Self {
        self.settings.worker.first_pause = first.min(DECADES);
        self.settings.worker.longest_pause = longest.min(DECADES);
        self
    }

    /// Interval at which an idle relay polls for messages that other processes enqueued. Default 500 ms. An enqueue in
    /// the relay's own process wakes it.
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.settings.worker.poll_interval = interval;
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

    /// Starts the relay as a background task of this tokio runtime. If the database is unreachable, or has settings that
    /// the outbox refuses, the relay logs a warning event with the reason and retries with back-off.
    ///
    /// # Errors
    /// [`Error::InvalidOutbox`] if a topic is malformed or has two handlers, if there is no handler or over 100 topics,
    /// or if the lease or the concurrency is zero; [`Error::NoRuntime`] outside of a tokio runtime.
    pub fn start(self) -> Result<RelayGuard, Error> {
        let handlers = self.handlers.checked(InvalidOutbox::NoHandler)?;
        if handlers.len() > MAX_TOPICS {
            return Err(InvalidOutbox::TooManyTopics.into());
        }
        if self.settings.lease < Duration::from_millis(1) {
            return Err(InvalidOutbox::ZeroLease.into());
        }
        let Settings {
            poll_interval,
            concurrency,
            ..
        } = self.settings.worker;
        if concurrency == 0 {
            return Err(InvalidOutbox::ZeroConcurrency.into());
        }
        let schedule = Schedule {
            first: Duration::ZERO,
            interval: poll_interval,
            concurrency,
        };
        let topics: Vec<&str> = handlers.keys().map(String::as_str).collect();
        let polling = self.messages.polling(&topics, self.settings.skip_parked);
        let counters = Arc::new(Counters::default());
        let shares = Arc::new(Shares::new(concurrency, handlers.len()));
        let worker = WorkerGuard::start(schedule, |stop| {
            MessageSearch::new(RelayShared {
                messages: self.messages,
                polling,
                handlers,
                settings: self.settings,
                counters: Arc::clone(&counters),
                shares,
                stop,
            })
        })?;
        Ok(RelayGuard { worker, counters })
    }
}

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relay")
            .field("topics", &self.handlers.names().collect::<Vec<_>>())
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// A running [`Relay`]. Dropping the guard stops the relay without waiting: handlers are cancelled at their next await
/// point, and their messages are delivered again once the lease has lapsed.
#[must_use = "dropping the guard stops the relay; keep it, or call `detach`"]
pub struct RelayGuard {
    worker: WorkerGuard,
    counters: Arc<Counters>,
}

impl RelayGuard {
    /// Takes no further message, and waits until all handlers have ended and their results are recorded. This has no
    /// time limit; add one around it if needed.
    ///
    /// # Cancel safety
    /// Dropping the future stops the relay without waiting, as dropping the guard does.
    pub async fn stop(self) {
        self.worker.stop().await;
    }

    /// Leaves the relay running for as long as its tokio runtime.
    pub fn detach(self) {
        self.worker.detach();
    }

    /// Counters of this relay so far.
    pub fn stats(&self) -> RelayStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Counters {
            delivered,
            failed,
            parked,
            lost,
        } = &*self.counters;
        RelayStats {
            delivered: read(delivered),
            failed: read(failed),
            parked: read(parked),
            lost: read(lost),
        }
    }
}

impl fmt::Debug for RelayGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RelayGuard")
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
