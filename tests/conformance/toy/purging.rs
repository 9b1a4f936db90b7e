//! Purges, with the bugs that they can have.

use std::time::SystemTime;

use idem_runtime::key::RecordId;
use idem_runtime::record::{OnCrash, Record, RecordState, Timestamp};
use idem_runtime::store::Purged;

use super::{ToyStore, drop_steps};
use crate::bug::Bug;

impl ToyStore {
    pub(super) fn time(&self) -> Timestamp {
        let now: Timestamp = SystemTime::now().into();
        match self.bug {
            Some(Bug::TimeIsInMilliseconds) => Timestamp::from_micros(now.as_micros() / 1000),
            _ => now,
        }
    }

    pub(super) fn purge_as_of(&self, limit: u32, as_of: Timestamp) -> Purged {
        let mut inner = self.lock();
        let mut purged = Purged::default();
        let ids: Vec<RecordId> = inner.records.keys().copied().collect();
        for id in ids {
            let planned = inner.planned.get(&id).copied();
            let Some(record) = inner.records.get_mut(&id) else {
                continue;
            };
            record.read_at = self.clock();
            if !self.has(Bug::PurgeTrustsItsClock) {
                record.read_at = record.read_at.min(as_of);
            }
            let expired = self.expired(record);
            let due = planned.is_some_and(|at| at <= record.read_at);
            let early = match self.bug {
                Some(Bug::PurgeTrustsTheClaim) => due && record.state == RecordState::Running,
                Some(Bug::PurgeCountsFromTheClaim) => due && record.state.is_ended(),
                Some(Bug::PurgeDeletesUnknown) => due && record.on_crash != OnCrash::Rerun,
                Some(Bug::PurgeTakesReleased) => record.state == RecordState::Released,
                _ => false,
            };
            let stays = self.has(Bug::PurgeForgetsResolved)
                && record.state.is_ended()
                && record.on_crash == OnCrash::Refuse
                && record.ended_at > planned;
            let overdue = record.state == RecordState::Running
                && record.on_crash != OnCrash::Rerun
                && record.lease_until.after(record.retention) <= record.read_at;
            if expired && !stays || early {
                purged.abandoned += u64::from(record.state == RecordState::Running);
                purged.removed += 1;
                inner.records.remove(&id);
                if !self.has(Bug::StepsOutlivePurging) {
                    drop_steps(&mut inner, &id);
                }
                if !self.has(Bug::InputOutlivesPurging) {
                    inner.inputs.remove(&id);
                }
            } else if overdue && !self.has(Bug::UnknownExpires) {
                record.state = RecordState::Interrupted;
                purged.interrupted += 1;
            }
            if let Some(record) = inner.records.get_mut(&id) {
                self.forget(record, &mut purged);
            }
            let done = purged.changed();
            let is_unbounded = self.has(Bug::PurgeIsUnbounded)
                || self.has(Bug::ForgettingIsUnbounded) && purged.forgotten > 0;
            if done == u64::from(limit) && !is_unbounded {
                purged.more = true;
                break;
            }
        }
        if self.has(Bug::PurgeCountsNothing) {
            (purged.removed, purged.abandoned) = (0, 0);
        }
        purged
    }

    fn forget(&self, record: &mut Record, purged: &mut Purged) {
        let is_over = record
            .payload_until()
            .is_some_and(|at| at <= record.read_at || self.has(Bug::PayloadIsDroppedEarly));
        if record.payload.is_some() && is_over && !self.has(Bug::PayloadIsNeverDropped) {
            record.payload = None;
            purged.forgotten += u64::from(!self.has(Bug::ForgettingIsNotCounted));
        }
    }
}
