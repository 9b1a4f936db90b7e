//! Where a result came from, for callers that want to know, without a change to the function's signature.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

tokio::task_local! {
    static OBSERVED: Cell;
}

/// Where a result came from.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Provenance {
    /// Whether this call ran the body.
    pub source: Source,
    /// Which attempt made the result; the first is 1.
    pub attempt: u32,
    /// When the result was first made: by the store's clock where it was read from the store, by this process's where
    /// it was made here.
    pub made_at: SystemTime,
}

/// Whether a call ran its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// It did.
    Executed,
    /// It was given the stored result of an earlier call.
    Replayed,
    /// It waited for a call that was running, and was given its result.
    Waited,
}

/// Where the result of a call goes that wants to know.
#[derive(Debug, Clone)]
pub(super) struct Observer(Arc<Mutex<Option<Provenance>>>);

/// What the first call inside of an observed future takes, so that the calls that its body makes find nothing.
type Cell = Mutex<Option<Observer>>;

/// Runs a future and tells where the result of the first idempotent call in it came from. None where there was no such
/// call, or it came to no result (the key was in flight, say).
///
/// # Cancel safety
/// That of the future.
///
/// # Example
/// ```
/// # use std::time::Duration;
/// use idem_runtime::{Call, Error, Idem, MemoryStore, Source, with_provenance};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Error> {
/// # let idem = Idem::new(MemoryStore::new());
/// # let greet = async || {
/// #     let call = Call::new("greet", "key-1", "request", Duration::from_secs(3600));
/// #     idem.run(call, async || Ok::<_, Error>("hello".to_owned())).await
/// # };
/// let (greeting, provenance) = with_provenance(greet()).await;
/// assert_eq!(provenance.map(|it| it.source), Some(Source::Executed));
///
/// let (again, provenance) = with_provenance(greet()).await;
/// assert_eq!(provenance.map(|it| it.source), Some(Source::Replayed));
/// assert_eq!(greeting?, again?);
/// # Ok(())
/// # }
/// ```
pub async fn with_provenance<F: Future>(future: F) -> (F::Output, Option<Provenance>) {
    let observer = Observer(Arc::default());
    let output = OBSERVED
        .scope(Mutex::new(Some(observer.clone())), future)
        .await;
    let provenance = observer
        .0
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take();
    (output, provenance)
}

impl Observer {
    /// The observer of this call, where it is the first one in an observed future.
    pub(super) fn take() -> Option<Self> {
        OBSERVED
            .try_with(|cell| cell.lock().unwrap_or_else(PoisonError::into_inner).take())
            .ok()
            .flatten()
    }

    pub(super) fn tell(&self, source: Source, attempt: u32, made_at: SystemTime) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Provenance {
            source,
            attempt,
            made_at,
        });
    }
}
