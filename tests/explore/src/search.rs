//! Breadth-first search of all states.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, DefaultHasher, Hash as _, Hasher};

use idem_reference::{Defect, Transitions};

use crate::ending::{Endings, can_end};
use crate::rules::Rules;
use crate::setup::{Mode, Setup};
use crate::step::Action;
use crate::world::{Phase, World};

/// Result of a search.
#[derive(Debug)]
pub struct Search {
    /// Number of different states.
    pub states: u64,
    /// Number of steps between them.
    pub steps: u64,
    /// Number of steps on the longest of all shortest ways to a state.
    pub depth: u32,
    /// The first violation, if there is one. Then the search was not completed.
    pub found: Option<Found>,
}

/// A broken promise.
#[derive(Debug)]
pub struct Found {
    /// The promise.
    pub promise: &'static str,
    /// The shortest way there, a line for each step.
    pub trace: Vec<String>,
}

/// Searches every state that can be reached. `show` is called now and then, with the number of states so far.
///
/// States are compared by 64 bits of hash. Among a hundred million states, two that differ would be taken for one with
/// a probability below 1 in 3,000.
pub fn search(setup: &Setup, defect: Option<Defect>, mut show: impl FnMut(u64)) -> Search {
    let rules = Rules {
        mode: setup.mode,
        transitions: Transitions { defect },
    };
    let first = World::first(setup);
    let mut known = Known::default();
    known.insert(hash(&first), (0, 0));
    let mut layer = vec![first];
    let mut endings = Endings::new();
    let mut search = Search {
        states: 1,
        steps: 0,
        depth: 0,
        found: None,
    };
    while !layer.is_empty() {
        let mut next_layer = Vec::new();
        for world in layer {
            let from = hash(&world);
            for (number, action) in (0_u16..).zip(world.actions(setup)) {
                let Some(next) = world.after(action, rules, setup) else {
                    continue;
                };
                search.steps += 1;
                let to = hash(&next);
                let Entry::Vacant(entry) = known.entry(to) else {
                    continue;
                };
                entry.insert((from, number));
                search.states += 1;
                if search.states.is_multiple_of(100_000) {
                    show(search.states);
                }
                if let Some(promise) = broken(&next, rules, setup, &mut endings) {
                    let trace = trace(&known, to, rules, setup);
                    search.found = Some(Found { promise, trace });
                    return search;
                }
                next_layer.push(next);
            }
        }
        search.depth += u32::from(!next_layer.is_empty());
        layer = next_layer;
    }
    search
}

/// Each state by its hash, with that of the state before it and the number of the action between them.
type Known = HashMap<u64, (u64, u16), BuildHasherDefault<Hashed>>;

/// Hasher of what is a hash already.
#[derive(Debug, Default, Clone, Copy)]
struct Hashed(u64);

impl Hasher for Hashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {}

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

fn hash(world: &World) -> u64 {
    let mut hasher = DefaultHasher::new();
    world.hash(&mut hasher);
    hasher.finish()
}

fn broken(
    world: &World,
    rules: Rules,
    setup: &Setup,
    endings: &mut Endings,
) -> Option<&'static str> {
    let stuck = "the key can no longer end";
    seen_by_observer(world).or_else(|| (!can_end(world, rules, setup, endings)).then_some(stuck))
}

/// Checks what the observer has seen, and the bodies that run.
fn seen_by_observer(world: &World) -> Option<&'static str> {
    let valid = |phase: &Phase| match phase {
        Phase::Body { owner, .. } => {
            let (fencing_token, until) = world.ghost.leases[usize::from(owner.call)];
            fencing_token == owner.fencing_token && until > world.now
        }
        _ => false,
    };
    let bodies = world.callers.iter().filter(|it| valid(&it.phase)).count();
    if world.ghost.mode == Mode::Rerun && bodies > 1 {
        return Some("two bodies run, each within its lease by the store's clock");
    }
    world.ghost.violation
}

/// The way to a state, as text.
fn trace(known: &Known, last: u64, rules: Rules, setup: &Setup) -> Vec<String> {
    let first = World::first(setup);
    let begin = hash(&first);
    let mut numbers = Vec::new();
    let mut at = last;
    while at != begin {
        let (before, number) = known[&at];
        numbers.push(number);
        at = before;
    }
    let mut world = first;
    let mut lines = Vec::new();
    for number in numbers.into_iter().rev() {
        let action: Action = world.actions(setup)[usize::from(number)];
        lines.push(action.to_string());
        world = match world.after(action, rules, setup) {
            Some(next) => next,
            None => break,
        };
    }
    lines
}
