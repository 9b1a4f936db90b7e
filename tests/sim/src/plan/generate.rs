//! Random plans: which settings, faults and actions a seed stands for.

use std::time::Duration;

use idem_store::random::Generator;

use super::{
    Action, CallPlan, Decision, End, Faults, Leaves, Mode, Part, Plan, Script, Setup, Style, What,
};

/// Modes of the operations. `Unprotected` is one of the extras.
const MODES: [Mode; 5] = [
    Mode::Rerun,
    Mode::Refuse,
    Mode::Reconcile,
    Mode::Recover,
    Mode::Transaction,
];

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

    pub(crate) fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

/// The plan of a seed without extras, and its kind.
pub(super) fn plan(seed: u64) -> (Plan, Kind) {
    let mut choices = Choices::new(seed ^ 0x5eed_0f1d_e000_0000);
    let kind = match choices.below(20) {
        0..=4 => Kind::Calm,
        5..=9 => Kind::Prompt,
        _ => Kind::Rough,
    };
    let mut setup = setup(&mut choices, kind);
    // Batches need claims that are sent at the same time. In every other plan without them, calls are above the capacity of
    // the store.
    if !setup.batches {
        setup.claim_concurrency = [64, 1, 64, 2][(seed % 4) as usize];
    }
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
    let plan = Plan {
        seed,
        setup,
        faults,
        actions,
    };
    (plan, kind)
}

/// Kind of a plan. In the calmer kinds the engine promises more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
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
        keys: (0..keys).map(|_| choices.one_of(&MODES)).collect(),
        has_workers: choices.chance(0.5),
        batches: choices.chance(0.5),
        has_relays: false,
        claim_concurrency: 64,
        is_overloaded: false,
        cache: None,
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
        refused: 0.0,
        cuts_off: false,
        loses_rollbacks: false,
        deadlocks: 0.0,
        aborts: false,
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
        deadline: None,
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
    Script::new(parts, end)
}
