//! Audit of manual changes, with its bugs.

use async_trait::async_trait;
use idem_runtime::Store as _;
use idem_runtime::error::StoreError;
use idem_runtime::record::{Observation, Outcome, Record, Timestamp};
use idem_runtime::store::{
    AuditAction, AuditEntry, AuditFilter, AuditPage, AuditStore, AuditSubject, AuditedRecord,
    Cursor, ManualChange, PageRequest, Purged, Resolution, Resolved,
};

use super::ToyStore;
use crate::bug::Bug;

impl ToyStore {
    pub(super) fn may_correct(&self, record: &Record) -> bool {
        record.was_resolved() || self.has(Bug::CorrectsAnOwner) && record.state.is_ended()
    }

    pub(super) fn correct(&self, record: &mut Record, outcome: &Outcome) {
        let ended_at = record.ended_at;
        self.end(record, outcome);
        if !self.has(Bug::CorrectionEndsAnew) {
            record.ended_at = ended_at;
        }
    }
}

#[async_trait]
impl AuditStore for ToyStore {
    async fn resolve_manually(
        &self,
        observed: &Observation,
        resolution: &Resolution,
        change: &ManualChange,
    ) -> Result<Resolved, StoreError> {
        let before = self.live(&mut self.lock(), &observed.id).cloned();
        if self.has(Bug::EntryIsWrittenAfterARead) {
            // Both operators look before one of them writes.
            tokio::task::yield_now().await;
        }
        let resolved = self.resolve(observed, resolution).await?;
        let stale = resolved == Resolved::Stale;
        let written = !stale
            || self.has(Bug::StaleChangeIsWrittenDown)
            || self.has(Bug::EntryIsWrittenAfterARead)
                && before
                    .as_ref()
                    .is_some_and(|it| it.observation() == *observed && it.is_stuck());
        if let Some(before) = before.filter(|_| written) {
            let mut inner = self.lock();
            if self.has(Bug::EntriesEndWithTheRecord) && *resolution == Resolution::Erase {
                let is_other = |it: &AuditedRecord| it.id != observed.id;
                inner
                    .audit
                    .retain(|entry| entry.record().is_none_or(is_other));
            }
            let attempt = match self.has(Bug::EntryForgetsTheAttempt) {
                true => 0,
                false => before.attempt,
            };
            let mut audited = AuditedRecord::before(&before, resolution);
            if self.has(Bug::CorrectionForgetsTheValue) {
                audited.old_value = None;
            }
            let at = std::time::SystemTime::now().into();
            let entry = AuditEntry {
                at,
                change: change.clone(),
                user: None,
                action: AuditAction::of(resolution),
                subject: AuditSubject::Record(AuditedRecord { attempt, ..audited }),
            };
            if !(self.has(Bug::EntriesEndWithTheRecord) && *resolution == Resolution::Erase) {
                inner.audit.push(entry);
            }
        }
        Ok(resolved)
    }

    async fn purge_manually(
        &self,
        limit: u32,
        change: &ManualChange,
    ) -> Result<Purged, StoreError> {
        let purged = self.purge(limit, Timestamp::MAX).await?;
        let is_told = match purged.is_nothing() {
            true => self.has(Bug::EmptyPurgeIsWrittenDown),
            false => !self.has(Bug::ManualPurgeIsNotWrittenDown),
        };
        if is_told {
            let told = match self.has(Bug::ManualPurgeLosesItsCounts) {
                true => Purged::default(),
                false => purged,
            };
            self.lock().audit.push(AuditEntry {
                at: std::time::SystemTime::now().into(),
                change: change.clone(),
                user: None,
                action: AuditAction::Purged,
                subject: AuditSubject::of_purge(&told),
            });
        }
        Ok(purged)
    }

    async fn audit(
        &self,
        filter: &AuditFilter,
        page: &PageRequest,
    ) -> Result<AuditPage, StoreError> {
        let inner = self.lock();
        let now = std::time::SystemTime::now().into();
        let from: usize = match &page.after {
            None => 0,
            Some(cursor) => cursor.as_str().parse().unwrap(),
        };
        let matching: Vec<_> = inner
            .audit
            .iter()
            .rev()
            .filter(|entry| filter.matches(entry, now))
            .collect();
        let limit = page.limit as usize;
        let entries = matching.iter().skip(from).take(limit);
        let step = match self.has(Bug::AuditRepeatsAnEntry) {
            true => limit - 1,
            false => limit,
        };
        let more = matching.len() > from + limit;
        Ok(AuditPage {
            entries: entries.map(|entry| (*entry).clone()).collect(),
            unreadable: Vec::new(),
            next: more.then(|| Cursor::new((from + step).to_string())),
        })
    }
}
