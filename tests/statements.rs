//! Hears which statements sqlx runs.

use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tracing::callsite::rebuild_interest_cache;
use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt as _};

/// Hears statements until it is dropped, whichever thread they run on: SQLite has its own.
#[derive(Debug)]
pub struct Statements(Arc<Heard>);

#[derive(Debug)]
struct Heard {
    /// What each of them contains.
    part: &'static str,
    texts: Mutex<Vec<String>>,
    listens: AtomicBool,
}

impl Heard {
    fn texts(&self) -> MutexGuard<'_, Vec<String>> {
        self.texts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Statements {
    /// Hears those of this process that contain this text.
    ///
    /// # Panics
    /// Where somebody in this process has listened before.
    pub fn hear(part: &'static str) -> Self {
        let heard = Arc::new(Heard {
            part,
            texts: Mutex::default(),
            listens: AtomicBool::new(true),
        });
        let listener = tracing_subscriber::registry().with(Listener(Arc::clone(&heard)));
        tracing::subscriber::set_global_default(listener)
            .expect("nobody else listens to all threads");
        Self(heard)
    }

    /// The texts of those that were heard since the last time, in their order. Those of SQLite are told by its threads,
    /// which end with their pool.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.texts())
    }
}

impl Drop for Statements {
    fn drop(&mut self) {
        self.0.listens.store(false, Ordering::Relaxed);
        // Nobody asks again before each event.
        rebuild_interest_cache();
    }
}

struct Listener(Arc<Heard>);

impl<S: Subscriber> Layer<S> for Listener {
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        metadata.target() == "sqlx::query" && self.0.listens.load(Ordering::Relaxed)
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        event.record(&mut Texts(&self.0));
    }
}

struct Texts<'a>(&'a Heard);

impl Visit for Texts<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "db.statement" && value.contains(self.0.part) {
            // sqlx puts it on lines of its own.
            let text = value.trim_matches('\n').to_owned();
            self.0.texts().push(text);
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn Debug) {}
}
