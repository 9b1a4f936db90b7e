//! Records the statements that sqlx runs.

use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tracing::callsite::rebuild_interest_cache;
use tracing::field::{Field, Visit};
use tracing::subscriber::DefaultGuard;
use tracing::{Dispatch, Event, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt as _};

/// Records statements until it is dropped.
#[derive(Debug)]
pub struct Statements {
    heard: Arc<Heard>,
    /// Present if it records the statements of one thread.
    _thread: Option<(DefaultGuard, Dispatch)>,
}

#[derive(Debug)]
struct Heard {
    /// Text that each recorded statement contains.
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
    /// Records the statements of this process that contain this text, on every thread: SQLite has its own threads.
    ///
    /// # Panics
    /// The process already has a subscriber for all threads.
    pub fn hear(part: &'static str) -> Self {
        let heard = Heard::new(part);
        tracing::subscriber::set_global_default(heard.listener())
            .expect("nobody else listens to all threads");
        Self {
            heard,
            _thread: None,
        }
    }

    /// Records the statements of this thread.
    pub fn of_this_thread() -> Self {
        let heard = Heard::new("");
        // With a single subscriber in the process, `tracing` would ask the first thread, possibly that of another test,
        // whether it is interested in an event, and would apply the answer to all threads.
        let second = Dispatch::new(tracing_subscriber::registry());
        let guard = tracing::subscriber::set_default(heard.listener());
        rebuild_interest_cache();
        Self {
            heard,
            _thread: Some((guard, second)),
        }
    }

    /// Texts of the statements that were recorded since the last call, in order. The threads of SQLite report its
    /// statements, and end with their pool.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.heard.texts())
    }

    /// First words of the statements that were recorded since the last call.
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
        // `tracing` does not ask again before each event.
        rebuild_interest_cache();
    }
}

struct Listener(Arc<Heard>);

impl<S: Subscriber> Layer<S> for Listener {
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        metadata.target() == "sqlx::query" && self.0.listens.load(Ordering::Relaxed)
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut logged = Statement::default();
        event.record(&mut logged);
        // sqlx reports a short statement only in the summary, and other statements on separate lines.
        let text = match logged.statement.trim_matches('\n') {
            "" => logged.summary,
            text => text.to_owned(),
        };
        if text.contains(self.0.part) {
            self.0.texts().push(text);
        }
    }
}

#[derive(Default)]
struct Statement {
    summary: String,
    statement: String,
}

impl Visit for Statement {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "summary" => value.clone_into(&mut self.summary),
            "db.statement" => value.clone_into(&mut self.statement),
            _ => {}
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn Debug) {}
}
