//! Sequences of commands to a store and to the reference, found and shortened by `proptest-state-machine`.
//!
//! The reference runs on a clock of its own while a sequence is made, so that each command has something to act on. The
//! verdict does not use that clock: each answer must be one that the reference gives at some time between sending the
//! request and getting the answer.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use idem_store::record::Timestamp;
use idem_store::store::Store;
use proptest::strategy::BoxedStrategy;
use proptest::test_runner::{
    Config, FileFailurePersistence, RngSeed, TestCaseError, TestError, TestRunner,
};
use proptest_state_machine::ReferenceStateMachine;
use tokio::runtime::Handle;

use crate::command::{Command, Known, RECORDS, SHORT};
use crate::history::Clock;
use crate::possible::{Possible, Window};
use crate::reference::Cell;
use crate::request::{Answer, Request};

mod strategy;

/// Most commands in a sequence.
const LENGTH: usize = 40;
/// Seeds of sequences that failed once. Every run begins with them.
const REGRESSIONS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/regressions/sequences.txt");

/// Which sequences to run.
#[derive(Debug, Clone, Copy)]
pub struct Search {
    /// Number of sequences.
    pub cases: u32,
    /// Seed of all of them.
    pub seed: u64,
    /// True to run the sequences that failed once before, and to save the next one that does.
    pub persists: bool,
}

/// A sequence that shows a difference between a store and the reference.
#[derive(Debug, Clone)]
pub struct Difference {
    /// The shortest list of commands that still shows it.
    pub commands: Vec<Command>,
    /// What differs.
    pub reason: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, command) in (1..).zip(&self.commands) {
            writeln!(f, "{number:>3}. {command:?}")?;
        }
        write!(f, "{}", self.reason)
    }
}

/// Runs sequences on a store until one shows a difference, and shortens it.
///
/// # Errors
/// The difference.
pub fn search(
    runtime: &Handle,
    store: &dyn Store,
    clock: Clock,
    search: Search,
) -> Result<(), Difference> {
    let persistence = FileFailurePersistence::Direct(REGRESSIONS);
    let config = Config {
        cases: search.cases,
        rng_seed: RngSeed::Fixed(search.seed),
        failure_persistence: search.persists.then(|| Box::new(persistence) as Box<_>),
        max_shrink_iters: 3000,
        ..Config::default()
    };
    let case = AtomicUsize::new(0);
    let sequences = Sketch::sequential_strategy(1..=LENGTH);
    let found = TestRunner::new(config).run(&sequences, |(_, commands, seen)| {
        let case = case.fetch_add(1, Ordering::Relaxed);
        let operation = format!("sequence-{}-{case}", search.seed);
        let follow = follow(store, clock, &operation, &commands, seen.as_deref());
        runtime.block_on(follow).map_err(TestCaseError::fail)
    });
    match found {
        Ok(()) => Ok(()),
        Err(TestError::Fail(reason, (_, commands, _))) => {
            let difference = Difference {
                commands,
                reason: reason.to_string(),
            };
            Err(shortened(runtime, store, clock, search.seed, difference))
        }
        Err(TestError::Abort(reason)) => Err(Difference {
            commands: Vec::new(),
            reason: format!("no sequence could be made: {reason}"),
        }),
    }
}

/// Leaves out commands that are not needed. `proptest-state-machine` tries this before it makes the commands simpler, and
/// not again afterwards.
fn shortened(
    runtime: &Handle,
    store: &dyn Store,
    clock: Clock,
    seed: u64,
    mut difference: Difference,
) -> Difference {
    let mut left = difference.commands.len();
    while left > 0 {
        left -= 1;
        let mut commands = difference.commands.clone();
        commands.remove(left);
        let operation = format!("shorter-{seed}-{left}-{}", commands.len());
        let followed = follow(store, clock, &operation, &commands, None);
        if let Err(reason) = runtime.block_on(followed) {
            difference = Difference { commands, reason };
        }
    }
    difference
}

/// Sends the commands to the store, and compares each answer with the reference. After each command, the record and its
/// steps are read and compared too.
async fn follow(
    store: &dyn Store,
    clock: Clock,
    operation: &str,
    commands: &[Command],
    seen: Option<&AtomicUsize>,
) -> Result<(), String> {
    let mut comparison = Comparison {
        store,
        clock,
        known: known(operation),
        states: vec![vec![Possible::default()]; RECORDS],
    };
    for (number, command) in (1..).zip(commands) {
        if let Some(seen) = seen {
            seen.fetch_add(1, Ordering::SeqCst);
        }
        let compared = comparison.execute(command).await;
        compared.map_err(|reason| format!("command {number}, {command:?}: {reason}"))?;
    }
    Ok(())
}

fn known(operation: &str) -> Vec<Known> {
    let keys = (0..RECORDS).map(|number| format!("record-{number}"));
    keys.map(|key| Known::new(operation, &key)).collect()
}

/// A store beside the reference.
struct Comparison<'a> {
    store: &'a dyn Store,
    clock: Clock,
    known: Vec<Known>,
    /// Possible states of each record.
    states: Vec<Vec<Possible>>,
}

impl Comparison<'_> {
    async fn execute(&mut self, command: &Command) -> Result<(), String> {
        if *command == Command::Pass {
            let uncertainty = self.store.time_uncertainty();
            self.clock.pass(SHORT * 2 + uncertainty).await;
            return Ok(());
        }
        let is_supported = (!command.needs_steps() || self.store.steps().is_some())
            && (!command.needs_recovery() || self.store.recovery().is_some());
        let Some(request) = command.request(&self.known).filter(|_| is_supported) else {
            return Ok(());
        };
        self.compare(command.record(), &request).await?;
        let records: Vec<_> = match command.record() {
            Some(record) => vec![record],
            None => (0..RECORDS).collect(),
        };
        for record in records {
            let get = Request::Get(self.known[record].id());
            self.compare(Some(record), &get).await?;
            let steps = self.known[record].steps();
            if let Some(steps) = steps.filter(|_| self.store.steps().is_some()) {
                self.compare(Some(record), &steps).await?;
            }
        }
        Ok(())
    }

    /// Sends a request about one record, or all, and compares the answer.
    async fn compare(&mut self, record: Option<usize>, request: &Request) -> Result<(), String> {
        let sent = self.clock.now();
        let answer = request.send(self.store).await;
        let uncertainty = self.store.time_uncertainty();
        let window = Window::between(sent, self.clock.now(), uncertainty);
        let answer = answer.map_err(|error| format!("{request:?} failed: {error:?}"))?;
        if let Answer::Inputs(inputs) = &answer
            && !inputs.is_sorted_by_key(|input| input.due_at)
        {
            return Err(format!("the longest due is not first: {inputs:?}"));
        }
        let concerned = record.map_or(0..RECORDS, |record| record..record + 1);
        for record in concerned {
            let answer = answer.about(&self.known[record].id());
            let states = self.states[record].iter();
            let mut after: Vec<Possible> = Vec::new();
            for possible in states.flat_map(|it| it.after(request, Some(&answer), window)) {
                if !after.contains(&possible) {
                    after.push(possible);
                }
            }
            if after.is_empty() {
                let expected = self.expected(record, request, window);
                return Err(format!(
                    "{request:?}\n     answer: {answer:?}\n  reference: {expected}"
                ));
            }
            self.known[record].learn(request, &answer);
            self.states[record] = after;
        }
        Ok(())
    }

    /// Answers of the reference, as a text.
    fn expected(&self, record: usize, request: &Request, window: Window) -> String {
        let answers = self.states[record].iter().map(|possible| {
            let answer = possible.late.clone().execute(request, window.to);
            format!("{answer:?}")
        });
        answers.collect::<Vec<_>>().join(" or ")
    }
}

/// The reference while a sequence is made, on a clock of its own.
#[derive(Debug, Clone)]
pub struct Sketch {
    cells: Vec<Cell>,
    known: Vec<Known>,
    now: Timestamp,
}

impl Sketch {
    /// Time for which a command takes.
    const MOMENT: Duration = Duration::from_micros(10);
    /// Time for which [`Command::Pass`] takes.
    const WHILE: Duration = Duration::from_secs(1);

    fn execute(&mut self, record: usize, request: &Request) {
        let answer = self.cells[record].execute(request, self.now);
        self.known[record].learn(request, &answer);
    }
}

impl ReferenceStateMachine for Sketch {
    type State = Self;
    type Transition = Command;

    fn init_state() -> BoxedStrategy<Self> {
        use proptest::strategy::{Just, Strategy as _};
        let empty = Self {
            cells: vec![Cell::default(); RECORDS],
            known: known("sketch"),
            now: Timestamp::from_micros(1_790_000_000_000_000),
        };
        Just(empty).boxed()
    }

    fn transitions(_: &Self) -> BoxedStrategy<Command> {
        strategy::commands()
    }

    fn apply(mut state: Self, command: &Command) -> Self {
        if *command == Command::Pass {
            state.now = state.now.after(Self::WHILE);
        }
        let Some(request) = command.request(&state.known) else {
            return state;
        };
        let concerned = command
            .record()
            .map_or(0..RECORDS, |record| record..record + 1);
        for record in concerned {
            state.now = state.now.after(Self::MOMENT);
            state.execute(record, &request);
            let get = Request::Get(state.known[record].id());
            state.execute(record, &get);
        }
        state
    }

    fn preconditions(state: &Self, command: &Command) -> bool {
        *command == Command::Pass || command.request(&state.known).is_some()
    }
}
