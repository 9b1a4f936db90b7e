//! The body that every call runs, and its memory of each run.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use idem_runtime::Error;
use tokio::sync::Notify;

/// What a call can answer beside its receipt.
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
    /// Whether the same call may be answered later.
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

/// Whether a problem (RFC 9457) says that it passes.
fn is_marked_retryable(problem: &str) -> bool {
    let problem: Option<serde_json::Value> = serde_json::from_str(problem).ok();
    problem.is_some_and(|it| it["retryable"] == true)
}

/// What is known of the runs of one key, in this process.
#[derive(Debug)]
pub(crate) struct Trace {
    pub(crate) key: String,
    /// Whether the body waits for ever once it has begun.
    hangs: bool,
    runs: Mutex<Runs>,
    begun: Notify,
}

#[derive(Debug, Default)]
struct Runs {
    begun: u32,
    /// The receipts of the runs that came to their end.
    receipts: Vec<String>,
    /// How often each step began, and whether it was saved.
    steps: HashMap<&'static str, (u32, bool)>,
    problems: Vec<String>,
}

impl Trace {
    pub(crate) fn new() -> Arc<Self> {
        Self::of(false)
    }

    /// One whose body never ends.
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

    /// How many bodies began, and how many came to their end.
    pub(crate) fn counts(&self) -> (u32, usize) {
        let runs = self.runs();
        (runs.begun, runs.receipts.len())
    }

    /// The receipt of the run that came to its end last.
    pub(crate) fn receipt(&self) -> Option<String> {
        self.runs().receipts.last().cloned()
    }

    /// Whether a run that came to its end gave this receipt.
    pub(crate) fn gave(&self, receipt: &str) -> bool {
        self.runs().receipts.iter().any(|it| it == receipt)
    }

    /// What went wrong in the bodies themselves.
    pub(crate) fn problems(&self) -> Vec<String> {
        self.runs().problems.clone()
    }

    /// Returns once a body has begun.
    pub(crate) async fn has_begun(&self) {
        self.begun.notified().await;
    }

    /// Counts a run that begins, and returns its receipt.
    pub(crate) fn begin(&self) -> String {
        let mut runs = self.runs();
        runs.begun += 1;
        self.begun.notify_one();
        format!("{}#{}", self.key, runs.begun)
    }

    /// Counts a run that came to its end.
    pub(crate) fn end(&self, receipt: String) -> String {
        self.runs().receipts.push(receipt.clone());
        receipt
    }

    /// The body: some polls long, with an effect that counts itself.
    pub(crate) async fn body(&self) -> String {
        let receipt = self.begin();
        self.pause().await;
        self.end(receipt)
    }

    /// A few polls, or for ever.
    pub(crate) async fn pause(&self) {
        if self.hangs {
            std::future::pending::<()>().await;
        }
        for _ in 0..2 {
            tokio::task::yield_now().await;
        }
    }

    /// Counts a step that begins.
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

/// The traces of a case, by key: a handler finds that of its request here.
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
