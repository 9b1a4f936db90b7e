//! Histories of attempts, with their bugs.

use async_trait::async_trait;
use idem_runtime::error::StoreError;
use idem_runtime::key::RecordId;
use idem_runtime::record::{
    FencingToken, MemberDigests, Observation, OwnerLabel, Record, RecordState,
};
use idem_runtime::store::{AttemptLog, AttemptStore, Attempts, ClaimRequest, Filter, ListedRecord};

use super::{Inner, ToyStore};
use crate::bug::Bug;

impl ToyStore {
    pub(super) fn listed(&self, inner: &Inner, record: Record, filter: &Filter) -> ListedRecord {
        let mut listed = ListedRecord::new(record, filter);
        if !self.has(Bug::ListForgetsTheOwner) {
            let log = inner.logs.get(&listed.record.id);
            listed.owner = log.and_then(|log| log.owner().cloned());
        }
        if let Some(payload) = &mut listed.payload
            && self.has(Bug::ListCountsWithTheCodec)
        {
            payload.size += payload.codec.len() as u64;
        }
        listed
    }

    pub(super) fn matches_owner(&self, inner: &Inner, filter: &Filter, record: &Record) -> bool {
        let owner = inner.logs.get(&record.id).and_then(AttemptLog::owner);
        self.has(Bug::ListIgnoresOwner) || filter.matches_owner(owner)
    }

    pub(super) fn begin_log(&self, inner: &mut Inner, claim: &ClaimRequest) {
        if self.has(Bug::HistoryOutlivesTheRecord) && inner.logs.contains_key(&claim.id) {
            return;
        }
        self.keep_members(inner, claim);
        let log = AttemptLog::begin(self.label(claim.owner_label.as_ref()).as_ref());
        inner.logs.insert(claim.id, log);
    }

    pub(super) fn keep_members(&self, inner: &mut Inner, claim: &ClaimRequest) {
        match &claim.members {
            Some(members) if self.has(Bug::MembersAreText) => {
                let text = String::from_utf8_lossy(members.as_bytes());
                let text = MemberDigests::from_bytes(text.as_bytes());
                inner.members.extend(text.map(|it| (claim.id, it)));
            }
            Some(members) => {
                inner.members.insert(claim.id, members.clone());
            }
            None if self.has(Bug::MembersOutliveTheClaim) => {}
            None => {
                inner.members.remove(&claim.id);
            }
        }
    }

    fn label(&self, label: Option<&OwnerLabel>) -> Option<OwnerLabel> {
        match self.bug {
            Some(Bug::OwnerLabelIsTrimmed) => {
                label.map(|label| OwnerLabel::lossy(label.as_str().trim()))
            }
            _ => label.cloned(),
        }
    }

    /// Records the repetition of a claim, which begins no attempt.
    pub(super) fn repeat_log(&self, inner: &mut Inner, claim: &ClaimRequest, record: &Record) {
        if self.has(Bug::RepeatedClaimBeginsAnAttempt) {
            let label = claim.owner_label.clone();
            let log = AttemptLog::from_parts(label, Some(record.read_at), String::new());
            inner.logs.insert(claim.id, log);
        }
    }

    pub(super) fn follow(
        &self,
        inner: &mut Inner,
        before: &Observation,
        after: &Record,
        label: Option<&OwnerLabel>,
    ) {
        let resolved = before.fencing_token != after.fencing_token;
        let missing = match after.state {
            RecordState::Released if !resolved => self.has(Bug::ReleaseIsNotLogged),
            RecordState::Running => {
                self.has(Bug::TakeoverIsNotLogged) && before.state == RecordState::Running
            }
            _ => resolved && self.has(Bug::ResolutionIsNotLogged),
        };
        let label = self.label(label);
        let log = inner.logs.entry(after.id).or_default();
        let mut before = *before;
        if missing {
            before.state = RecordState::Released;
        }
        if self.has(Bug::InterruptedCountsAsLapsed) && after.state == RecordState::Running {
            before.state = RecordState::Running;
        }
        log.follow(&before, after, label.as_ref());
        if self.has(Bug::OutcomeForgetsTheHistory) && after.state.is_ended() {
            *log = AttemptLog::from_parts(log.owner().cloned(), log.began_at(), String::new());
        }
        if self.has(Bug::HistoryKeepsTheFirst) && log.history().len() > 6000 {
            let history = log.history()[..5000].to_owned();
            *log = AttemptLog::from_parts(log.owner().cloned(), log.began_at(), history);
        }
    }
}

#[async_trait]
impl AttemptStore for ToyStore {
    async fn attempts(&self, id: &RecordId) -> Result<Option<Attempts>, StoreError> {
        let mut inner = self.lock();
        let Some(record) = self.live(&mut inner, id).cloned() else {
            return Ok(None);
        };
        let log = inner.logs.get(&record.id).cloned().unwrap_or_default();
        let members = inner.members.get(&record.id).cloned();
        Ok(Some(log.attempts(record).with_members(members)))
    }

    async fn note_replay(
        &self,
        id: &RecordId,
        fencing_token: FencingToken,
        by: Option<&OwnerLabel>,
    ) -> Result<bool, StoreError> {
        let mut inner = self.lock();
        let Some(record) = self.live(&mut inner, id).cloned() else {
            return Ok(false);
        };
        let is_same = record.fencing_token == fencing_token;
        if !is_same && !self.has(Bug::ReplayIgnoresTheFencingToken) {
            return Ok(false);
        }
        let log = inner.logs.entry(record.id).or_default();
        if self.has(Bug::ReplaysAreUnbounded) && record.state.is_ended() {
            let now = record.read_at.as_micros();
            let line = format!("{} {now} {now} replayed x\n", record.attempt);
            let history = log.history().to_owned() + &line;
            *log = AttemptLog::from_parts(log.owner().cloned(), log.began_at(), history);
            return Ok(true);
        }
        Ok(log.note_replay(&record, by))
    }
}
