//! State that the tasks of a relay share.

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::error::DecodeError;
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
}

/// State shared by the tasks of a relay.
pub(super) struct RelayShared {
    pub(super) messages: Arc<dyn Messages>,
    pub(super) polling: Polling,
    pub(super) handlers: BTreeMap<String, Handler>,
    pub(super) settings: RelaySettings,
    pub(super) counters: Arc<Counters>,
    pub(super) stop: Stop,
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
