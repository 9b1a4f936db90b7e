//! Searches of relays that failed. Relays report them only as events.

use std::fmt::Debug;
use std::sync::{Mutex, PoisonError};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};

/// Errors of all failed searches in this process.
static ERRORS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Records failed searches from now on.
pub(crate) fn record() {
    let subscriber = tracing_subscriber::registry().with(Recorder);
    // It can be set once only, and nothing else in this process sets it.
    let _ = tracing::subscriber::set_global_default(subscriber);
}

/// Number of searches that have failed with an error that contains this text.
pub(crate) fn failed_with(text: &str) -> usize {
    let errors = ERRORS.lock().unwrap_or_else(PoisonError::into_inner);
    errors.iter().filter(|error| error.contains(text)).count()
}

struct Recorder;

impl<S: Subscriber> Layer<S> for Recorder {
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        metadata.target() == "idem" && *metadata.level() <= Level::WARN
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        if fields.message.contains("looking for messages failed") {
            let mut errors = ERRORS.lock().unwrap_or_else(PoisonError::into_inner);
            errors.push(fields.error);
        }
    }
}

#[derive(Default)]
struct Fields {
    message: String,
    error: String,
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            "error" => self.error = format!("{value:?}"),
            _ => {}
        }
    }
}
