//! Delivers a claimed message, records the result, and continues with the next one of its ordering key.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;
use tracing::Instrument as _;

use super::poll_loop::with_timeout;
use super::relay::{Counters, Failure, RelayShared};
use crate::error::StoreError;
use crate::record::ClaimId;
use crate::store::outbox::{MessageLease, StoredMessage};

/// A message with the claim under which it is held.
pub(super) struct ClaimedMessage {
    pub(super) message: StoredMessage,
    pub(super) claim_id: ClaimId,
    /// End of the lease, measured from before the claim was sent: no other relay can claim the message earlier.
    pub(super) held_until: Instant,
}

impl ClaimedMessage {
    fn message_lease(&self) -> MessageLease {
        MessageLease {
            id: self.message.id,
            claim_id: self.claim_id,
        }
    }
}

/// Maximum number of messages of one ordering key in a row, before other messages get their turn.
const MAX_RUN_PER_KEY: u32 = 100;
/// Maximum length of a stored error text, in characters.
const MAX_ERROR: usize = 1_000;

/// Handles a message, and then its successors in the order of its ordering key. Querying the next message of one key is
/// cheaper than searching all messages that wait behind others. Returns true if there may be messages that only a new
/// poll finds.
pub(super) async fn deliver_in_order(shared: Arc<RelayShared>, mut claim: ClaimedMessage) -> bool {
    let mut run = 0;
    loop {
        let ordering_key = claim.message.ordering_key.clone();
        let ended = handle(&shared, claim).await;
        let Some(ordering_key) = ordering_key else {
            return false;
        };
        if !ended || *shared.stop.borrow() {
            return false;
        }
        run += 1;
        if run == MAX_RUN_PER_KEY {
            return true;
        }
        let claim_id = ClaimId::random();
        let held_until = Instant::now() + shared.settings.lease;
        let next = shared.messages.claim_next(
            &shared.polling,
            &ordering_key,
            &claim_id,
            shared.settings.lease,
        );
        match with_timeout(next).await {
            Ok(Some(message)) => {
                claim = ClaimedMessage {
                    message,
                    claim_id,
                    held_until,
                };
            }
            Ok(None) => return false,
            Err(_) => return true,
        }
    }
}

/// Handles a message and records the result. Returns true if the next message of its ordering key may follow.
async fn handle(shared: &RelayShared, claim: ClaimedMessage) -> bool {
    let message_lease = claim.message_lease();
    let ClaimedMessage {
        message,
        held_until,
        ..
    } = claim;
    let mut handled = HandledMessage {
        topic: message.topic.clone(),
        number: message.id,
        attempt: message.attempt,
        held_until,
    };
    let settings = &shared.settings;
    if message.attempt > settings.max_attempts {
        let error =
            "it was handed out as often as allowed, and no relay lived to tell how it ended";
        return park(shared, message_lease, &handled, error).await;
    }
    let failure = match run(shared, message_lease, &mut handled, message).await {
        Ok(Ok(())) => return deliver(shared, message_lease, &handled).await,
        Ok(Err(Failure::Unreadable(error))) => {
            return park(shared, message_lease, &handled, &told(&error)).await;
        }
        Ok(Err(Failure::Failed(error))) => told(&*error),
        Err(ended) => match ended.try_into_panic() {
            Ok(panic) => panicked(&*panic),
            // The runtime is stopping.
            Err(_) => return false,
        },
    };
    Counters::add(&shared.counters.failed);
    if handled.attempt >= settings.max_attempts {
        return park(shared, message_lease, &handled, &failure).await;
    }
    let pause = pause(
        settings.first_pause,
        settings.longest_pause,
        handled.attempt,
    );
    tracing::warn!(
        target: "idem",
        topic = handled.topic,
        message = handled.number,
        attempt = handled.attempt,
        pause_ms = pause.as_millis() as u64,
        "handling a message failed, it will be handed out again",
    );
    let transition = || shared.messages.give_back(message_lease, pause, &failure);
    settle(shared, &handled, transition).await;
    // The message blocks its successors until it is delivered or parked.
    false
}

/// State of a message while it is handled.
struct HandledMessage {
    topic: String,
    number: i64,
    attempt: u32,
    /// End of the lease, initially as in its [`ClaimedMessage`], extended by each renewal.
    held_until: Instant,
}

/// Runs the handler as a separate task, so that a handler that blocks its thread does not prevent the renewal of its
/// own lease.
async fn run(
    shared: &RelayShared,
    message_lease: MessageLease,
    handled: &mut HandledMessage,
    message: StoredMessage,
) -> Result<Result<(), Failure>, JoinError> {
    let Some(handler) = shared.handlers.get(&handled.topic) else {
        let error = format!("this relay has no handler for `{}`", handled.topic);
        return Ok(Err(Failure::Failed(error.into())));
    };
    let handler = Arc::clone(handler);
    let span = tracing::info_span!(
        target: "idem",
        "outbox",
        topic = handled.topic,
        message = handled.number,
        attempt = handled.attempt,
    );
    // Dropping the set stops the handler.
    let mut task = JoinSet::new();
    // The handler is called inside the task, because it may panic before it returns a future.
    task.spawn(async move { handler(message).await }.instrument(span));
    let lease = shared.settings.lease;
    let mut held = true;
    loop {
        tokio::select! {
            Some(ended) = task.join_next() => return ended,
            () = tokio::time::sleep(lease / 3), if held => {
                let until = Instant::now() + lease;
                match with_timeout(shared.messages.renew(message_lease, lease)).await {
                    Ok(true) => handled.held_until = until,
                    Ok(false) => held = false,
                    // The next renewal may succeed. If another relay takes over first, renewals fail for good.
                    Err(error) => tracing::warn!(
                        target: "idem",
                        topic = handled.topic,
                        message = handled.number,
                        error = ?error.kind(),
                        "renewing the lease of a message failed, trying again",
                    ),
                }
                if !held {
                    tracing::warn!(
                        target: "idem",
                        topic = handled.topic,
                        message = handled.number,
                        "the lease of a message was lost, another relay may be handling it",
                    );
                }
            }
        }
    }
}

async fn deliver(
    shared: &RelayShared,
    message_lease: MessageLease,
    handled: &HandledMessage,
) -> bool {
    let keep = shared.settings.keep_delivered;
    let delivered = settle(shared, handled, || {
        shared.messages.deliver(message_lease, keep)
    })
    .await;
    if delivered {
        Counters::add(&shared.counters.delivered);
    }
    delivered
}

/// Parks the message. Returns true if later messages of its ordering key may follow.
async fn park(
    shared: &RelayShared,
    message_lease: MessageLease,
    handled: &HandledMessage,
    error: &str,
) -> bool {
    let parked = settle(shared, handled, || {
        shared.messages.park(message_lease, error)
    })
    .await;
    if parked {
        Counters::add(&shared.counters.parked);
        tracing::warn!(
            target: "idem",
            topic = handled.topic,
            message = handled.number,
            attempt = handled.attempt,
            "a message was parked, an operator must requeue or discard it",
        );
    }
    parked && shared.settings.skip_parked
}

/// Runs a transition that ends a claim. Retries if the database fails, for as long as the message may still belong to
/// this relay. False if another relay has the message, or will get it.
async fn settle<F>(
    shared: &RelayShared,
    handled: &HandledMessage,
    transition: impl Fn() -> F,
) -> bool
where
    F: Future<Output = Result<bool, StoreError>>,
{
    let until = Instant::now() + shared.settings.lease;
    let mut tried = 0;
    loop {
        let taken = match with_timeout(transition()).await {
            // An earlier try may have succeeded without an acknowledgement.
            Ok(false) if tried > 0 => was_taken(shared, handled).await,
            taken => taken,
        };
        match taken {
            Ok(true) => return true,
            Err(_) if Instant::now() < until => {
                let longest = Duration::from_millis(20 << tried.min(6_u32));
                tokio::time::sleep(longest.mul_f64(rand::random())).await;
                tried += 1;
            }
            Ok(false) | Err(_) => break,
        }
    }
    Counters::add(&shared.counters.lost);
    tracing::warn!(
        target: "idem",
        topic = handled.topic,
        message = handled.number,
        "how a message ended could not be recorded, so it may be handed out again",
    );
    false
}

/// Finds out who ended the claim: true if this relay did. Another relay that took over has increased the number of
/// attempts, which it could not do while the lease was valid.
async fn was_taken(shared: &RelayShared, handled: &HandledMessage) -> Result<bool, StoreError> {
    Ok(
        match with_timeout(shared.messages.attempt(handled.number)).await? {
            Some(attempt) => attempt == handled.attempt,
            None => Instant::now() < handled.held_until,
        },
    )
}

/// Exponential back-off with full jitter, <https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/>.
fn pause(first: Duration, longest: Duration, attempt: u32) -> Duration {
    let doubled = first.saturating_mul(2_u32.saturating_pow(attempt.saturating_sub(1)));
    doubled.min(longest).mul_f64(rand::random())
}

/// Formats an error with its causes.
fn told(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    storable(&text)
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> String {
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
    fn pauses_grow_up_to_the_longest() {
        let (first, longest) = (Duration::from_secs(1), Duration::from_secs(60));
        for attempt in 1..=1_000 {
            let most = longest.min(first * 2_u32.saturating_pow(attempt.min(10) - 1));
            assert!(pause(first, longest, attempt) <= most, "{attempt}");
        }
        let drawn = (0..200).map(|_| pause(first, longest, 50)).max();
        assert!(drawn > Some(longest / 2), "{drawn:?}");
        assert_eq!(pause(Duration::ZERO, longest, 7), Duration::ZERO);
    }

    #[test]
    fn what_is_kept_of_an_error_is_bounded() {
        let kept = storable(&"ä\0".repeat(2 * MAX_ERROR));
        assert_eq!(kept, "ä".repeat(MAX_ERROR));
    }
}
