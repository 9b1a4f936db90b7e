//! The transitions of the store and the decisions of the engine, or one of them with a defect.

use idem_reference::{Defect, Transitions};

use crate::decisions::{
    self, Abilities, BodyStage, ClaimUse, IsOtherDigest, OnExisting, OnPoll, OwnAnswer, Unfinished,
};
use crate::record::{FencingToken, OnCrash, Owner, Record};
use crate::setup::Mode;
use crate::store::FencedWrite;

/// The rules of a search.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    pub(crate) mode: Mode,
    pub(crate) transitions: Transitions,
}

impl Rules {
    pub(crate) fn is(self, defect: Defect) -> bool {
        self.transitions.is(defect)
    }

    pub(crate) fn on_existing(self, record: &Record) -> OnExisting {
        let abilities = Abilities {
            reconciles: false,
            joins: false,
        };
        let next = decisions::on_existing(record, IsOtherDigest(false), abilities);
        match next {
            OnExisting::TakeOver if self.is(Defect::WaitsForLapsed) => OnExisting::Wait,
            OnExisting::Interrupt if self.is(Defect::TakesOverRefused) => OnExisting::TakeOver,
            OnExisting::Wait if self.is(Defect::TakesOverLiveLease) => OnExisting::TakeOver,
            next => next,
        }
    }

    pub(crate) fn on_poll(self, record: &Record, own: crate::record::ClaimId) -> OnPoll {
        match decisions::on_poll(record, own) {
            OnPoll::Look if self.is(Defect::WaitsForLapsed) && record.is_lapsed() => OnPoll::Wait,
            next => next,
        }
    }

    pub(crate) fn on_drop(self, stage: BodyStage) -> Unfinished {
        match decisions::on_drop(stage, self.on_crash()) {
            Unfinished::Interrupt if self.is(Defect::DropReleases) => Unfinished::Release,
            next => next,
        }
    }

    pub(crate) fn on_error(self, is_harmless: bool) -> Unfinished {
        match decisions::on_error(is_harmless, self.on_crash()) {
            Unfinished::Interrupt if self.is(Defect::UnknownErrorReleases) => Unfinished::Release,
            next => next,
        }
    }

    pub(crate) fn own_answer(self, written: Option<FencedWrite>, is_live: bool) -> OwnAnswer {
        match decisions::own_answer(written, is_live) {
            OwnAnswer::Stored if self.is(Defect::ReturnsLostValue) => OwnAnswer::Own,
            OwnAnswer::LeaseLost if self.is(Defect::ReturnsValueAfterLease) => {
                OwnAnswer::OwnUnrecorded
            }
            answer => answer,
        }
    }

    pub(crate) fn covers(self, used: ClaimUse, granted: FencingToken) -> bool {
        used.covers(granted) && !self.is(Defect::LateAnswerReleases)
    }

    pub(crate) fn was_committed(self, record: Option<&Record>, owner: &Owner) -> bool {
        self.is(Defect::BelievesCommit)
            || record.is_some_and(|record| decisions::was_committed(record, owner))
    }

    fn on_crash(self) -> OnCrash {
        match self.mode {
            Mode::Refuse => OnCrash::Refuse,
            Mode::Rerun | Mode::Tx => OnCrash::Rerun,
        }
    }
}
