//! Callers that drop their calls after a time or a number of polls, and the results of calls that were not dropped.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::Mutex;
use std::task::Poll;
use std::time::{Duration, Instant};

use idem_runtime::Error;
use idem_runtime::error::StoreErrorKind;
use rand::RngExt;

use super::calls::{Book, ChargeError, Dropped};
use super::reports::{lock, noting_unrecorded};
use crate::worker::wall_clock;

/// Threshold of a slow answer. Slower answers are counted.
pub(super) const PROMPT: Duration = Duration::from_millis(100);

/// Largest number of round trips of a call. Each may be as late as the latest operation without contention.
const ROUND_TRIPS: u32 = 8;

/// Time at which a caller drops its call.
#[derive(Debug, Clone, Copy)]
pub(super) enum DropTime {
    Never,
    After(Duration),
    /// After this number of polls.
    Polled(u32),
}

impl DropTime {
    /// A random time. Most calls are dropped, at moments that hit each part of a call.
    pub(super) fn at_random() -> Self {
        let mut rng = rand::rng();
        match rng.random_range(0..10) {
            0..4 => Self::Never,
            4..6 => Self::After(Duration::from_micros(rng.random_range(0..2_000))),
            6..8 => Self::After(Duration::from_micros(rng.random_range(0..15_000))),
            _ => Self::Polled(rng.random_range(1..10)),
        }
    }
}

/// Runs a future until it is ready or its caller drops it. Returns the number of polls as well.
pub(super) async fn until_dropped<F: Future>(
    drop_time: DropTime,
    future: F,
) -> (Option<F::Output>, u32) {
    let mut future = Box::pin(future);
    let mut polls = 0;
    let over = match drop_time {
        DropTime::After(time) => time,
        _ => Duration::MAX,
    };
    let polled = std::future::poll_fn(|cx| {
        polls += 1;
        match (future.as_mut().poll(cx), drop_time) {
            (Poll::Ready(output), _) => Poll::Ready(Some(output)),
            (Poll::Pending, DropTime::Polled(most)) if polls >= most => Poll::Ready(None),
            (Poll::Pending, _) => Poll::Pending,
        }
    });
    let output = tokio::time::timeout(over, polled).await.ok().flatten();
    (output, polls)
}

/// Lateness of this process and its database for operations without contention. An answer is slow only if it is later
/// than that.
#[derive(Debug, Default)]
pub(super) struct Pace(Mutex<VecDeque<(Instant, Duration)>>);

impl Pace {
    /// Measures an operation that should be quick, repeatedly.
    pub(super) async fn measure<F>(&self, mut beat: impl FnMut() -> F)
    where
        F: Future<Output = ()>,
    {
        const REMEMBERED: usize = 200;
        let pause = Duration::from_millis(20);
        loop {
            let began = Instant::now();
            tokio::time::sleep(pause).await;
            beat().await;
            let mut beats = lock(&self.0);
            beats.push_back((Instant::now(), began.elapsed().saturating_sub(pause)));
            if beats.len() > REMEMBERED {
                beats.pop_front();
            }
        }
    }

    fn worst_since(&self, began: Instant) -> Duration {
        let beats = lock(&self.0);
        let since = beats.iter().filter(|(ended, _)| *ended >= began);
        let worst = since.map(|(_, lateness)| *lateness).max();
        // An operation that has started and not returned is as late as the call.
        let silent = beats.back().map_or(Duration::ZERO, |(at, _)| at.elapsed());
        worst.unwrap_or_default().max(silent)
    }
}

/// One call of a worker.
pub(super) struct Attempted<'a> {
    pub(super) book: &'a Book,
    pub(super) pace: &'a Pace,
    pub(super) mode: &'static str,
    pub(super) key: &'a str,
    /// True if no other session locks its key.
    pub(super) is_unrelated: bool,
    /// True if unrelated calls need not wait for each other. Writers of a SQLite file always wait.
    pub(super) is_bounded: bool,
    /// True if `Ok` means that the transaction is committed.
    pub(super) acknowledges: bool,
}

impl Attempted<'_> {
    /// Makes the call, and reports its result. Returns `None` if its caller dropped it.
    pub(super) async fn make(
        &self,
        call: impl Future<Output = Result<String, ChargeError>>,
    ) -> Option<Result<String, ChargeError>> {
        let Self {
            book, mode, key, ..
        } = self;
        let (begun_at, began) = (wall_clock(), Instant::now());
        let dropped = until_dropped(DropTime::at_random(), call);
        let ((answer, polls), unrecorded) = noting_unrecorded(dropped).await;
        let took = began.elapsed();
        let kind = match &answer {
            None => "dropped",
            Some(Ok(_)) if unrecorded => "unrecorded",
            Some(Ok(_)) => "ok",
            Some(Err(ChargeError::Failed)) => "failed",
            Some(Err(ChargeError::Idempotency(Error::InFlight { .. }))) => "in-flight",
            Some(Err(ChargeError::Idempotency(Error::Interrupted))) => "interrupted",
            // The outcome of a brief call can expire, and be purged, before the answer to its completion was received.
            Some(Err(ChargeError::Idempotency(Error::LeaseLost))) if *mode == "brief" => "expired",
            // The database may end a caller's transaction, as after a deadlock. The caller then runs it again.
            Some(Err(ChargeError::Idempotency(Error::Store(error))))
                if *mode == "joined" && error.kind() == StoreErrorKind::Conflict =>
            {
                "undone"
            }
            Some(Err(_)) => "error",
        };
        book.voice.say(&format!("call {mode} {kind} {polls}"));
        match &answer {
            None => book.dropped(Dropped {
                mode,
                key: (*key).to_owned(),
                begun_at,
            }),
            Some(Ok(receipt)) if kind == "ok" && self.acknowledges => {
                book.voice.say(&format!("answer {mode} {key} {receipt}"));
            }
            Some(Err(error)) if kind == "error" && self.is_unrelated => {
                // Where calls wait for each other, many of them on a busy machine may take longer than the store's limit.
                let waited = !self.is_bounded && is_timeout(error);
                self.suspect(if waited { "late" } else { "failed" }, begun_at, error);
            }
            Some(Ok(_)) if kind == "unrecorded" && self.is_unrelated => {
                let waited = !self.is_bounded && took > PROMPT;
                self.suspect(if waited { "late" } else { "unrecorded" }, begun_at, &took);
            }
            Some(Err(_))
                if kind == "interrupted" && book.is_own(key) && !book.has_started(mode, key) =>
            {
                self.suspect("interrupted", begun_at, &"nothing ran");
            }
            _ => {}
        }
        if answer.is_some() && self.is_unrelated && took > PROMPT {
            let noise = self.pace.worst_since(began) * ROUND_TRIPS;
            let beyond = took.saturating_sub(noise).as_millis();
            let what = format!("{beyond} ms beyond the noise of {noise:?}, {kind}");
            let is_slow = self.is_bounded && beyond > 1_000;
            self.suspect(if is_slow { "slow" } else { "late" }, begun_at, &what);
        }
        answer
    }

    fn suspect(&self, kind: &str, begun_at: u64, detail: &dyn Debug) {
        let Self {
            book, mode, key, ..
        } = self;
        let what = format!("{mode} {key}: {detail:?}");
        suspect(book, kind, begun_at, &what);
    }
}

/// Reports a possible fault, which is excused if the server was down in the meantime.
pub(super) fn suspect(book: &Book, kind: &str, begun_at: u64, what: &str) {
    let now = wall_clock();
    let what = what.replace('\n', " ");
    book.voice
        .say(&format!("suspect {kind} {begun_at} {now} {what}"));
}

fn is_timeout(error: &ChargeError) -> bool {
    matches!(error, ChargeError::Idempotency(Error::Store(error)) if error.kind() == StoreErrorKind::Timeout)
}
