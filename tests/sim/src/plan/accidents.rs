//! Accidents that only some plans have: of the store's clock, and of database sessions. Each comes from random numbers of its
//! own, so that the rest of a plan is independent of it.

use super::generate::{Choices, Kind};
use super::{Action, CallPlan, Mode, OnDeadlock, Part, Plan, Style, What};

/// Chance that the store's clock jumps by hours or days, if there are purgers.
const CLOCK_JUMPS: f64 = 0.3;

/// Chance that the store ends transactions by itself, if there are any.
const DEADLOCKS: f64 = 0.35;

/// Chance that other code leaves transactions open on connections of the pool.
const FOREIGN: f64 = 0.25;

/// Adds accidents to a plan.
pub(super) fn add(plan: &mut Plan, kind: Kind) {
    if kind == Kind::Rough {
        clock_jump(plan);
        foreign_transactions(plan);
        plan.actions.sort_by_key(|action| action.at);
    }
    if kind != Kind::Calm {
        deadlocks(plan);
    }
}

/// The store's clock jumps forward, when some calls have ended. It stays there.
fn clock_jump(plan: &mut Plan) {
    const HOUR: u64 = 3_600_000;
    let mut choices = Choices::new(plan.seed ^ 0xc10c_0000_0000_0000);
    if plan.setup.has_workers && choices.chance(CLOCK_JUMPS) {
        let end = plan.actions.last().map_or(0, |last| last.at);
        let at = end / 2 + choices.below(end / 2 + 1);
        let by = choices.between(HOUR, 72 * HOUR) as i64;
        plan.actions.push(Action {
            at,
            what: What::ShiftClock { by },
        });
    }
}

/// Other code leaves transactions open, some of them on every connection that the pool has.
fn foreign_transactions(plan: &mut Plan) {
    let mut choices = Choices::new(plan.seed ^ 0xf07e_1600_0000_0000);
    if !choices.chance(FOREIGN) {
        return;
    }
    let end = plan.actions.last().map_or(0, |last| last.at);
    for _ in 0..choices.between(1, 6) {
        let what = What::LeaveOpen {
            process: choices.below(plan.setup.clock_rates.len() as u64) as usize,
            connections: choices.between(1, 4) as usize,
        };
        let at = choices.below(end + 1);
        plan.actions.push(Action { at, what });
    }
}

/// The store ends transactions by itself. Bodies have several rows then, and some of them go on.
fn deadlocks(plan: &mut Plan) {
    let mut choices = Choices::new(plan.seed ^ 0xdead_10c0_0000_0000);
    let keys = &plan.setup.keys;
    let calls = plan
        .actions
        .iter_mut()
        .filter_map(|action| match &mut action.what {
            What::Call(call) if has_transactions(call, keys[call.key]) => Some(call),
            _ => None,
        });
    let calls: Vec<_> = calls.collect();
    if calls.is_empty() || !choices.chance(DEADLOCKS) {
        return;
    }
    plan.faults.deadlocks = choices.one_of(&[0.05, 0.2, 0.4]);
    plan.faults.aborts = choices.chance(0.25);
    for call in calls {
        call.script.has_further_rows = choices.chance(0.8);
        call.script.on_deadlock = choices.one_of(&[
            OnDeadlock::GiveBack,
            OnDeadlock::Repeat,
            OnDeadlock::Repeat,
            OnDeadlock::Ignore,
        ]);
        if let Style::Joined(joined) = &mut call.style {
            joined.is_careless = choices.chance(0.6);
        }
    }
}

/// True if the call has a transaction of its own or of its caller's, or a step has one.
fn has_transactions(call: &CallPlan, mode: Mode) -> bool {
    let is_step = |part: &Part| matches!(part, Part::StepInTransaction(..));
    match mode {
        Mode::Transaction => call.style != Style::Leased,
        _ => call.script.parts.iter().any(is_step),
    }
}
