//! The body of every call, and a record of each run in this process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use idem_runtime::Error;
use tokio::sync::Notify;

/// Errors of a call.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Idem(#[from] Error),
    #[error(transparent)]
    Sql(#[from] sqlx::Error),
    #[error("status {status}: {text}")]
    Http { status: u16, text: String },
    #[error("no response: {0}")]
    NoResponse(String),
}

impl Failure {
    /// Returns true if a retry may succeed.
    pub(crate) fn is_retryable(&self) -> bool {
        match self {
            Self::Idem(error) => error.is_retryable(),
            Self::Http { status, text } => {
                *status == 503 || (*status == 409 && is_marked_retryable(text))
            }
            Self::Sql(_) | Self::NoResponse(_) => false,
        }
    }

    pub(crate) fn is_interrupted(&self) -> bool {
        match self {
            Self::Idem(error) => matches!(error, Error::Interrupted),
            Self::Http { status, text } => *status == 409 && !is_marked_retryable(text),
            _ => false,
        }
    }
}

/// Returns true if a problem document (RFC 9457) is marked as retryable.
fn is_marked_retryable(problem: &str) -> bool {
    let problem: Option<serde_json::Value> = serde_json::from_str(problem).ok();
    problem.is_some_and(|it| it["retryable"] == true)
}

/// Runs of one key in this process.
#[derive(Debug)]
pub(crate) struct Trace {
    pub(crate) key: String,
    /// True if the body hangs forever once it has started.
    hangs: bool,
    runs: Mutex<Runs>,
    begun: Notify,
}

#[derive(Debug, Default)]
struct Runs {
    begun: u32,
    /// Receipts of the finished runs.
    receipts: Vec<String>,
    /// For each step, the number of starts, and true if it was saved.
    steps: HashMap<&'static str, (u32, bool)>,
    problems: Vec<String>,
}

impl Trace {
    pub(crate) fn new() -> Arc<Self> {
        Self::of(false)
    }

    /// Trace whose body never ends.
    pub(crate) fn hanging() -> Arc<Self> {
        Self::of(true)
    }

    fn of(hangs: bool) -> Arc<Self> {
        Arc::new(Self {
            key: format!("k{:032x}", rand::random::<u128>()),
            hangs,
            runs: Mutex::default(),
            begun: Notify::new(),
        })
    }

    fn runs(&self) -> MutexGuard<'_, Runs> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of bodies that started, and of bodies that finished.
    pub(crate) fn counts(&self) -> (u32, usize) {
        let runs = self.runs();
        (runs.begun, runs.receipts.len())
    }

    /// Receipt of the last finished run.
    pub(crate) fn receipt(&self) -> Option<String> {
        self.runs().receipts.last().cloned()
    }

    /// Returns true if a finished run returned this receipt.
    pub(crate) fn gave(&self, receipt: &str) -> bool {
        self.runs().receipts.iter().any(|it| it == receipt)
    }

    /// Problems inside the bodies.
    pub(crate) fn problems(&self) -> Vec<String> {
        self.runs().problems.clone()
    }

    /// Waits until a body has started.
    pub(crate) async fn has_begun(&self) {
        self.begun.notified().await;
    }

    /// Counts a run that starts, and returns its receipt.
    pub(crate) fn begin(&self) -> String {
        let mut runs = self.runs();
        runs.begun += 1;
        self.begun.notify_one();
        format!("{}#{}", self.key, runs.begun)
    }

    /// Counts a finished run.
    pub(crate) fn end(&self, receipt: String) -> String {
        self.runs().receipts.push(receipt.clone());
        receipt
    }

    /// The body: it takes some polls, and its effect counts itself.
    pub(crate) async fn body(&self) -> String {
        let receipt = self.begin();
        self.pause().await;
        self.end(receipt)
    }

    /// Waits for a few polls, or forever.
    pub(crate) async fn pause(&self) {
        if self.hangs {
            std::future::pending::<()>().await;
        }
        for _ in 0..2 {
            tokio::task::yield_now().await;
        }
    }

    /// Counts a step that starts.
    pub(crate) fn begin_step(&self, name: &'static str) {
        let mut runs = self.runs();
        let (begun, saved) = runs.steps.entry(name).or_default();
        *begun += 1;
        if *saved {
            runs.problems
                .push(format!("step `{name}` ran again after it was saved"));
        }
    }

    /// Counts a step whose result was acknowledged.
    pub(crate) fn save_step(&self, name: &'static str) {
        if let Some((_, saved)) = self.runs().steps.get_mut(name) {
            *saved = true;
        }
    }
}

/// Traces of a case, by key, in which a handler finds the trace of its request.
#[derive(Debug, Default)]
pub(crate) struct Traces(Mutex<HashMap<String, Arc<Trace>>>);

impl Traces {
    pub(crate) fn insert(&self, trace: &Arc<Trace>) {
        let mut traces = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        traces.insert(trace.key.clone(), Arc::clone(trace));
    }

    pub(crate) fn get(&self, key: &str) -> Option<Arc<Trace>> {
        let traces = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        traces.get(key).cloned()
    }
}
