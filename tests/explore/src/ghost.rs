//! What an observer remembers, and the promises that it checks.

use crate::cell::{Call, Cell, Value};
use crate::record::{Record, RecordState};
use crate::setup::{Mode, Setup};

/// Memory of the observer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Ghost {
    pub(crate) mode: Mode,
    /// The first promise that was broken.
    pub(crate) violation: Option<&'static str>,
    generation: u8,
    /// Effects in each generation, and those that an operator allowed.
    effects: Vec<(u8, u8)>,
    /// A bit for each call whose outcome was stored.
    committed: u64,
    highest_fencing_token: i64,
    /// Fencing token of each call's last grant, and the end of its lease by the store's clock. A call may have two tokens:
    /// a late claim of a frozen caller begins another generation.
    pub(crate) leases: Vec<(i64, i64)>,
    /// Generation of each call's claim.
    generations: Vec<u8>,
}

impl Ghost {
    pub(crate) fn new(setup: &Setup) -> Self {
        Self::with_calls(setup, setup.callers * setup.calls)
    }

    /// An observer of this many calls, who remembers nothing.
    pub(crate) fn with_calls(setup: &Setup, calls: Call) -> Self {
        let calls = usize::from(calls);
        Self {
            mode: setup.mode,
            violation: None,
            generation: 0,
            effects: Vec::new(),
            committed: 0,
            highest_fencing_token: 0,
            leases: vec![(0, 0); calls],
            generations: vec![0; calls],
        }
    }

    fn violates(&mut self, promise: &'static str) {
        self.violation.get_or_insert(promise);
    }

    /// The committed record changes. `before` is none if it had expired.
    pub(crate) fn changes(&mut self, before: Option<Cell>, after: Option<Cell>) {
        let Some(after) = after else { return };
        if before.is_none() {
            self.generation += 1;
        }
        if before.is_some_and(|before| before.state.is_ended() && before != after) {
            self.violates("one outcome: an outcome changes before it expires");
        }
        self.check_fencing_token(before, &after);
        if let (true, Some(value)) = (after.state.is_ended(), after.value)
            && usize::from(value) < self.leases.len()
        {
            self.committed |= 1 << value;
        }
    }

    fn check_fencing_token(&mut self, before: Option<Cell>, after: &Cell) {
        let same_claim =
            before.filter(|it| it.claim == after.claim && it.state != RecordState::Released);
        if let Some(before) = same_claim {
            if before.fencing_token != after.fencing_token && after.claim.is_some() {
                self.violates("repeated claims: a claim has two fencing tokens");
            }
        } else if after.state == RecordState::Running
            && after.fencing_token <= self.highest_fencing_token
        {
            self.violates("fencing tokens: a new claim has no higher token");
        }
        if after.fencing_token < self.highest_fencing_token {
            self.violates("fencing tokens: the token of a key decreases");
        }
        self.highest_fencing_token = self.highest_fencing_token.max(after.fencing_token);
    }

    /// The store granted a claim.
    pub(crate) fn granted(&mut self, call: Call, record: &Record) {
        self.leases[usize::from(call)] = lease_of(record);
        self.generations[usize::from(call)] = self.generation;
    }

    /// The store accepted a write of an owner.
    pub(crate) fn renewed(&mut self, call: Call, record: &Record) {
        self.leases[usize::from(call)] = lease_of(record);
    }

    /// A purge deletes the record.
    pub(crate) fn expires(&mut self, record: &Record) {
        if !record.is_expired() {
            self.violates("purge: a record is deleted whose outcome is unknown");
        }
    }

    /// A body takes effect.
    pub(crate) fn took_effect(&mut self, call: Call) {
        if self.mode == Mode::Refuse {
            self.count(self.generations[usize::from(call)]);
        }
    }

    /// A transaction commits its data.
    pub(crate) fn commits_data(&mut self, has_record: bool) {
        // Without a record, the next one is that of the data.
        self.count(self.generation + u8::from(!has_record));
    }

    fn count(&mut self, generation: u8) {
        let (effects, allowed) = self.of(generation);
        *effects += 1;
        if *effects > 1 + *allowed {
            self.violates("at most one effect");
        }
    }

    fn of(&mut self, generation: u8) -> &mut (u8, u8) {
        let at = usize::from(generation);
        if self.effects.len() <= at {
            self.effects.resize(at + 1, (0, 0));
        }
        &mut self.effects[at]
    }

    /// An operator lets the body run again.
    pub(crate) fn allows(&mut self) {
        if self.mode != Mode::Rerun {
            self.of(self.generation).1 += 1;
        }
    }

    /// A caller gets the result of its own body.
    pub(crate) fn returns_own(&mut self, call: Call) {
        if self.committed & 1 << call == 0 {
            self.violates("answers: a caller gets a value that was not committed");
        }
    }

    /// A caller gets the result of its own body although it is not recorded: documented, while its lease is valid.
    pub(crate) fn returns_unrecorded(&mut self, is_live: bool, stored: Option<Value>, call: Call) {
        if !is_live {
            self.violates("answers: a caller gets an unrecorded value after its lease");
        }
        // An outcome that was stored may have been erased by an operator since.
        let was_stored = self.committed & 1 << call != 0;
        if !was_stored && stored.is_some_and(|stored| stored != call) {
            self.violates("answers: a caller gets another value than the stored one");
        }
    }

    /// A call has ended. What is known of it alone would only multiply the states.
    pub(crate) fn forgets(&mut self, call: Call) {
        self.leases[usize::from(call)] = (0, 0);
        self.generations[usize::from(call)] = 0;
        self.committed &= !(1 << call);
    }

    /// A rule that the search itself found broken.
    pub(crate) fn broken(&mut self, promise: &'static str) {
        self.violates(promise);
    }
}

fn lease_of(record: &Record) -> (i64, i64) {
    let fencing_token = record.fencing_token.number();
    (fencing_token, record.lease_until.as_micros())
}
