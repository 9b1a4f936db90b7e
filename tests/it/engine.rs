//! The engine's guarantees, through the API without macros, on the memory store with paused time.

mod abandoned;
mod admission;
mod at_once;
mod concurrency;
mod crash;
mod edge_cases;
mod errors;
mod faults;
mod handle;
mod lifecycle;
mod patience;
pub(crate) mod plain;
mod purger;
mod readback;
mod records;
mod refused_results;
mod replay_notes;
mod steps;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use idem_runtime::{Call, Error, Idem, MemoryStore, Store, TypedOperation};

/// Retention of the records in these tests.
const TTL: Duration = Duration::from_secs(3600);

/// Default lease of a handle.
const LEASE: Duration = Duration::from_secs(30);

fn idem() -> Idem<MemoryStore> {
    Idem::new(MemoryStore::new())
}

/// The test operation, with the types of its results.
const OPERATION: TypedOperation<u32, Failure> = TypedOperation::new("test.operation");

/// Call of the test operation with this key and request.
fn call(key: &str, request: u64) -> Call {
    Call::new(OPERATION, key, &request, TTL)
}

/// A body with a countable effect, which shows how often it ran.
#[derive(Debug, Clone, Default)]
struct Effects(Arc<AtomicU32>);

impl Effects {
    fn happen(&self) -> u32 {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn count(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }

    /// Makes a call whose body returns the number of its run.
    async fn run<S: Store + ?Sized>(&self, idem: &Idem<S>, call: Call) -> Result<u32, Failure> {
        idem.run(call, async || Ok(self.happen())).await
    }
}

/// Error type of a service.
#[derive(Debug, thiserror::Error, serde::Serialize, serde::Deserialize)]
enum Failure {
    #[error("declined: {0}")]
    Declined(String),
    #[error("timed out")]
    TimedOut,
    #[error("lost")]
    Lost,
    #[error(transparent)]
    #[serde(skip)]
    Idempotency(#[from] Error),
}

/// Idempotency error that a call returned.
#[track_caller]
fn refusal<T: std::fmt::Debug>(result: Result<T, Failure>) -> Error {
    match result {
        Err(Failure::Idempotency(error)) => error,
        other => panic!("expected an idempotency error, got {other:?}"),
    }
}
