//! State that the tasks of a relay share.

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::error::DecodeError;
use crate::mutex::lock;
use crate::store::outbox::{Messages, Polling, StoredMessage};
use crate::worker::{self, Stop};

/// Time limit for one statement of the database.
pub(super) const STATEMENT_TIMEOUT: Duration = Duration::from_secs(10);

/// A handler that decodes its payload itself.
pub(super) type Handler = Arc<dyn Fn(StoredMessage) -> HandlerFuture + Send + Sync>;
pub(super) type HandlerFuture = Pin<Box<dyn Future<Output = Result<(), Failure>> + Send>>;

/// Reason for which a message was not handled.
#[derive(Debug)]
pub(super) enum Failure {
    /// The message cannot be decoded by this build, so a retry is useless.
    Unreadable(DecodeError),
    Failed(Box<dyn StdError + Send + Sync>),
}

#[derive(Debug, Clone, Copy)]
pub(super) struct RelaySettings {
    pub(super) worker: worker::Settings,
    pub(super) lease: Duration,
    pub(super) keep_delivered: Option<Duration>,
    pub(super) skip_parked: bool,
    /// Maximum duration of one run of a handler.
    pub(super) handler_timeout: Duration,
}

/// State shared by the tasks of a relay.
pub(super) struct RelayShared {
    pub(super) messages: Arc<dyn Messages>,
    pub(super) polling: Polling,
    pub(super) handlers: BTreeMap<String, Handler>,
    pub(super) settings: RelaySettings,
    pub(super) counters: Arc<Counters>,
    pub(super) shares: Arc<Shares>,
    pub(super) stop: Stop,
}

/// Numbers of deliveries in progress for each topic. A topic has at most three quarters of the relay's concurrency, so
/// that handlers of one topic that hang leave room for the other topics.
#[derive(Debug)]
pub(super) struct Shares {
    limit: usize,
    in_progress: Mutex<BTreeMap<String, usize>>,
}

impl Shares {
    /// Shares of a relay with this number of topics. A single topic gets everything.
    pub(super) fn new(concurrency: usize, topics: usize) -> Self {
        Self {
            limit: match topics {
                0 | 1 => concurrency,
                _ => (concurrency - concurrency.div_ceil(4)).max(1),
            },
            in_progress: Mutex::default(),
        }
    }

    /// Number of deliveries that may begin for this topic.
    pub(super) fn room(&self, topic: &str) -> usize {
        let in_progress = lock(&self.in_progress);
        let used = in_progress.get(topic).copied().unwrap_or(0);
        self.limit.saturating_sub(used)
    }

    /// Counts a delivery until the result is dropped.
    pub(super) fn take(self: &Arc<Self>, topic: &str) -> Share {
        *lock(&self.in_progress).entry(topic.to_owned()).or_default() += 1;
        Share {
            shares: Arc::clone(self),
            topic: topic.to_owned(),
        }
    }
}

/// One delivery in progress.
#[derive(Debug)]
pub(super) struct Share {
    shares: Arc<Shares>,
    topic: String,
}

impl Share {
    /// Ends the delivery. Returns true if its topic had no room until now.
    pub(super) fn give_back(self) -> bool {
        self.shares.room(&self.topic) == 0
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut in_progress = lock(&self.shares.in_progress);
        if let Some(number) = in_progress.get_mut(&self.topic) {
            *number = number.saturating_sub(1);
        }
    }
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
