//! Plan of a run: everything that is decided before the run begins, as a function of the seed.
//!
//! Actions are explicit, so that a failing plan can be shrunk by leaving actions out.

mod accidents;
mod extras;
mod generate;
mod overload;

use std::time::Duration;

pub(crate) use self::generate::Choices;

/// A run: its settings, its faults and its actions in the order of their times.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Seed of the plan, and of every random number of the run.
    pub seed: u64,
    /// Settings of processes and keys.
    pub setup: Setup,
    /// Faults of the network.
    pub faults: Faults,
    /// Actions, earliest first.
    pub actions: Vec<Action>,
}

/// Settings of processes and keys.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Speed of each process's clock relative to the true time.
    pub clock_rates: Vec<f64>,
    /// Lease duration of all calls.
    pub lease: Duration,
    /// Time limit of a store call.
    pub store_timeout: Duration,
    /// Time limit of all tries of a store call.
    pub store_patience: Duration,
    /// Retention of outcomes.
    pub ttl: Duration,
    /// The keys that callers use.
    pub keys: Vec<Mode>,
    /// True if each process runs a recovery and a purger.
    pub has_workers: bool,
    /// True if each process runs a relay of the outbox.
    pub has_relays: bool,
    /// True if claims and completions of a process are batched.
    pub batches: bool,
    /// Number of claims that a process sends to the store at once.
    pub claim_concurrency: usize,
    /// True if more calls arrive than the store can answer.
    pub is_overloaded: bool,
    /// Maximum age of a record in the cache of a process. None: there is no cache.
    pub cache: Option<Duration>,
}

/// How the operation of a key is declared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// `on_crash = rerun`.
    Rerun,
    /// `on_crash = refuse`.
    Refuse,
    /// `on_crash = reconcile(...)`.
    Reconcile,
    /// `rerun` with recovery input, which workers retry.
    Recover,
    /// `tx = tx`.
    Transaction,
    /// `on_store_error = run`.
    Unprotected,
}

impl Mode {
    /// Name of the operation.
    pub const fn operation(self) -> &'static str {
        match self {
            Self::Rerun => "sim.rerun",
            Self::Refuse => "sim.refuse",
            Self::Reconcile => "sim.reconcile",
            Self::Recover => "sim.recover",
            Self::Transaction => "sim.transaction",
            Self::Unprotected => "sim.unprotected",
        }
    }
}

/// Faults of the network: chances per message, and delays in milliseconds.
#[derive(Debug, Clone, PartialEq)]
pub struct Faults {
    /// Chance that a request never arrives.
    pub lost_requests: f64,
    /// Chance that a reply never arrives.
    pub lost_replies: f64,
    /// Chance that a request arrives a second time, later.
    pub duplicates: f64,
    /// Chance that a leg takes up to `long_delay` instead of `delay`.
    pub slow: f64,
    /// Longest usual delay of a leg.
    pub delay: u64,
    /// Longest unusual delay of a leg.
    pub long_delay: u64,
    /// Chance that the store refuses a result or a step for good, as a store does that is full.
    pub refused: f64,
    /// True if a request is lost whose caller leaves before the request has arrived.
    pub cuts_off: bool,
    /// True if the reply to every `ROLLBACK` is lost, without an error.
    pub loses_rollbacks: bool,
    /// Chance that the store ends a transaction by itself at a statement that writes, and the session goes on.
    pub deadlocks: f64,
    /// True if such a transaction refuses all statements until the client rolls it back, as on PostgreSQL. Otherwise it is
    /// rolled back at once, as on MySQL, and the next statement is in no transaction or in another one.
    pub aborts: bool,
}

/// Something that the driver does at a time.
#[derive(Debug, Clone)]
pub struct Action {
    /// Milliseconds since the beginning.
    pub at: u64,
    /// What happens.
    pub what: What,
}

/// Kind of an action. Durations are in milliseconds.
#[derive(Debug, Clone)]
pub enum What {
    /// A caller makes a call.
    Call(CallPlan),
    /// A process stands still while its clock goes on.
    Freeze {
        /// Number of the process.
        process: usize,
        /// Duration.
        length: u64,
    },
    /// A process is killed, and restarted later.
    Kill {
        /// Number of the process.
        process: usize,
        /// Time until it is restarted.
        down: u64,
    },
    /// All messages of a process are lost.
    Partition {
        /// Number of the process.
        process: usize,
        /// Duration.
        length: u64,
    },
    /// The store answers nothing.
    Stall {
        /// Duration.
        length: u64,
    },
    /// The store's clock jumps.
    ShiftClock {
        /// Distance; negative for back.
        by: i64,
    },
    /// An operator reads a record, and resolves it later as it was read.
    Resolve {
        /// Process through which the operator works.
        process: usize,
        /// Number of the key.
        key: usize,
        /// The decision.
        decision: Decision,
        /// Time between reading and deciding.
        thinks: u64,
    },
    /// A process purges.
    Purge {
        /// Number of the process.
        process: usize,
    },
    /// Code of a process that knows nothing of the store leaves a transaction open on connections of the pool.
    LeaveOpen {
        /// Number of the process.
        process: usize,
        /// Number of connections.
        connections: usize,
    },
    /// The first claim that a process sent for a key arrives once more.
    Echo {
        /// Number of the process.
        process: usize,
        /// Number of the key.
        key: usize,
    },
}

/// Decision of an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// `records().complete`.
    Complete,
    /// `records().fail`.
    Fail,
    /// `records().release`.
    Release,
    /// `records().erase`.
    Erase,
}

/// A planned call.
#[derive(Debug, Clone)]
pub struct CallPlan {
    /// Number of the process.
    pub process: usize,
    /// Number of the key.
    pub key: usize,
    /// The request: calls with different requests must not share an outcome.
    pub request: u32,
    /// How long the caller waits for a running call.
    pub wait: u64,
    /// Milliseconds after which the call does not begin any more. The functions with the macro have none.
    pub deadline: Option<u64>,
    /// How the call is written.
    pub style: Style,
    /// When the caller drops the future.
    pub leaves: Leaves,
    /// What the body does, if it runs.
    pub script: Script,
}

/// How a call is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// The function with the macro.
    Macro,
    /// `Idem::run_with` or `Idem::run_in_transaction`.
    Plain,
    /// `Idem::run_with` without a transaction, as an older version of a transactional function made it.
    Leased,
    /// The function with `detached`, or `Idem::run_detached`.
    Detached,
    /// The call joins a transaction of its caller.
    Joined(Joined),
}

/// Transaction of a caller that a call joins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Joined {
    /// True for the function with the macro, false for `Idem::join_transaction`.
    pub by_macro: bool,
    /// True if the call is made twice in the transaction.
    pub twice: bool,
    /// When the caller drops the call's future and goes on with its transaction.
    pub leaves: Leaves,
    /// How the caller ends the transaction.
    pub end: TransactionEnd,
    /// True if the caller goes on although a statement of its own or the call failed.
    pub is_careless: bool,
}

/// End of a caller's transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransactionEnd {
    /// `COMMIT`.
    Commit,
    /// `ROLLBACK`.
    RollBack,
}

/// Moment at which a caller drops its future.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leaves {
    /// Never.
    Never,
    /// After this number of polls.
    AfterPolls(u32),
    /// After this number of milliseconds, by the clock of the process.
    After(u64),
}

/// What a body does.
#[derive(Debug, Clone)]
pub struct Script {
    /// Parts of the body, in order.
    pub parts: Vec<Part>,
    /// How the body ends.
    pub end: End,
    /// True if the transactions of the body and of its steps have further rows.
    pub has_further_rows: bool,
    /// What the body does if the store ends its transaction.
    pub on_deadlock: OnDeadlock,
}

impl Script {
    /// A body that gives all errors back.
    pub fn new(parts: Vec<Part>, end: End) -> Self {
        Self {
            parts,
            end,
            has_further_rows: false,
            on_deadlock: OnDeadlock::GiveBack,
        }
    }
}

/// What a body does if the store ends its transaction at a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnDeadlock {
    /// Returns the error.
    GiveBack,
    /// Repeats the statement some times.
    Repeat,
    /// Goes on.
    Ignore,
}

/// Part of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Waits this number of milliseconds.
    Sleep(u64),
    /// Takes effect.
    Effect,
    /// Runs a step of this number, which takes this number of milliseconds.
    Step(u32, u64),
    /// Runs such a step in a transaction, and inserts a row in it.
    StepInTransaction(u32, u64),
    /// Enqueues a message, with this ordering key or without one.
    Enqueue(Option<usize>),
    /// Renews the lease.
    Renew,
}

impl Part {
    /// Time that this part takes besides its messages.
    pub(crate) fn millis(&self) -> u64 {
        match *self {
            Self::Sleep(millis) | Self::Step(_, millis) | Self::StepInTransaction(_, millis) => {
                millis
            }
            Self::Effect | Self::Enqueue(_) | Self::Renew => 0,
        }
    }
}

/// End of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Returns a value.
    Value,
    /// Returns a value that is larger than a result may be.
    LargeValue,
    /// Returns an error that is stored and replayed.
    Final,
    /// Returns an error that no pattern names.
    Failed,
    /// Returns an error that proves that nothing was done.
    NothingDone,
    /// Panics.
    Panic,
}

impl Plan {
    /// The plan of a seed.
    pub fn of(seed: u64) -> Self {
        let (mut plan, kind) = generate::plan(seed);
        extras::add(&mut plan, kind);
        accidents::add(&mut plan, kind);
        extras::add_deadlines(&mut plan);
        overload::add(&mut plan, kind);
        plan
    }

    /// True if nothing disturbs processes, network and store. Callers may still leave.
    pub fn is_calm(&self) -> bool {
        self.is_prompt() && self.faults.lost_replies + self.faults.slow == 0.0
    }

    /// True if processes and store live, and every request arrives once and within the time limit of a store call.
    /// Replies may be lost, and callers may leave.
    pub fn is_prompt(&self) -> bool {
        let timeout = self.setup.store_timeout.as_millis() as u64;
        let faults = &self.faults;
        let is_prompt = faults.slow == 0.0 || faults.long_delay <= timeout * 8 / 10;
        let is_peaceful = |action: &Action| {
            use What::{Call, Purge, Resolve};
            matches!(action.what, Call(_) | Purge { .. } | Resolve { .. })
        };
        is_prompt
            && faults.lost_requests + faults.duplicates == 0.0
            && faults.refused == 0.0
            && faults.deadlocks == 0.0
            && !faults.loses_rollbacks
            && self.actions.iter().all(is_peaceful)
    }
}
