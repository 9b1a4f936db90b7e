//! Delivers a claimed message, records the result, and continues with the next one of its ordering key.

use std::any::Any;
use std::error::Error as StdError;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;
use tracing::Instrument as _;

use super::shared::{Counters, Failure, Handler, RelayShared, STATEMENT_TIMEOUT};
use crate::error::StoreError;
use crate::error::causes::with_causes;
use crate::random;
use crate::record::ClaimId;
use crate::store::outbox::{MessageLease, StoredMessage};
use crate::timing::{Retries, bounded, later};
use crate::worker::TaskEnd;

/// Maximum number of messages of one ordering key in a row, before other messages get their turn.
const MAX_RUN_PER_KEY: u32 = 100;
/// Maximum length of a stored error text, in characters.
const MAX_ERROR: usize = 1_000;

/// A claim of messages that is about to be sent.
#[derive(Debug, Clone, Copy)]
pub(super) struct MessageClaim {
    pub(super) id: ClaimId,
    /// End of the lease, measured from before the claim is sent: no other relay can claim the message earlier.
    held_until: Instant,
}

impl MessageClaim {
    pub(super) fn new(lease: Duration) -> Self {
        Self {
            id: ClaimId::random(),
            held_until: Instant::now() + lease,
        }
    }
}

/// Handles a message, and then its successors in the order of its ordering key. Querying the next message of one key is
/// cheaper than searching all messages that wait behind others.
pub(super) fn deliver_in_order(
    shared: Arc<RelayShared>,
    claim: MessageClaim,
    message: StoredMessage,
) -> impl Future<Output = TaskEnd> + Send + 'static {
    // Taken before the first poll, because the search goes on at once.
    let share = shared.shares.take(&message.topic);
    async move {
        let end = deliver_run(&shared, claim, message).await;
        TaskEnd {
            // Messages of a topic that had its whole share were left in the outbox.
            more_is_due: share.give_back() || end.more_is_due,
        }
    }
}

async fn deliver_run(
    shared: &RelayShared,
    mut claim: MessageClaim,
    mut message: StoredMessage,
) -> TaskEnd {
    let mut run = 0;
    loop {
        let ordering_key = message.ordering_key.clone();
        let delivery = Delivery::new(shared, claim, &message);
        let next_may_follow = delivery.handle(message).await;
        let Some(ordering_key) = ordering_key else {
            return TaskEnd { more_is_due: false };
        };
        if !next_may_follow || shared.stop.is_requested() {
            return TaskEnd { more_is_due: false };
        }
        run += 1;
        if run == MAX_RUN_PER_KEY {
            return TaskEnd { more_is_due: true };
        }
        let lease = shared.settings.lease;
        claim = MessageClaim::new(lease);
        let next = shared
            .messages
            .claim_next(&shared.polling, &ordering_key, &claim.id, lease);
        message = match bounded(STATEMENT_TIMEOUT, next).await {
            Ok(Some(next)) => next,
            Ok(None) => return TaskEnd { more_is_due: false },
            Err(_) => return TaskEnd { more_is_due: true },
        };
    }
}

/// The delivery of one message.
struct Delivery<'a> {
    shared: &'a RelayShared,
    claim: MessageLease,
    topic: String,
    attempt: u32,
    /// End of the lease, extended by each renewal.
    held_until: Instant,
}

/// Result of running the handler.
enum Handled {
    Done,
    Failed(String),
    /// The handler took longer than this limit.
    TimedOut(Duration),
    /// The message cannot be decoded, so a retry is useless.
    Unreadable(String),
    /// The runtime is stopping.
    Cancelled,
}

impl<'a> Delivery<'a> {
    fn new(shared: &'a RelayShared, claim: MessageClaim, message: &StoredMessage) -> Self {
        Self {
            shared,
            claim: MessageLease {
                id: message.id,
                claim_id: claim.id,
            },
            topic: message.topic.clone(),
            attempt: message.attempt,
            held_until: claim.held_until,
        }
    }

    /// Handles the message and records the result. Returns true if the next message of its ordering key may follow.
    async fn handle(mut self, message: StoredMessage) -> bool {
        let max_attempts = self.shared.settings.worker.max_attempts;
        if self.attempt > max_attempts {
            let error =
                "it was handed out as often as allowed, and no relay lived to tell how it ended";
            return self.park(error).await;
        }
        match self.run_handler(message).await {
            Handled::Done => self.deliver().await,
            Handled::Unreadable(error) => self.park(&error).await,
            Handled::Cancelled => false,
            Handled::Failed(error) => self.fail(&error).await,
            Handled::TimedOut(limit) => {
                self.fail(&format!("the handler took longer than {limit:?}"))
                    .await
            }
        }
    }

    /// Hands the message out again later, or parks it after the last attempt. Returns true if the next message of its
    /// ordering key may follow.
    async fn fail(&self, error: &str) -> bool {
        Counters::add(&self.shared.counters.failed);
        if self.attempt >= self.shared.settings.worker.max_attempts {
            return self.park(error).await;
        }
        self.give_back(error).await;
        // The message blocks its successors until it is delivered or parked.
        false
    }

    /// Runs the handler as a separate task, so that a handler that blocks its thread does not prevent the renewal of its
    /// own lease.
    async fn run_handler(&mut self, message: StoredMessage) -> Handled {
        let Some(handler) = self.shared.handlers.get(&self.topic) else {
            return Handled::Failed(format!("this relay has no handler for `{}`", self.topic));
        };
        let handler = Handler::clone(handler);
        let span = tracing::info_span!(
            target: "idem",
            "outbox",
            otel.kind = "consumer",
            messaging.system = "idem",
            messaging.operation.name = "deliver",
            "messaging.operation.type" = "process",
            messaging.destination.name = self.topic,
            messaging.message.id = self.claim.id,
            idem.attempt = self.attempt,
            "error.type" = tracing::field::Empty,
        );
        // Dropping the set stops the handler.
        let mut task = JoinSet::new();
        // The handler is called inside the task, because it may panic before it returns a future.
        task.spawn(async move { handler(message).await }.instrument(span.clone()));
        let mut is_held = true;
        let limit = self.shared.settings.handler_timeout;
        let over_at = later(Instant::now(), limit);
        loop {
            tokio::select! {
                // A handler that has ended needs no renewal.
                biased;
                Some(ended) = task.join_next() => {
                    let handled = Handled::of(ended);
                    if let Some(error) = handled.error_type() {
                        span.record("error.type", error);
                    }
                    return handled;
                }
                () = tokio::time::sleep_until(over_at) => {
                    // Dropping the set stops the handler at its next await.
                    let handled = Handled::TimedOut(limit);
                    if let Some(error) = handled.error_type() {
                        span.record("error.type", error);
                    }
                    return handled;
                }
                () = tokio::time::sleep(self.shared.settings.lease / 3), if is_held => {
                    is_held = self.renew().await;
                }
            }
        }
    }

    /// Renews the lease. Returns false if it is lost.
    async fn renew(&mut self) -> bool {
        let lease = self.shared.settings.lease;
        let until = Instant::now() + lease;
        let renewal = self.shared.messages.renew(self.claim, lease);
        match bounded(STATEMENT_TIMEOUT, renewal).await {
            Ok(true) => self.held_until = until,
            Ok(false) => {
                tracing::warn!(
                    target: "idem",
                    topic = self.topic,
                    message_id = self.claim.id,
                    "the lease of a message was lost, another relay may be handling it",
                );
                return false;
            }
            // The next renewal may succeed. If another relay takes over first, renewals fail for good.
            Err(error) => tracing::warn!(
                target: "idem",
                topic = self.topic,
                message_id = self.claim.id,
                error = ?error.kind(),
                "renewing the lease of a message failed, trying again",
            ),
        }
        true
    }

    /// Marks the message as delivered. Returns true if the next message of its ordering key may follow.
    async fn deliver(&self) -> bool {
        let keep = self.shared.settings.keep_delivered;
        let delivered = self.settle(|| self.shared.messages.deliver(self.claim, keep));
        let is_delivered = delivered.await;
        if is_delivered {
            Counters::add(&self.shared.counters.delivered);
        }
        is_delivered
    }

    /// Returns the message to the queue, for another delivery after a pause.
    async fn give_back(&self, error: &str) {
        let longest = self.shared.settings.worker.pause_after(self.attempt);
        // Full jitter, <https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/>.
        let pause = longest.mul_f64(random::fraction());
        tracing::warn!(
            target: "idem",
            topic = self.topic,
            message_id = self.claim.id,
            attempt = self.attempt,
            pause_ms = pause.as_millis() as u64,
            "handling a message failed, it will be handed out again",
        );
        self.settle(|| self.shared.messages.give_back(self.claim, pause, error))
            .await;
    }

    /// Parks the message. Returns true if the next message of its ordering key may follow.
    async fn park(&self, error: &str) -> bool {
        let parked = self.settle(|| self.shared.messages.park(self.claim, error));
        let is_parked = parked.await;
        if is_parked {
            Counters::add(&self.shared.counters.parked);
            tracing::warn!(
                target: "idem",
                topic = self.topic,
                message_id = self.claim.id,
                attempt = self.attempt,
                "a message was parked, an operator must requeue or discard it",
            );
        }
        is_parked && self.shared.settings.skip_parked
    }

    /// Runs a transition that ends the claim. Retries if the database fails, for as long as the message may still
    /// belong to this relay. Returns false if another relay has the message, or will get it.
    async fn settle<'t>(
        &self,
        transition: impl Fn() -> Pin<Box<dyn Future<Output = Result<bool, StoreError>> + Send + 't>>,
    ) -> bool {
        let mut retries = Retries::within(self.shared.settings.lease);
        let mut was_tried = false;
        let is_settled = loop {
            let settled = match bounded(STATEMENT_TIMEOUT, transition()).await {
                // An earlier try may have succeeded without an acknowledgement.
                Ok(false) if was_tried => self.was_settled().await,
                settled => settled,
            };
            match settled {
                Ok(is_settled) => break is_settled,
                Err(error) => match retries.pause_after_any(error).await {
                    Ok(()) => was_tried = true,
                    Err(_) => break false,
                },
            }
        };
        if !is_settled {
            Counters::add(&self.shared.counters.lost);
            tracing::warn!(
                target: "idem",
                topic = self.topic,
                message_id = self.claim.id,
                "how a message ended could not be recorded, so it may be handed out again",
            );
        }
        is_settled
    }

    /// Finds out who ended the claim: true if this relay did. Another relay that took over has increased the number of
    /// attempts, which it could not do while the lease was valid.
    async fn was_settled(&self) -> Result<bool, StoreError> {
        let attempt = self.shared.messages.attempt(self.claim.id);
        Ok(match bounded(STATEMENT_TIMEOUT, attempt).await? {
            Some(attempt) => attempt == self.attempt,
            None => Instant::now() < self.held_until,
        })
    }
}

impl Handled {
    fn of(ended: Result<Result<(), Failure>, JoinError>) -> Self {
        match ended {
            Ok(Ok(())) => Self::Done,
            Ok(Err(Failure::Unreadable(error))) => Self::Unreadable(causes(&error)),
            Ok(Err(Failure::Failed(error))) => Self::Failed(causes(&*error)),
            Err(ended) => match ended.try_into_panic() {
                Ok(panic) => Self::Failed(panic_text(&*panic)),
                Err(_) => Self::Cancelled,
            },
        }
    }
}

impl Handled {
    /// The kind of failure, in a span.
    fn error_type(&self) -> Option<&'static str> {
        match self {
            Self::Done => None,
            Self::Failed(_) => Some("failed"),
            Self::TimedOut(_) => Some("timeout"),
            Self::Unreadable(_) => Some("unreadable"),
            Self::Cancelled => Some("cancelled"),
        }
    }
}

/// Formats an error with its causes, in the length that is stored.
fn causes(error: &(dyn StdError + 'static)) -> String {
    storable(&with_causes(error))
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let message = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    storable(&format!(
        "the handler panicked: {}",
        message.unwrap_or("without a message")
    ))
}

/// Truncates the text to the stored length, and removes NUL, which PostgreSQL does not accept.
fn storable(text: &str) -> String {
    text.chars()
        .filter(|it| *it != '\0')
        .take(MAX_ERROR)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_of_an_error_is_bounded() {
        let kept = storable(&"ä\0".repeat(2 * MAX_ERROR));
        assert_eq!(kept, "ä".repeat(MAX_ERROR));
    }
}
