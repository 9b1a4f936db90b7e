//! Commands of a sequence. They name owners, observations and inputs by their place in what was answered before, so that
//! a list of commands can be read, shortened and sent to any store.

use std::time::Duration;

use idem_store::key::{Identity, RecordId};
use idem_store::record::{
    ClaimId, Digest, Observation, OnCrash, Outcome, Owner, Payload, RecordState,
};
use idem_store::store::{ClaimOutcome, ClaimRequest, Filter, RecoveryInput, Resolution};

use crate::clients::identity;
use crate::request::{Answer, Request};

/// Number of records in a sequence.
pub const RECORDS: usize = 2;
/// A short lease or retention. [`Command::Pass`] waits for longer.
pub const SHORT: Duration = Duration::from_millis(6);
const LONG: Duration = Duration::from_secs(60);

/// Place in what was answered before: 0 is the latest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Back(pub u8);

/// A duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// Does not end during a sequence.
    Long,
    /// Ends before [`Command::Pass`] does.
    Short,
}

/// Command to a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// A new claim.
    Claim(usize, Terms),
    /// An earlier claim once more.
    RepeatClaim(usize, Back),
    /// A takeover of an observed record, by a new claim.
    TakeOver(usize, Back, Terms),
    /// A takeover of an observed record, by an earlier claim.
    RepeatTakeOver(usize, Back, Back),
    /// A renewal by an owner.
    Renew(usize, Back, Length),
    /// A completion by an owner.
    Complete(usize, Back, End),
    /// A release by an owner.
    Release(usize, Back),
    /// An interruption by an owner.
    Interrupt(usize, Back),
    /// An operator's resolution of an observed record.
    Resolve(usize, Back, Decision),
    /// A step of an owner, with this name and value.
    SaveStep(usize, Back, u8, u8),
    /// A read of the steps by an owner.
    SavedSteps(usize, Back),
    /// A recovery input of an owner.
    SaveInput(usize, Back, u8, Length),
    /// A read of the recovery inputs that are due.
    Due,
    /// The beginning of a recovery with an input that was due.
    BeginRecovery(usize, Back, Length),
    /// A postponement of an input that was due.
    Postpone(usize, Back, Length),
    /// A deletion of an input that was due.
    Forget(usize, Back),
    /// A read.
    Get(usize),
    /// A listing, page by page.
    List(Selection),
    /// Purges until nothing is due.
    Purge,
    /// Time, until short leases and retentions are over.
    Pass,
}

/// Terms of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// Number of the fingerprint.
    pub fingerprint: u8,
    /// Lease.
    pub lease: Length,
    /// Retention.
    pub retention: Length,
    /// Policy after a crash.
    pub on_crash: OnCrash,
}

/// Outcome of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// A value.
    Completed(u8),
    /// An error.
    Failed(u8),
    /// The result could not be stored.
    Unrecorded,
}

/// Decision of an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// The operation took effect.
    Complete(End),
    /// The operation did not take effect.
    Release,
    /// Nobody knows.
    Interrupt,
    /// The record is deleted.
    Erase,
}

/// Selection of a listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Selection {
    /// All records.
    All,
    /// Records in this state.
    State(RecordState),
    /// Lapsed records.
    Lapsed,
    /// Stuck records.
    Stuck,
    /// Records that are older than a short while.
    Old,
}

/// Knowledge of a client about a record.
#[derive(Debug, Clone)]
pub struct Known {
    identity: Identity,
    claims: Vec<ClaimRequest>,
    owners: Vec<Owner>,
    seen: Vec<Observation>,
    inputs: Vec<RecoveryInput>,
}

impl Known {
    /// Nothing is known of the record with this operation and key.
    pub fn new(operation: &str, key: &str) -> Self {
        Self {
            identity: identity(operation, key),
            claims: Vec::new(),
            owners: Vec::new(),
            seen: Vec::new(),
            inputs: Vec::new(),
        }
    }

    /// Id of the record.
    pub fn id(&self) -> RecordId {
        RecordId::of(&self.identity)
    }

    /// A read of the steps by the latest owner.
    pub fn steps(&self) -> Option<Request> {
        self.owners.last().copied().map(Request::SavedSteps)
    }

    /// Learns from an answer about this record.
    pub fn learn(&mut self, request: &Request, answer: &Answer) {
        if let Request::Claim(claim) | Request::TakeOver(_, claim) = request {
            self.claims.push(claim.clone());
            if let Answer::Claim(ClaimOutcome::Granted(granted)) = answer {
                self.owners.push(Owner {
                    id: claim.id,
                    claim_id: claim.claim_id,
                    fencing_token: granted.fencing_token,
                });
            }
        }
        match answer {
            Answer::Claim(ClaimOutcome::Existing(record)) | Answer::Record(Some(record)) => {
                let seen = record.observation();
                if self.seen.last() != Some(&seen) {
                    self.seen.push(seen);
                }
            }
            Answer::Input(Some(input)) if self.inputs.last() != Some(input) => {
                self.inputs.push(input.clone());
            }
            _ => {}
        }
    }

    fn claim(&self, terms: Terms) -> ClaimRequest {
        let mut claim_id = [0; 16];
        claim_id[0] = self.claims.len() as u8;
        ClaimRequest {
            id: self.id(),
            identity: self.identity.clone(),
            fingerprint: Digest::new(1, [0; 4], &[terms.fingerprint; 32]),
            claim_id: ClaimId::from_bytes(claim_id),
            lease: terms.lease.duration(),
            retention: terms.retention.duration(),
            on_crash: terms.on_crash,
            owner_label: None,
            members: None,
        }
    }
}

impl Back {
    fn of<T: Clone>(self, items: &[T]) -> Option<T> {
        items.iter().rev().nth(usize::from(self.0)).cloned()
    }
}

impl Length {
    fn duration(self) -> Duration {
        match self {
            Self::Long => LONG,
            Self::Short => SHORT,
        }
    }
}

impl End {
    fn outcome(self) -> Outcome {
        match self {
            Self::Completed(value) => Outcome::Completed(payload(value)),
            Self::Failed(value) => Outcome::Failed(payload(value)),
            Self::Unrecorded => Outcome::Unrecorded,
        }
    }
}

fn payload(value: u8) -> Payload {
    Payload {
        codec: "json/1".into(),
        bytes: value.to_string().into_bytes().into(),
    }
}

impl Command {
    /// The record of the command; `None` if it concerns all records.
    pub fn record(&self) -> Option<usize> {
        match self {
            Self::Claim(record, _)
            | Self::RepeatClaim(record, _)
            | Self::TakeOver(record, ..)
            | Self::RepeatTakeOver(record, ..)
            | Self::Renew(record, ..)
            | Self::Complete(record, ..)
            | Self::Release(record, _)
            | Self::Interrupt(record, _)
            | Self::Resolve(record, ..)
            | Self::SaveStep(record, ..)
            | Self::SavedSteps(record, _)
            | Self::SaveInput(record, ..)
            | Self::BeginRecovery(record, ..)
            | Self::Postpone(record, ..)
            | Self::Forget(record, _)
            | Self::Get(record) => Some(*record),
            Self::Due | Self::List(_) | Self::Purge | Self::Pass => None,
        }
    }

    /// The request of this command. `None`: what it names has not been answered, or it is no request.
    pub fn request(&self, known: &[Known]) -> Option<Request> {
        let of = &known[self.record().unwrap_or(0)];
        Some(match *self {
            Self::Claim(_, terms) => Request::Claim(of.claim(terms)),
            Self::RepeatClaim(_, back) => Request::Claim(back.of(&of.claims)?),
            Self::TakeOver(_, back, terms) => {
                Request::TakeOver(back.of(&of.seen)?, of.claim(terms))
            }
            Self::RepeatTakeOver(_, seen, claim) => {
                Request::TakeOver(seen.of(&of.seen)?, claim.of(&of.claims)?)
            }
            Self::Renew(_, back, lease) => Request::Renew(back.of(&of.owners)?, lease.duration()),
            Self::Complete(_, back, end) => Request::Complete(back.of(&of.owners)?, end.outcome()),
            Self::Release(_, back) => Request::Release(back.of(&of.owners)?),
            Self::Interrupt(_, back) => Request::Interrupt(back.of(&of.owners)?),
            Self::Resolve(_, back, decision) => {
                Request::Resolve(back.of(&of.seen)?, decision.resolution())
            }
            Self::SaveStep(_, back, name, value) => {
                let name = format!("step-{name}");
                Request::SaveStep(back.of(&of.owners)?, name, payload(value))
            }
            Self::SavedSteps(_, back) => Request::SavedSteps(back.of(&of.owners)?),
            Self::SaveInput(_, back, value, lease) => {
                let owner = back.of(&of.owners)?;
                Request::SaveInput(owner, payload(value), lease.duration())
            }
            Self::Due => Request::Due(of.identity.operation.clone()),
            Self::BeginRecovery(_, back, by) => {
                Request::BeginRecovery(back.of(&of.inputs)?, by.duration())
            }
            Self::Postpone(_, back, by) => Request::Postpone(back.of(&of.inputs)?, by.duration()),
            Self::Forget(_, back) => Request::Forget(back.of(&of.inputs)?),
            Self::Get(_) => Request::Get(of.id()),
            Self::List(selection) => Request::List(selection.filter(of)),
            Self::Purge => Request::PurgeAll,
            Self::Pass => return None,
        })
    }

    /// Returns true if the command needs [saved steps](idem_store::store::StepStore).
    pub fn needs_steps(&self) -> bool {
        matches!(self, Self::SaveStep(..) | Self::SavedSteps(..))
    }

    /// Returns true if the command needs [recovery inputs](idem_store::store::RecoveryStore).
    pub fn needs_recovery(&self) -> bool {
        matches!(
            self,
            Self::SaveInput(..)
                | Self::Due
                | Self::BeginRecovery(..)
                | Self::Postpone(..)
                | Self::Forget(..)
        )
    }
}

impl Decision {
    fn resolution(self) -> Resolution {
        match self {
            Self::Complete(end) => Resolution::Complete(end.outcome()),
            Self::Release => Resolution::Release,
            Self::Interrupt => Resolution::Interrupt,
            Self::Erase => Resolution::Erase,
        }
    }
}

impl Selection {
    fn filter(self, of: &Known) -> Filter {
        let all = Filter {
            operation: Some(of.identity.operation.as_str().to_owned()),
            ..Filter::default()
        };
        match self {
            Self::All => all,
            Self::State(state) => Filter {
                state: Some(state),
                ..all
            },
            Self::Lapsed => Filter {
                lapsed: true,
                ..all
            },
            Self::Stuck => Filter { stuck: true, ..all },
            Self::Old => Filter {
                older_than: Some(SHORT),
                ..all
            },
        }
    }
}
