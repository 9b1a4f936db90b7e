//! Plans with more calls than the store can answer. Calls wait in the queues of the engine, overtake each other, leave
//! and are refused. The plans come from random numbers of their own, so that all other plans are independent of them.

use super::generate::{Choices, Kind};
use super::{Action, CallPlan, End, Leaves, Mode, Part, Plan, Script, Style, What};

/// Chance of an overload in a plan whose requests arrive in time. This makes one of 16 plans.
const OVERLOADED: f64 = 0.125;
/// Modes of the keys: claims with leases have one queue, and transactions have another.
const MODES: [Mode; 3] = [Mode::Rerun, Mode::Refuse, Mode::Transaction];
/// Number of keys. Duplicates wait behind each other, and only the first call of a key is in the queue.
const KEYS: usize = 24;
/// Number of times that all keys are called.
const BURSTS: u64 = 3;
/// Duration of such a burst in milliseconds.
const BURST: u64 = 5;
/// Bounds of the longest delay of a message. A claim takes one to three round trips of this length.
const DELAY: [u64; 2] = [20, 40];
/// Bounds of the time after which a caller leaves, or after which its call must not begin.
const HURRY: [u64; 2] = [100, 500];

/// Replaces the keys and calls of some plans by an overload.
pub(super) fn add(plan: &mut Plan, kind: Kind) {
    // With these bits, the overloads take the place of no plan in which a known defect is found first.
    let mut choices = Choices::new(plan.seed ^ 0x0e10_10ad_0000_0057);
    if kind == Kind::Rough || !choices.chance(OVERLOADED) {
        return;
    }
    let setup = &mut plan.setup;
    setup.clock_rates = vec![1.0; choices.between(1, 2) as usize];
    setup.keys = (0..KEYS).map(|_| choices.one_of(&MODES)).collect();
    setup.has_workers = false;
    setup.has_relays = false;
    setup.batches = false;
    setup.cache = None;
    setup.claim_concurrency = choices.between(1, 2) as usize;
    setup.is_overloaded = true;
    let timeout = setup.store_timeout.as_millis() as u64;
    plan.faults.delay = choices.between(DELAY[0], DELAY[1]).min(timeout / 12);
    plan.faults.refused = 0.0;
    plan.faults.deadlocks = 0.0;
    plan.faults.aborts = false;
    plan.actions.clear();
    let processes = setup.clock_rates.len() as u64;
    let mut at = choices.below(1000);
    for _ in 0..BURSTS {
        let process = choices.below(processes) as usize;
        for key in 0..KEYS {
            let call = call(&mut choices, process, key);
            plan.actions.push(Action {
                at: at + choices.below(BURST),
                what: What::Call(call),
            });
        }
        at += choices.between(HURRY[0] / 2, HURRY[1]);
    }
    plan.actions.sort_by_key(|action| action.at);
}

/// A third of the callers leave soon, a third set a deadline, and a third stay.
fn call(choices: &mut Choices, process: usize, key: usize) -> CallPlan {
    let hurry = choices.between(HURRY[0], HURRY[1]);
    let (leaves, deadline) = match choices.below(3) {
        0 => (Leaves::After(hurry), None),
        1 => (Leaves::Never, Some(hurry)),
        _ => (Leaves::Never, None),
    };
    // The functions with the macro have no deadline.
    let style = match deadline.is_none() && choices.chance(0.5) {
        true => Style::Macro,
        false => Style::Plain,
    };
    CallPlan {
        process,
        key,
        request: 0,
        wait: choices.one_of(&[0, 300, 1000]),
        deadline,
        style,
        leaves,
        script: script(choices),
    }
}

/// A short body with steps.
fn script(choices: &mut Choices) -> Script {
    let mut parts = vec![Part::Sleep(choices.below(30))];
    for step in 0..choices.between(1, 2) {
        parts.push(Part::Step(step as u32, choices.below(20)));
    }
    parts.push(Part::Effect);
    let ends = [End::Value, End::Value, End::Value, End::Final, End::Failed];
    Script::new(parts, choices.one_of(&ends))
}
