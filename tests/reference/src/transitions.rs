//! The transitions of `idem-store`, or one of them with a defect.

use std::collections::BTreeMap;
use std::time::Duration;

use idem_store::record::{
    FencingToken, Observation, Outcome, Owner, Payload, Record, RecordState, Timestamp,
};
use idem_store::store::transitions::{self, Purge};
use idem_store::store::{ClaimOutcome, ClaimRequest, FencedWrite, Resolution, Resolved};

use crate::Defect;

/// Defects of writes that compare the claim id alone.
const BY_CLAIM_ID: &[Defect] = &[Defect::IgnoresFencingToken];

/// The reference transitions, with one defect or none.
#[derive(Debug, Clone, Copy, Default)]
pub struct Transitions {
    /// The defect.
    pub defect: Option<Defect>,
}

impl Transitions {
    /// Returns true if this is the defect.
    pub fn is(self, defect: Defect) -> bool {
        self.defect == Some(defect)
    }

    /// Returns true if the store treats the record as absent.
    pub fn is_expired(self, record: &Record) -> bool {
        record.is_expired() && !self.is(Defect::NeverExpires)
    }

    /// Creates the record of a first claim.
    pub fn begin(
        self,
        claim: &ClaimRequest,
        previous: Option<FencingToken>,
        now: Timestamp,
    ) -> Record {
        let previous = previous.filter(|_| !self.is(Defect::ForgetsDeletedToken));
        let mut record = transitions::begin(claim, previous, now);
        if self.is(Defect::CountsTokensFromOne) {
            record.fencing_token = FencingToken::from_number(1);
        }
        record
    }

    /// Claims an existing record.
    pub fn claim(self, record: &mut Record, claim: &ClaimRequest) -> ClaimOutcome {
        let is_of_request = record.fingerprint == claim.fingerprint;
        match self.defect {
            Some(Defect::ForgetsClaimId) if claim.is_repeated_on(record) => existing(record),
            Some(Defect::RepeatedClaimGetsNewToken) if claim.is_repeated_on(record) => {
                record.fencing_token =
                    FencingToken::next(Some(record.fencing_token), record.read_at);
                transitions::claim(record, claim)
            }
            Some(Defect::ClaimTakesOver) if record.is_lapsed() && is_of_request => {
                claim_released(record, claim)
            }
            Some(Defect::ClaimsUnrecorded)
                if record.state == RecordState::Unrecorded && is_of_request =>
            {
                claim_released(record, claim)
            }
            Some(Defect::ClaimsReleasedWithoutFingerprint)
                if record.state == RecordState::Released =>
            {
                record.fingerprint = claim.fingerprint;
                transitions::claim(record, claim)
            }
            Some(Defect::IgnoresFingerprint) => {
                let claim = of_fingerprint(claim, record);
                transitions::claim(record, &claim)
            }
            _ => transitions::claim(record, claim),
        }
    }

    /// Takes over an existing record.
    pub fn take_over(
        self,
        record: &mut Record,
        observed: &Observation,
        claim: &ClaimRequest,
    ) -> ClaimOutcome {
        let mut observed = *observed;
        let is_running = record.state == RecordState::Running;
        match self.defect {
            Some(Defect::ForgetsClaimId) if claim.is_repeated_on(record) => {
                return existing(record);
            }
            Some(Defect::IgnoresFingerprint) => {
                let claim = of_fingerprint(claim, record);
                return transitions::take_over(record, &observed, &claim);
            }
            Some(Defect::TakesOverWithoutCompare) => observed = record.observation(),
            Some(Defect::TakesOverUnseen) if is_running => {
                end_lease(record);
                observed = record.observation();
            }
            Some(Defect::TakesOverLiveLease) if observed == record.observation() => {
                end_lease(record);
                observed = record.observation();
            }
            Some(Defect::TakesOverRenewedLease) if is_running => {
                // The lease is ended before the rest is compared.
                end_lease(record);
                observed.lease_until = record.lease_until;
            }
            Some(Defect::TakesOverRefused)
                if record.is_stuck() && observed == record.observation() =>
            {
                return claim_released(record, claim);
            }
            _ => {}
        }
        transitions::take_over(record, &observed, claim)
    }

    /// Renews the lease.
    pub fn renew(self, record: &mut Record, owner: &Owner, lease: Duration) -> FencedWrite {
        let owner = self.compared(
            record,
            owner,
            Some(Defect::RenewsWithoutFencing),
            BY_CLAIM_ID,
        );
        if self.is(Defect::RenewsNothing) && owner.may_write(record) {
            return FencedWrite::Applied;
        }
        transitions::renew(record, &owner, lease)
    }

    /// Ends the record.
    pub fn complete(self, record: &mut Record, owner: &Owner, outcome: &Outcome) -> FencedWrite {
        let nothing = Some(Defect::CompletesWithoutFencing);
        let claim_id = &[Defect::IgnoresFencingToken, Defect::CompletesByClaimIdAlone];
        let owner = self.compared(record, owner, nothing, claim_id);
        if record.state.is_ended() {
            if self.is(Defect::OverwritesOutcome) && owner.owns(record) {
                record.state = RecordState::Running;
            }
            if self.is(Defect::OverwritesOutcomeOfOthers) {
                record.state = RecordState::Running;
                record.claim_id = Some(owner.claim_id);
                record.fencing_token = record.fencing_token.max(owner.fencing_token);
                let owner = owner_of(record, &owner);
                return transitions::complete(record, &owner, outcome);
            }
        }
        transitions::complete(record, &owner, outcome)
    }

    /// Releases the claim.
    pub fn release(self, record: &mut Record, owner: &Owner) -> FencedWrite {
        let owner = self.compared(
            record,
            owner,
            Some(Defect::ReleasesWithoutFencing),
            BY_CLAIM_ID,
        );
        transitions::release(record, &owner)
    }

    /// Marks the record INTERRUPTED.
    pub fn interrupt(self, record: &mut Record, owner: &Owner) -> FencedWrite {
        let owner = self.compared(record, owner, None, BY_CLAIM_ID);
        transitions::interrupt(record, &owner)
    }

    /// Resolves the record.
    pub fn resolve(
        self,
        record: &mut Record,
        observed: &Observation,
        resolution: &Resolution,
    ) -> Resolved {
        let mut observed = *observed;
        if self.is(Defect::ResolvesUnseen) && record.state == RecordState::Running {
            end_lease(record);
        }
        if self.is(Defect::ResolvesUnseen) || self.is(Defect::ResolvesWithoutCompare) {
            observed = record.observation();
        }
        let owner = (record.claim_id, record.fencing_token);
        let resolved = transitions::resolve(&mut *record, &observed, resolution);
        if self.is(Defect::ResolutionKeepsOwner) && resolved == Resolved::Done {
            (record.claim_id, record.fencing_token) = owner;
        }
        resolved
    }

    /// Purges the record.
    pub fn purge(self, record: &mut Record) -> Purge {
        let is_unknown =
            record.state == RecordState::Running || record.state == RecordState::Interrupted;
        let is_over = record.lease_until.after(record.retention) <= record.read_at;
        match self.defect {
            Some(Defect::PurgesUnknown) if is_unknown && is_over => Purge::Expired,
            Some(Defect::NeverExpires) if record.is_expired() => Purge::NotDue,
            _ => transitions::purge(record),
        }
    }

    /// Forgets the steps of a generation that has ended.
    pub fn end_steps(self, steps: &mut BTreeMap<String, Payload>) {
        if !self.is(Defect::StepsOutliveGeneration) {
            steps.clear();
        }
    }

    /// Saves a step, unless one of this name is there.
    pub fn save_step(self, steps: &mut BTreeMap<String, Payload>, name: &str, payload: &Payload) {
        match self.defect {
            Some(Defect::LosesSteps) if !steps.is_empty() => {}
            Some(Defect::OverwritesSteps) => {
                steps.insert(name.to_owned(), payload.clone());
            }
            _ => {
                let step = steps.entry(name.to_owned());
                step.or_insert_with(|| payload.clone());
            }
        }
    }

    /// Returns true if a recovery may begin: the input is as it was read.
    pub fn may_recover(self, is_as_read: bool) -> bool {
        is_as_read || self.is(Defect::RecoversTwice)
    }

    /// The owner with which a write is compared: the record's own under a defect that compares nothing, and under one
    /// that compares the claim id alone.
    fn compared(
        self,
        record: &Record,
        owner: &Owner,
        nothing: Option<Defect>,
        claim_id: &[Defect],
    ) -> Owner {
        let is_of_claim = record.claim_id == Some(owner.claim_id);
        let is_free = self.defect.is_some_and(|defect| {
            nothing == Some(defect) || claim_id.contains(&defect) && is_of_claim
        });
        match is_free {
            true => owner_of(record, owner),
            false => *owner,
        }
    }
}

/// The owner of a record, or this one if the record has none.
fn owner_of(record: &Record, owner: &Owner) -> Owner {
    match record.claim_id {
        Some(claim_id) => Owner {
            claim_id,
            fencing_token: record.fencing_token,
            ..*owner
        },
        None => *owner,
    }
}

/// Claims a record as if it had been released.
fn claim_released(record: &mut Record, claim: &ClaimRequest) -> ClaimOutcome {
    record.state = RecordState::Released;
    transitions::claim(record, claim)
}

fn of_fingerprint(claim: &ClaimRequest, record: &Record) -> ClaimRequest {
    ClaimRequest {
        fingerprint: record.fingerprint,
        ..claim.clone()
    }
}

fn end_lease(record: &mut Record) {
    record.lease_until = record.lease_until.min(record.read_at);
}

fn existing(record: &Record) -> ClaimOutcome {
    ClaimOutcome::Existing(Box::new(record.clone()))
}
