//! A simulated process: a runtime of its own with paused time, a clock of its own, and a handle of the real engine.

use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, select};
use idem_reference::Defect;
use idem_runtime::{Idem, Purger, Recovery, TypedOperation};
use idem_store::error::InvalidChange;
use idem_store::random::Generator;
use idem_store::store::{AuditStore as _, ManualChange, Resolved};
use tokio::runtime::{Builder, Runtime};
use tokio::time::Instant;

use crate::calls::{Input, Service, key_text};
use crate::clock::Clock;
use crate::leaving::Leaving;
use crate::outbox;
use crate::outcome::{Receipt, SimError};
use crate::plan::{CallPlan, Decision, End, Mode, Part, Script, Setup, Style};
use crate::store::{Endpoint, Sent, SimStore};
use crate::world::Shared;

/// Limit on results. A [`Receipt::large`] exceeds it.
const MAX_RESULT_BYTES: usize = 1000;

/// A process, running or not.
pub(crate) struct Process {
    number: usize,
    rate: f64,
    generator: Generator,
    incarnation: u64,
    running: Option<Running>,
    /// True time until which the process stands still.
    pub(crate) frozen_until: u64,
    /// True time until which all its messages are lost.
    pub(crate) cut_off_until: u64,
    is_behind: bool,
}

/// A process that runs.
struct Running {
    runtime: Runtime,
    idem: Idem<SimStore>,
    endpoint: Endpoint,
    clock: Clock,
}

impl Process {
    pub(crate) fn new(number: usize, seed: u64, rate: f64) -> Self {
        Self {
            number,
            rate,
            generator: Generator::new(seed ^ (number as u64 + 1).wrapping_mul(0x9e37_79b9)),
            incarnation: 0,
            running: None,
            frozen_until: 0,
            cut_off_until: 0,
            is_behind: false,
        }
    }

    pub(crate) fn name(&self) -> String {
        format!("process {}", self.number)
    }

    pub(crate) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Wall clock of the process in microseconds after its start. Clocks of processes are set apart.
    pub(crate) fn clock(&self, now: u64) -> i64 {
        (now as f64 * self.rate) as i64 + 3_000_000 * self.number as i64
    }

    /// Starts the process: a new runtime and a new handle, with nothing left of an earlier life.
    pub(crate) fn start(&mut self, shared: &Shared, setup: &Setup, defect: Option<Defect>) {
        self.incarnation += 1;
        shared.world().process_starts(self.number);
        let endpoint = Endpoint::new(self.number, self.incarnation);
        let store = SimStore::new(self.number, endpoint.clone(), shared.clone(), setup, defect);
        let idem = Idem::builder(store)
            .lease(setup.lease)
            .store_timeout(setup.store_timeout)
            .store_patience(setup.store_patience)
            .max_result_bytes(MAX_RESULT_BYTES)
            .build();
        // Building a runtime fails only if the system is out of resources.
        #[expect(clippy::unwrap_used, reason = "there is no run without a runtime")]
        let runtime = Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        let started = self.generator.scope(|| {
            runtime.block_on(async {
                if setup.has_workers {
                    start_workers(&idem, self.number, shared, setup);
                }
                if setup.has_relays {
                    // It starts, because there is a runtime.
                    let _ = outbox::start(idem.store(), self.number, shared, setup);
                }
                Instant::now()
            })
        });
        let started_at = shared.world().now;
        self.running = Some(Running {
            runtime,
            idem,
            endpoint,
            clock: Clock::new(started_at, started, self.rate),
        });
    }

    /// Kills the process. Its tasks are dropped, and nothing that their drop guards start gets through.
    pub(crate) fn kill(&mut self, shared: &Shared) {
        let Some(running) = self.running.take() else {
            return;
        };
        running.endpoint.kill();
        shared.world().killing = Some(self.number);
        self.generator.scope(|| drop(running));
        shared.world().killing = None;
        self.frozen_until = 0;
        self.is_behind = false;
    }

    /// Runs the process up to this true time, or until it sends a message. Returns the time that it has reached.
    pub(crate) fn step(&mut self, now: u64, shared: &Shared) -> u64 {
        if now < self.frozen_until {
            self.is_behind = true;
            return now;
        }
        let Some(running) = &self.running else {
            return now;
        };
        let clock = running.clock;
        let until = clock.at(now);
        let resumes = std::mem::take(&mut self.is_behind);
        shared.world().running = Some(clock);
        let reached = self.generator.scope(|| {
            running.runtime.block_on(async {
                if resumes {
                    // All at once: the process saw nothing of this time.
                    let missed = until.saturating_duration_since(Instant::now());
                    tokio::time::advance(missed).await;
                }
                let time = pin!(tokio::time::sleep_until(until));
                let message = pin!(running.endpoint.has_sent());
                match select(time, message).await {
                    Either::Left(_) => now,
                    Either::Right(_) => clock.now().min(now),
                }
            })
        });
        shared.world().running = None;
        reached
    }

    /// Takes the messages that the process has sent.
    pub(crate) fn sent(&self) -> Vec<Sent> {
        self.running
            .as_ref()
            .map_or_else(Vec::new, |running| running.endpoint.take())
    }

    /// Starts a call of a caller.
    pub(crate) fn call(&self, caller: usize, plan: &CallPlan, shared: &Shared, setup: &Setup) {
        let Some(running) = &self.running else { return };
        let mut service = Service {
            shared: shared.clone(),
            process: self.number,
            caller,
            key: plan.key,
            ttl: setup.ttl,
            wait: Duration::from_millis(plan.wait),
            deadline: None,
            style: plan.style,
            script: plan.script.clone(),
        };
        let (idem, plan, mode) = (running.idem.clone(), plan.clone(), setup.keys[plan.key]);
        // A process that stands still polls the call later.
        let called_at = shared.world().time();
        running.runtime.spawn(async move {
            let deadline = plan.deadline.map(Duration::from_millis);
            service.deadline = deadline.map(|it| Instant::now() + it);
            let mut waiting = Waiting::begin(&service);
            let call = service.call(&idem, mode, plan.request);
            let answer = Leaving::new(call, plan.leaves).await;
            waiting.is_over = true;
            let mut world = service.shared.world();
            match answer {
                Some(answer) => world.answered(caller, &plan, called_at, answer),
                None => world.left(caller, &plan),
            }
        });
    }

    /// Lets an operator look at a record, and resolve it later as it was.
    pub(crate) fn resolve(
        &self,
        key: usize,
        mode: Mode,
        decision: Decision,
        thinks: u64,
        shared: &Shared,
    ) {
        let Some(running) = &self.running else { return };
        let (idem, shared, process) = (running.idem.clone(), shared.clone(), self.name());
        let number = self.number;
        running.runtime.spawn(async move {
            let records = idem.records();
            let found = records.find(mode.operation(), &key_text(key)).await;
            let Ok(Some(record)) = found else {
                return;
            };
            tokio::time::sleep(Duration::from_millis(thinks)).await;
            let observed = record.observation();
            let Ok(change) = operators_change() else {
                return;
            };
            let records = records.by(&change);
            let run = Receipt::OF_OPERATOR;
            let operation = TypedOperation::<Receipt, SimError>::new(mode.operation());
            let resolved = match decision {
                Decision::Complete => {
                    let receipt = Receipt::new(0, run);
                    records.complete(operation, &observed, &receipt).await
                }
                Decision::Fail => {
                    let error = SimError::Final { run };
                    records.fail(operation, &observed, &error).await
                }
                Decision::Release => records.release(&observed).await,
                Decision::Erase => records.erase(&observed).await,
            };
            if decision == Decision::Erase && matches!(resolved, Ok(Resolved::Done)) {
                let token = observed.fencing_token.number();
                shared.world().erased_by(number, key, token);
            }
            let text = format!("the operator's decision on key {key}, {decision:?}: {resolved:?}");
            shared.world().note(&process, text);
        });
    }

    /// Lets other code of the process leave transactions open on connections of the pool.
    pub(crate) fn leave_open(&self, connections: usize) {
        if let Some(running) = &self.running {
            running.endpoint.leave_open(connections);
        }
    }

    /// Lets an operator purge.
    pub(crate) fn purge(&self) {
        let Some(running) = &self.running else { return };
        let idem = running.idem.clone();
        running.runtime.spawn(async move {
            let Ok(change) = operators_change() else {
                return;
            };
            // Whether it succeeds is the store's business.
            let _ = idem.store().purge_manually(100, &change).await;
        });
    }
}

fn operators_change() -> Result<ManualChange, InvalidChange> {
    ManualChange::new("operator", "a plan of the simulation")
}

fn start_workers(idem: &Idem<SimStore>, process: usize, shared: &Shared, setup: &Setup) {
    let (handle, shared, ttl) = (idem.clone(), shared.clone(), setup.ttl);
    let recovery = Recovery::new(idem)
        .on(Mode::Recover.operation(), move |input: Input| {
            let (idem, shared) = (handle.clone(), shared.clone());
            async move {
                let caller = shared.world().next_caller();
                let service = Service {
                    shared,
                    process,
                    caller,
                    key: input.key,
                    ttl,
                    wait: Duration::ZERO,
                    deadline: None,
                    style: Style::Macro,
                    script: Script::new(vec![Part::Sleep(20), Part::Effect], End::Value),
                };
                service.call(&idem, Mode::Recover, input.request).await
            }
        })
        .poll_interval(setup.lease / 2)
        .backoff(setup.lease / 2, setup.lease * 2)
        .max_attempts(3)
        .start();
    let purger = Purger::new(idem).poll_interval(setup.lease).start();
    // Both start, because there is a runtime and one handler. They run as long as the process.
    if let (Ok(recovery), Ok(purger)) = (recovery, purger) {
        recovery.detach();
        purger.detach();
    }
}

/// A caller that waits for its answer.
struct Waiting<'a> {
    service: &'a Service,
    is_over: bool,
}

impl<'a> Waiting<'a> {
    fn begin(service: &'a Service) -> Self {
        service.shared.world().waits(service.caller);
        Self {
            service,
            is_over: false,
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut world = self.service.shared.world();
        world.waits_no_more(self.service.caller);
        if !self.is_over && world.killing.is_none() {
            // The body panicked, as planned.
            world.note(
                &format!("process {}", self.service.process),
                format_args!("caller {} panics", self.service.caller),
            );
        }
    }
}
