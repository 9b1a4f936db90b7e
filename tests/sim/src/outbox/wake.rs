//! Wakes the relays of a process after an enqueue. In the simulation nobody does: each relay finds a message when it
//! polls, as for messages of other processes.

use std::cell::RefCell;

use tokio::sync::watch;

thread_local! {
    /// A sender that lives as long as the thread.
    static ENQUEUED: RefCell<watch::Sender<()>> = RefCell::default();
}

pub(super) fn subscribe() -> watch::Receiver<()> {
    ENQUEUED.with_borrow(watch::Sender::subscribe)
}
