//! Where a record is, while it may be in either of two stores.

use crate::record::{Observation, Record, RecordState};
use crate::store::ClaimRequest;

/// One of the two stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Old,
    New,
}

impl Place {
    pub(super) fn other(self) -> Self {
        match self {
            Self::Old => Self::New,
            Self::New => Self::Old,
        }
    }
}

/// The records with one id in both stores.
///
/// Both exist only if callers claimed concurrently in both stores, and one of them has not given its claim back yet, or
/// has left a RELEASED record by giving it back, or crashed before.
pub(super) struct Pair {
    pub(super) old: Option<Record>,
    pub(super) new: Option<Record>,
}

impl Pair {
    pub(super) fn at(&self, place: Place) -> Option<&Record> {
        match place {
            Place::Old => self.old.as_ref(),
            Place::New => self.new.as_ref(),
        }
    }

    pub(super) fn take(self, place: Place) -> Option<Record> {
        match place {
            Place::Old => self.old,
            Place::New => self.new,
        }
    }

    /// Store of the record that callers get, or `absent` if no store has one.
    ///
    /// A claim that was given back, or whose owner crashed before it gave the claim back, ran no body. So an outcome
    /// decides first, and then a live owner. Between two records alike, the old store has the one with earlier attempts
    /// and steps, because nobody creates a record in the new store while there is one in the old store.
    pub(super) fn place(&self, absent: Place) -> Place {
        match (rank(self.old.as_ref()), rank(self.new.as_ref())) {
            (Rank::Absent, Rank::Absent) => absent,
            (old, new) if new > old => Place::New,
            _ => Place::Old,
        }
    }

    /// Store whose record a takeover of this observation is about: the observed one, or one that an earlier try has.
    pub(super) fn observed(&self, observed: &Observation, claim: &ClaimRequest) -> Option<Place> {
        let is_meant = |place: &Place| {
            self.at(*place)
                .is_some_and(|it| it.observation() == *observed || claim.is_repeated_on(it))
        };
        [Place::Old, Place::New].into_iter().find(is_meant)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Absent,
    Released,
    Stuck,
    Running,
    Ended,
}

fn rank(record: Option<&Record>) -> Rank {
    match record {
        None => Rank::Absent,
        Some(record) if record.state == RecordState::Released => Rank::Released,
        Some(record) if record.is_stuck() => Rank::Stuck,
        Some(record) if record.state.is_ended() => Rank::Ended,
        Some(_) => Rank::Running,
    }
}

/// True if the record keeps callers in the other store from running their body.
pub(super) fn is_active(record: &Record) -> bool {
    record.state != RecordState::Released
}
