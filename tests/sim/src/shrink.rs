//! Shrinks a failing plan: leaves out actions and faults for as long as the same promise is broken.

use std::time::Duration;

use idem_reference::Defect;

use crate::driver::run;
use crate::plan::{Faults, Leaves, Part, Plan, What};

/// Returns the smallest plan that was found and still breaks the promise of this name.
pub fn shrink(plan: &Plan, rule: &str, defect: Option<Defect>) -> Plan {
    let fails = |plan: &Plan| {
        let report = run(plan, defect);
        report.violation.is_some_and(|it| it.rule == rule)
    };
    let mut best = plan.clone();
    loop {
        let before = format!("{best:?}");
        best = without_actions(best, &fails);
        for simpler in SIMPLER {
            let mut candidate = best.clone();
            simpler(&mut candidate);
            if fails(&candidate) {
                best = candidate;
            }
        }
        if format!("{best:?}") == before {
            return best;
        }
    }
}

/// Leaves out actions, half of them at first and one at a time in the end.
fn without_actions(mut best: Plan, fails: &impl Fn(&Plan) -> bool) -> Plan {
    let mut size = best.actions.len().div_ceil(2);
    while size > 0 {
        let mut at = 0;
        while at < best.actions.len() {
            let mut candidate = best.clone();
            let end = (at + size).min(candidate.actions.len());
            candidate.actions.drain(at..end);
            match fails(&candidate) {
                true => best = candidate,
                false => at += size,
            }
        }
        size /= 2;
    }
    best
}

/// Changes that make a plan simpler.
const SIMPLER: &[fn(&mut Plan)] = &[
    |plan| plan.setup.has_workers = false,
    |plan| plan.setup.batches = false,
    |plan| plan.setup.cache = None,
    |plan| plan.setup.has_relays = false,
    |plan| plan.faults.cuts_off = false,
    |plan| plan.faults.refused = 0.0,
    |plan| plan.faults.deadlocks = 0.0,
    |plan| plan.setup.clock_rates.fill(1.0),
    |plan| plan.setup.ttl = Duration::from_secs(600),
    |plan| plan.faults.duplicates = 0.0,
    |plan| plan.faults.lost_requests = 0.0,
    |plan| plan.faults.lost_replies = 0.0,
    |plan| plan.faults.slow = 0.0,
    |plan| {
        let delay = plan.faults.delay.min(5);
        plan.faults = Faults {
            delay,
            ..plan.faults.clone()
        };
    },
    |plan| {
        for action in &mut plan.actions {
            if let What::Call(call) = &mut action.what {
                call.script
                    .parts
                    .retain(|part| !matches!(part, Part::Step(..)));
            }
        }
    },
    |plan| {
        for action in &mut plan.actions {
            if let What::Call(call) = &mut action.what {
                call.leaves = Leaves::Never;
            }
        }
    },
];
