//! A third store, as simple as the contract allows, that can be given one bug at a time.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use idem_runtime::Store;
use idem_runtime::error::StoreError;
use idem_runtime::key::RecordId;
use idem_runtime::record::{
    FencingToken, MemberDigests, Observation, OnCrash, Outcome, Owner, Payload, Record,
    RecordState, Timestamp,
};
use idem_runtime::store::{
    AttemptLog, AttemptStore, AuditEntry, AuditStore, ClaimOutcome, ClaimRequest, Cursor,
    FencedWrite, Filter, ForgettingStore, Granted, Page, PageRequest, Purged, RecoveryStore,
    Resolution, Resolved, ScopeFilter, StepStore,
};

use crate::bug::Bug;

mod attempts;
mod audit;
mod forgetting;
mod purging;
mod recovery;
mod steps;
mod values;

/// All records behind one lock.
#[derive(Debug)]
pub(crate) struct ToyStore {
    bug: Option<Bug>,
    inner: Mutex<Inner>,
    /// Number of claims that have read and not yet written, for bugs in which these are separate.
    reading: AtomicUsize,
}

#[derive(Debug, Default)]
struct Inner {
    records: BTreeMap<RecordId, Record>,
    /// Expiry according to the claim, before there is an outcome.
    planned: BTreeMap<RecordId, Timestamp>,
    /// The highest fencing token of all records.
    highest: Option<FencingToken>,
    counter: i64,
    steps: BTreeMap<(RecordId, String), Payload>,
    inputs: BTreeMap<RecordId, recovery::Row>,
    logs: BTreeMap<RecordId, AttemptLog>,
    members: BTreeMap<RecordId, MemberDigests>,
    audit: Vec<AuditEntry>,
    /// Fencing tokens of claims that were taken over or released, for some of the bugs.
    former: BTreeMap<(RecordId, [u8; 16]), FencingToken>,
}

impl ToyStore {
    pub(crate) fn new(bug: Option<Bug>) -> Self {
        Self {
            bug,
            inner: Mutex::default(),
            reading: AtomicUsize::new(0),
        }
    }

    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn clock(&self) -> Timestamp {
        let now: Timestamp = SystemTime::now().into();
        match self.bug {
            // The `Date` of an HTTP response, taken for the time.
            Some(Bug::TimeIsInSeconds) => {
                Timestamp::from_micros(now.as_micros() / 1_000_000 * 1_000_000)
            }
            _ => now,
        }
    }

    fn expired(&self, record: &Record) -> bool {
        let unknown = record.state == RecordState::Running && record.on_crash != OnCrash::Rerun;
        if self.has(Bug::UnknownExpires) && unknown {
            return record.lease_until.after(record.retention) <= record.read_at;
        }
        record.is_expired()
            && !(self.has(Bug::ExpiredIsStillThere) && record.state.is_ended())
            && !(self.has(Bug::AbandonedIsStillThere) && record.state == RecordState::Running)
            && !(self.has(Bug::ForgottenNeverExpires) && record.is_forgotten())
    }

    /// The record as it is now; `None` if it has expired.
    fn live<'a>(&self, inner: &'a mut Inner, id: &RecordId) -> Option<&'a mut Record> {
        let record = inner.records.get_mut(&self.id(id))?;
        record.read_at = self.clock();
        (!self.expired(record)).then_some(record)
    }

    /// Id under which a record is stored.
    fn id(&self, id: &RecordId) -> RecordId {
        match self.bug {
            Some(Bug::IdIsCut) => RecordId::from_bytes([id.as_bytes()[0] & 1; 32]),
            _ => *id,
        }
    }

    fn fencing_token(
        &self,
        inner: &mut Inner,
        previous: Option<FencingToken>,
        now: Timestamp,
    ) -> FencingToken {
        if self.has(Bug::FencingTokenIsCounter) {
            inner.counter += 1;
            return FencingToken::from_number(inner.counter);
        }
        if self.has(Bug::FencingTokenForgetsTheErased) {
            // In milliseconds, the resolution of some real clocks.
            let ticks = Timestamp::from_micros(now.as_micros() / 20_000 * 20_000 + 20_000);
            return FencingToken::next(previous, ticks);
        }
        let fencing_token = FencingToken::next(previous.max(inner.highest), now);
        inner.highest = Some(fencing_token);
        fencing_token
    }

    fn span(&self, duration: Duration) -> Duration {
        if self.has(Bug::DurationsWrap) {
            return Duration::from_micros(u64::from(duration.as_micros() as u32));
        }
        duration
    }

    fn begin(&self, inner: &mut Inner, claim: &ClaimRequest) -> ClaimOutcome {
        let now = self.clock();
        let previous = inner
            .records
            .get(&self.id(&claim.id))
            .map(|record| record.fencing_token);
        if previous.is_some() && !self.has(Bug::StepsOutliveExpiry) {
            drop_steps(inner, &claim.id);
        }
        if !self.has(Bug::InputOutlivesExpiry) {
            inner.inputs.remove(&claim.id);
        }
        let fencing_token = self.fencing_token(inner, previous, now);
        let former = inner.records.get(&self.id(&claim.id));
        let former = former.and_then(|record| record.payload_for);
        let record = Record {
            id: claim.id,
            identity: self.identity(claim),
            fingerprint: claim.fingerprint,
            state: RecordState::Running,
            payload: None,
            claim_id: Some(claim.claim_id),
            fencing_token,
            attempt: 1,
            lease_until: now.after(self.span(claim.lease)),
            retention: self.span(claim.retention),
            payload_for: former.filter(|_| self.has(Bug::PayloadTimeOutlivesExpiry)),
            on_crash: claim.on_crash,
            first_claimed_at: now,
            ended_at: None,
            read_at: now,
        };
        inner
            .planned
            .insert(claim.id, record.lease_until.after(record.retention));
        let granted = granted(&record);
        self.begin_log(inner, claim);
        inner.records.insert(self.id(&claim.id), record);
        ClaimOutcome::Granted(granted)
    }

    fn regrant(&self, inner: &mut Inner, claim: &ClaimRequest, takeover: bool) -> ClaimOutcome {
        let before = inner.records[&self.id(&claim.id)].clone();
        let seen = before.observation();
        if self.has(Bug::StepsEndWithTheAttempt) {
            drop_steps(inner, &claim.id);
        }
        if let Some(claim_id) = before.claim_id {
            inner
                .former
                .insert((claim.id, *claim_id.as_bytes()), before.fencing_token);
        }
        let late = inner
            .former
            .get(&(claim.id, *claim.claim_id.as_bytes()))
            .copied();
        let mut fencing_token =
            self.fencing_token(inner, Some(before.fencing_token), before.read_at);
        if self.has(Bug::LateClaimGetsTheOldFencingToken) {
            fencing_token = late.unwrap_or(fencing_token);
        }
        let mut record = Record {
            state: RecordState::Running,
            claim_id: Some(claim.claim_id),
            fencing_token,
            attempt: before.attempt + 1,
            lease_until: before.read_at.after(self.span(claim.lease)),
            retention: self.span(claim.retention),
            ended_at: None,
            ..before
        };
        match self.bug {
            Some(Bug::ReleasedBeginsAtOne) if !takeover => record.attempt = 1,
            Some(Bug::ReleasedTakesNewOnCrash) if !takeover => record.on_crash = claim.on_crash,
            Some(Bug::TakeoverKeepsAttempt) if takeover => record.attempt = before.attempt,
            _ => {}
        }
        let granted = granted(&record);
        inner
            .planned
            .insert(claim.id, record.lease_until.after(record.retention));
        let label = claim.owner_label.as_ref();
        self.follow(inner, &seen, &record, label);
        if !takeover || self.has(Bug::TakeoverReplacesMembers) {
            self.keep_members(inner, claim);
        }
        inner.records.insert(self.id(&claim.id), record);
        ClaimOutcome::Granted(granted)
    }

    fn is_own(&self, record: &Record, claim: &ClaimRequest, fingerprints: Bug) -> bool {
        record.state == RecordState::Running
            && record.claim_id == Some(claim.claim_id)
            && (self.has(fingerprints) || record.fingerprint == claim.fingerprint)
    }

    fn claim_locked(&self, inner: &mut Inner, claim: &ClaimRequest) -> ClaimOutcome {
        let Some(record) = self.live(inner, &claim.id) else {
            return self.begin(inner, claim);
        };
        if self.is_own(record, claim, Bug::RepeatedClaimIgnoresFingerprint)
            && !self.has(Bug::RepeatedClaimIsStranger)
        {
            if self.has(Bug::RepeatedClaimGetsNewFencingToken) {
                record.fencing_token =
                    FencingToken::next(Some(record.fencing_token), record.read_at);
            }
            if !self.has(Bug::RepeatedClaimKeepsOldLease) {
                record.lease_until = record.read_at.after(self.span(claim.lease));
            }
            if !self.has(Bug::RepeatedClaimKeepsOldRetention) {
                record.retention = self.span(claim.retention);
            }
            let after = record.clone();
            self.repeat_log(inner, claim, &after);
            return ClaimOutcome::Granted(granted(&after));
        }
        if self.has(Bug::ForgottenIsGranted) && record.is_forgotten() {
            return self.regrant(inner, claim, false);
        }
        if self.has(Bug::EndedIsGrantedToItsOwner)
            && record.state.is_ended()
            && record.claim_id == Some(claim.claim_id)
        {
            return ClaimOutcome::Granted(granted(record));
        }
        let known = record.fingerprint == claim.fingerprint;
        let free = record.state == RecordState::Released
            && (known || self.has(Bug::ReleasedIgnoresFingerprint))
            && !self.has(Bug::ReleasedIsNotClaimed);
        let taken = self.has(Bug::ClaimTakesOver) && known && record.is_lapsed();
        if free || taken {
            return self.regrant(inner, claim, taken);
        }
        if self.has(Bug::ClaimOverwritesTheLease) && record.state == RecordState::Running {
            record.lease_until = record.read_at.after(claim.lease);
        }
        ClaimOutcome::Existing(Box::new(record.clone()))
    }

    fn stuck(&self, record: &Record, live_too: Bug) -> bool {
        record.state == RecordState::Interrupted
            || record.is_lapsed()
            || record.state == RecordState::Running && self.has(live_too)
    }

    fn observed(&self, record: &Record, observed: &Observation, bugs: [Bug; 3]) -> bool {
        let [all, lease_end, state] = bugs;
        let seen = Observation {
            lease_until: if self.has(lease_end) {
                observed.lease_until
            } else {
                record.lease_until
            },
            state: if self.has(state) {
                observed.state
            } else {
                record.state
            },
            ..record.observation()
        };
        self.has(all) || seen == *observed
    }

    fn write(&self, owner: &Owner, apply: impl FnOnce(&mut Record)) -> FencedWrite {
        let mut inner = self.lock();
        let former = inner
            .former
            .get(&(owner.id, *owner.claim_id.as_bytes()))
            .copied();
        let Some(record) = self.live(&mut inner, &owner.id) else {
            return match self.has(Bug::AbsentIsAccepted) {
                true => FencedWrite::Applied,
                false => FencedWrite::Fenced,
            };
        };
        if self.has(Bug::FormerOwnerIsAccepted) && former == Some(owner.fencing_token) {
            apply(record);
            return FencedWrite::Applied;
        }
        let is_of = (record.claim_id == Some(owner.claim_id)
            || self.has(Bug::ClaimIdIsIgnored) && record.claim_id.is_some())
            && (record.fencing_token == owner.fencing_token
                || self.has(Bug::FencingTokenIsIgnored));
        let open = match record.state {
            RecordState::Running => !(self.has(Bug::LapsedOwnerIsRefused) && record.is_lapsed()),
            RecordState::Interrupted => !self.has(Bug::InterruptedRefusesItsOwner),
            RecordState::Released => self.has(Bug::ReleaseKeepsClaimId),
            _ => false,
        };
        if !is_of || !open {
            return FencedWrite::Fenced;
        }
        let before = record.observation();
        apply(record);
        let after = record.clone();
        self.follow(&mut inner, &before, &after, None);
        FencedWrite::Applied
    }

    fn end(&self, record: &mut Record, outcome: &Outcome) {
        record.state = match outcome {
            Outcome::Failed(_) if self.has(Bug::OutcomeLosesItsKind) => RecordState::Completed,
            _ => outcome.state(),
        };
        record.payload = outcome.payload().map(|payload| self.payload(payload));
        record.ended_at = Some(record.read_at);
    }
}

fn drop_steps(inner: &mut Inner, id: &RecordId) {
    inner.steps.retain(|(of, _), _| of != id);
}

fn granted(record: &Record) -> Granted {
    Granted {
        fencing_token: record.fencing_token,
        attempt: record.attempt,
        first_claimed_at: record.first_claimed_at,
        on_crash: record.on_crash,
    }
}

#[async_trait]
impl Store for ToyStore {
    async fn claim(&self, claim: &ClaimRequest) -> Result<ClaimOutcome, StoreError> {
        if self.has(Bug::ClaimIsReadThenWrite) {
            let seen = self.live(&mut self.lock(), &claim.id).cloned();
            self.meet_another_reader().await;
            return Ok(match seen {
                None => self.begin(&mut self.lock(), claim),
                Some(record) if record.state == RecordState::Released => {
                    self.regrant(&mut self.lock(), claim, false)
                }
                Some(_) => self.claim_locked(&mut self.lock(), claim),
            });
        }
        Ok(self.claim_locked(&mut self.lock(), claim))
    }

    async fn take_over(
        &self,
        observed: &Observation,
        claim: &ClaimRequest,
    ) -> Result<ClaimOutcome, StoreError> {
        let mut inner = self.lock();
        let Some(record) = self.live(&mut inner, &claim.id) else {
            if self.has(Bug::TakeoverOfNothingFails) {
                return Err(StoreError::new(
                    idem_runtime::error::StoreErrorKind::Other,
                    "there is nothing to take over",
                ));
            }
            return Ok(self.claim_locked(&mut inner, claim));
        };
        if self.is_own(record, claim, Bug::TakeoverIgnoresFingerprint)
            && !self.has(Bug::RepeatedTakeoverIsStranger)
        {
            record.lease_until = record.read_at.after(self.span(claim.lease));
            let after = record.clone();
            self.repeat_log(&mut inner, claim, &after);
            return Ok(ClaimOutcome::Granted(granted(&after)));
        }
        let bugs = [
            Bug::TakeoverIgnoresObservation,
            Bug::TakeoverIgnoresLeaseEnd,
            Bug::TakeoverIgnoresState,
        ];
        let may = (self.stuck(record, Bug::TakeoverOfLiveLease)
            || record.state == RecordState::Released && self.has(Bug::TakeoverOfReleased))
            && self.observed(record, observed, bugs)
            && (record.on_crash != OnCrash::Refuse || self.has(Bug::TakeoverOfRefuse))
            && (record.fingerprint == claim.fingerprint
                || self.has(Bug::TakeoverIgnoresFingerprint))
            && !(self.has(Bug::TakeoverRefusesInterrupted)
                && record.state == RecordState::Interrupted);
        if may {
            return Ok(self.regrant(&mut inner, claim, true));
        }
        Ok(ClaimOutcome::Existing(Box::new(record.clone())))
    }

    async fn renew(&self, owner: &Owner, lease: Duration) -> Result<FencedWrite, StoreError> {
        if self.has(Bug::RenewAnswersFromItsRead) {
            let answer = self.write(owner, |_| {});
            tokio::time::sleep(Duration::from_millis(4)).await;
            self.write(owner, |record| {
                record.lease_until = record.read_at.after(lease);
            });
            return Ok(answer);
        }
        Ok(self.write(owner, |record| {
            record.state = RecordState::Running;
            let from = match self.has(Bug::RenewAddsToTheLease) {
                true => record.lease_until.max(record.read_at),
                false => record.read_at,
            };
            record.lease_until = from.after(self.span(lease));
        }))
    }

    async fn complete(&self, owner: &Owner, outcome: &Outcome) -> Result<FencedWrite, StoreError> {
        if self.has(Bug::DropLosesHalf) {
            // Two writes with a yield between them: a drop at the yield leaves half of the outcome.
            self.write(owner, |record| self.end(record, &Outcome::Unrecorded));
            tokio::task::yield_now().await;
            let mut inner = self.lock();
            if let Some(record) = self.live(&mut inner, &owner.id)
                && record.claim_id == Some(owner.claim_id)
                && record.fencing_token == owner.fencing_token
                && record.state == RecordState::Unrecorded
            {
                self.end(record, outcome);
                return Ok(FencedWrite::Applied);
            }
        }
        {
            let mut inner = self.lock();
            if let Some(record) = self.live(&mut inner, &owner.id)
                && record.state.is_ended()
                && (record.claim_id == Some(owner.claim_id) || self.has(Bug::ClaimIdIsIgnored))
                && (record.fencing_token == owner.fencing_token
                    || self.has(Bug::FencingTokenIsIgnored))
                && !self.has(Bug::RepeatedCompletionIsLost)
            {
                if self.has(Bug::RepeatedCompletionOverwrites) {
                    self.end(record, outcome);
                }
                return Ok(FencedWrite::Applied);
            }
        }
        Ok(self.write(owner, |record| self.end(record, outcome)))
    }

    async fn release(&self, owner: &Owner) -> Result<FencedWrite, StoreError> {
        if self.has(Bug::EndedIsReleased)
            && let Some(record) = self.live(&mut self.lock(), &owner.id)
            && record.state.is_ended()
        {
            record.state = RecordState::Released;
            return Ok(FencedWrite::Applied);
        }
        Ok(self.write(owner, |record| {
            record.state = RecordState::Released;
            record.ended_at = Some(record.read_at);
            if !self.has(Bug::ReleaseKeepsClaimId) {
                record.claim_id = None;
            }
        }))
    }

    async fn interrupt(&self, owner: &Owner) -> Result<FencedWrite, StoreError> {
        Ok(self.write(owner, |record| {
            record.state = RecordState::Interrupted;
            if self.has(Bug::InterruptDropsClaimId) {
                record.claim_id = None;
            }
        }))
    }

    async fn resolve(
        &self,
        observed: &Observation,
        resolution: &Resolution,
    ) -> Result<Resolved, StoreError> {
        let mut inner = self.lock();
        let Some(record) = self.live(&mut inner, &observed.id) else {
            return Ok(Resolved::Stale);
        };
        let bugs = [
            Bug::ResolveIgnoresObservation,
            Bug::ResolveIgnoresLeaseEnd,
            Bug::ResolveIgnoresState,
        ];
        let corrects = matches!(resolution, Resolution::Correct(_));
        let settles = corrects && self.may_correct(record)
            || !corrects && self.stuck(record, Bug::ResolvesLiveLease)
            || *resolution == Resolution::Erase && record.state != RecordState::Running
            || !corrects && self.has(Bug::ResolvesEnded) && record.state.is_ended();
        if !settles || !self.observed(record, observed, bugs) {
            return Ok(Resolved::Stale);
        }
        let mut fencing_token = record.fencing_token;
        if !self.has(Bug::ResolvedKeepsFencingToken) {
            fencing_token = FencingToken::next(Some(fencing_token), record.read_at);
        }
        let claim_id = record
            .claim_id
            .filter(|_| self.has(Bug::ResolvedKeepsClaimId));
        let before = record.observation();
        match resolution {
            Resolution::Complete(outcome) => {
                self.end(record, outcome);
                (record.fencing_token, record.claim_id) = (fencing_token, claim_id);
            }
            Resolution::Release => {
                record.state = RecordState::Released;
                record.ended_at = Some(record.read_at);
                (record.fencing_token, record.claim_id) = (fencing_token, claim_id);
            }
            Resolution::Interrupt => {
                record.state = RecordState::Interrupted;
                if self.has(Bug::ResolvedUnknownDropsClaimId) {
                    record.claim_id = None;
                }
            }
            Resolution::Correct(outcome) => {
                self.correct(record, outcome);
                record.fencing_token = fencing_token;
            }
            Resolution::Erase if self.has(Bug::EraseDoesNothing) => {}
            Resolution::Erase => {
                inner.records.remove(&self.id(&observed.id));
                if !self.has(Bug::StepsOutliveErasure) {
                    drop_steps(&mut inner, &observed.id);
                }
                if !self.has(Bug::InputOutlivesErasure) {
                    inner.inputs.remove(&observed.id);
                }
            }
        }
        if let Some(after) = inner.records.get(&self.id(&observed.id)).cloned() {
            self.follow(&mut inner, &before, &after, None);
        }
        Ok(Resolved::Done)
    }

    async fn get(&self, id: &RecordId) -> Result<Option<Record>, StoreError> {
        Ok(self.live(&mut self.lock(), id).cloned())
    }

    async fn list(&self, filter: &Filter, page: &PageRequest) -> Result<Page, StoreError> {
        let mut inner = self.lock();
        let ids: Vec<RecordId> = inner.records.keys().copied().collect();
        let mut matching = Vec::new();
        for id in ids {
            let shown = match self.live(&mut inner, &id).cloned() {
                None if self.has(Bug::ListShowsExpired) => inner.records.get(&id).cloned(),
                live => live,
            };
            matching.extend(shown.filter(|record| {
                self.matches(filter, record) && self.matches_owner(&inner, filter, record)
            }));
        }
        let from = match &page.after {
            None => 0,
            Some(cursor) if self.has(Bug::ListPagesByOffset) => cursor.as_str().parse().unwrap(),
            Some(cursor) => matching
                .iter()
                .position(|record| hex(record).as_str() > cursor.as_str())
                .unwrap_or(matching.len()),
        };
        let limit = page.limit as usize;
        let more = matching.len() - from.min(matching.len()) > limit;
        let records: Vec<Record> = matching.into_iter().skip(from).take(limit).collect();
        let next = records.last().filter(|_| more).map(|last| {
            Cursor::new(match self.has(Bug::ListPagesByOffset) {
                true => (from + limit).to_string(),
                false => hex(last),
            })
        });
        Ok(Page {
            records: records
                .into_iter()
                .map(|it| self.listed(&inner, it, filter))
                .collect(),
            unreadable: Vec::new(),
            next,
        })
    }

    async fn now(&self) -> Result<Timestamp, StoreError> {
        Ok(self.time())
    }

    async fn purge(&self, limit: u32, as_of: Timestamp) -> Result<Purged, StoreError> {
        Ok(self.purge_as_of(limit, as_of))
    }

    fn audit(&self) -> Option<&dyn AuditStore> {
        Some(self)
    }

    fn attempts(&self) -> Option<&dyn AttemptStore> {
        Some(self)
    }

    fn forgetting(&self) -> Option<&dyn ForgettingStore> {
        Some(self)
    }

    fn recovery(&self) -> Option<&dyn RecoveryStore> {
        Some(self)
    }

    fn steps(&self) -> Option<&dyn StepStore> {
        Some(self)
    }
}

impl ToyStore {
    /// Waits until another claim has read as well, so that the race is lost on any machine. The wait is short, since
    /// most cases claim without a competitor.
    async fn meet_another_reader(&self) {
        self.reading.fetch_add(1, Ordering::SeqCst);
        for _ in 0..200 {
            if self.reading.load(Ordering::SeqCst) > 1 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        self.reading.fetch_sub(1, Ordering::SeqCst);
    }
}

impl ToyStore {
    fn matches(&self, filter: &Filter, record: &Record) -> bool {
        let mut filter = filter.clone();
        match self.bug {
            Some(Bug::ListIgnoresState) => filter.state = None,
            Some(Bug::ListIgnoresAge) => filter.older_than = None,
            Some(Bug::ListComparesScopesAsText) => {
                if let Some(ScopeFilter::Within(outer)) = &filter.scope {
                    let scope = record.identity.scope.as_str();
                    let is_inner = scope.starts_with(outer.as_str());
                    filter.scope = None;
                    return is_inner && filter.matches(record);
                }
            }
            Some(Bug::ListKeyMatchesPrefix) => {
                let key = record.identity.key.as_str();
                let prefix = filter.key.take();
                return prefix.is_none_or(|it| key.starts_with(&it)) && filter.matches(record);
            }
            Some(Bug::ListMatchesPrefix) => {
                let name = record.identity.operation.as_str();
                let prefix = filter.operation.take();
                return prefix.is_none_or(|it| name.starts_with(&it)) && filter.matches(record);
            }
            Some(Bug::ListStuckForgetsInterrupted) if filter.stuck => {
                return record.is_lapsed() && filter.matches(record);
            }
            Some(Bug::ListLapsedTakesEnded) if filter.lapsed => {
                filter.lapsed = false;
                return record.lease_until <= record.read_at && filter.matches(record);
            }
            _ => {}
        }
        filter.matches(record)
    }
}

fn hex(record: &Record) -> String {
    record
        .id
        .as_bytes()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}
