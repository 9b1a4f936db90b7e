//! Checks of rows that transactions commit.

use idem_store::key::RecordId;
use idem_store::record::{Record, Timestamp};

use super::{World, transaction_step};
use crate::message::{ConnectionId, Row, RowKind};

/// Number of rows of a body or step.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RowsOfRun {
    /// Rows of which the store has said that they are inserted.
    inserted: usize,
    committed: usize,
}

impl World {
    /// A caller begins a transaction.
    pub(crate) fn caller_begins(&mut self, connection: ConnectionId) {
        self.own_rows.remove(&connection);
        self.ended_callers.remove(&connection);
        self.alone.remove(&connection);
    }

    /// A joined call has returned an error of the store. The caller goes on with its transaction.
    pub(crate) fn joined_call_failed(&mut self, connection: ConnectionId) {
        self.ended_callers.insert(connection);
    }

    /// A caller commits a transaction in which it has inserted rows of its own.
    pub(crate) fn expects_own_rows(&mut self, connection: ConnectionId, rows: usize) {
        self.own_rows.insert(connection, rows);
    }

    /// The store ends a transaction by itself.
    pub(crate) fn store_ends_transaction(&mut self) {
        self.stats.deadlocks += 1;
    }

    /// The body or step of a run has inserted a row.
    pub(crate) fn row_is_inserted(&mut self, row: Row) {
        if let Some(part) = part_of(row) {
            self.rows_of_runs.entry(part).or_default().inserted += 1;
        }
    }

    /// Checks that all rows that a body or step has inserted are committed, if its result is.
    pub(super) fn check_rows(&mut self, rule: &'static str, run: u64, step: Option<u32>) {
        let Some(RowsOfRun {
            inserted,
            committed,
        }) = self.rows_of_runs.get(&(run, step)).copied()
        else {
            return;
        };
        if committed < inserted {
            let key = self.runs[run as usize].key;
            let what =
                format!("key {key}: {committed} of {inserted} rows of run {run} were committed");
            self.violation(rule, what);
        }
    }

    /// A statement in no transaction has committed a record on a caller's connection.
    pub(crate) fn record_is_committed_alone(&mut self, id: &RecordId) {
        let name = self.name_of(Some(*id));
        let what = format!("the record of{name} was committed without its caller's transaction");
        self.violation("joined transactions", what);
    }

    /// A statement in no transaction has committed these rows on a caller's connection. A body that ignores errors of
    /// statements does this, and so does a caller before it knows.
    pub(crate) fn rows_are_committed_alone(&mut self, connection: ConnectionId, rows: &[Row]) {
        self.stats.alone += rows.len() as u64;
        let callers = rows.iter().filter(|row| row.kind == RowKind::Callers);
        let callers = callers.count();
        *self.alone.entry(connection).or_default() += callers;
        if callers > 0 && self.ended_callers.contains(&connection) {
            let what = "a row of a caller was committed after its transaction had ended".to_owned();
            self.violation("joined transactions", what);
        }
    }

    /// A transaction with these rows was committed.
    pub(crate) fn committed_rows(&mut self, connection: ConnectionId, rows: &[Row]) {
        let own = rows.iter().filter(|row| row.kind == RowKind::Callers);
        let alone = self.alone.remove(&connection).unwrap_or_default();
        let own = own.count() + alone;
        let expected = self.own_rows.remove(&connection).unwrap_or(own);
        // A caller that was told that its transaction has ended has no rows.
        let is_lost = own == 0 && self.ended_callers.contains(&connection);
        if own != expected && !is_lost {
            let what = format!("{own} of a caller's own {expected} rows were committed");
            self.violation("joined transactions", what);
        }
        if own > 0 {
            self.stats.joined += 1;
        }
        for row in rows {
            if let Some(part) = part_of(*row) {
                self.rows_of_runs.entry(part).or_default().committed += 1;
            }
            match row.kind {
                RowKind::Callers => {}
                RowKind::Effect | RowKind::Further(None) => self.committed_effect(*row),
                RowKind::Step(step) | RowKind::Further(Some(step)) => {
                    self.committed_step(*row, step);
                }
            }
        }
    }

    /// A claim in a transaction finds that the record has expired.
    pub(crate) fn expired_in_transaction(&mut self, id: &RecordId) {
        if let Some(key) = self.key_of(id) {
            self.keys[key].expired_in_transactions += 1;
        }
    }

    /// A transaction commits, in which a record ended and expired before the transaction claimed it once more.
    pub(crate) fn expired_before_commit(&mut self, id: &RecordId, record: &Record) {
        let Some(key) = self.key_of(id) else { return };
        self.remember_outcome(key, record);
        let token = record.fencing_token.number();
        self.keys[key].expired_before_commit.insert(token, false);
    }

    /// Number of times that a record of this key has expired or was erased, as far as somebody noticed.
    pub(crate) fn disappearances(&self, key: usize) -> usize {
        let history = &self.keys[key];
        history.gone.len() + history.expired_in_transactions
    }

    /// Number of disappearances of which every answer knows. A call may share what another call of its process has read
    /// before. If this number equals that of all disappearances afterwards, two answers are equal.
    pub(crate) fn known_disappearances(&self, key: usize) -> usize {
        let history = &self.keys[key];
        let now = self.time();
        let gone = history.gone.iter();
        let known = gone.filter(|(_, since)| since + self.staleness.any < now);
        known.count() + history.expired_in_transactions
    }

    fn committed_effect(&mut self, row: Row) {
        let key = row.key;
        let token = self.runs.get(row.run as usize).and_then(|run| run.token);
        let expired = token.and_then(|token| self.keys[key].expired_before_commit.get_mut(&token));
        if let Some(has_row) = expired {
            if row.kind != RowKind::Effect {
                return;
            }
            // The effect of a record that has expired since. A further effect is one of the next record.
            if std::mem::replace(has_row, true) {
                let what = format!("key {key}: two rows of run {} were committed", row.run);
                self.violation("transactional", what);
            }
            self.stats.effects += 1;
            return;
        }
        let history = &mut self.keys[key];
        let epoch = history.epoch;
        let is_recorded = history
            .committed
            .last()
            .is_some_and(|committed| *committed == (Some(row.run), true));
        if row.kind == RowKind::Effect {
            history.rows.push((epoch, row.run));
            self.stats.effects += 1;
        }
        let rows = history.rows.iter().filter(|(it, _)| *it == epoch).count();
        if !is_recorded {
            let what = format!(
                "key {key}: the row of run {} was committed without its record",
                row.run
            );
            self.violation("transactional", what);
        }
        if rows > 1 {
            self.violation(
                "transactional",
                format!("key {key}: {rows} rows were committed"),
            );
        }
    }

    /// A step was committed in a transaction.
    pub(crate) fn saved_step(&mut self, id: &RecordId, generation: Timestamp, name: &str) {
        let Some(key) = self.key_of(id) else { return };
        let (step, now) = ((generation, name.to_owned()), self.now);
        self.keys[key].saved_steps.entry(step).or_insert(now);
    }

    /// The row of a step was committed: once in a generation, and together with the step.
    fn committed_step(&mut self, row: Row, step: u32) {
        let is_further = row.kind != RowKind::Step(step);
        self.stats.step_rows += u64::from(!is_further);
        let Some(generation) = self.generation_of(row.run) else {
            return;
        };
        let (key, name) = (row.key, transaction_step(step));
        let history = &mut self.keys[key];
        let is_first = is_further || history.step_rows.insert((generation, step));
        let is_saved = history
            .saved_steps
            .contains_key(&(generation, name.clone()));
        if !is_saved {
            let what = format!("key {key}: the row of step {name} was committed without the step");
            self.violation("steps", what);
        }
        if !is_first {
            let what = format!("key {key}: the row of step {name} was committed twice");
            self.violation("steps", what);
        }
    }

    /// A step in a transaction has returned the value of a run, whose row must be committed.
    pub(crate) fn row_of_step_is_committed(&mut self, run: u64, step: u32) {
        let Some(generation) = self.generation_of(run) else {
            return;
        };
        let key = self.runs[run as usize].key;
        if !self.keys[key].step_rows.contains(&(generation, step)) {
            let name = transaction_step(step);
            let what = format!("key {key}: step {name} returned, but its row is not committed");
            self.violation("steps", what);
        }
        self.check_rows("steps", run, Some(step));
    }

    /// Generation of the record that a run has claimed.
    pub(super) fn generation_of(&self, run: u64) -> Option<Timestamp> {
        let run = self.runs.get(run as usize)?;
        let claim = self.keys[run.key].claims.get(&run.token?)?;
        Some(claim.generation)
    }
}

/// The run that has inserted a row, and its step.
fn part_of(row: Row) -> Option<(u64, Option<u32>)> {
    match row.kind {
        RowKind::Effect => Some((row.run, None)),
        RowKind::Step(step) => Some((row.run, Some(step))),
        RowKind::Further(step) => Some((row.run, step)),
        RowKind::Callers => None,
    }
}
