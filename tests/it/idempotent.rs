//! Effect of each option and each shape of an annotated function, on the memory store with paused time.

mod calls;
mod crash;
mod detached;
mod errors;
mod flow;
mod keys;
mod lints;
mod methods;
mod names;
mod request;
mod shapes;
mod sqlite;
mod stores;
mod timing;

use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use idem_runtime::conformance::faults::FaultStore;
use idem_runtime::record::Record;
use idem_runtime::store::{Filter, PageRequest};
use idem_runtime::{Error, Idem, MemoryStore};

/// Default lease of a handle.
const LEASE: Duration = Duration::from_secs(30);

type Handle = Idem<FaultStore<MemoryStore>>;

/// A handle, to which it dereferences, and the payments, which show how often a body ran.
#[derive(Debug)]
struct Bank {
    idem: Handle,
    payments: AtomicU32,
}

impl Bank {
    fn new() -> Self {
        Self {
            idem: Idem::new(FaultStore::new(MemoryStore::new())),
            payments: AtomicU32::new(0),
        }
    }

    fn pay(&self) -> u32 {
        self.payments.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn payments(&self) -> u32 {
        self.payments.load(Ordering::SeqCst)
    }

    /// Pays, and then hangs forever.
    async fn pay_and_hang(&self) -> u32 {
        self.pay();
        std::future::pending().await
    }

    /// Record of a key without a scope.
    async fn record(&self, operation: &str, key: &str) -> Record {
        let record = self.records().find(operation, key).await;
        record.unwrap().expect("there is a record of this call")
    }

    /// All records.
    async fn all(&self) -> Vec<Record> {
        let page = PageRequest {
            limit: 100,
            after: None,
        };
        let filter = Filter {
            payloads: true,
            ..Filter::default()
        };
        let listed = self.records().list(&filter, &page).await.unwrap();
        listed.records.into_iter().map(|it| it.record).collect()
    }
}

impl Deref for Bank {
    type Target = Handle;

    fn deref(&self) -> &Handle {
        &self.idem
    }
}

/// Polls a call until its body hangs, and drops it: a simulated crash.
async fn crash<F: Future>(call: F) {
    let mut call = Box::pin(call);
    assert!(call.as_mut().now_or_never().is_none(), "its body hangs");
    drop(call);
    // Lets the guard's background work run.
    tokio::task::yield_now().await;
}

#[track_caller]
fn assert_reused<T: std::fmt::Debug>(result: Result<T, Error>) {
    let error = result.expect_err("the key was used with another request before");
    assert!(matches!(error, Error::KeyReused), "{error:?}");
}

/// Error type of a service.
#[derive(Debug, thiserror::Error, serde::Serialize, serde::Deserialize)]
enum Failure {
    #[error("declined: {0}")]
    Declined(String),
    #[error("refused with status {0}")]
    Status(u16),
    #[error("timed out")]
    TimedOut,
    #[error(transparent)]
    #[serde(skip)]
    Idempotency(#[from] Error),
}
