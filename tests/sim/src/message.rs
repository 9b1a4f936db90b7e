//! Messages between processes and the store.

mod relay;

use std::time::Duration;

use idem_store::key::{Operation, RecordId};
use idem_store::record::{Observation, Outcome, Owner, Payload, Record};
use idem_store::store::{
    ClaimInTransaction, ClaimOutcome, ClaimRequest, FencedWrite, Filter, Page, PageRequest, Purged,
    RecoveryInput, Resolution, Resolved, SavedStep,
};
use idem_store::{StoreError, StoreErrorKind, Timestamp};

pub(crate) use self::relay::{ClaimedMessage, MessageOwner, MessageReply, MessageRequest};

/// Number of a connection, unique in a run.
pub(crate) type ConnectionId = u64;

/// A row that is inserted in a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) key: usize,
    /// Number of the run of the body.
    pub(crate) run: u64,
    pub(crate) kind: RowKind,
}

/// Origin of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowKind {
    /// Effect of a transactional body.
    Effect,
    /// Effect of a step of this number.
    Step(u32),
    /// Further row of a transactional body, or of a step of this number.
    Further(Option<u32>),
    /// The caller inserted it in its own transaction. `run` is the number of the caller.
    Callers,
}

/// Origin of a purge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PurgedBy {
    /// An operator, who trusts the store's clock.
    Operator,
    /// The purger of a process that has first read the store's clock at this true time. None: it has not.
    Purger {
        first_reading: Option<u64>,
        sent_at: u64,
    },
}

/// Request of a process.
#[derive(Debug, Clone)]
pub(crate) enum Request {
    Claim(ClaimRequest),
    TakeOver(Observation, ClaimRequest),
    Renew(Owner, Duration),
    Complete(Owner, Outcome),
    Release(Owner),
    Interrupt(Owner),
    Resolve(Observation, Resolution),
    Get(RecordId),
    List(Filter, PageRequest),
    Now,
    Purge(u32, Timestamp, PurgedBy),
    SaveStep(Owner, String, Payload),
    SavedSteps(Owner),
    SaveInput(Owner, Payload, Duration),
    Due(Operation, u32),
    BeginRecovery(RecoveryInput, Duration),
    Postpone(RecoveryInput, Duration),
    Forget(RecoveryInput),
    /// Claims and completions in one statement.
    Batch(Vec<Self>),
    Precheck(ClaimRequest),
    InTransaction(Statement),
    /// Request of a relay of the outbox.
    Messages(MessageRequest),
}

/// Statement on a connection that is, or comes to be, in a transaction.
#[derive(Debug, Clone)]
pub(crate) enum Statement {
    Begin(Begin),
    Claim(Option<Observation>, ClaimRequest),
    Complete(Owner, Outcome),
    SaveStep(Owner, String, Payload),
    Savepoint(String),
    /// Sets a savepoint for a call that joins the transaction, unless the store has ended that transaction.
    Join(String),
    RollbackTo(String),
    /// As `RollbackTo`, but nobody waits. The next statement gets the error.
    RollbackToLater(String),
    /// Keeps what was done since the savepoint.
    Release(String),
    Insert(Row),
    /// Enqueues a message, with or without an ordering key.
    Enqueue(Option<usize>),
    Commit,
    Rollback,
    /// Refuses writes until the caller ends its transaction, if the store has ended it.
    RefuseWrites,
    /// The client closes the connection, which rolls back.
    Close,
}

/// Beginning of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Begin {
    /// By code that knows nothing of the store, and that leaves it open on a connection of the pool.
    Foreign,
    /// By a caller, with the settings of the session: `autocommit` is on.
    Caller,
    /// By the store.
    Store {
        /// True if the end of the transaction proves that the transaction is the one that was begun.
        is_guarded: bool,
        /// True if each statement commits on its own once the transaction has ended.
        autocommit: bool,
    },
}

/// A request that has arrived.
#[derive(Debug, Clone)]
pub(crate) struct Arrival {
    pub(crate) process: usize,
    pub(crate) connection: Option<ConnectionId>,
    /// Clock of the process when the request was sent. Only a defective store looks at it.
    pub(crate) process_clock: i64,
    /// True if the store refuses what it would have to keep.
    pub(crate) is_refused: bool,
    /// True if the store ends the transaction of this statement, as to resolve a deadlock.
    pub(crate) is_victim: bool,
    pub(crate) request: Request,
}

/// Reply of the store.
#[derive(Debug, Clone)]
pub(crate) enum Reply {
    Claim(ClaimOutcome),
    Fenced(FencedWrite),
    Resolved(Resolved),
    Record(Option<Box<Record>>),
    Page(Page),
    Now(Timestamp),
    Purged(Purged),
    Steps(Option<Vec<SavedStep>>),
    Due(Vec<RecoveryInput>),
    /// A reply for each request of a batch that the store could answer without waiting.
    Batch(Vec<Option<Self>>),
    InTransaction(ClaimInTransaction),
    Prechecked(Option<ClaimInTransaction>),
    Messages(MessageReply),
    /// Nothing was done, because other code has left a transaction open on the connection.
    NotAlone,
    Done,
}

pub(crate) type Answer = Result<Reply, StoreError>;

impl Request {
    /// Record that the request is about.
    pub(crate) fn record(&self) -> Option<RecordId> {
        match self {
            Self::Claim(claim)
            | Self::TakeOver(_, claim)
            | Self::Precheck(claim)
            | Self::InTransaction(Statement::Claim(_, claim)) => Some(claim.id),
            Self::Renew(owner, _)
            | Self::Complete(owner, _)
            | Self::Release(owner)
            | Self::Interrupt(owner)
            | Self::SaveStep(owner, ..)
            | Self::SavedSteps(owner)
            | Self::SaveInput(owner, ..) => Some(owner.id),
            Self::Resolve(observed, _) => Some(observed.id),
            Self::Get(id) => Some(*id),
            Self::BeginRecovery(input, _) | Self::Postpone(input, _) | Self::Forget(input) => {
                Some(input.id)
            }
            Self::InTransaction(Statement::Complete(owner, _) | Statement::SaveStep(owner, ..)) => {
                Some(owner.id)
            }
            Self::List(..)
            | Self::Now
            | Self::Purge(..)
            | Self::Due(..)
            | Self::Batch(_)
            | Self::Messages(_)
            | Self::InTransaction(_) => None,
        }
    }

    /// True if the request changes a record or what belongs to it.
    pub(crate) fn writes(&self) -> bool {
        !matches!(
            self,
            Self::Get(_)
                | Self::List(..)
                | Self::Now
                | Self::SavedSteps(_)
                | Self::Due(..)
                | Self::Precheck(_)
                | Self::Messages(_)
                | Self::InTransaction(_)
        )
    }

    /// True if the request stores a result.
    pub(crate) fn stores_result(&self) -> bool {
        let outcome = match self {
            Self::Complete(_, outcome) | Self::InTransaction(Statement::Complete(_, outcome)) => {
                outcome
            }
            Self::SaveStep(..) | Self::InTransaction(Statement::SaveStep(..)) => return true,
            _ => return false,
        };
        *outcome != Outcome::Unrecorded
    }

    /// Name of the request in a trace.
    pub(crate) fn name(&self) -> String {
        let name = match self {
            Self::Claim(_) => "claim",
            Self::TakeOver(..) => "take over",
            Self::Renew(..) => "renew",
            Self::Complete(..) => "complete",
            Self::Release(_) => "release",
            Self::Interrupt(_) => "interrupt",
            Self::Resolve(_, Resolution::Complete(_)) => "resolve: complete",
            Self::Resolve(_, Resolution::Release) => "resolve: release",
            Self::Resolve(_, Resolution::Interrupt) => "resolve: interrupt",
            Self::Resolve(_, Resolution::Erase) => "resolve: erase",
            Self::Resolve(_, Resolution::Correct(_)) => "resolve: correct",
            Self::Get(_) => "read",
            Self::List(..) => "list",
            Self::Now => "read the clock",
            Self::Purge(..) => "purge",
            Self::SaveStep(_, name, _) => return format!("save step {name}"),
            Self::SavedSteps(_) => "read steps",
            Self::SaveInput(..) => "save recovery input",
            Self::Due(..) => "read due inputs",
            Self::BeginRecovery(..) => "begin recovery",
            Self::Postpone(..) => "postpone recovery",
            Self::Forget(_) => "forget recovery input",
            Self::Batch(batch) => return format!("batch of {}", batch.len()),
            Self::Precheck(_) => "look for a lock",
            Self::InTransaction(statement) => statement.name(),
            Self::Messages(request) => return request.name(),
        };
        name.to_owned()
    }
}

impl Statement {
    /// True if the statement writes, so that it can wait for a lock.
    pub(crate) fn writes(&self) -> bool {
        matches!(
            self,
            Self::Claim(..)
                | Self::Complete(..)
                | Self::SaveStep(..)
                | Self::Insert(_)
                | Self::Enqueue(_)
        )
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Begin(_) => "BEGIN",
            Self::Claim(None, _) => "claim in transaction",
            Self::Claim(Some(_), _) => "take over in transaction",
            Self::Complete(..) => "complete in transaction",
            Self::SaveStep(..) => "save step in transaction",
            Self::Savepoint(_) | Self::Join(_) => "SAVEPOINT",
            Self::RollbackTo(_) | Self::RollbackToLater(_) => "ROLLBACK TO",
            Self::Release(_) => "RELEASE",
            Self::Insert(_) => "INSERT",
            Self::Enqueue(_) => "enqueue",
            Self::Commit => "COMMIT",
            Self::Rollback => "ROLLBACK",
            Self::RefuseWrites => "refuse writes",
            Self::Close => "close the connection",
        }
    }
}

impl Reply {
    /// The reply in a trace.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Claim(ClaimOutcome::Granted(granted))
            | Self::InTransaction(ClaimInTransaction::Granted(granted)) => {
                format!("granted, attempt {}", granted.attempt)
            }
            Self::Claim(ClaimOutcome::Existing(record))
            | Self::InTransaction(ClaimInTransaction::Existing(record)) => {
                let lapsed = if record.is_lapsed() { ", lapsed" } else { "" };
                format!("exists: {}{lapsed}", record.state)
            }
            Self::InTransaction(ClaimInTransaction::Locked { .. }) | Self::Prechecked(Some(_)) => {
                "locked".to_owned()
            }
            Self::Messages(reply) => reply.name(),
            Self::Prechecked(None) => "not locked".to_owned(),
            Self::Fenced(FencedWrite::Applied) | Self::Done => "done".to_owned(),
            Self::Fenced(FencedWrite::Fenced) => "fenced".to_owned(),
            Self::NotAlone => "refused, a transaction is open".to_owned(),
            Self::Resolved(resolved) => format!("{resolved:?}").to_lowercase(),
            Self::Record(None) => "no record".to_owned(),
            Self::Record(Some(record)) => format!("record: {}", record.state),
            Self::Page(page) => format!("{} records", page.records.len()),
            Self::Now(now) => format!("the time is {}", now.as_micros()),
            Self::Purged(purged) => format!("removed {}", purged.removed),
            Self::Steps(None) => "not the owner".to_owned(),
            Self::Steps(Some(steps)) => format!("{} steps", steps.len()),
            Self::Due(due) => format!("{} inputs", due.len()),
            Self::Batch(replies) => {
                let names = replies.iter().map(|reply| match reply {
                    Some(reply) => reply.name(),
                    None => "not answered".to_owned(),
                });
                names.collect::<Vec<_>>().join("; ")
            }
        }
    }
}

/// The error of a request whose connection was lost.
pub(crate) fn connection_lost() -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, "the connection was lost")
}

/// The error of a statement that the store has chosen as the victim of a deadlock.
pub(crate) fn deadlock() -> StoreError {
    let text = "the transaction was rolled back to resolve a deadlock";
    StoreError::new(StoreErrorKind::Conflict, text)
}

/// The error of a transaction that is not the one that was begun.
pub(crate) fn ended() -> StoreError {
    let text = "the store has ended the transaction";
    StoreError::new(StoreErrorKind::Conflict, text)
}

/// The error of a statement in a transaction in which another statement has failed.
pub(crate) fn aborted() -> StoreError {
    StoreError::new(StoreErrorKind::Other, "the transaction is aborted")
}

/// The error of a statement on a connection that refuses writes.
pub(crate) fn refused() -> StoreError {
    let text = "the transaction is read-only";
    StoreError::new(StoreErrorKind::ReadOnly, text)
}

/// The error of a store that is full.
pub(crate) fn full() -> StoreError {
    StoreError::new(StoreErrorKind::Full, "the store is full")
}

/// The error of a reply of the wrong kind, which only a defect of the simulator causes.
pub(crate) fn wrong_reply() -> StoreError {
    StoreError::new(StoreErrorKind::Corrupt, "the reply is of another kind")
}
