//! Reports the source of a result, without a change to the function's signature.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use crate::mutex::lock;

tokio::task_local! {
    static OBSERVER: ObserverSlot;
}

/// Provenance of a result.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Provenance {
    /// Source: executed, replayed or waited for.
    pub source: ResultSource,
    /// Number of the attempt that made the result; the first is 1.
    pub attempt: u32,
    /// Time at which the result was first made. By the store's clock if it was read from the store, by this process's
    /// clock if it was made here.
    pub made_at: SystemTime,
    /// Time for which the result is kept: a retry within it gets the result. It counts from the time when the store was
    /// asked for the record, or acknowledged it. None if the result was not stored, or has no end.
    pub kept_for: Option<Duration>,
}

/// The way in which a call obtained its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ResultSource {
    /// The call ran its body.
    Executed,
    /// The call replayed the stored result of an earlier call.
    Replayed,
    /// The call waited for a running call, and received its result.
    Waited,
}

/// Receiver of the provenance of an observed call.
#[derive(Debug, Clone)]
pub(super) struct Observer(Arc<Mutex<Option<Provenance>>>);

/// Slot from which the first call in an observed future takes the observer. Calls made by that call's body find it
/// empty.
type ObserverSlot = Mutex<Option<Observer>>;

/// Runs a future, and returns the provenance of the first idempotent call in it. None if there was no such call, or if
/// the call had no result (for example because the key was in flight).
///
/// # Cancel safety
/// Cancel-safe if the future is.
///
/// # Example
/// ```
/// # use std::time::Duration;
/// use idem_runtime::advanced::{ResultSource, with_provenance};
/// use idem_runtime::{Call, Error, Idem, MemoryStore};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Error> {
/// # let idem = Idem::new(MemoryStore::new());
/// # let greet = async || {
/// #     let call = Call::new("greet", "key-1", "request", Duration::from_secs(3600));
/// #     idem.run(call, async || Ok::<_, Error>("hello".to_owned())).await
/// # };
/// let (greeting, provenance) = with_provenance(greet()).await;
/// assert_eq!(provenance.map(|it| it.source), Some(ResultSource::Executed));
///
/// let (again, provenance) = with_provenance(greet()).await;
/// assert_eq!(provenance.map(|it| it.source), Some(ResultSource::Replayed));
/// assert_eq!(greeting?, again?);
/// # Ok(())
/// # }
/// ```
pub async fn with_provenance<F: Future>(future: F) -> (F::Output, Option<Provenance>) {
    let observer = Observer(Arc::default());
    let output = observed(observer.clone(), future).await;
    let provenance = lock(&observer.0).take();
    (output, provenance)
}

/// Runs a future whose first idempotent call is observed.
pub(super) async fn observed<F: Future>(observer: Observer, future: F) -> F::Output {
    OBSERVER.scope(Mutex::new(Some(observer)), future).await
}

impl Observer {
    /// Takes the observer for this call, if it is the first one in an observed future.
    pub(super) fn take() -> Option<Self> {
        OBSERVER.try_with(|slot| lock(slot).take()).ok().flatten()
    }

    pub(super) fn record(&self, provenance: Provenance) {
        *lock(&self.0) = Some(provenance);
    }
}
