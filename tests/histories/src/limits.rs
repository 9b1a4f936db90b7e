//! Limits of the times and fencing tokens of a record, and how a comparison splits them.

use std::time::Duration;

use idem_store::record::{FencingToken, Timestamp};

use crate::possible::{Possible, Window};
use crate::reference::Cell;

/// A number of which only limits may be known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Quantity {
    LeaseUntil,
    EndedAt,
    FirstClaimed,
    Token,
    InputDue,
    InputFirst,
}

/// A comparison that the reference makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Condition {
    /// The clock has reached this time, and this much more.
    Reached(Quantity, Duration),
    /// A quantity equals this number.
    Equals(Quantity, i64),
}

/// Possible states, at a time within a window.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    pub(crate) possible: Possible,
    pub(crate) window: Window,
}

impl Limits {
    pub(crate) fn new(possible: Possible, window: Window) -> Self {
        Self { possible, window }
    }

    /// The limits under which the comparison holds, and those under which it does not. Either may be empty.
    pub(crate) fn split(&self, condition: &Condition) -> Vec<Self> {
        match condition {
            Condition::Reached(quantity, more) => {
                if self.range(*quantity).is_none() {
                    return vec![self.clone()];
                }
                let more = i64::try_from(more.as_micros()).unwrap_or(i64::MAX);
                [self.reached(*quantity, more), self.ahead(*quantity, more)]
                    .into_iter()
                    .flatten()
                    .collect()
            }
            Condition::Equals(quantity, value) => self.compared(*quantity, *value),
        }
    }

    /// A recovery input of a generation that has ended may be gone. Returns the limits without the input in this case.
    pub(crate) fn without_input(&self) -> Option<Self> {
        let Possible { early, .. } = &self.possible;
        let is_there = early.input.is_some();
        if !is_there || !early.input_may_be_gone(self.window.from) {
            return None;
        }
        let mut without = self.clone();
        without.possible.early.input = None;
        without.possible.late.input = None;
        Some(without)
    }

    fn range(&self, quantity: Quantity) -> Option<(i64, i64)> {
        let of = |cell| get(cell, quantity);
        of(&self.possible.early).zip(of(&self.possible.late))
    }

    fn with(&self, quantity: Quantity, range: (i64, i64), now: (i64, i64)) -> Option<Self> {
        if range.0 > range.1 || now.0 > now.1 {
            return None;
        }
        let mut limits = self.clone();
        set(&mut limits.possible.early, quantity, range.0);
        set(&mut limits.possible.late, quantity, range.1);
        limits.window.from = Timestamp::from_micros(now.0);
        limits.window.to = Timestamp::from_micros(now.1);
        Some(limits)
    }

    fn now(&self) -> (i64, i64) {
        (self.window.from.as_micros(), self.window.to.as_micros())
    }

    /// The clock has reached the quantity and `more`.
    fn reached(&self, quantity: Quantity, more: i64) -> Option<Self> {
        let ((low, high), (from, to)) = (self.range(quantity)?, self.now());
        let high = high.min(to.saturating_sub(more));
        let from = from.max(low.saturating_add(more));
        self.with(quantity, (low, high), (from, to))
    }

    /// The clock has not reached the quantity and `more`.
    fn ahead(&self, quantity: Quantity, more: i64) -> Option<Self> {
        let ((low, high), (from, to)) = (self.range(quantity)?, self.now());
        let low = low.max(from.saturating_sub(more).saturating_add(1));
        let to = to.min(high.saturating_add(more).saturating_sub(1));
        self.with(quantity, (low, high), (from, to))
    }

    fn compared(&self, quantity: Quantity, value: i64) -> Vec<Self> {
        let Some((low, high)) = self.range(quantity) else {
            return vec![self.clone()];
        };
        if value < low || value > high {
            return vec![self.clone()];
        }
        let equal = self.with(quantity, (value, value), self.now());
        // Between the two limits, the number may be any but this one.
        let others = (
            if low == value { low + 1 } else { low },
            if high == value { high - 1 } else { high },
        );
        let other = self.with(quantity, others, self.now());
        equal.into_iter().chain(other).collect()
    }
}

/// The value of a quantity; `None` if the cell has none.
fn get(cell: &Cell, quantity: Quantity) -> Option<i64> {
    let record = cell.record.as_ref();
    Some(match quantity {
        Quantity::LeaseUntil => record?.lease_until.as_micros(),
        Quantity::EndedAt => record?.ended_at?.as_micros(),
        Quantity::FirstClaimed => record?.first_claimed_at.as_micros(),
        Quantity::Token => record?.fencing_token.number(),
        Quantity::InputDue => cell.input.as_ref()?.due_at.as_micros(),
        Quantity::InputFirst => cell.input.as_ref()?.first_claimed_at.as_micros(),
    })
}

fn set(cell: &mut Cell, quantity: Quantity, value: i64) {
    let time = Timestamp::from_micros(value);
    match (quantity, &mut cell.record, &mut cell.input) {
        (Quantity::LeaseUntil, Some(record), _) => record.lease_until = time,
        (Quantity::EndedAt, Some(record), _) => record.ended_at = Some(time),
        (Quantity::FirstClaimed, Some(record), _) => record.first_claimed_at = time,
        (Quantity::Token, Some(record), _) => {
            record.fencing_token = FencingToken::from_number(value);
        }
        (Quantity::InputDue, _, Some(input)) => input.due_at = time,
        (Quantity::InputFirst, _, Some(input)) => input.first_claimed_at = time,
        _ => {}
    }
}
