//! The poll loop of a relay: when to search for messages, and how many to take.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::ENQUEUED;
use super::deliver::{ClaimedMessage, deliver_in_order};
use super::relay::RelayShared;
use crate::error::{StoreError, StoreErrorKind};
use crate::record::ClaimId;
use crate::store::outbox::{BATCH, Due};

/// Time limit for one statement of the database.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(10);
/// First pause after an enqueue in this process: about the time until its transaction commits. Later pauses grow.
const SOON: Duration = Duration::from_millis(5);
/// Upper limit of the pauses after failures of the database.
const LONGEST_FAILURE: Duration = Duration::from_secs(30);
/// Interval at which delivered messages are deleted, unless they are kept for less.
const PURGE_EVERY: Duration = Duration::from_secs(60);
const PURGE_BATCH: u32 = 1_000;
/// Number of ordering keys that one poll visits, if too many messages wait behind others.
const KEYS: usize = 64;

pub(super) async fn run(shared: Arc<RelayShared>) {
    let mut stop = shared.stop.subscribe();
    let mut enqueued = ENQUEUED.subscribe();
    let mut work = JoinSet::new();
    let mut seen = Seen::default();
    let poll_interval = shared.settings.poll_interval;
    let mut pause = poll_interval;
    let mut failures = 0;
    // Jittered, so that the relays of a service do not purge at the same time.
    let keep = shared.settings.keep_delivered.unwrap_or(PURGE_EVERY);
    let purge_every = keep.min(PURGE_EVERY).max(SOON);
    let mut purge_at = Instant::now() + purge_every.mul_f64(rand::random());
    while !*stop.borrow() {
        let free = shared.settings.concurrency - work.len();
        let mut claimed = 0;
        let polled = match free {
            0 => Ok(PollResult::Full),
            _ => {
                let take = |claim: ClaimedMessage| {
                    claimed += 1;
                    work.spawn(deliver_in_order(Arc::clone(&shared), claim));
                };
                poll_once(&shared, &mut seen, free, take).await
            }
        };
        let wait = match polled {
            Ok(PollResult::Full) => None,
            Ok(PollResult::Contended) => Some(SOON),
            Ok(PollResult::Exhausted) => {
                failures = 0;
                if Instant::now() >= purge_at {
                    purge_at = Instant::now() + purge_every;
                    purge(&shared).await;
                }
                // Jittered, so that the processes of a service do not poll at the same time.
                let jittered = pause.mul_f64(0.8 + 0.4 * rand::random::<f64>());
                if claimed == 0 {
                    pause = poll_interval.min(pause * 2);
                }
                Some(jittered.min(poll_interval))
            }
            Err(error) => {
                tracing::warn!(
                    target: "idem",
                    error = ?error.kind(),
                    "looking for messages failed, trying again",
                );
                seen.due = Due::default();
                failures += 1;
                let longest = LONGEST_FAILURE.min(SOON * 2_u32.saturating_pow(failures.min(16)));
                Some(longest.mul_f64(0.5 + 0.5 * rand::random::<f64>()))
            }
        };
        let mut again_at = Instant::now() + wait.unwrap_or_default();
        loop {
            tokio::select! {
                biased;
                () = stopped(&mut stop) => break,
                Some(carried) = work.join_next(), if !work.is_empty() => {
                    // If all slots were taken, one is free now. Otherwise only a delivery that reports unfinished work
                    // needs a poll.
                    if wait.is_none() || carried.unwrap_or(true) {
                        break;
                    }
                }
                _ = enqueued.changed(), if wait.is_some() => {
                    pause = SOON.min(poll_interval);
                    if failures == 0 {
                        again_at = again_at.min(Instant::now() + pause);
                    }
                }
                () = tokio::time::sleep_until(again_at), if wait.is_some() => break,
            }
        }
    }
    while work.join_next().await.is_some() {}
}

async fn stopped(stop: &mut watch::Receiver<bool>) {
    // The sender lives as long as the relay.
    let _ = stop.wait_for(|stopped| *stopped).await;
}

enum PollResult {
    /// There may be more messages than could be taken.
    Full,
    /// There are no more messages.
    Exhausted,
    /// Other relays took the messages that were due.
    Contended,
}

/// State of a relay between two polls.
#[derive(Default)]
struct Seen {
    due: Due,
    /// Last ordering key that was visited.
    last_key: String,
}

/// Takes up to `free` messages, and none once the relay is asked to stop.
async fn poll_once(
    shared: &RelayShared,
    seen: &mut Seen,
    mut free: usize,
    mut take: impl FnMut(ClaimedMessage),
) -> Result<PollResult, StoreError> {
    let polling = &shared.polling;
    let stopped = || *shared.stop.borrow();
    loop {
        let due = &mut seen.due;
        if due.topics.is_empty() {
            *due = with_timeout(shared.messages.due(polling)).await?;
            if due.topics.is_empty() && !due.crowded {
                return Ok(PollResult::Exhausted);
            }
        }
        let expected = !due.topics.is_empty();
        // Rotated, so that the last topic is first next time and no topic starves.
        due.topics.rotate_right(usize::from(expected));
        let mut found = false;
        let mut at = 0;
        while at < due.topics.len() && free > 0 {
            if stopped() {
                return Ok(PollResult::Exhausted);
            }
            let limit = free.min(BATCH);
            let claim_id = ClaimId::random();
            let lease = shared.settings.lease;
            let held_until = Instant::now() + lease;
            let claimed = with_timeout(shared.messages.claim(
                polling,
                &due.topics[at],
                &claim_id,
                lease,
                limit,
            ))
            .await?;
            if claimed.len() < limit {
                due.topics.swap_remove(at);
            } else {
                at += 1;
            }
            found |= !claimed.is_empty();
            free -= claimed.len();
            for message in claimed {
                take(ClaimedMessage {
                    message,
                    claim_id,
                    held_until,
                });
            }
        }
        if due.crowded && free > 0 {
            let taken = look_by_key(shared, &mut seen.last_key, free, &mut take).await?;
            found |= taken > 0;
            free -= taken;
        }
        if stopped() {
            return Ok(PollResult::Exhausted);
        }
        if free == 0 {
            return Ok(PollResult::Full);
        }
        if !found {
            seen.due = Due::default();
            return Ok(match expected {
                true => PollResult::Contended,
                // All messages that were seen wait behind others.
                false => PollResult::Exhausted,
            });
        }
    }
}

/// Takes the first message of each ordering key after the last visited key, and returns their number. Visits at most
/// [`KEYS`] keys; the next poll continues after them.
async fn look_by_key(
    shared: &RelayShared,
    last_key: &mut String,
    free: usize,
    mut take: impl FnMut(ClaimedMessage),
) -> Result<usize, StoreError> {
    let (polling, messages) = (&shared.polling, &shared.messages);
    let mut taken = 0;
    let mut wrapped = last_key.is_empty();
    for _ in 0..KEYS {
        if taken == free || *shared.stop.borrow() {
            break;
        }
        let Some(next) = with_timeout(messages.next_key(polling, last_key)).await? else {
            last_key.clear();
            if wrapped {
                break;
            }
            wrapped = true;
            continue;
        };
        *last_key = next.name;
        if !next.is_due || *shared.stop.borrow() {
            continue;
        }
        let claim_id = ClaimId::random();
        let lease = shared.settings.lease;
        let held_until = Instant::now() + lease;
        let claim = messages.claim_next(polling, last_key, &claim_id, lease);
        if let Some(message) = with_timeout(claim).await? {
            take(ClaimedMessage {
                message,
                claim_id,
                held_until,
            });
            taken += 1;
        }
    }
    Ok(taken)
}

async fn purge(shared: &RelayShared) {
    loop {
        match with_timeout(shared.messages.purge(PURGE_BATCH)).await {
            Ok(purged) if purged < u64::from(PURGE_BATCH) => return,
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(
                    target: "idem",
                    error = ?error.kind(),
                    "deleting delivered messages failed, trying again later",
                );
                return;
            }
        }
    }
}

/// Abandons a statement that exceeds the time limit.
pub(super) async fn with_timeout<T>(
    statement: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    match tokio::time::timeout(STATEMENT_TIMEOUT, statement).await {
        Ok(done) => done,
        Err(_) => Err(StoreError::new(
            StoreErrorKind::Timeout,
            format!("the database gave no answer within {STATEMENT_TIMEOUT:?}"),
        )),
    }
}
