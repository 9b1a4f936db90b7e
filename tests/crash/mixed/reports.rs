//! The lines that workers report, and the supervisor's notes of them.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tracing::field::{Field, Visit};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};

use crate::Counts;

/// A kind of call and a key.
pub(super) type Call = (String, String);

/// Destination of the lines: a pipe to the supervisor, or the supervisor itself if it runs in this process.
#[derive(Debug, Clone)]
pub(super) enum Voice {
    Stdout,
    Here(usize, Arc<Mutex<Reports>>),
}

impl Voice {
    pub(super) fn say(&self, line: &str) {
        match self {
            Self::Stdout => {
                // One write, so that a kill cuts the line off or leaves it whole. A closed pipe means that the
                // supervisor is gone; it will kill this process.
                let line = format!("{line}\n");
                let _ = std::io::Write::write_all(&mut std::io::stdout().lock(), line.as_bytes());
            }
            Self::Here(worker, reports) => lock(reports).hear(*worker, line),
        }
    }
}

/// Locks a mutex that a panic elsewhere may have poisoned.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A possible fault. It is excused if the server was down or the process was starved between these moments, in
/// milliseconds of the wall clock.
#[derive(Debug, Clone)]
pub(super) struct Suspect {
    pub(super) kind: String,
    pub(super) what: String,
    pub(super) begun_at: u64,
    pub(super) ended_at: u64,
}

#[derive(Debug, Clone)]
pub(super) struct Delivery {
    pub(super) message: String,
    pub(super) ordering: String,
    pub(super) number: u64,
    /// Microseconds of the wall clock.
    pub(super) at: u64,
}

/// All reports.
#[derive(Debug, Default)]
pub(super) struct Reports {
    /// Number of calls, by kind and result.
    pub(super) calls: Counts,
    pub(super) drops: u64,
    pub(super) polls: u64,
    /// Receipts that were acknowledged.
    pub(super) acknowledged: BTreeMap<Call, BTreeSet<String>>,
    /// Receipts that were acknowledged since the supervisor last read the records.
    pub(super) fresh: Vec<(Call, String)>,
    /// Receipts of the bodies that took effect.
    pub(super) effects: BTreeMap<Call, BTreeSet<String>>,
    /// For each of the caller's own transactions, true if it was committed; unknown ones are absent.
    pub(super) outer: BTreeMap<String, bool>,
    pub(super) deliveries: Vec<Delivery>,
    pub(super) suspects: Vec<Suspect>,
    pub(super) connections: u64,
    pub(super) records: u64,
    /// Last pause that each worker has finished checking.
    pub(super) checked: BTreeMap<usize, u64>,
}

impl Reports {
    /// Reads a line of a worker. A line that was cut off by a kill has too few words.
    pub(super) fn hear(&mut self, worker: usize, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["call", mode, kind, polls] => {
                *self.calls.entry(format!("{mode} {kind}")).or_default() += 1;
                self.drops += u64::from(kind == "dropped");
                self.polls += polls.parse().unwrap_or(0);
            }
            ["answer", mode, key, receipt] if receipt.len() == 16 => {
                let call = (mode.to_owned(), key.to_owned());
                let receipts = self.acknowledged.entry(call.clone()).or_default();
                if receipts.insert(receipt.to_owned()) {
                    self.fresh.push((call, receipt.to_owned()));
                }
            }
            ["effect", mode, key, receipt] if receipt.len() == 16 => {
                let effects = self.effects.entry((mode.to_owned(), key.to_owned()));
                effects.or_default().insert(receipt.to_owned());
            }
            ["outer", key, what] => {
                self.outer.insert(key.to_owned(), what == "committed");
            }
            ["delivered", message, ordering, number, at] => {
                if let (Ok(number), Ok(at)) = (number.parse(), at.parse()) {
                    self.deliveries.push(Delivery {
                        message: message.to_owned(),
                        ordering: ordering.to_owned(),
                        number,
                        at,
                    });
                }
            }
            ["inspected", connections, records] => {
                self.connections += connections.parse().unwrap_or(0);
                self.records += records.parse().unwrap_or(0);
            }
            ["checked", pause] => {
                self.checked.insert(worker, pause.parse().unwrap_or(0));
            }
            ["suspect", kind, begun_at, ended_at, ..] => {
                if let (Ok(begun_at), Ok(ended_at)) = (begun_at.parse(), ended_at.parse()) {
                    self.suspects.push(Suspect {
                        kind: kind.to_owned(),
                        what: words[4..].join(" "),
                        begun_at,
                        ended_at,
                    });
                }
            }
            _ => {}
        }
    }
}

tokio::task_local! {
    /// True if the current call returned a value that could not be recorded yet.
    static UNRECORDED: Cell<bool>;
}

/// Makes a call. Returns true with its output if the call warned that its value could not be recorded yet.
pub(super) async fn noting_unrecorded<F: Future>(call: F) -> (F::Output, bool) {
    UNRECORDED
        .scope(Cell::new(false), async {
            let answer = call.await;
            (answer, UNRECORDED.with(Cell::get))
        })
        .await
}

/// Subscribes to the library's warnings, for the whole process.
pub(super) fn listen_to_warnings() {
    // The subscriber is already set if several stores are tested in one process.
    let _ = tracing::subscriber::set_global_default(tracing_subscriber::registry().with(Warnings));
}

struct Warnings;

impl<S: tracing::Subscriber> Layer<S> for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>, _: Context<'_, S>) -> bool {
        metadata.target() == "idem" && *metadata.level() <= tracing::Level::WARN
    }

    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        event.record(&mut Message);
    }
}

struct Message;

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" && format!("{value:?}").contains("could not be recorded yet") {
            // The call itself emits the warning, in the task that polls it.
            let _ = UNRECORDED.try_with(|it| it.set(true));
        }
    }
}
