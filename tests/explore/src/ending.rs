//! From every state the key can still end.
//!
//! The check is a call that comes after all else: every message is lost, every process is dead, the leases are over,
//! and nothing fails any more. It needs no operator under `rerun` and in transactions, and one resolution otherwise.

use std::collections::HashMap;

use crate::decisions::{OnExisting, OnPoll};
use crate::rules::Rules;
use crate::setup::{Mode, Setup};
use crate::store::{Resolution, Resolved};
use crate::world::{
    BY_OPERATOR, Call, Cell, LEASE, Owner, Reply, Request, World, claim_id, outcome,
};

/// Requests that a call may need. More of them are a loop.
const ROUNDS: usize = 8;

/// The number of the last call, which no other has.
const LAST: Call = 29;

/// Answers for what a late call finds: the time, the record, and the highest deleted token.
pub(crate) type Endings = HashMap<(i64, Option<Cell>, Option<i64>), bool>;

/// Returns true if a call that comes after all else gets the key to its end.
pub(crate) fn can_end(world: &World, rules: Rules, setup: &Setup, known: &mut Endings) -> bool {
    let found = (world.now, world.record, world.floor);
    *known
        .entry(found)
        .or_insert_with(|| ends(world, rules, setup))
}

fn ends(world: &World, rules: Rules, setup: &Setup) -> bool {
    let mut after = world.clone();
    after.messages.clear();
    after.open = None;
    after.now += LEASE + 1;
    after.ghost = crate::ghost::Ghost::with_calls(setup, LAST + 1);
    let mut request = match setup.mode {
        Mode::Tx => Request::Open(LAST, 0),
        Mode::Rerun | Mode::Refuse => Request::Claim(LAST),
    };
    for _ in 0..ROUNDS {
        let found = match after.execute(rules, request) {
            Some(Reply::Granted(fencing_token)) => {
                let owner = Owner {
                    call: LAST,
                    fencing_token,
                };
                let settle = match setup.mode {
                    Mode::Tx => Request::Commit(owner, 0),
                    Mode::Rerun | Mode::Refuse => Request::Complete(owner),
                };
                after.execute(rules, settle);
                return is_ended(&after);
            }
            Some(Reply::Existing(found, _)) => found,
            Some(Reply::Resolved(_)) => {
                request = Request::Claim(LAST);
                continue;
            }
            _ => return false,
        };
        if found.state.is_ended() {
            return true;
        }
        request = match next(&found, &after, rules) {
            Some(request) => request,
            None => return setup.mode == Mode::Refuse && resolves(&mut after, rules),
        };
    }
    false
}

/// The next request of the call. None: it is refused, or waits for ever.
fn next(found: &Cell, world: &World, rules: Rules) -> Option<Request> {
    let record = found.record(world.now);
    match rules.on_existing(&record) {
        OnExisting::TakeOver => Some(Request::TakeOver(LAST, found.seen())),
        OnExisting::Interrupt => Some(Request::Mark(found.seen())),
        OnExisting::Claim(_) => Some(Request::Claim(LAST)),
        OnExisting::Wait => match rules.on_poll(&record, claim_id(LAST)) {
            OnPoll::Claim => Some(Request::Claim(LAST)),
            OnPoll::Wait | OnPoll::Look => None,
        },
        OnExisting::Refuse | OnExisting::Reconcile | OnExisting::Corrupt => None,
    }
}

fn resolves(world: &mut World, rules: Rules) -> bool {
    let Some(record) = world.live() else {
        return false;
    };
    let resolution = Resolution::Complete(outcome(BY_OPERATOR));
    let resolved = world.resolve(rules, &record.observation(), &resolution);
    resolved == Resolved::Done && is_ended(world)
}

fn is_ended(world: &World) -> bool {
    world.live().is_some_and(|record| record.state.is_ended())
}
