//! A runtime for the targets that wait.

use std::future::Future;

use tokio::runtime::{Builder, Runtime};

thread_local! {
    static PAUSED: Runtime = runtime(true);
    static REAL: Runtime = runtime(false);
}

fn runtime(paused: bool) -> Runtime {
    let mut builder = Builder::new_current_thread();
    let builder = builder.enable_all().start_paused(paused);
    builder.build().expect("a runtime starts")
}

/// Runs a future to its end. Time is paused: whoever sleeps is woken at once.
pub(super) fn run<T>(future: impl Future<Output = T>) -> T {
    PAUSED.with(|runtime| runtime.block_on(future))
}

/// Runs a future that waits for other threads, for which no time may be skipped.
pub(super) fn run_in_real_time<T>(future: impl Future<Output = T>) -> T {
    REAL.with(|runtime| runtime.block_on(future))
}
