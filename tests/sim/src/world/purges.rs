//! Checks of purges: they remove only what has expired, and nothing because the store's clock has jumped forward.

use std::collections::BTreeMap;
use std::time::Duration;

use idem_store::record::{Record, RecordState, Timestamp};

use super::{World, at};
use crate::message::PurgedBy;

/// Shortest jump that a purger must notice whatever else happens in a run.
const LONG_JUMP: Duration = Duration::from_secs(3600);

/// The store's clock, and what purgers know of it.
#[derive(Default)]
pub(super) struct Clocks {
    jumps: Vec<Jump>,
    /// True time at which the purger of each process first read the clock.
    first_readings: BTreeMap<usize, u64>,
}

/// A jump of the store's clock.
struct Jump {
    /// True time, in microseconds.
    at: u64,
    /// Time by the store's clock before the jump.
    before: Timestamp,
    /// Distance in microseconds; negative for back.
    by: i64,
}

impl Jump {
    fn is_long(&self) -> bool {
        self.by >= LONG_JUMP.as_micros() as i64
    }

    /// True if a time of the store's clock is of before the jump.
    fn is_after(&self, time: Timestamp) -> bool {
        // Other jumps are far shorter than half of a long one.
        time < self.before.after(Duration::from_micros(self.by as u64 / 2))
    }
}

impl World {
    /// The store's clock jumps.
    pub(crate) fn clock_jumps(&mut self, before: Timestamp, by: i64) {
        let at = self.now;
        self.clocks.jumps.push(Jump { at, before, by });
    }

    /// A process starts, and its purger has not read the store's clock yet.
    pub(crate) fn process_starts(&mut self, process: usize) {
        self.clocks.first_readings.remove(&process);
    }

    /// The purger of a process has read the store's clock.
    pub(crate) fn clock_is_read(&mut self, process: usize) {
        let now = self.time();
        self.clocks.first_readings.entry(process).or_insert(now);
    }

    /// The purger of a process sends a purge.
    pub(crate) fn purger_of(&self, process: usize) -> PurgedBy {
        PurgedBy::Purger {
            first_reading: self.clocks.first_readings.get(&process).copied(),
            sent_at: self.time(),
        }
    }

    /// A purge has looked at a record at this time by the store's clock, and as of a time that may be earlier.
    pub(crate) fn purged(
        &mut self,
        by: PurgedBy,
        now: Timestamp,
        as_of: Timestamp,
        before: &Record,
        after: Option<&Record>,
    ) {
        let Some(key) = self.key_of(&before.id) else {
            return;
        };
        let before = at(before, as_of);
        let token = before.fencing_token.number();
        if after.is_none() {
            self.is_gone(key, Some(token));
        }
        if after.is_none() && !before.is_expired() {
            self.violation(
                "purge",
                format!("key {key}: a record was removed before it expired"),
            );
        }
        if after.is_none_or(|after| after.state != before.state) {
            self.check_purger(key, by, now, &before);
        }
        if let Some(claim) = self.keys[key].claims.get_mut(&token) {
            claim.is_over |= after.is_none_or(|after| after.state != RecordState::Running);
        }
    }

    /// A purger changes nothing before it can compare the store's clock with its own, and nothing because the store's
    /// clock has jumped forward since then.
    fn check_purger(&mut self, key: usize, by: PurgedBy, now: Timestamp, before: &Record) {
        let PurgedBy::Purger {
            first_reading,
            sent_at,
        } = by
        else {
            return;
        };
        // Clocks of processes run up to a tenth too fast.
        let pause = self.lease.mul_f64(0.9).as_micros() as u64;
        let Some(first_reading) = first_reading.filter(|first| first + pause <= sent_at) else {
            let what = format!("key {key}: the first round of a purger did not wait");
            self.violation("clock jumps", what);
            return;
        };
        self.stats.purged += 1;
        let dated = before.ended_at.unwrap_or(before.lease_until);
        let jumped = self
            .clocks
            .jumps
            .iter()
            .filter(|jump| jump.is_long() && jump.at > first_reading && jump.is_after(dated));
        let jumped: i64 = jumped.map(|jump| jump.by).sum();
        let explained = Timestamp::from_micros(now.as_micros() - jumped);
        let is_due =
            dated.after(before.retention) <= explained.after(self.tolerance(first_reading));
        if jumped > 0 && !is_due {
            let what = format!(
                "key {key}: a purger changed a record that looks old because the clock jumped"
            );
            self.violation("clock jumps", what);
        }
    }

    /// Time by which a purger may be ahead of the store's clock without its jumps. Its own clock may run a tenth too fast,
    /// the answer to its first reading may be late, and it follows a clock that was set back only if that clock is not
    /// ahead.
    fn tolerance(&self, first_reading: u64) -> Duration {
        let drift = Duration::from_micros(self.now.saturating_sub(first_reading)) / 10;
        let back = self.clocks.jumps.iter().filter(|jump| jump.by < 0);
        let back: i64 = back.map(|jump| -jump.by).sum();
        drift + self.store_timeout + Duration::from_micros(back as u64) + Duration::from_secs(2)
    }
}
