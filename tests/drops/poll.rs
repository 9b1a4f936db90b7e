//! Dropping a future at a chosen moment.

use std::any::Any;
use std::fmt;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use anyhow::{Result, bail};

/// A boxed future that can be sent to other threads.
pub(crate) type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Time limit for a single round trip, far above that of a loaded machine.
pub(crate) const HANGS_AFTER: Duration = Duration::from_secs(30);

/// Moment at which a future is dropped. It is polled only when it is woken, so each poll makes progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    /// Immediately after this many polls: the message of the last poll is in flight.
    Sent(u32),
    /// When the future is woken after this many polls: an answer has arrived and is unread.
    Answered(u32),
}

impl Moment {
    pub(crate) fn polls(self) -> u32 {
        match self {
            Self::Sent(polls) | Self::Answered(polls) => polls,
        }
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sent(polls) => write!(f, "dropped right after poll {polls}"),
            Self::Answered(polls) => write!(f, "dropped when woken after poll {polls}"),
        }
    }
}

/// Result of a future that was to be dropped.
#[derive(Debug)]
pub(crate) struct Polled<T> {
    /// Output of the future, if it completed before that moment.
    pub(crate) output: Option<T>,
    pub(crate) polls: u32,
}

/// Polls a future up to this moment, and drops it.
///
/// # Errors
/// The future panicked, or was not woken for [`HANGS_AFTER`].
pub(crate) async fn drop_at<F: Future>(future: F, moment: Moment) -> Result<Polled<F::Output>> {
    let mut future = Box::pin(future);
    let mut polls = 0;
    let polling = poll_fn(|context| {
        if polls >= moment.polls() {
            return Poll::Ready(Ok(None));
        }
        polls += 1;
        match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
            Ok(Poll::Ready(output)) => Poll::Ready(Ok(Some(output))),
            Ok(Poll::Pending) if moment == Moment::Sent(polls) => Poll::Ready(Ok(None)),
            Ok(Poll::Pending) => Poll::Pending,
            Err(panic) => Poll::Ready(Err(message(&*panic))),
        }
    });
    let Ok(polled) = tokio::time::timeout(HANGS_AFTER, polling).await else {
        bail!("the future hung after {polls} polls");
    };
    match polled {
        Ok(output) => Ok(Polled { output, polls }),
        Err(panic) => bail!("the future panicked in poll {polls}: {panic}"),
    }
}

/// Text of a panic.
pub(crate) fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("no message").to_owned()
}
