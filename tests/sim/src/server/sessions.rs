//! Sessions of connections on which a client has begun a transaction. The store may end that transaction by itself, and the
//! session goes on.

use std::collections::BTreeMap;

use idem_store::StoreError;
use idem_store::key::RecordId;

use super::Slot;
use super::outbox::Enqueued;
use crate::message::{Begin, Row, Statement, aborted, deadlock, ended, refused};

/// An open transaction, or what is left of it until the client ends it.
#[derive(Debug, Clone)]
pub(super) struct OpenTransaction {
    pub(super) writes: Writes,
    pub(super) savepoints: Vec<(String, Writes)>,
    pub(super) begin: Begin,
    pub(super) state: SessionState,
    /// True if a rollback failed for which nobody waited.
    has_unread_error: bool,
}

/// State of a session until the client commits or rolls back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SessionState {
    /// The transaction is the one that was begun.
    Held,
    /// The store has ended the transaction. The next statement has begun another one, or will.
    Restarted,
    /// The store has ended the transaction. Each statement commits on its own.
    Autocommit,
    /// A statement has failed. The session refuses all others until a rollback.
    Aborted,
    /// The client has made the session refuse writes.
    ReadOnly,
}

/// What a transaction has written.
#[derive(Debug, Clone, Default)]
pub(super) struct Writes {
    /// Changed records, which are locked.
    pub(super) slots: BTreeMap<RecordId, Option<Slot>>,
    /// Records that it has written, and that expired before it claimed them once more.
    pub(super) expired: Vec<(RecordId, Slot)>,
    pub(super) rows: Vec<Row>,
    pub(super) messages: Vec<Enqueued>,
}

impl OpenTransaction {
    pub(super) fn new(begin: Begin) -> Self {
        Self {
            writes: Writes::default(),
            savepoints: Vec::new(),
            begin,
            state: SessionState::Held,
            has_unread_error: false,
        }
    }

    /// Ends the transaction without the client. Returns the error of the statement.
    pub(super) fn end_by_store(&mut self, aborts: bool) -> StoreError {
        let autocommit = match self.begin {
            Begin::Caller | Begin::Foreign => true,
            Begin::Store { autocommit, .. } => autocommit,
        };
        match self.state {
            SessionState::Held | SessionState::Restarted if aborts => {
                // Its locks remain.
                self.state = SessionState::Aborted;
            }
            SessionState::Held | SessionState::Restarted => {
                self.writes = Writes::default();
                self.savepoints.clear();
                self.state = match autocommit {
                    true => SessionState::Autocommit,
                    false => SessionState::Restarted,
                };
            }
            SessionState::Autocommit | SessionState::Aborted | SessionState::ReadOnly => {}
        }
        deadlock()
    }

    /// True if the client's guard shows that the transaction is not the one that was begun.
    pub(super) fn is_guard_gone(&self) -> bool {
        let is_other = matches!(
            self.state,
            SessionState::Restarted | SessionState::Autocommit
        );
        is_other && matches!(self.begin, Begin::Store { is_guarded, .. } if is_guarded)
    }

    /// Error of an earlier statement for which nobody waited.
    pub(super) fn unread_error(&mut self) -> Option<StoreError> {
        std::mem::take(&mut self.has_unread_error).then(ended)
    }

    /// Error of a statement that the session refuses.
    pub(super) fn refusal(&mut self, statement: &Statement) -> Option<StoreError> {
        if let Some(error) = self.unread_error() {
            return Some(error);
        }
        match (self.state, statement) {
            (
                SessionState::Aborted,
                Statement::RollbackTo(name) | Statement::RollbackToLater(name),
            ) if self.find(name).is_some() => None,
            (SessionState::Aborted, Statement::RefuseWrites) => None,
            (SessionState::Aborted, _) => Some(aborted()),
            (SessionState::ReadOnly, _) if statement.writes() => Some(refused()),
            (SessionState::Autocommit | SessionState::ReadOnly, Statement::Join(_)) => {
                Some(ended())
            }
            // In an open transaction, a savepoint is missing only if its release was sent before.
            (
                SessionState::Restarted | SessionState::Autocommit | SessionState::ReadOnly,
                Statement::RollbackTo(name)
                | Statement::RollbackToLater(name)
                | Statement::Release(name),
            ) if self.find(name).is_none() => {
                self.has_unread_error = matches!(statement, Statement::RollbackToLater(_));
                Some(ended())
            }
            _ => None,
        }
    }

    /// Sets a savepoint. Outside of a transaction it would be gone at once.
    pub(super) fn set_savepoint(&mut self, name: &str) {
        if self.state != SessionState::Autocommit {
            self.savepoints.push((name.to_owned(), self.writes.clone()));
        }
    }

    pub(super) fn rollback_to(&mut self, name: &str) {
        if let Some(at) = self.find(name) {
            self.writes = self.savepoints[at].1.clone();
        }
        if self.state == SessionState::Aborted {
            self.state = SessionState::Held;
        }
    }

    pub(super) fn release(&mut self, name: &str) {
        if let Some(at) = self.find(name) {
            self.savepoints.truncate(at);
        }
    }

    /// The client refuses writes, unless its transaction is still open.
    pub(super) fn refuse_writes(&mut self) {
        if self.state == SessionState::Autocommit {
            self.state = SessionState::ReadOnly;
        }
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.savepoints.iter().rposition(|(it, _)| it == name)
    }
}
