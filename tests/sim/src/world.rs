//! The observer of a run: sees every change of a record, every body and every answer, and checks the promises.

mod admission;
mod answers;
mod bodies;
mod messages;
mod purges;
mod records;
mod rows;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use idem_runtime::Error;
use idem_store::key::RecordId;
use idem_store::record::{ClaimId, Record, Timestamp};
use tokio::time::Instant;

use crate::clock::Clock;
use crate::message::ConnectionId;
use crate::mutex::lock;
use crate::plan::{Mode, Plan};
use crate::trace::{Stats, Trace};

use self::admission::Admission;
pub(crate) use self::admission::{Queue, Unanswered};
pub(crate) use self::bodies::{BodyEnd, BodyStart, StepKind, transaction_step};
use self::messages::MessageHistory;
use self::purges::Clocks;
use self::rows::RowsOfRun;

/// The observer, which all tasks of all processes share. They run on one thread.
#[derive(Clone)]
pub(crate) struct Shared(Arc<Mutex<World>>);

impl Shared {
    pub(crate) fn new(world: World) -> Self {
        Self(Arc::new(Mutex::new(world)))
    }

    pub(crate) fn world(&self) -> MutexGuard<'_, World> {
        lock(&self.0)
    }
}

/// A broken promise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Name of the promise.
    pub rule: &'static str,
    /// What happened.
    pub what: String,
}

/// The observer of a run.
pub(crate) struct World {
    /// True time since the beginning, in microseconds.
    pub(crate) now: u64,
    pub(crate) trace: Trace,
    pub(crate) stats: Stats,
    pub(crate) violation: Option<Violation>,
    keys: Vec<KeyHistory>,
    by_id: BTreeMap<RecordId, usize>,
    runs: Vec<Run>,
    /// Clock of the process that runs now, and has run ahead of the others.
    pub(crate) running: Option<Clock>,
    /// The process that is being killed: the bodies that end now are no decision of a caller's.
    pub(crate) killing: Option<usize>,
    /// True if nothing disturbs processes, network and store.
    is_calm: bool,
    /// True if processes and store live, and requests arrive in time.
    is_prompt: bool,
    lease: Duration,
    store_timeout: Duration,
    /// Callers that wait for their answers.
    waiting: BTreeSet<usize>,
    /// Number of the last caller that was not planned.
    callers: usize,
    /// Answers to the driver's own calls.
    probes: BTreeMap<usize, Result<(), Error>>,
    /// End of each lease that the store has acknowledged, by the clock of its process.
    acknowledged: BTreeMap<(usize, i64), Instant>,
    /// Messages of the outbox, by number.
    messages: Vec<MessageHistory>,
    /// Time by the store's clock, when it executed the last request.
    pub(crate) store_time: Timestamp,
    /// Number of own rows that a caller has inserted in its transaction, by connection.
    own_rows: BTreeMap<ConnectionId, usize>,
    /// Number of rows of a caller that were committed in no transaction, by connection.
    alone: BTreeMap<ConnectionId, usize>,
    /// Connections of callers whose joined call has failed with an error of the store.
    ended_callers: BTreeSet<ConnectionId>,
    /// Rows of each run, and of its steps.
    rows_of_runs: BTreeMap<(u64, Option<u32>), RowsOfRun>,
    /// Time after which an outcome that is gone must no longer be replayed, in microseconds: the maximum age in a cache,
    /// and the time that a read may be under way.
    staleness: Staleness,
    clocks: Clocks,
    admission: Admission,
}

/// Times that an outcome may still be replayed after it is gone, in microseconds.
struct Staleness {
    /// In the process that has erased it.
    own: u64,
    /// In any process.
    any: u64,
}

/// What happened to a key.
struct KeyHistory {
    mode: Mode,
    /// Number of times that an effect was allowed: once for each generation, and for each operator who said that
    /// nothing was done.
    epoch: u64,
    generation: Option<Timestamp>,
    /// The request of this generation, once a body has run with it.
    request: Option<u32>,
    /// All requests whose bodies have run.
    requests: BTreeSet<u32>,
    highest: Option<i64>,
    claims: BTreeMap<i64, ClaimHistory>,
    /// Fencing tokens of the records that have ended.
    ended: BTreeSet<i64>,
    /// Outcomes that the store has recorded, each with the run that it came from, and true for a value.
    committed: Vec<(Option<u64>, bool)>,
    /// Effects outside of the store's database, as epoch and run.
    effects: Vec<(u64, u64)>,
    /// Rows in the store's database, as epoch and run.
    rows: Vec<(u64, u64)>,
    /// Steps that ran, as epoch and name.
    steps: Vec<(u64, String)>,
    /// Time at which a step was saved, in a generation.
    saved_steps: BTreeMap<(Timestamp, String), u64>,
    recoveries: BTreeSet<(Timestamp, u32)>,
    /// Runs of the body that have not ended.
    active: Vec<u64>,
    /// True once an operator or a worker has interrupted, completed or erased a record.
    was_resolved: bool,
    /// Runs whose results could not be stored.
    unrecorded: BTreeSet<u64>,
    /// Highest fencing token of the records that are gone, and since when.
    gone: Vec<(i64, u64)>,
    /// Number of claims in transactions that found an expired record.
    expired_in_transactions: usize,
    /// Fencing tokens of records that had expired when their transaction committed, each with true once it has a row.
    expired_before_commit: BTreeMap<i64, bool>,
    /// Highest fencing token of the records that a process has erased, and since when.
    erased: Vec<(usize, i64, u64)>,
    /// Rows of steps, by generation and number.
    step_rows: BTreeSet<(Timestamp, u32)>,
}

/// A granted claim.
struct ClaimHistory {
    process: usize,
    claim_id: ClaimId,
    epoch: u64,
    generation: Timestamp,
    granted_at: u64,
    /// End of the lease by the store's clock, if the store keeps to its contract.
    lease_until: Timestamp,
    /// Time after the lease at which the record expires. None if it stays until it is resolved.
    retention: Option<Duration>,
    /// True if a body began under this claim.
    has_body: bool,
    /// Time at which a body returned that began under this claim.
    returned_at: Option<u64>,
    /// True once the claim is no longer that of a running record.
    is_over: bool,
}

/// A run of a body.
struct Run {
    key: usize,
    process: usize,
    caller: usize,
    token: Option<i64>,
    epoch: u64,
    is_detached: bool,
}

impl World {
    pub(crate) fn new(plan: &Plan, ids: Vec<RecordId>) -> Self {
        let keys = plan.setup.keys.iter().map(|mode| KeyHistory::new(*mode));
        Self {
            now: 0,
            trace: Trace::default(),
            stats: Stats::default(),
            violation: None,
            keys: keys.collect(),
            by_id: ids.into_iter().zip(0..).collect(),
            runs: Vec::new(),
            running: None,
            killing: None,
            is_calm: plan.is_calm(),
            is_prompt: plan.is_prompt(),
            lease: plan.setup.lease,
            store_timeout: plan.setup.store_timeout,
            waiting: BTreeSet::new(),
            callers: 1000,
            probes: BTreeMap::new(),
            acknowledged: BTreeMap::new(),
            messages: Vec::new(),
            store_time: Timestamp::from_micros(0),
            own_rows: BTreeMap::new(),
            alone: BTreeMap::new(),
            ended_callers: BTreeSet::new(),
            rows_of_runs: BTreeMap::new(),
            staleness: Staleness::of(plan),
            clocks: Clocks::default(),
            admission: Admission::of(plan),
        }
    }

    /// Number of a caller that is not in the plan.
    pub(crate) fn next_caller(&mut self) -> usize {
        self.callers += 1;
        self.callers
    }

    pub(crate) fn waits(&mut self, caller: usize) {
        self.waiting.insert(caller);
    }

    pub(crate) fn waits_no_more(&mut self, caller: usize) {
        self.waiting.remove(&caller);
    }

    /// A caller that waits.
    pub(crate) fn waiting(&self) -> Option<usize> {
        self.waiting.first().copied()
    }

    /// Takes the answer to a call of the driver's.
    pub(crate) fn take_probe(&mut self, caller: usize) -> Option<Result<(), Error>> {
        self.probes.remove(&caller)
    }

    /// True time, also in a process that has run ahead of the others.
    pub(crate) fn time(&self) -> u64 {
        self.running.as_ref().map_or(self.now, Clock::now)
    }

    /// True if this is a run of the caller's own call.
    pub(crate) fn is_own(&self, run: u64, caller: usize) -> bool {
        let run = self.runs.get(run as usize);
        run.is_some_and(|run| run.caller == caller)
    }

    /// Writes a line of the trace.
    pub(crate) fn note(&mut self, who: &str, what: impl std::fmt::Display) {
        self.trace.line(self.time(), who, what);
    }

    /// Reports a broken promise. The first one counts.
    pub(crate) fn violation(&mut self, rule: &'static str, what: String) {
        self.note("VIOLATION", format_args!("{rule}: {what}"));
        self.violation.get_or_insert(Violation { rule, what });
    }

    /// Number of the key of a record.
    pub(crate) fn key_of(&self, id: &RecordId) -> Option<usize> {
        self.by_id.get(id).copied()
    }

    /// The name of a record in a trace.
    pub(crate) fn name_of(&self, id: Option<RecordId>) -> String {
        match id.and_then(|id| self.key_of(&id)) {
            Some(key) => format!(" key {key}"),
            None => String::new(),
        }
    }

    /// The store has acknowledged a lease to a process.
    pub(crate) fn acknowledge(&mut self, process: usize, token: i64, until: Instant) {
        let known = self.acknowledged.entry((process, token)).or_insert(until);
        *known = until.max(*known);
    }

    /// A recovery may begin a call.
    pub(crate) fn recovery_began(&mut self, id: &RecordId, generation: Timestamp, recoveries: u32) {
        let Some(key) = self.key_of(id) else { return };
        self.stats.recoveries += 1;
        if !self.keys[key].recoveries.insert((generation, recoveries)) {
            self.violation(
                "recovery",
                format!("key {key}: two processes began recovery {}", recoveries + 1),
            );
        }
    }
}

impl KeyHistory {
    fn new(mode: Mode) -> Self {
        Self {
            mode,
            epoch: 0,
            generation: None,
            request: None,
            requests: BTreeSet::new(),
            highest: None,
            claims: BTreeMap::new(),
            ended: BTreeSet::new(),
            committed: Vec::new(),
            effects: Vec::new(),
            rows: Vec::new(),
            steps: Vec::new(),
            saved_steps: BTreeMap::new(),
            recoveries: BTreeSet::new(),
            active: Vec::new(),
            was_resolved: false,
            unrecorded: BTreeSet::new(),
            gone: Vec::new(),
            expired_in_transactions: 0,
            expired_before_commit: BTreeMap::new(),
            erased: Vec::new(),
            step_rows: BTreeSet::new(),
        }
    }
}

impl Staleness {
    fn of(plan: &Plan) -> Self {
        // A claim that was sent before the outcome was gone may be answered as late as this.
        let flight = plan.setup.store_patience * 3;
        // Clocks of processes run up to a tenth too slow.
        let max_age = plan.setup.cache.unwrap_or_default().mul_f64(1.2);
        Self {
            own: flight.as_micros() as u64,
            any: (flight + max_age).as_micros() as u64,
        }
    }
}

/// The record as it is read at this time.
fn at(record: &Record, now: Timestamp) -> Record {
    let mut record = record.clone();
    record.read_at = now;
    record
}
