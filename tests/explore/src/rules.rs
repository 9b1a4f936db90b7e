//! The transitions of the store and the decisions of the engine, or one of them with a defect.

use crate::decisions::{
    self, Abilities, BodyStage, ClaimUse, IsOtherDigest, OnExisting, OnPoll, OwnAnswer, Unfinished,
};
use crate::mutants::Mutant;
use crate::record::{FencingToken, Observation, OnCrash, Outcome, Owner, Record, State};
use crate::setup::Mode;
use crate::store::transitions::{self, Purge};
use crate::store::{ClaimOutcome, ClaimRequest, FencedWrite, Granted, Resolution, Resolved};
use crate::world::LEASE;

/// The rules of a search.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    pub(crate) mode: Mode,
    pub(crate) mutant: Option<Mutant>,
}

impl Rules {
    pub(crate) fn is(self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    pub(crate) fn begin(
        self,
        claim: &ClaimRequest,
        floor: Option<FencingToken>,
        now: crate::record::Timestamp,
    ) -> Record {
        let floor = match self.is(Mutant::ForgetsDeletedToken) {
            true => None,
            false => floor,
        };
        transitions::begin(claim, floor, now)
    }

    pub(crate) fn claim(self, record: &mut Record, claim: &ClaimRequest) -> ClaimOutcome {
        let is_repeated = claim.is_repeated_on(record);
        if is_repeated && self.is(Mutant::ForgetsClaimId) {
            return ClaimOutcome::Existing(Box::new(record.clone()));
        }
        if is_repeated && self.is(Mutant::RepeatedClaimGetsNewToken) {
            return grant(record, claim);
        }
        if record.is_lapsed() && self.is(Mutant::ClaimTakesOver) {
            return grant(record, claim);
        }
        transitions::claim(record, claim)
    }

    pub(crate) fn take_over(
        self,
        record: &mut Record,
        observed: &Observation,
        claim: &ClaimRequest,
    ) -> ClaimOutcome {
        let is_current = record.observation() == *observed;
        let is_mutant = match self.mutant {
            Some(Mutant::TakesOverWithoutCompare) => record.state == State::Running,
            Some(Mutant::TakesOverLiveLease) => record.state == State::Running && is_current,
            Some(Mutant::TakesOverRefused) => record.is_unsettled() && is_current,
            _ => false,
        };
        match is_mutant {
            true => grant(record, claim),
            false => transitions::take_over(record, observed, claim),
        }
    }

    pub(crate) fn renew(self, record: &mut Record, owner: &Owner) -> FencedWrite {
        let own = owner_of(record).filter(|_| self.is(Mutant::RenewsWithoutFencing));
        let lease = crate::world::micros(LEASE);
        transitions::renew(record, &own.unwrap_or(*owner), lease)
    }

    pub(crate) fn complete(
        self,
        record: &mut Record,
        owner: &Owner,
        outcome: &Outcome,
    ) -> FencedWrite {
        if self.is(Mutant::OverwritesOutcome) && record.state.is_ended() {
            record.state = State::Running;
            record.claim_id = Some(owner.claim_id);
            record.fencing_token = record.fencing_token.max(owner.fencing_token);
            return transitions::complete(record, &owner_of(record).unwrap_or(*owner), outcome);
        }
        let own = owner_of(record).filter(|_| self.is(Mutant::CompletesWithoutFencing));
        transitions::complete(record, &own.unwrap_or(*owner), outcome)
    }

    pub(crate) fn release(self, record: &mut Record, owner: &Owner) -> FencedWrite {
        let own = owner_of(record).filter(|_| self.is(Mutant::ReleasesForNewClaim));
        transitions::release(record, &own.unwrap_or(*owner))
    }

    pub(crate) fn interrupt(self, record: &mut Record, owner: &Owner) -> FencedWrite {
        transitions::interrupt(record, owner)
    }

    pub(crate) fn resolve(
        self,
        record: &mut Record,
        observed: &Observation,
        resolution: &Resolution,
    ) -> Resolved {
        let own = record.observation();
        let observed = match self.is(Mutant::ResolvesWithoutCompare) {
            true => {
                if record.state == State::Running {
                    // What is running is resolved too.
                    record.lease_until = record.lease_until.min(record.read_at);
                }
                record.observation()
            }
            false => *observed,
        };
        let resolved = transitions::resolve(record, &observed, resolution);
        if self.is(Mutant::ResolutionKeepsOwner) && resolved == Resolved::Done {
            record.claim_id = own.claim_id;
            record.fencing_token = own.fencing_token;
        }
        resolved
    }

    pub(crate) fn purge(self, record: &mut Record) -> Purge {
        let is_unknown = !record.state.is_ended() && record.state != State::Released;
        if self.is(Mutant::PurgesUnknown)
            && is_unknown
            && record.lease_until.after(record.retention) <= record.read_at
        {
            return Purge::Expired;
        }
        transitions::purge(record)
    }

    pub(crate) fn on_existing(self, record: &Record) -> OnExisting {
        let abilities = Abilities {
            reconciles: false,
            joins: false,
        };
        let next = decisions::on_existing(record, IsOtherDigest(false), abilities);
        match next {
            OnExisting::TakeOver if self.is(Mutant::WaitsForLapsed) => OnExisting::Wait,
            OnExisting::Interrupt if self.is(Mutant::TakesOverRefused) => OnExisting::TakeOver,
            OnExisting::Wait if self.is(Mutant::TakesOverLiveLease) => OnExisting::TakeOver,
            next => next,
        }
    }

    pub(crate) fn on_poll(self, record: &Record, own: crate::record::ClaimId) -> OnPoll {
        match decisions::on_poll(record, own) {
            OnPoll::Look if self.is(Mutant::WaitsForLapsed) && record.is_lapsed() => OnPoll::Wait,
            next => next,
        }
    }

    pub(crate) fn on_drop(self, stage: BodyStage) -> Unfinished {
        match decisions::on_drop(stage, self.on_crash()) {
            Unfinished::Interrupt if self.is(Mutant::DropReleases) => Unfinished::Release,
            next => next,
        }
    }

    pub(crate) fn on_error(self, is_harmless: bool) -> Unfinished {
        match decisions::on_error(is_harmless, self.on_crash()) {
            Unfinished::Interrupt if self.is(Mutant::UnknownErrorReleases) => Unfinished::Release,
            next => next,
        }
    }

    pub(crate) fn own_answer(self, written: Option<FencedWrite>, is_live: bool) -> OwnAnswer {
        match decisions::own_answer(written, is_live) {
            OwnAnswer::Stored if self.is(Mutant::ReturnsLostValue) => OwnAnswer::Own,
            OwnAnswer::LeaseLost if self.is(Mutant::ReturnsValueAfterLease) => {
                OwnAnswer::OwnUnrecorded
            }
            answer => answer,
        }
    }

    pub(crate) fn covers(self, used: ClaimUse, granted: FencingToken) -> bool {
        used.covers(granted) && !self.is(Mutant::LateAnswerReleases)
    }

    pub(crate) fn was_committed(self, record: Option<&Record>, owner: &Owner) -> bool {
        self.is(Mutant::BelievesCommit)
            || record.is_some_and(|record| decisions::was_committed(record, owner))
    }

    fn on_crash(self) -> OnCrash {
        match self.mode {
            Mode::Refuse => OnCrash::Refuse,
            Mode::Rerun | Mode::Tx => OnCrash::Rerun,
        }
    }
}

/// Grants a claim of an existing record, whatever it is.
fn grant(record: &mut Record, claim: &ClaimRequest) -> ClaimOutcome {
    record.state = State::Running;
    record.claim_id = Some(claim.claim_id);
    record.fencing_token = FencingToken::next(Some(record.fencing_token), record.read_at);
    record.attempt = record.attempt.saturating_add(1);
    record.lease_until = record.read_at.after(claim.lease);
    record.ended_at = None;
    ClaimOutcome::Granted(Granted::on(record))
}

fn owner_of(record: &Record) -> Option<Owner> {
    Some(Owner {
        id: record.id,
        claim_id: record.claim_id?,
        fencing_token: record.fencing_token,
    })
}
