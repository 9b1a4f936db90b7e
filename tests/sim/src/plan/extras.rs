//! Settings, faults and actions that only some plans have. They come from random numbers of their own, so that the rest
//! of a plan is independent of them.

use std::time::Duration;

use super::generate::{Choices, Kind};
use super::{
    Action, CallPlan, Decision, End, Joined, Leaves, Mode, Part, Plan, Script, Style,
    TransactionEnd, What,
};

/// Chance that a call of a transactional operation joins a transaction of its caller.
const JOINS: f64 = 0.3;
/// Chance that a leased call is detached.
const DETACHED: f64 = 0.2;
/// Chance that a step runs in a transaction.
const STEP_IN_TRANSACTION: f64 = 0.4;
/// Chance that a call has a deadline, in a plan whose calls are above the capacity of the store.
const HAS_DEADLINE: f64 = 0.5;
/// Largest number of claims at once in such a plan.
const NARROW: usize = 2;
/// Chance that a value is larger than a result may be.
const LARGE: f64 = 0.08;

/// Adds extras to a plan.
pub(super) fn add(plan: &mut Plan, kind: Kind) {
    let mut choices = Choices::new(plan.seed ^ 0xe817_a500_0000_0000);
    for mode in &mut plan.setup.keys {
        if *mode == Mode::Rerun && choices.chance(0.25) {
            *mode = Mode::Unprotected;
        }
    }
    let lease = plan.setup.lease.as_millis() as u64;
    if choices.chance(0.3) {
        let max_age = choices.between(lease / 2, lease * 3);
        plan.setup.cache = Some(Duration::from_millis(max_age));
    }
    plan.faults.cuts_off = choices.chance(0.4);
    if kind != Kind::Calm && choices.chance(0.15) {
        plan.faults.refused = choices.one_of(&[0.3, 1.0]);
    }
    let keys = plan.setup.keys.clone();
    plan.setup.has_relays = keys.contains(&Mode::Transaction) && choices.chance(0.8);
    let has_relays = plan.setup.has_relays;
    for action in &mut plan.actions {
        if let What::Call(call) = &mut action.what {
            vary(&mut choices, call, keys[call.key], lease);
            if plan.faults.refused > 0.0 && keys[call.key] == Mode::Refuse && choices.chance(0.5) {
                call.script = mistaken();
            }
            if has_relays && call.style != Style::Leased && keys[call.key] == Mode::Transaction {
                enqueue(&mut choices, call);
            }
        }
    }
    let processes = plan.setup.clock_rates.len();
    if kind == Kind::Rough && processes > 1 && choices.chance(0.15) {
        let end = plan.actions.last().map_or(0, |last| last.at);
        let story = late_claim(&mut choices, plan, end / 2);
        plan.actions.extend(story);
        plan.actions.sort_by_key(|action| action.at);
    }
}

/// Gives calls deadlines, if they have to wait until their claims may be sent.
pub(super) fn add_deadlines(plan: &mut Plan) {
    let mut choices = Choices::new(plan.seed ^ 0xdead_1150_0000_0000);
    if plan.setup.claim_concurrency > NARROW {
        return;
    }
    let longest = plan.setup.store_timeout.as_millis() as u64;
    for action in &mut plan.actions {
        if let What::Call(call) = &mut action.what
            && matches!(call.style, Style::Plain | Style::Leased | Style::Detached)
            && choices.chance(HAS_DEADLINE)
        {
            let deadline = choices.below(longest);
            let is_macro =
                call.style == Style::Detached && plan.setup.keys[call.key] == Mode::Refuse;
            call.deadline = (!is_macro).then_some(deadline);
        }
    }
}

/// Varies a call.
fn vary(choices: &mut Choices, call: &mut CallPlan, mode: Mode, lease: u64) {
    if mode == Mode::Transaction {
        if call.style != Style::Leased && choices.chance(JOINS) {
            call.style = Style::Joined(joined(choices, lease));
        }
    } else if choices.chance(DETACHED) {
        call.style = Style::Detached;
    }
    for part in &mut call.script.parts {
        if let Part::Step(step, millis) = *part
            && mode != Mode::Unprotected
            && choices.chance(STEP_IN_TRANSACTION)
        {
            *part = Part::StepInTransaction(step, millis);
        }
    }
    if call.script.end == End::Value && choices.chance(LARGE) {
        call.script.end = End::LargeValue;
    }
}

/// A body whose step may have run although its result could not be saved, and that says that nothing was done.
fn mistaken() -> Script {
    Script::new(vec![Part::Step(0, 5)], End::NothingDone)
}

/// Lets a body enqueue messages.
fn enqueue(choices: &mut Choices, call: &mut CallPlan) {
    for _ in 0..choices.between(1, 4) {
        let ordering_key = choices.chance(0.8).then(|| choices.below(2) as usize);
        let at = choices.below(call.script.parts.len() as u64 + 1) as usize;
        call.script.parts.insert(at, Part::Enqueue(ordering_key));
    }
}

fn joined(choices: &mut Choices, lease: u64) -> Joined {
    Joined {
        by_macro: choices.chance(0.5),
        twice: choices.chance(0.25),
        leaves: match choices.below(10) {
            0..=1 => Leaves::AfterPolls(choices.between(1, 6) as u32),
            2 => Leaves::After(choices.below(lease / 2)),
            _ => Leaves::Never,
        },
        end: match choices.chance(0.7) {
            true => TransactionEnd::Commit,
            false => TransactionEnd::RollBack,
        },
        is_careless: false,
    }
}

/// A process stands still while it runs a body. An operator releases its record, and then the process's own claim
/// arrives once more, which claims the record under the claim id of the frozen owner.
fn late_claim(choices: &mut Choices, plan: &Plan, begin: u64) -> Vec<Action> {
    let setup = &plan.setup;
    let lease = setup.lease.as_millis() as u64;
    let keys = setup.keys.iter().zip(0..);
    let mut leased = keys.filter(|(mode, _)| matches!(mode, Mode::Rerun | Mode::Refuse));
    let Some((_, key)) = leased.next() else {
        return Vec::new();
    };
    let call = CallPlan {
        process: 0,
        key,
        request: 0,
        wait: 0,
        deadline: None,
        style: Style::Plain,
        leaves: Leaves::Never,
        script: Script::new(vec![Part::Sleep(lease / 2), Part::Effect], End::Value),
    };
    let freeze = What::Freeze {
        process: 0,
        length: lease * 2,
    };
    let release = What::Resolve {
        process: 1,
        key,
        decision: Decision::Release,
        thinks: choices.below(50),
    };
    let echo = What::Echo { process: 0, key };
    let story = [
        (0, What::Call(call)),
        (lease / 3, freeze),
        (lease * 5 / 3, release),
        (lease * 2, echo),
    ];
    story
        .into_iter()
        .map(|(after, what)| Action {
            at: begin + after,
            what,
        })
        .collect()
}
