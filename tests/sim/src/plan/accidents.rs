//! Accidents that only some plans have: of the store's clock. Each comes from random numbers of its own, so that the rest of
//! a plan is independent of it.

use super::generate::{Choices, Kind};
use super::{Action, Plan, What};

/// Chance that the store's clock jumps by hours or days, if there are purgers.
const CLOCK_JUMPS: f64 = 0.3;

/// Adds accidents to a plan.
pub(super) fn add(plan: &mut Plan, kind: Kind) {
    if kind == Kind::Rough {
        clock_jump(plan);
        plan.actions.sort_by_key(|action| action.at);
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
