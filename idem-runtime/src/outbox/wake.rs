//! Wakes the relays of this process after an enqueue, so that they need not wait for their next poll.

use std::sync::LazyLock;

use tokio::sync::watch;

static ENQUEUED: LazyLock<watch::Sender<()>> = LazyLock::new(watch::Sender::default);

/// Wakes the relays: a message is, or will soon be, in a table.
pub(super) fn wake() {
    ENQUEUED.send_replace(());
}

pub(super) fn subscribe() -> watch::Receiver<()> {
    ENQUEUED.subscribe()
}
