//! Queue of calls in lanes, one for each operation, that take turns.
//!
//! Each step takes at most the logarithm of the number of operations and calls: the queue is locked meanwhile, and a service
//! may have very many operations.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::key::Operation;

/// Calls by operation.
#[derive(Debug)]
pub(super) struct Lanes<C> {
    /// Lanes by the number of their next turn.
    lanes: BTreeMap<Turn, Lane<C>>,
    turns: HashMap<Operation, Turn>,
    /// Lanes by their length.
    lengths: BTreeSet<(usize, Turn)>,
    next_turn: u64,
    next_place: u64,
    len: usize,
}

/// The calls of an operation, by their place in the queue. A lane is never empty.
#[derive(Debug)]
struct Lane<C> {
    operation: Operation,
    calls: BTreeMap<u64, C>,
}

/// Number of a turn: the lane with the lowest one is next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Turn(u64);

impl Ord for Turn {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        #[cfg(test)]
        tests::COMPARISONS.with(|it| it.set(it.get() + 1));
        self.0.cmp(&other.0)
    }
}

impl PartialOrd for Turn {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<C> Default for Lanes<C> {
    fn default() -> Self {
        Self {
            lanes: BTreeMap::new(),
            turns: HashMap::new(),
            lengths: BTreeSet::new(),
            next_turn: 0,
            next_place: 0,
            len: 0,
        }
    }
}

impl<C> Lanes<C> {
    /// Number of calls.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Adds a call at the end of its operation's lane, and returns its place.
    pub(super) fn enter(&mut self, operation: &Operation, call: C) -> u64 {
        let place = self.next_place;
        self.next_place += 1;
        let turn = match self.turns.get(operation) {
            Some(turn) => *turn,
            None => {
                let turn = self.new_turn();
                self.turns.insert(operation.clone(), turn);
                turn
            }
        };
        let lane = self.lanes.entry(turn).or_insert_with(|| Lane {
            operation: operation.clone(),
            calls: BTreeMap::new(),
        });
        let len = lane.calls.len();
        lane.calls.insert(place, call);
        self.len += 1;
        self.resized(turn, len);
        place
    }

    /// Takes the next call out of the queue. It is of the operation whose turn it is: the first one, or the last one, if
    /// `is_congested` says so of the first one.
    pub(super) fn leave_next(&mut self, is_congested: impl FnOnce(&C) -> bool) -> Option<C> {
        let (turn, mut lane) = self.lanes.pop_first()?;
        self.lengths.remove(&(lane.calls.len(), turn));
        let (_, first) = lane.calls.first_key_value()?;
        let next = match is_congested(first) {
            true => lane.calls.pop_last(),
            false => lane.calls.pop_first(),
        };
        if lane.calls.is_empty() {
            self.turns.remove(&lane.operation);
        } else {
            let turn = self.new_turn();
            self.lengths.insert((lane.calls.len(), turn));
            if let Some(its) = self.turns.get_mut(&lane.operation) {
                *its = turn;
            }
            self.lanes.insert(turn, lane);
        }
        self.len -= 1;
        next.map(|(_, call)| call)
    }

    /// Takes the call at this place out of the queue, if it is still there.
    pub(super) fn leave(&mut self, operation: &Operation, place: u64) -> Option<C> {
        let turn = *self.turns.get(operation)?;
        let lane = self.lanes.get_mut(&turn)?;
        let len = lane.calls.len();
        let call = lane.calls.remove(&place)?;
        self.len -= 1;
        self.resized(turn, len);
        Some(call)
    }

    /// Takes the call that has waited longest in the longest lane out of the queue.
    pub(super) fn leave_longest(&mut self) -> Option<C> {
        let (len, turn) = *self.lengths.last()?;
        let (_, call) = self.lanes.get_mut(&turn)?.calls.pop_first()?;
        self.len -= 1;
        self.resized(turn, len);
        Some(call)
    }

    fn new_turn(&mut self) -> Turn {
        self.next_turn += 1;
        Turn(self.next_turn)
    }

    /// Notes that a lane had this length before. Forgets it if it is empty now.
    fn resized(&mut self, turn: Turn, before: usize) {
        self.lengths.remove(&(before, turn));
        match self.lanes.get(&turn).map(|lane| lane.calls.len()) {
            Some(0) => {
                if let Some(lane) = self.lanes.remove(&turn) {
                    self.turns.remove(&lane.operation);
                }
            }
            Some(len) => {
                self.lengths.insert((len, turn));
            }
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        /// Number of comparisons of turns in this thread.
        pub(super) static COMPARISONS: Cell<u64> = const { Cell::new(0) };
    }

    fn operation(number: usize) -> Operation {
        Operation::new(format!("operation-{number}")).unwrap()
    }

    /// Largest number of comparisons of turns in one step of a queue of this many operations.
    fn most_comparisons(operations: usize) -> u64 {
        let mut lanes = Lanes::default();
        let mut most = 0;
        let mut count = |step: &mut dyn FnMut()| {
            COMPARISONS.set(0);
            step();
            most = COMPARISONS.get().max(most);
        };
        let names: Vec<_> = (0..operations).map(operation).collect();
        let mut places = Vec::new();
        for call in 0..3 {
            for name in &names {
                count(&mut || places.push(lanes.enter(name, call)));
            }
        }
        for (name, place) in names.iter().zip(&places) {
            count(&mut || assert_eq!(lanes.leave(name, *place), Some(0)));
        }
        for _ in 0..operations / 2 {
            count(&mut || assert!(lanes.leave_longest().is_some()));
            count(&mut || assert!(lanes.leave_next(|_| false).is_some()));
        }
        assert_eq!(lanes.len(), 2 * operations - operations / 2 * 2);
        while lanes.len() > 0 {
            count(&mut || assert!(lanes.leave_next(|_| true).is_some()));
        }
        assert!(lanes.turns.is_empty() && lanes.lengths.is_empty() && lanes.lanes.is_empty());
        most
    }

    #[test]
    fn a_step_of_a_thousand_times_as_many_operations_takes_a_few_times_as_long() {
        let [few, many] = [10, 10_000].map(most_comparisons);
        assert!(few > 0, "comparisons are counted");
        assert!(many <= 8 * few && many < 500, "{few} and {many}");
    }

    #[test]
    fn the_longest_lane_loses_its_first_call() {
        let mut lanes = Lanes::default();
        let [few, many] = [operation(0), operation(1)];
        lanes.enter(&few, 1);
        for call in [2, 3, 4] {
            lanes.enter(&many, call);
        }
        assert_eq!(lanes.leave_longest(), Some(2));
        assert_eq!(lanes.leave_longest(), Some(3));
        assert_eq!(lanes.len(), 2);
    }
}
