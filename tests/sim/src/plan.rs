//! Plan of a run: everything that is decided before the run begins, as a function of the seed.
//!
//! Actions are explicit, so that a failing plan can be shrunk by leaving actions out.

use std::time::Duration;

use idem_store::random::Generator;

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
    /// True if claims and completions of a process are batched.
    pub batches: bool,
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
}

impl Mode {
    const ALL: [Self; 5] = [
        Self::Rerun,
        Self::Refuse,
        Self::Reconcile,
        Self::Recover,
        Self::Transaction,
    ];

    /// Name of the operation.
    pub const fn operation(self) -> &'static str {
        match self {
            Self::Rerun => "sim.rerun",
            Self::Refuse => "sim.refuse",
            Self::Reconcile => "sim.reconcile",
            Self::Recover => "sim.recover",
            Self::Transaction => "sim.transaction",
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
    /// Renews the lease.
    Renew,
}

/// End of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Returns a value.
    Value,
    /// Returns an error that is stored and replayed.
    Final,
    /// Returns an error that no pattern names.
    Failed,
    /// Returns an error that proves that nothing was done.
    NothingDone,
    /// Panics.
    Panic,
}

/// Random choices of a plan.
pub(crate) struct Choices(Generator);

impl Choices {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Generator::new(seed))
    }

    /// A number from 0 up to the limit, without the limit itself.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0.number() % limit.max(1)
    }

    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    pub(crate) fn chance(&mut self, chance: f64) -> bool {
        self.0.fraction() < chance
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

impl Plan {
    /// The plan of a seed.
    pub fn of(seed: u64) -> Self {
        let mut choices = Choices::new(seed ^ 0x5eed_0f1d_e000_0000);
        let kind = match choices.below(20) {
            0..=4 => Kind::Calm,
            5..=9 => Kind::Prompt,
            _ => Kind::Rough,
        };
        let setup = setup(&mut choices, kind);
        let faults = faults(&mut choices, kind, &setup);
        let count = choices.between(6, 40);
        let end = choices.between(3, 16) * 1000;
        let mut at = choices.below(end);
        let mut actions = Vec::new();
        for _ in 0..count {
            // Many actions come in bursts, or about a lease after another one.
            at = match choices.below(6) {
                0..=1 => at + choices.below(20),
                2 => at + setup.lease.as_millis() as u64 + choices.below(200),
                3 => at + choices.below(setup.lease.as_millis() as u64),
                _ => choices.below(end),
            };
            let what = action(&mut choices, &setup, kind == Kind::Rough);
            if let What::Call(first) = &what
                && choices.chance(0.2)
            {
                // A process serves several callers at once.
                for key in 0..setup.keys.len() {
                    let what = What::Call(call(&mut choices, &setup, first.process, key));
                    actions.push(Action { at, what });
                }
            }
            actions.push(Action { at, what });
        }
        actions.sort_by_key(|action| action.at);
        Self {
            seed,
            setup,
            faults,
            actions,
        }
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
            && self.actions.iter().all(is_peaceful)
    }
}

/// Kind of a plan. In the calmer kinds the engine promises more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Nothing is disturbed.
    Calm,
    /// Replies may be lost, and requests may take nearly the time limit of a store call.
    Prompt,
    Rough,
}

fn setup(choices: &mut Choices, kind: Kind) -> Setup {
    let lease = choices.between(1500, 5000);
    let processes = choices.between(1, 3);
    let store_timeout = choices.between(lease / 6, lease / 2);
    let keys = [1, 2, 2, 3, 4][choices.below(5) as usize];
    let rate =
        |choices: &mut Choices| match choices.chance(if kind == Kind::Rough { 0.3 } else { 0.0 }) {
            true => 0.9 + choices.below(21) as f64 / 100.0,
            false => 1.0,
        };
    Setup {
        clock_rates: (0..processes).map(|_| rate(choices)).collect(),
        lease: Duration::from_millis(lease),
        store_timeout: Duration::from_millis(store_timeout),
        store_patience: Duration::from_millis(store_timeout * 2),
        ttl: Duration::from_millis(match choices.chance(0.3) {
            true => choices.between(1000, 8000),
            false => 600_000,
        }),
        keys: (0..keys).map(|_| choices.one_of(&Mode::ALL)).collect(),
        has_workers: choices.chance(0.5),
        batches: choices.chance(0.5),
    }
}

fn faults(choices: &mut Choices, kind: Kind, setup: &Setup) -> Faults {
    let timeout = setup.store_timeout.as_millis() as u64;
    // A claim in a transaction is up to five round trips within one time limit.
    let delay = match choices.chance(0.3) {
        true => timeout / 12,
        false => choices.between(1, 40).min(timeout / 12),
    };
    let is_prompt = kind == Kind::Prompt;
    let mut some = |most: f64, allowed: bool| match !allowed || choices.chance(0.4) {
        true => 0.0,
        false => most * choices.below(100) as f64 / 100.0,
    };
    let is_rough = kind == Kind::Rough;
    let often = if is_prompt { 0.5 } else { 0.25 };
    Faults {
        lost_requests: some(0.15, is_rough),
        lost_replies: some(often, is_rough || is_prompt),
        duplicates: some(0.2, is_rough),
        slow: some(often, is_rough || is_prompt),
        delay,
        long_delay: if is_prompt {
            timeout * 8 / 10
        } else {
            timeout * 4
        },
    }
}

fn action(choices: &mut Choices, setup: &Setup, is_rough: bool) -> What {
    let lease = setup.lease.as_millis() as u64;
    let process = choices.below(setup.clock_rates.len() as u64) as usize;
    let key = choices.below(setup.keys.len() as u64) as usize;
    match choices.below(100) {
        0..=10 if is_rough => What::Freeze {
            process,
            length: choices.between(100, lease * 5 / 2),
        },
        11..=17 if is_rough => What::Kill {
            process,
            down: choices.between(10, lease * 2),
        },
        18..=21 if is_rough => What::Partition {
            process,
            length: choices.between(100, lease * 2),
        },
        22 if is_rough => What::Stall {
            length: choices.between(100, lease * 3 / 2),
        },
        23..=26 if is_rough => What::ShiftClock {
            by: choices.between(0, lease * 2) as i64 - lease as i64 / 2,
        },
        27..=32 => What::Resolve {
            process,
            key,
            decision: choices.one_of(&[
                Decision::Complete,
                Decision::Fail,
                Decision::Release,
                Decision::Erase,
            ]),
            thinks: choices.below(lease),
        },
        33..=35 => What::Purge { process },
        _ => What::Call(call(choices, setup, process, key)),
    }
}

fn call(choices: &mut Choices, setup: &Setup, process: usize, key: usize) -> CallPlan {
    let lease = setup.lease.as_millis() as u64;
    let leaves = match choices.below(10) {
        0..=1 => Leaves::AfterPolls(choices.between(1, 4) as u32),
        2 => Leaves::After(choices.below(setup.store_timeout.as_millis() as u64)),
        3 => Leaves::After(choices.below(lease)),
        _ => Leaves::Never,
    };
    CallPlan {
        process,
        key,
        request: u32::from(choices.chance(0.12)),
        wait: match choices.chance(0.4) {
            true => 0,
            false => choices.between(10, lease * 2),
        },
        style: match choices.below(8) {
            0..=1 => Style::Leased,
            2..=4 => Style::Plain,
            _ => Style::Macro,
        },
        leaves,
        script: script(choices, setup.keys[key], lease),
    }
}

fn script(choices: &mut Choices, mode: Mode, lease: u64) -> Script {
    let has_steps = mode != Mode::Transaction && choices.chance(0.3);
    let longest = match choices.below(4) {
        0 => 0,
        1 | 2 => lease / 4,
        _ => lease,
    };
    let end = match choices.below(20) {
        // A body that is wrong about its unfinished step.
        _ if has_steps && choices.chance(0.25) => End::NothingDone,
        0..=12 => End::Value,
        13..=14 => End::Final,
        15..=16 => End::Failed,
        17..=18 => End::NothingDone,
        _ => End::Panic,
    };
    let mut parts = vec![Part::Sleep(choices.below(longest + 1))];
    if has_steps {
        for step in 0..choices.between(1, 3) {
            parts.push(Part::Step(step as u32, choices.below(longest / 2 + 1)));
        }
    }
    if choices.chance(0.1) {
        parts.push(Part::Renew);
    }
    // An error that proves that nothing was done comes before the effect.
    if end != End::NothingDone {
        parts.push(Part::Effect);
    }
    parts.push(Part::Sleep(choices.below(longest + 1)));
    Script { parts, end }
}
