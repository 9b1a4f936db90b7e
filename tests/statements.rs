//! Hears which statements sqlx runs.

use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tracing::callsite::rebuild_interest_cache;
use tracing::field::{Field, Visit};
use tracing::subscriber::DefaultGuard;
use tracing::{Dispatch, Event, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt as _};

/// Hears statements until it is dropped.
#[derive(Debug)]
pub struct Statements {
    heard: Arc<Heard>,
    /// Where it is those of a thread.
    _thread: Option<(DefaultGuard, Dispatch)>,
}

#[derive(Debug)]
struct Heard {
    /// What each of them contains.
    part: &'static str,
    texts: Mutex<Vec<String>>,
    listens: AtomicBool,
}

impl Heard {
    fn new(part: &'static str) -> Arc<Self> {
        Arc::new(Self {
            part,
            texts: Mutex::default(),
            listens: AtomicBool::new(true),
        })
    }

    fn texts(&self) -> MutexGuard<'_, Vec<String>> {
        self.texts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn listener(self: &Arc<Self>) -> impl Subscriber + Send + Sync + 'static {
        tracing_subscriber::registry().with(Listener(Arc::clone(self)))
    }
}

impl Statements {
    /// Hears those of this process that contain this text, whichever thread they run on: SQLite has its own.
    ///
    /// # Panics
    /// Where somebody in this process has listened to all threads before.
    pub fn hear(part: &'static str) -> Self {
        let heard = Heard::new(part);
        tracing::subscriber::set_global_default(heard.listener())
            .expect("nobody else listens to all threads");
        Self {
            heard,
            _thread: None,
        }
    }

    /// Hears those of this thread.
    pub fn of_this_thread() -> Self {
        let heard = Heard::new("");
        // With a single subscriber in the process, `tracing` would ask the thread that comes first, of another test
        // perhaps, whether anybody is interested, and keep its answer for all threads.
        let second = Dispatch::new(tracing_subscriber::registry());
        let guard = tracing::subscriber::set_default(heard.listener());
        rebuild_interest_cache();
        Self {
            heard,
            _thread: Some((guard, second)),
        }
    }

    /// The texts of those that were heard since the last time, in their order. Those of SQLite are told by its threads,
    /// which end with their pool.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.heard.texts())
    }

    /// The first words of the same.
    pub fn take_verbs(&self) -> Vec<String> {
        let verb = |text: String| {
            let mut lines = text.lines().map(str::trim_start);
            let line = lines.find(|it| !it.is_empty() && !it.starts_with("--"));
            let word = line.and_then(|it| it.split_whitespace().next());
            word.unwrap_or_default().to_uppercase()
        };
        self.take().into_iter().map(verb).collect()
    }
}

impl Drop for Statements {
    fn drop(&mut self) {
        self.heard.listens.store(false, Ordering::Relaxed);
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
        let mut told = Told::default();
        event.record(&mut told);
        // sqlx tells of a statement of a few words in the summary alone, and puts others on lines of their own.
        let text = match told.statement.trim_matches('\n') {
            "" => told.summary,
            text => text.to_owned(),
        };
        if text.contains(self.0.part) {
            self.0.texts().push(text);
        }
    }
}

#[derive(Default)]
struct Told {
    summary: String,
    statement: String,
}

impl Visit for Told {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "summary" => value.clone_into(&mut self.summary),
            "db.statement" => value.clone_into(&mut self.statement),
            _ => {}
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn Debug) {}
}
