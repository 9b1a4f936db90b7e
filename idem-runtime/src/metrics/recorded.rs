//! Records numbers with the recorder of the `metrics` facade.
//!
//! The keys of an operation's metrics are built once and never freed. A call therefore allocates nothing to record a
//! number. Handles are looked up again for each number, so that a recorder may be installed at any time, and may forget
//! idle metrics.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{LazyLock, PoisonError, RwLock};
use std::time::Duration;

use ::metrics::{Gauge, IntoF64, Key, Label, Metadata, with_recorder};
use tokio::time::Instant;

use super::{CallOutcome, Level, Timed, list};

/// Maximum number of operation names that appear in labels.
pub const MAX_OPERATIONS: usize = 512;
/// The label `operation` of all names beyond [`MAX_OPERATIONS`].
pub const OTHER_OPERATIONS: &str = "(other)";
/// The label `operation` of calls without a valid name.
pub const INVALID_OPERATION: &str = "(invalid)";

static METADATA: Metadata<'static> =
    Metadata::new("idem", ::metrics::Level::INFO, Some(module_path!()));

/// Keys of an operation's metrics.
struct OperationKeys {
    calls: Vec<Key>,
    claim: Key,
    body: Key,
    complete: Key,
    wait: Key,
    leases: Key,
    waiting: Key,
    queued: Key,
}

impl OperationKeys {
    fn new(operation: &str) -> Self {
        let operation = Label::new("operation", operation.to_owned());
        let key = |name: &'static str| Key::from_parts(name, vec![operation.clone()]);
        let calls = CallOutcome::ALL.iter().map(|outcome| {
            let outcome = Label::from_static_parts("outcome", outcome.as_str());
            Key::from_parts(list::CALLS, vec![operation.clone(), outcome])
        });
        Self {
            calls: calls.collect(),
            claim: key(list::CLAIM),
            body: key(list::BODY),
            complete: key(list::COMPLETE),
            wait: key(list::WAIT),
            leases: key(list::LEASES),
            waiting: key(list::WAITING),
            queued: key(list::QUEUED),
        }
    }
}

type Operations = HashMap<String, &'static OperationKeys, BuildHasherDefault<NameHasher>>;

static OPERATIONS: LazyLock<RwLock<Operations>> = LazyLock::new(RwLock::default);
static OTHERS: LazyLock<OperationKeys> = LazyLock::new(|| OperationKeys::new(OTHER_OPERATIONS));
static INVALID: LazyLock<OperationKeys> = LazyLock::new(|| OperationKeys::new(INVALID_OPERATION));

/// FNV-1a with 64 bits. Names are short, and [`MAX_OPERATIONS`] bounds the number of those that fall into one bucket.
struct NameHasher(u64);

impl Default for NameHasher {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Hasher for NameHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// The metrics of one operation.
#[derive(Clone, Copy)]
pub(crate) struct OperationMetrics(&'static OperationKeys);

impl OperationMetrics {
    /// The metrics of the operation with this name. Empty: the call has no valid name.
    pub(crate) fn of(operation: &str) -> Self {
        if operation.is_empty() {
            return Self(&INVALID);
        }
        let known = OPERATIONS.read().unwrap_or_else(PoisonError::into_inner);
        match known.get(operation) {
            Some(keys) => Self(keys),
            None if known.len() >= MAX_OPERATIONS => Self(&OTHERS),
            None => {
                drop(known);
                Self::first_of(operation)
            }
        }
    }

    #[cold]
    fn first_of(operation: &str) -> Self {
        let mut known = OPERATIONS.write().unwrap_or_else(PoisonError::into_inner);
        // Another call may have added the name, or the last one, in the meantime.
        if let Some(keys) = known.get(operation) {
            return Self(keys);
        }
        if known.len() >= MAX_OPERATIONS {
            return Self(&OTHERS);
        }
        // Bounded by the number of names. The keys are as static as the names are.
        let keys = Box::leak(Box::new(OperationKeys::new(operation)));
        known.insert(operation.to_owned(), keys);
        Self(keys)
    }

    /// Counts a call that ended.
    pub(crate) fn count(self, outcome: CallOutcome) {
        count(&self.0.calls[outcome as usize], 1);
    }

    /// Counts a request that an HTTP layer refused before its key was claimed.
    pub(crate) fn count_refused(self, problem: &'static str) {
        let mut labels: Vec<_> = self.0.claim.labels().cloned().collect();
        labels.push(Label::from_static_parts("problem", problem));
        count(&Key::from_parts(list::REFUSED, labels), 1);
    }

    /// Counts the end of a recovery.
    pub(crate) fn count_recovery(self, result: &'static str) {
        let mut labels: Vec<_> = self.0.claim.labels().cloned().collect();
        labels.push(Label::from_static_parts("result", result));
        count(&Key::from_parts(list::RECOVERIES, labels), 1);
    }

    pub(crate) fn start(self, timed: Timed) -> Timer {
        self.start_at(timed, Instant::now())
    }

    /// Starts a timer at a time that was read already.
    pub(crate) fn start_at(self, timed: Timed, started: Instant) -> Timer {
        let key = match timed {
            Timed::Claim => &self.0.claim,
            Timed::Body => &self.0.body,
            Timed::Complete => &self.0.complete,
            Timed::Wait => &self.0.wait,
        };
        Timer { started, key }
    }

    /// Raises a level by one, until the result is dropped.
    pub(crate) fn raise(self, level: Level) -> Raised {
        Raised::by_one(match level {
            Level::LeasesHeld => &self.0.leases,
            Level::WaitingCallers => &self.0.waiting,
            Level::QueuedCalls => &self.0.queued,
        })
    }
}

impl fmt::Debug for OperationMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OperationMetrics").finish_non_exhaustive()
    }
}

/// Measures a duration. Dropping the timer records nothing.
#[must_use = "a timer records nothing before it is stopped"]
pub(crate) struct Timer {
    started: Instant,
    key: &'static Key,
}

impl Timer {
    pub(crate) fn stop(self) {
        observe(self.key, Elapsed(self.started));
    }
}

/// Seconds since a time. The clock is read only for a recorder that keeps the number.
struct Elapsed(Instant);

impl IntoF64 for Elapsed {
    fn into_f64(self) -> f64 {
        self.0.elapsed().as_secs_f64()
    }
}

/// A gauge that is raised by one. Dropping it lowers the gauge again.
///
/// It lowers the very gauge that it raised, so that a recorder that was installed in between does not go below zero.
#[must_use = "dropping it lowers the gauge"]
pub(crate) struct Raised(Gauge);

impl Raised {
    fn by_one(key: &Key) -> Self {
        let gauge = gauge(key);
        gauge.increment(1.0);
        Self(gauge)
    }
}

impl Drop for Raised {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

impl fmt::Debug for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Raised").finish_non_exhaustive()
    }
}

fn gauge(key: &Key) -> Gauge {
    with_recorder(|recorder| recorder.register_gauge(key, &METADATA))
}

fn count(key: &Key, by: u64) {
    with_recorder(|recorder| recorder.register_counter(key, &METADATA).increment(by));
}

fn observe(key: &Key, value: impl IntoF64) {
    with_recorder(|recorder| recorder.register_histogram(key, &METADATA).record(value));
}

/// Describes all metrics to the current recorder.
pub(crate) fn describe() {
    list::describe();
}

/// Raises the number of statements that wait for a connection of their pool.
pub(crate) fn waiting_statement() -> Raised {
    static KEY: Key = Key::from_static_name(list::WAITING_STATEMENTS);
    Raised::by_one(&KEY)
}

/// Records the number of requests that share a statement.
pub(crate) fn batch(size: usize) {
    static KEY: Key = Key::from_static_name(list::BATCH);
    observe(&KEY, size as f64);
}

macro_rules! keys {
    ($($constant:ident = $name:ident { $label:literal: $value:literal })*) => {$(
        static $constant: Key = {
            static LABELS: [Label; 1] = [Label::from_static_parts($label, $value)];
            Key::from_static_parts(list::$name, &LABELS)
        };
    )*};
}

keys! {
    HIT = CACHE { "result": "hit" }
    MISS = CACHE { "result": "miss" }
    REMOVED = PURGED { "result": "removed" }
    ABANDONED = PURGED { "result": "abandoned" }
    MADE_INTERRUPTED = PURGED { "result": "interrupted" }
    FORGOTTEN = PURGED { "result": "forgotten" }
    READING = CIRCUIT { "action": "reading" }
    WRITING = CIRCUIT { "action": "writing" }
}

/// Counts a claim that a cache answered, or sent to its store.
pub(crate) fn cache_lookup(hit: bool) {
    count(if hit { &HIT } else { &MISS }, 1);
}

/// Raises the number of open circuits of caches.
pub(crate) fn open_circuit(action: CacheAction) -> Raised {
    Raised::by_one(match action {
        CacheAction::Reading => &READING,
        CacheAction::Writing => &WRITING,
    })
}

/// Action of a cache that a circuit breaker guards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CacheAction {
    Reading,
    Writing,
}

/// Counts what a batch of the purger did.
pub(crate) fn purged(removed: u64, abandoned: u64, interrupted: u64, forgotten: u64) {
    for (key, by) in [
        (&REMOVED, removed),
        (&ABANDONED, abandoned),
        (&MADE_INTERRUPTED, interrupted),
        (&FORGOTTEN, forgotten),
    ] {
        if by > 0 {
            count(key, by);
        }
    }
}

/// Reports how far behind the purger is.
pub(crate) fn purge_lag(lag: Duration) {
    static KEY: Key = Key::from_static_name(list::PURGE_LAG);
    gauge(&KEY).set(lag.as_secs_f64());
}

/// Reports by how much the clock of the purger's store is ahead of what is explained.
pub(crate) fn store_clock_ahead(ahead: Duration) {
    static KEY: Key = Key::from_static_name(list::STORE_CLOCK_AHEAD);
    gauge(&KEY).set(ahead.as_secs_f64());
}

/// Label of the metrics of the operation with this name.
pub(crate) fn operation_label(name: &str) -> String {
    let label = OperationMetrics::of(name).0.claim.labels().next();
    label.map_or_else(String::new, |it| it.value().to_owned())
}

/// Reports the stuck records of an operation in one state, by its label.
pub(crate) fn stuck_records(operation: &str, state: &'static str, records: u64, oldest: Duration) {
    let labels = vec![
        Label::new("operation", operation.to_owned()),
        Label::from_static_parts("state", state),
    ];
    gauge(&Key::from_parts(list::STUCK, labels.clone())).set(records as f64);
    gauge(&Key::from_parts(list::STUCK_AGE, labels)).set(oldest.as_secs_f64());
}

/// Reports the messages of an outbox.
pub(crate) fn outbox_backlog(outbox: &str, waiting: u64, parked: u64, oldest: Duration) {
    let outbox = Label::new("outbox", outbox.to_owned());
    for (state, messages) in [("waiting", waiting), ("parked", parked)] {
        let state = Label::from_static_parts("state", state);
        let key = Key::from_parts(list::OUTBOX, vec![outbox.clone(), state]);
        gauge(&key).set(messages as f64);
    }
    let key = Key::from_parts(list::OUTBOX_AGE, vec![outbox]);
    gauge(&key).set(oldest.as_secs_f64());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_made_up_at_run_time_share_one_label() {
        let label = operation_label;
        assert_eq!(label("first"), "first");
        assert_eq!(label(""), INVALID_OPERATION);
        let mut other = 0;
        for number in 0..MAX_OPERATIONS + 100 {
            let name = format!("made-up-{number}");
            match label(&name) {
                known if known == name => assert_eq!(label(&name), name),
                shared => {
                    assert_eq!(shared, OTHER_OPERATIONS);
                    other += 1;
                }
            }
        }
        assert!(other >= 101, "{other} names are labelled as others");
        assert_eq!(label("first"), "first", "a known name keeps its label");
        let known = OPERATIONS.read().unwrap().len();
        assert_eq!(known, MAX_OPERATIONS);
    }

    #[test]
    fn the_keys_of_outcomes_are_in_their_order() {
        let metrics = OperationMetrics::of("first");
        for outcome in CallOutcome::ALL {
            let key = &metrics.0.calls[*outcome as usize];
            let labels: Vec<_> = key.labels().map(Label::value).collect();
            assert!(labels.contains(&outcome.as_str()), "{labels:?}");
        }
    }
}
