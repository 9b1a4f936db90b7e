//! Checks of the outbox.

use idem_store::record::Timestamp;

use super::{Shared, World};

/// What happened to a message.
#[derive(Default)]
pub(super) struct MessageHistory {
    ordering_key: Option<usize>,
    is_committed: bool,
    /// Process that has claimed it, and the end of its lease by the store's clock.
    claim: Option<(usize, Timestamp)>,
    /// Processes whose handlers run.
    running: Vec<usize>,
    was_handled: bool,
    is_parked: bool,
}

/// A handler that runs. Dropping it ends it.
pub(crate) struct Handling {
    shared: Shared,
    id: i64,
    process: usize,
    succeeds: bool,
}

impl Shared {
    /// A handler begins.
    pub(crate) fn handling(&self, id: i64, process: usize, attempt: u32) -> Handling {
        self.world().handler_begins(id, process, attempt);
        Handling {
            shared: self.clone(),
            id,
            process,
            succeeds: false,
        }
    }
}

impl Handling {
    /// The message is handled.
    pub(crate) fn succeed(&mut self) {
        self.succeeds = true;
    }
}

impl Drop for Handling {
    fn drop(&mut self) {
        let mut world = self.shared.world();
        let (id, process) = (self.id, self.process);
        world.handler_ends(id, process, self.succeeds);
    }
}

impl World {
    /// A transaction enqueues a message. Returns the message's number.
    pub(crate) fn enqueues(&mut self, ordering_key: Option<usize>) -> i64 {
        self.messages.push(MessageHistory {
            ordering_key,
            ..MessageHistory::default()
        });
        self.messages.len() as i64 - 1
    }

    /// A transaction with this message was committed.
    pub(crate) fn message_is_committed(&mut self, id: i64) {
        self.stats.messages += 1;
        self.messages[id as usize].is_committed = true;
    }

    pub(crate) fn message_is_claimed(&mut self, id: i64, process: usize, until: Timestamp) {
        let now = self.store_time;
        let message = &mut self.messages[id as usize];
        let is_leased = message.claim.is_some_and(|(_, until)| until > now);
        let runs_elsewhere = message.running.iter().any(|it| *it != process);
        message.claim = Some((process, until));
        if runs_elsewhere && (is_leased || self.is_calm) {
            let what = format!("message {id} was claimed while another relay handled it");
            self.violation("one relay", what);
        }
        self.check_order(id);
    }

    /// No message is claimed while an earlier one of its ordering key is not handled.
    fn check_order(&mut self, id: i64) {
        let key = self.messages[id as usize].ordering_key;
        let is_before = |other: &MessageHistory| {
            other.is_committed && other.ordering_key == key && !other.was_handled
        };
        let mut earlier = self.messages[..id as usize].iter();
        if let Some(earlier) = earlier.position(is_before).filter(|_| key.is_some()) {
            let what = format!("message {id} was claimed before message {earlier} was handled");
            self.violation("order", what);
        }
    }

    /// A relay has renewed a lease, or ended its claim: `until` is none then. The claim must be its own.
    pub(crate) fn message_is_changed(&mut self, id: i64, process: usize, until: Option<Timestamp>) {
        let owner = self.messages[id as usize].claim.take();
        self.messages[id as usize].claim = until.map(|until| (process, until));
        if owner.is_some_and(|(owner, _)| owner != process) {
            let what = format!("message {id} was changed by a relay that had lost it");
            self.violation("one relay", what);
        }
    }

    pub(crate) fn message_is_parked(&mut self, id: i64) {
        self.stats.parked += 1;
        self.messages[id as usize].is_parked = true;
    }

    /// A message is delivered, so a handler must have handled it.
    pub(crate) fn message_is_removed(&mut self, id: i64) {
        if !self.messages[id as usize].was_handled {
            let what = format!("message {id} was removed, and no handler has handled it");
            self.violation("delivery", what);
        }
    }

    fn handler_begins(&mut self, id: i64, process: usize, attempt: u32) {
        self.stats.deliveries += 1;
        self.note(
            &format!("process {process}"),
            format_args!("handles message {id}, attempt {attempt}"),
        );
        let message = &mut self.messages[id as usize];
        message.running.push(process);
        if !message.is_committed {
            let what = format!("message {id} of a transaction that did not commit was handled");
            self.violation("delivery", what);
        }
    }

    fn handler_ends(&mut self, id: i64, process: usize, succeeds: bool) {
        let message = &mut self.messages[id as usize];
        if let Some(at) = message.running.iter().position(|it| *it == process) {
            message.running.swap_remove(at);
        }
        message.was_handled |= succeeds;
        if self.killing != Some(process) {
            let how = if succeeds {
                "has handled"
            } else {
                "fails with"
            };
            self.note(
                &format!("process {process}"),
                format_args!("{how} message {id}"),
            );
        }
    }

    /// Every committed message is handled, or waits behind or is one that is parked.
    pub(crate) fn check_messages(&mut self) {
        let parked: Vec<_> = self
            .messages
            .iter()
            .filter(|message| message.is_parked)
            .map(|message| message.ordering_key)
            .collect();
        let is_lost = |message: &MessageHistory| {
            let key = message.ordering_key;
            let waits = key.is_some() && parked.contains(&key);
            message.is_committed && !message.was_handled && !message.is_parked && !waits
        };
        if let Some(id) = self.messages.iter().position(is_lost) {
            let what = format!("message {id} was committed, and never handled");
            self.violation("delivery", what);
        }
    }
}
