//! Runs the records of a batch.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::{FutureExt as _, StreamExt as _, stream};
use idem_runtime::Key;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::source::{BatchEvent, Item, Order};
use crate::{Invocation, Record};

/// Default number of records that run concurrently: the default size of a batch of SQS.
const CONCURRENCY: usize = 10;

/// A batch of records, each of which is handled by a function of yours, and an answer that names those that failed.
///
/// Turn on `ReportBatchItemFailures` in the event source mapping. Without it, Lambda ignores the answer and takes the whole
/// batch for done.
///
/// | source | key of a record | order |
/// | --- | --- | --- |
/// | standard SQS queue | message id | concurrently |
/// | FIFO queue | message group and deduplication id; the message id if SQS made the deduplication id from the body | in order within a group, groups concurrently |
/// | Kinesis stream | event id: shard and sequence number | in order |
/// | DynamoDB stream | event id | in order |
///
/// The scope of each key is the ARN of the queue or stream, or the hash of an ARN that is longer than 255 bytes.
///
/// The key of a deduplication id holds for as long as the record of the call, not only for the five minutes of SQS. SQS makes
/// the id from the body if the queue has content-based deduplication. Such an id says nothing of what the sender meant, so it
/// is not used: equal messages that are sent hours apart are different messages.
///
/// # What is reported
///
/// | the handler | the record |
/// | --- | --- |
/// | returns `Ok` | is done: SQS deletes the message |
/// | returns `Err` or panics | is reported as failed, and delivered again |
/// | does not end before the [margin](Invocation::margin) | is dropped and reported as failed; the record of the call lapses with the invocation |
/// | was not called, because too little time was left, or because an earlier record of its order failed | is reported as failed |
///
/// A stream is repeated from the first record that failed. A record without an id, or without the ARN of its source, is
/// reported as failed and is not passed to the handler.
///
/// The handler decides what happens after an error of `idem_runtime`, by its own result. A record that is reported is
/// delivered again, and goes to the dead-letter queue after the number of deliveries that the queue allows:
///
/// | error | usual choice |
/// | --- | --- |
/// | [`is_retryable`](idem_runtime::Error::is_retryable): in flight, overloaded, deadline too near, store unreachable | `Err`: a later delivery gets the stored result, or does the work |
/// | a stored error of your own (`replay_err`) | `Ok` if it is an answer that nobody has to look at, `Err` to have the message in the dead-letter queue |
/// | `Unrecorded`, `Expired` | `Ok`: the work was done |
/// | `Interrupted`, `KeyReused`, `Decode`, `InvalidKey`, `Fingerprint` | `Err`: somebody has to look |
///
/// A stream has no dead letters in its batch: Lambda repeats a failed record until its event source mapping gives up, and the
/// records behind it wait.
///
/// # Example
/// ```
/// use aws_lambda_events::sqs::{SqsBatchResponse, SqsEvent};
/// use idem_lambda::{Batch, Invocation};
/// use idem_runtime::advanced::Deadline;
/// use idem_runtime::{Error, Fingerprint, Idem, Key, idempotent};
/// use lambda_runtime::LambdaEvent;
/// use serde::Deserialize;
///
/// #[derive(Fingerprint, Deserialize)]
/// struct Order { parcel: u64 }
///
/// #[idempotent(key = key, ttl = "14d", name = "orders.ship", store = idem, deadline = deadline)]
/// async fn ship(idem: &Idem, key: &Key, deadline: Deadline, order: Order) -> Result<u64, Error> {
///     Ok(order.parcel)
/// }
///
/// async fn handle(idem: &Idem, event: LambdaEvent<SqsEvent>) -> SqsBatchResponse {
///     let invocation = Invocation::until(event.context.deadline());
///     Batch::new(event.payload, invocation)
///         .run(async |message| {
///             let order = serde_json::from_str(message.body.as_deref().unwrap_or_default())?;
///             ship(idem, message.key(), message.deadline(), order).await?;
///             anyhow::Ok(())
///         })
///         .await
/// }
/// ```
#[derive(Debug)]
pub struct Batch<E> {
    event: E,
    invocation: Invocation,
    concurrency: usize,
}

impl<E: BatchEvent> Batch<E> {
    /// Creates a batch of the records of an event.
    pub fn new(event: E, invocation: Invocation) -> Self {
        Self {
            event,
            invocation,
            concurrency: CONCURRENCY,
        }
    }

    /// Sets the maximum number of records that run concurrently, at least 1. Default: 10. Records whose order counts are one
    /// of them together.
    #[must_use]
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.concurrency = concurrency.max(1);
        self
    }

    /// Passes each record to the handler, and returns the answer for Lambda.
    ///
    /// # Cancel safety
    /// Dropping the future drops the handlers that run, which is a crash to the bodies in them.
    pub async fn run<T, F, H>(self, handler: impl Fn(Record<E::Record>) -> H) -> E::Response
    where
        H: Future<Output = Result<T, F>>,
    {
        let invocation = self.invocation;
        let items = self.event.into_items();
        let count = items.len();
        let (handler, counts) = (&handler, &Counts::default());
        let runs: Vec<_> = in_order(items)
            .into_iter()
            .map(|items| run_in_order(items, invocation, handler, counts))
            .collect();
        let mut failed: Vec<(usize, String)> = stream::iter(runs)
            .buffer_unordered(self.concurrency)
            .concat()
            .await;
        failed.sort_unstable_by_key(|(position, _)| *position);
        if !failed.is_empty() {
            counts.warn(count, failed.len());
        }
        if counts.dropped.get() > 0 {
            // Lambda freezes the process after the answer, with whatever the dropped calls have left to the background.
            sleep_until(invocation.answers_at()).await;
        }
        E::response(failed.into_iter().map(|(_, id)| id).collect())
    }
}

/// Records whose order counts, with their positions in the event.
type Sequence<R> = Vec<(usize, Item<R>)>;

/// Divides the records into sequences that are independent of each other.
fn in_order<R>(items: Vec<Item<R>>) -> Vec<Sequence<R>> {
    let mut sequences: Vec<Sequence<R>> = Vec::new();
    let mut groups = HashMap::new();
    for (position, item) in items.into_iter().enumerate() {
        let sequence = match item.order.clone() {
            Order::None => sequences.len(),
            Order::Group(group) => *groups.entry(group).or_insert(sequences.len()),
        };
        match sequences.get_mut(sequence) {
            Some(sequence) => sequence.push((position, item)),
            None => sequences.push(vec![(position, item)]),
        }
    }
    sequences
}

/// Handles records one after the other, until one fails. Returns the identifiers of that one and of those behind it.
async fn run_in_order<R, T, F, H>(
    items: Sequence<R>,
    invocation: Invocation,
    handler: &impl Fn(Record<R>) -> H,
    counts: &Counts,
) -> Vec<(usize, String)>
where
    H: Future<Output = Result<T, F>>,
{
    let mut failed = Vec::new();
    for (position, item) in items {
        let is_done = match failed.is_empty() {
            true => handle(item.record, item.key, invocation, handler, counts).await,
            false => counts.behind.add_failed(),
        };
        if !is_done {
            failed.push((position, item.identifier));
        }
    }
    failed
}

/// Handles a record. Returns true if it is done.
async fn handle<R, T, F, H>(
    record: R,
    key: Option<Key>,
    invocation: Invocation,
    handler: &impl Fn(Record<R>) -> H,
    counts: &Counts,
) -> bool
where
    H: Future<Output = Result<T, F>>,
{
    let Some(key) = key else {
        return counts.malformed.add_failed();
    };
    let deadline = invocation.deadline();
    if Instant::now() >= deadline.begin_by() {
        return counts.late.add_failed();
    }
    let record = Record {
        record,
        key,
        deadline,
    };
    // One bad record does not fail the others. The closure may act before it returns its future.
    let handled = AssertUnwindSafe(async { handler(record).await.is_ok() }).catch_unwind();
    match timeout_at(invocation.drops_at(), handled).await {
        Ok(Ok(true)) => true,
        Ok(Ok(false)) => counts.errors.add_failed(),
        Ok(Err(_)) => counts.panics.add_failed(),
        Err(_) => counts.dropped.add_failed(),
    }
}

/// Numbers of records that failed, by reason.
#[derive(Debug, Default)]
struct Counts {
    errors: Count,
    panics: Count,
    dropped: Count,
    late: Count,
    behind: Count,
    malformed: Count,
}

/// Atomic, so that the future of a batch is `Send`.
#[derive(Debug, Default)]
struct Count(AtomicUsize);

impl Count {
    fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts a record. Returns false, because it is not done.
    fn add_failed(&self) -> bool {
        self.0.fetch_add(1, Ordering::Relaxed);
        false
    }
}

impl Counts {
    fn warn(&self, records: usize, failed: usize) {
        tracing::warn!(
            target: "idem",
            records,
            failed,
            errors = self.errors.get(),
            panics = self.panics.get(),
            dropped = self.dropped.get(),
            too_late = self.late.get(),
            behind_a_failure = self.behind.get(),
            malformed = self.malformed.get(),
            "records of a batch are reported as failed",
        );
    }
}
