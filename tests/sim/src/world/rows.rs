//! Checks of rows that transactions commit.

use idem_store::key::RecordId;
use idem_store::record::{Record, Timestamp};

use super::{World, transaction_step};
use crate::message::{ConnectionId, Row, RowKind};

impl World {
    /// A caller commits a transaction in which it has inserted rows of its own.
    pub(crate) fn expects_own_rows(&mut self, connection: ConnectionId, rows: usize) {
        self.own_rows.insert(connection, rows);
    }

    /// A transaction with these rows was committed.
    pub(crate) fn committed_rows(&mut self, connection: ConnectionId, rows: &[Row]) {
        let own = rows.iter().filter(|row| row.kind == RowKind::Callers);
        let own = own.count();
        let expected = self.own_rows.remove(&connection).unwrap_or(own);
        if own != expected {
            let what = format!("{own} of a caller's own {expected} rows were committed");
            self.violation("joined transactions", what);
        }
        if own > 0 {
            self.stats.joined += 1;
        }
        for row in rows {
            match row.kind {
                RowKind::Callers => {}
                RowKind::Effect => self.committed_effect(*row),
                RowKind::Step(step) => self.committed_step(*row, step),
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
        history.rows.push((epoch, row.run));
        let rows = history.rows.iter().filter(|(it, _)| *it == epoch).count();
        self.stats.effects += 1;
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
        self.stats.step_rows += 1;
        let Some(generation) = self.generation_of(row.run) else {
            return;
        };
        let (key, name) = (row.key, transaction_step(step));
        let history = &mut self.keys[key];
        let is_first = history.step_rows.insert((generation, step));
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
    }

    /// Generation of the record that a run has claimed.
    pub(super) fn generation_of(&self, run: u64) -> Option<Timestamp> {
        let run = self.runs.get(run as usize)?;
        let claim = self.keys[run.key].claims.get(&run.token?)?;
        Some(claim.generation)
    }
}
