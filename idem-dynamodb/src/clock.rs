//! Time of DynamoDB, which it shows only as the `Date` of its answers.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use aws_sdk_dynamodb::config::interceptors::{
    BeforeDeserializationInterceptorContextRef, BeforeTransmitInterceptorContextRef,
};
use aws_sdk_dynamodb::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_dynamodb::error::BoxError;
use idem_store::clock::{Now, ServerClock};
use idem_store::record::micros;
use std::sync::Arc;

/// Largest allowed difference between the clocks of two machines of DynamoDB. Amazon's time service keeps them much closer.
const SKEW: Duration = Duration::from_millis(50);
/// How long throttling is mentioned as the reason why requests wait.
const RECENT: Duration = Duration::from_secs(5);

/// What the answers of DynamoDB have told.
#[derive(Debug)]
pub(crate) struct Answers {
    clock: ServerClock,
    /// The widest interval in which a time was read, in microseconds.
    widest: AtomicI64,
    throttled: AtomicU64,
    last_throttled: Mutex<Option<Instant>>,
}

impl Answers {
    pub(crate) fn new() -> Self {
        Self {
            clock: ServerClock::new().with_skew(SKEW),
            widest: AtomicI64::new(0),
            throttled: AtomicU64::new(0),
            last_throttled: Mutex::default(),
        }
    }

    /// The present time of the server; `None` before the first answer.
    pub(crate) fn now(&self) -> Option<Now> {
        let now = self.clock.now()?;
        self.widest
            .fetch_max(micros(now.uncertainty()), Ordering::Relaxed);
        Some(now)
    }

    pub(crate) fn uncertainty(&self) -> Duration {
        Duration::from_micros(self.widest.load(Ordering::Relaxed).unsigned_abs())
    }

    /// Returns true unless an answer has shown that the server's time was later than this one, which was read at this local
    /// time. This machine was suspended then, as functions of Lambda are between two calls, and what was written counts
    /// from too early a time.
    pub(crate) fn confirm(&self, used: Now, read: Instant) -> bool {
        let Some(now) = self.clock.now() else {
            return false;
        };
        now.earliest <= used.latest.after(read.elapsed() + Duration::from_millis(1))
    }

    pub(crate) fn note_throttled(&self) {
        self.throttled.fetch_add(1, Ordering::Relaxed);
        let mut last = self
            .last_throttled
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *last = Some(Instant::now());
    }

    /// Number of requests that DynamoDB has refused because of their rate.
    pub(crate) fn throttled(&self) -> u64 {
        self.throttled.load(Ordering::Relaxed)
    }

    pub(crate) fn is_throttled(&self) -> bool {
        let last = self.last_throttled.lock();
        let last = *last.unwrap_or_else(PoisonError::into_inner);
        last.is_some_and(|it| it.elapsed() < RECENT)
    }
}

/// Takes note of the `Date` of the answer to one request.
#[derive(Debug)]
pub(crate) struct Watch {
    answers: Arc<Answers>,
    sent: Mutex<Instant>,
}

impl Watch {
    pub(crate) fn new(answers: &Arc<Answers>) -> Self {
        Self {
            answers: Arc::clone(answers),
            sent: Mutex::new(Instant::now()),
        }
    }
}

impl Intercept for Watch {
    fn name(&self) -> &'static str {
        "IdemServerClock"
    }

    fn read_before_transmit(
        &self,
        _: &BeforeTransmitInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        *self.sent.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        Ok(())
    }

    fn read_after_transmit(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let date = context.response().headers().get("date");
        if let Some(date) = date.and_then(Now::from_http_date) {
            let sent = *self.sent.lock().unwrap_or_else(PoisonError::into_inner);
            self.answers.clock.observe(sent, Instant::now(), date);
        }
        Ok(())
    }
}
