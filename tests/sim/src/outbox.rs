//! The relay of the outbox. The runtime starts one only over its own databases, so its sources are compiled here once
//! more, over the simulated store.

#[path = "../../../idem-runtime/src/outbox/deliver.rs"]
mod deliver;
#[path = "../../../idem-runtime/src/outbox/search.rs"]
mod search;
#[expect(dead_code, reason = "nobody decodes messages")]
#[path = "../../../idem-runtime/src/outbox/shared.rs"]
mod shared;
mod wake;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use idem_runtime::Error;

use self::search::MessageSearch;
use self::shared::{Counters, Failure, Handler, RelaySettings, RelayShared, Shares};
use crate::plan::Setup;
use crate::store::SimStore;
use crate::store::outbox::{Messages, TOPIC};
use crate::worker::{Schedule, Settings, WorkerGuard};
use crate::world::Shared;

/// Starts the relay of a process, which runs as long as the process.
pub(crate) fn start(
    store: &SimStore,
    process: usize,
    shared: &Shared,
    setup: &Setup,
) -> Result<(), Error> {
    let lease = setup.lease;
    let poll_interval = lease / 4;
    let settings = RelaySettings {
        worker: Settings {
            poll_interval,
            concurrency: 3,
            max_attempts: MAX_ATTEMPTS,
            first_pause: lease / 16,
            longest_pause: lease / 2,
        },
        lease,
        keep_delivered: None,
        skip_parked: false,
        // Longer than any handler of the simulation.
        handler_timeout: lease * 10,
    };
    let messages: Arc<dyn Messages> = Arc::new(store.clone());
    let schedule = Schedule {
        first: Duration::ZERO,
        interval: poll_interval,
        concurrency: settings.worker.concurrency,
    };
    let handlers = BTreeMap::from([(TOPIC.to_owned(), handler(process, shared, lease))]);
    let worker = WorkerGuard::start(schedule, |stop| {
        MessageSearch::new(RelayShared {
            polling: messages.polling(&[TOPIC], settings.skip_parked),
            messages,
            shares: Arc::new(Shares::new(settings.worker.concurrency, handlers.len())),
            handlers,
            settings,
            counters: Arc::new(Counters::default()),
            stop,
        })
    })?;
    worker.detach();
    Ok(())
}

/// Number of deliveries of a message before it is parked.
const MAX_ATTEMPTS: u32 = 12;

/// Handles a message: takes some time, and fails sometimes. Both depend on the message alone.
fn handler(process: usize, shared: &Shared, lease: Duration) -> Handler {
    let shared = shared.clone();
    Arc::new(move |message| {
        let shared = shared.clone();
        Box::pin(async move {
            let mut handling = shared.handling(message.id, process, message.attempt);
            let choice = (message.id as u64 * 7 + u64::from(message.attempt) * 13) % 20;
            let takes = lease.mul_f64([0.0, 0.01, 0.05, 0.3, 0.9, 1.5][choice as usize % 6]);
            tokio::time::sleep(takes).await;
            match choice {
                0..=3 => Err(Failure::Failed("a planned failure".into())),
                // Without the panic hook, which would print the panic.
                4 => std::panic::resume_unwind(Box::new("a planned panic")),
                _ => {
                    handling.succeed();
                    Ok(())
                }
            }
        })
    })
}
