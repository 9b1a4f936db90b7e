//! Waiting for what happens at its own time.

use std::panic::Location;
use std::time::{Duration, Instant};

/// Time after which a test gives up: far more than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(5);

/// Polls a condition until it holds.
///
/// # Panics
///
/// Panics after two minutes, with the place of the call.
#[track_caller]
pub fn until(mut holds: impl AsyncFnMut() -> bool) -> impl Future<Output = ()> {
    let caller = Location::caller();
    async move {
        let began = Instant::now();
        while !holds().await {
            assert!(
                began.elapsed() < PATIENCE,
                "the condition at {caller} does not become true"
            );
            tokio::time::sleep(PAUSE).await;
        }
    }
}
