//! A state: the record, the messages, the callers, and what an observer remembers.

pub(crate) use crate::cell::{
    BY_OPERATOR, Call, Cell, LEASE, Owner, Seen, at, claim_id, claim_of, micros, outcome,
};
use crate::ghost::Ghost;
use crate::setup::{Budget, Setup};

/// A state of the search.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) now: i64,
    pub(crate) record: Option<Cell>,
    /// Highest fencing token of a deleted record.
    pub(crate) floor: Option<i64>,
    /// The open transaction that has locked the record.
    pub(crate) open: Option<OpenTransaction>,
    /// Requests under way, in order, so that equal states are equal.
    pub(crate) messages: Vec<Message>,
    pub(crate) callers: Vec<Caller>,
    /// The record as the operator saw it.
    pub(crate) seen: Option<Cell>,
    pub(crate) left: Budget,
    pub(crate) ghost: Ghost,
}

/// An open transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct OpenTransaction {
    /// The call, and the number of its connection.
    pub(crate) connection: (Call, u8),
    /// The record as it is in the transaction.
    pub(crate) cell: Cell,
}

/// A request under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Message {
    pub(crate) request: Request,
    pub(crate) to: ReplyTo,
}

/// A request to the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Request {
    Get,
    Claim(Call),
    TakeOver(Call, Seen),
    /// Marks a record whose owner is gone.
    Mark(Seen),
    Renew(Owner),
    Complete(Owner),
    Release(Owner),
    Interrupt(Owner),
    /// Claims in a transaction on this connection.
    Open(Call, u8),
    /// Changes the data, completes and commits on this connection.
    Commit(Owner, u8),
}

/// Receiver of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum ReplyTo {
    /// The caller that waits for it.
    Caller(u8),
    /// The task of a claim that took too long: with the token that the call uses by now.
    Orphan(u8, Orphan),
    /// The task that searches for an abandoned claim.
    GiveBack(u8, Call),
    /// The heartbeat of a call; the renewal was sent at this time.
    Heartbeat(u8, Call, i64),
    /// Nobody.
    Nobody,
}

/// Fate of a claim that took too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Orphan {
    /// The call still claims.
    Undecided,
    /// The body runs under this token.
    Uses(i64),
    /// The call has gone.
    Abandoned,
}

/// A process that calls.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Caller {
    /// Number of its present or next call.
    pub(crate) call: u8,
    pub(crate) phase: Phase,
    /// The reply that it has not read yet.
    pub(crate) inbox: Option<Reply>,
    /// Token of a late claim that was granted before the call decided.
    pub(crate) orphaned: Option<i64>,
}

/// State of a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    Idle,
    /// Waits for the answer to a claim.
    Claiming {
        request: Request,
        sent_at: i64,
        tries: u8,
        in_doubt: bool,
    },
    /// Waits for another owner, or for another transaction.
    Waiting,
    /// Reads the record that it waits for.
    Polling,
    /// Marks a record whose owner is gone.
    Marking,
    /// Runs the body.
    Body {
        owner: Owner,
        /// By its own clock. None: it knows that it has lost the lease.
        live_until: Option<i64>,
        did_it: bool,
        connection: u8,
    },
    /// Settles the record.
    Settling {
        request: Request,
        live_until: Option<i64>,
        tries: u8,
    },
    /// Reads the outcome of the call that took over.
    AfterLoss,
    /// Reads whether its commit took effect.
    Verifying(Owner),
    /// All calls have ended.
    Over,
}

/// A reply of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Reply {
    Granted(i64),
    /// The record, and the time at which the store read it.
    Existing(Cell, i64),
    Locked,
    Applied,
    Fenced,
    Record(Option<Cell>, i64),
    Resolved(bool),
    /// No reply in time, or an error.
    Failed,
}

impl World {
    /// The state in which a search begins.
    pub(crate) fn first(setup: &Setup) -> Self {
        let caller = |number: u8| Caller {
            call: number * setup.calls,
            phase: Phase::Idle,
            inbox: None,
            orphaned: None,
        };
        Self {
            now: 10,
            record: None,
            floor: None,
            open: None,
            messages: Vec::new(),
            callers: (0..setup.callers).map(caller).collect(),
            seen: None,
            left: setup.budget,
            ghost: Ghost::new(setup),
        }
    }

    /// Sends a request.
    pub(crate) fn send(&mut self, request: Request, to: ReplyTo) {
        let message = Message { request, to };
        let at = self.messages.partition_point(|it| *it < message);
        self.messages.insert(at, message);
    }
}
