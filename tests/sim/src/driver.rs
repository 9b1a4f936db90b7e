//! The driver of a run: moves time, processes, network and store, one event at a time.

use std::time::Duration;

use idem_runtime::key::{Identity, Operation, RecordId};
use idem_runtime::{Error, Key, Scope};

use idem_reference::Defect;

use crate::calls::key_text;
use crate::message::Arrival;
use crate::message::{Request, Statement};
use crate::network::{Delivery, Network, ReplyTo};
use crate::plan::{CallPlan, End, Leaves, Mode, Part, Plan, Script, Style, What};
use crate::process::Process;
use crate::server::Server;
use crate::store::Sent;
use crate::trace::{Stats, Trace};
use crate::world::{Shared, Violation, World};

/// Longest time that a process may run ahead of the others, in microseconds.
const LONGEST_STEP: u64 = 100_000;
/// Time that a batch may hold up records that are not locked, in microseconds.
const NEIGHBOURS_WAIT: u64 = 150_000;

/// Time in which relays handle what is left: one waits ten seconds for an answer that was lost.
const RELAYS_TAKE: Duration = Duration::from_secs(40);

/// What became of a run.
#[derive(Debug)]
pub struct Report {
    /// The first broken promise.
    pub violation: Option<Violation>,
    /// Everything that happened.
    pub trace: Trace,
    /// Counters.
    pub stats: Stats,
}

/// Runs a plan over a store, which may have a deliberate defect.
pub fn run(plan: &Plan, defect: Option<Defect>) -> Report {
    let mut driver = Driver::new(plan, defect);
    driver.act();
    driver.settle();
    driver.probe();
    driver.finish()
}

struct Driver<'a> {
    plan: &'a Plan,
    shared: Shared,
    server: Server,
    network: Network,
    processes: Vec<Process>,
    /// Times at which killed processes are restarted.
    restarts: Vec<(u64, usize)>,
    /// Requests that wait for the end of a transaction, and since when.
    blocked: Vec<(u64, Arrival, ReplyTo)>,
    stalled_until: u64,
    defect: Option<Defect>,
}

impl<'a> Driver<'a> {
    fn new(plan: &'a Plan, defect: Option<Defect>) -> Self {
        let setup = &plan.setup;
        let ids = setup
            .keys
            .iter()
            .zip(0..)
            .map(|(mode, key)| record_id(*mode, key));
        let mut driver = Self {
            plan,
            shared: Shared::new(World::new(plan, ids.collect())),
            server: Server::new(defect, plan.faults.aborts),
            network: Network::new(plan.seed, plan.faults.clone()),
            processes: Vec::new(),
            restarts: Vec::new(),
            blocked: Vec::new(),
            stalled_until: 0,
            defect,
        };
        for (number, rate) in setup.clock_rates.iter().enumerate() {
            let mut process = Process::new(number, plan.seed, *rate);
            process.start(&driver.shared, setup, defect);
            driver.processes.push(process);
        }
        driver
    }

    /// Performs the planned actions.
    fn act(&mut self) {
        for (caller, action) in self.plan.actions.iter().enumerate() {
            self.run_until(action.at * 1000);
            if self.is_broken() {
                return;
            }
            self.perform(caller, &action.what);
        }
    }

    fn perform(&mut self, caller: usize, what: &What) {
        let now = self.shared.world().now;
        match what {
            What::Call(plan) => self.call(caller, plan),
            What::Freeze { process, length } => {
                let process = &mut self.processes[*process];
                process.frozen_until = process.frozen_until.max(now + length * 1000);
                let mut world = self.shared.world();
                world.stats.freezes += 1;
                world.note(
                    &process.name(),
                    format_args!("stands still for {length} ms"),
                );
            }
            What::Kill { process, down } => self.kill(*process, *down),
            What::Partition { process, length } => {
                let process = &mut self.processes[*process];
                process.cut_off_until = process.cut_off_until.max(now + length * 1000);
                let text = format!("is cut off for {length} ms");
                self.shared.world().note(&process.name(), text);
            }
            What::Stall { length } => {
                self.stalled_until = self.stalled_until.max(now + length * 1000);
                let text = format!("answers nothing for {length} ms");
                self.shared.world().note("store", text);
            }
            What::ShiftClock { by } => {
                let mut world = self.shared.world();
                self.server.shift_clock(&mut world, *by);
                let text = format!("the clock jumps by {by} ms");
                world.note("store", text);
            }
            What::Resolve {
                process,
                key,
                decision,
                thinks,
            } => {
                let mode = self.plan.setup.keys[*key];
                self.processes[*process].resolve(*key, mode, *decision, *thinks, &self.shared);
            }
            What::LeaveOpen {
                process,
                connections,
            } => {
                let process = &self.processes[*process];
                let text = format!("leaves a transaction open on {connections} connections");
                self.shared.world().note(&process.name(), text);
                process.leave_open(*connections);
            }
            What::Purge { process } => self.processes[*process].purge(),
            What::Echo { process, key } => {
                let id = record_id(self.plan.setup.keys[*key], *key);
                let mut world = self.shared.world();
                let text = format!("its first claim of key {key} arrives once more");
                world.note(&self.processes[*process].name(), text);
                self.network.echo(&mut world, *process, id);
            }
        }
    }

    fn call(&mut self, caller: usize, plan: &CallPlan) {
        let process = &self.processes[plan.process];
        if !process.is_running() {
            return;
        }
        let mut world = self.shared.world();
        world.stats.calls += 1;
        let text = format!(
            "caller {caller} calls key {} with request {}",
            plan.key, plan.request
        );
        world.note(&process.name(), text);
        drop(world);
        process.call(caller, plan, &self.shared, &self.plan.setup);
    }

    fn kill(&mut self, process: usize, down: u64) {
        if !self.processes[process].is_running() {
            return;
        }
        let now = {
            let mut world = self.shared.world();
            world.stats.kills += 1;
            let text = format!("is killed for {down} ms");
            world.note(&self.processes[process].name(), text);
            world.now
        };
        // What it has sent before is on its way.
        self.collect(process);
        self.processes[process].kill(&self.shared);
        self.network.process_died(now, process);
        self.restarts.push((now + down * 1000, process));
    }

    /// Runs everything up to this time.
    fn run_until(&mut self, end: u64) {
        while !self.is_broken() {
            let now = self.shared.world().now;
            self.restart(now);
            self.deliver(now);
            self.check(now);
            if now >= end {
                return;
            }
            let next = self.network.next_at().unwrap_or(u64::MAX);
            let mut next = next.max(now + 1).min(now + LONGEST_STEP).min(end);
            for process in &mut self.processes {
                // If a process sends a message, the others run no further.
                next = process.step(next, &self.shared).clamp(now, next);
            }
            self.shared.world().now = next;
            for process in 0..self.processes.len() {
                self.collect(process);
            }
        }
    }

    fn restart(&mut self, now: u64) {
        let (due, waiting) = std::mem::take(&mut self.restarts)
            .into_iter()
            .partition(|(at, _)| *at <= now);
        self.restarts = waiting;
        let due: Vec<(u64, usize)> = due;
        for (_, process) in due {
            let process = &mut self.processes[process];
            self.shared.world().note(&process.name(), "starts again");
            process.start(&self.shared, &self.plan.setup, self.defect);
        }
    }

    /// Passes the messages of a process to the network.
    fn collect(&mut self, process: usize) {
        let process = &self.processes[process];
        let mut world = self.shared.world();
        let clock = 1_790_000_000_000_000 + process.clock(world.now);
        let is_cut_off = world.now < process.cut_off_until;
        for message in process.sent() {
            match message {
                Sent::Request(envelope) => {
                    self.network.send(&mut world, *envelope, clock, is_cut_off);
                }
                Sent::CutOff(connection) => self.network.cut_off(&mut world, connection),
            }
        }
    }

    fn deliver(&mut self, now: u64) {
        while let Some(delivery) = self.network.due(now) {
            match delivery {
                Delivery::Reply(answer, reply_to) => reply_to.tell(answer),
                // Requests and the end of their connection keep their order.
                delivery @ (Delivery::Request(..) | Delivery::Disconnect(_))
                    if now < self.stalled_until =>
                {
                    self.network.schedule(self.stalled_until, delivery);
                }
                Delivery::Disconnect(connection) => {
                    if self.server.disconnect(connection) {
                        let text = "a lost connection is closed, its transaction is rolled back";
                        self.shared.world().note("store", text);
                        self.unblock();
                    }
                }
                Delivery::Request(arrival, reply_to) => self.execute(now, *arrival, reply_to),
            }
        }
    }

    /// Executes a request, or lets it wait for a transaction.
    fn execute(&mut self, since: u64, arrival: Arrival, reply_to: ReplyTo) {
        let shared = self.shared.clone();
        let mut world = shared.world();
        let Some(answer) = self.server.execute(&mut world, &arrival) else {
            self.blocked.push((since, arrival, reply_to));
            return;
        };
        world.stats.requests += 1;
        let outcome = match &answer {
            Ok(reply) => reply.name(),
            Err(error) => error.to_string(),
        };
        let request = &arrival.request;
        let text = format!(
            "\"{}\" of process {}{}: {outcome}",
            request.name(),
            arrival.process,
            world.name_of(request.record())
        );
        world.note("store", text);
        let is_cut_off = world.now < self.processes[arrival.process].cut_off_until;
        self.network
            .reply(&mut world, &arrival, answer, reply_to, is_cut_off);
        drop(world);
        use Statement::{Close, Commit, Rollback, RollbackTo, RollbackToLater};
        let ends = matches!(
            arrival.request,
            Request::InTransaction(Commit | Rollback | Close | RollbackTo(_) | RollbackToLater(_))
        );
        if ends || arrival.is_victim {
            self.unblock();
        }
    }

    /// Executes the requests that no longer wait.
    fn unblock(&mut self) {
        for (since, arrival, reply_to) in std::mem::take(&mut self.blocked) {
            self.execute(since, arrival, reply_to);
        }
    }

    fn check(&mut self, now: u64) {
        let mut world = self.shared.world();
        world.check_abandoned_claims();
        let held_up = self.blocked.iter().any(|(since, arrival, _)| {
            now > since + NEIGHBOURS_WAIT && self.server.holds_up_neighbours(&arrival.request)
        });
        if held_up {
            let what = "a batch waits for a locked record, and other records with it".to_owned();
            world.violation("neighbours", what);
        }
    }

    fn is_broken(&self) -> bool {
        self.shared.world().violation.is_some()
    }

    /// Ends all faults, and waits until everything must have come to an end.
    fn settle(&mut self) {
        let now = self.shared.world().now;
        let lasts = self.processes.iter().map(|process| process.frozen_until);
        let lasts = lasts.chain(self.restarts.iter().map(|(at, _)| *at));
        let quiet_at = lasts.max().unwrap_or(now).max(now).max(self.stalled_until);
        for process in &mut self.processes {
            process.cut_off_until = process.cut_off_until.min(quiet_at);
        }
        self.run_until(quiet_at);
        self.network.heal();
        self.shared.world().note("driver", "all faults are over");
        let setup = &self.plan.setup;
        let mut patience = setup.lease * 10 + setup.store_patience * 6;
        if setup.has_relays {
            patience += RELAYS_TAKE;
        }
        self.run_until(quiet_at + patience.as_micros() as u64);
        if self.is_broken() {
            return;
        }
        let mut world = self.shared.world();
        world.check_abandoned_claims();
        world.check_messages();
        if let Some(caller) = world.waiting() {
            world.violation("waiting", format!("caller {caller} still waits"));
        }
        let open = self.server.open_transactions();
        if open > 0 {
            world.violation("connections", format!("{open} transactions are left open"));
        }
    }

    /// Calls every key once more: each must have an outcome, get one, or wait for an operator.
    fn probe(&mut self) {
        for key in 0..self.plan.setup.keys.len() {
            if self.is_broken() {
                return;
            }
            let mut answered = self.probe_with(key, 0);
            if matches!(answered, Some(Err(Error::KeyReused))) {
                answered = self.probe_with(key, 1);
            }
            let is_settled = match answered {
                // A result that could not be stored is an outcome, too.
                Some(Ok(()) | Err(Error::Unrecorded)) => true,
                Some(Err(Error::Interrupted)) => self.plan.setup.keys[key] != Mode::Transaction,
                _ => false,
            };
            if !is_settled && !self.is_broken() {
                let what = format!("key {key} has not come to an end: {answered:?}");
                self.shared.world().violation("settling", what);
            }
        }
    }

    /// Makes a call and waits for its answer.
    fn probe_with(&mut self, key: usize, request: u32) -> Option<Result<(), Error>> {
        let setup = &self.plan.setup;
        let caller = self.shared.world().next_caller();
        let plan = CallPlan {
            process: 0,
            key,
            request,
            wait: setup.lease.as_millis() as u64 * 3,
            deadline: None,
            style: Style::Macro,
            leaves: Leaves::Never,
            script: Script::new(vec![Part::Effect], End::Value),
        };
        self.shared
            .world()
            .note("driver", format_args!("asks for key {key}"));
        self.call(caller, &plan);
        let limit = setup.lease * 4 + setup.store_patience * 4;
        let end = self.shared.world().now + limit.as_micros() as u64;
        while self.shared.world().now < end && !self.is_broken() {
            let next = self.shared.world().now + LONGEST_STEP;
            self.run_until(next);
            let answer = self.shared.world().take_probe(caller);
            if answer.is_some() {
                return answer;
            }
        }
        None
    }

    fn finish(mut self) -> Report {
        for process in &mut self.processes {
            process.kill(&self.shared);
        }
        let mut world = self.shared.world();
        Report {
            violation: world.violation.take(),
            trace: std::mem::take(&mut world.trace),
            stats: world.stats,
        }
    }
}

/// The id of a key's record.
fn record_id(mode: Mode, key: usize) -> RecordId {
    // Both texts are valid: they are printable and short.
    #[expect(
        clippy::unwrap_used,
        reason = "the texts are constants of the simulator"
    )]
    let (operation, key) = (
        Operation::new(mode.operation()).unwrap(),
        Key::new(key_text(key)).unwrap(),
    );
    RecordId::of(&Identity {
        scope: Scope::none(),
        operation,
        key,
    })
}
