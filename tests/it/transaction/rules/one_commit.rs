//! Two stores on a backend that has no open transactions and takes all writes in one request. The guide describes both, and
//! says why neither is a store with transactions.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

use idem_runtime::conformance::Counters;
use idem_runtime::error::{StoreError, StoreErrorKind};
use idem_runtime::record::{Observation, Outcome, Owner, Payload};
use idem_runtime::store::{
    ClaimInTransaction, ClaimOutcome, ClaimRequest, Connects, FencedWrite, Granted, Resolution,
    TransactionalStore, transitions,
};
use idem_runtime::{MemoryStore, Store};

use crate::engine::plain::{Beside, Plain};

/// How a call claims its record before the one commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Claims {
    /// Nothing is written. The commit has the condition that the record is as it was read.
    Optimistic,
    /// The claim is a leased one, and the commit has the condition that its owner still holds the record.
    Reserving,
}

/// Counters of the application, in the same backend.
#[derive(Debug, Clone, Default)]
pub(super) struct Counts(Arc<Mutex<BTreeMap<String, u64>>>);

/// State of the backend beside its records.
#[derive(Debug)]
pub(super) struct Backend {
    claims: Claims,
    counts: Counts,
    /// Requests are applied one after the other.
    commits: tokio::sync::Mutex<()>,
}

impl Beside for Backend {}

pub(super) type OneCommit = Plain<MemoryStore, Backend>;

/// A store that claims in this way, and its counters.
pub(super) fn one_commit(claims: Claims) -> (OneCommit, Counts) {
    let counts = Counts::default();
    let beside = Backend {
        claims,
        counts: counts.clone(),
        commits: tokio::sync::Mutex::default(),
    };
    (Plain::with(MemoryStore::new(), beside), counts)
}

impl Counters<OneCommit> for Counts {
    async fn add(&self, buffer: &mut Buffer, name: &str) -> Result<(), StoreError> {
        buffer.0.push(Write::Add(name.to_owned()));
        Ok(())
    }

    async fn committed(&self, name: &str) -> Result<u64, StoreError> {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(counts.get(name).copied().unwrap_or(0))
    }
}

/// Writes that wait for the commit.
#[derive(Debug, Default)]
pub(super) struct Buffer(Vec<Write>);

#[derive(Debug)]
enum Write {
    Claim(Option<Observation>, Box<ClaimRequest>, Owner),
    Complete(Owner, Outcome),
    SaveStep(Owner, String, Payload),
    Add(String),
}

impl Connects<OneCommit> for Buffer {
    fn connection(&mut self) -> &mut Self {
        self
    }
}

/// A buffer, or the part of one that was written after a call joined.
#[derive(Debug)]
pub(super) enum Transaction<'c> {
    Whole(Buffer),
    Joined {
        buffer: &'c mut Buffer,
        /// Length to which a dropped or rolled back part is cut.
        cut: Option<usize>,
    },
}

impl Deref for Transaction<'_> {
    type Target = Buffer;

    fn deref(&self) -> &Buffer {
        match self {
            Self::Whole(buffer) => buffer,
            Self::Joined { buffer, .. } => buffer,
        }
    }
}

impl DerefMut for Transaction<'_> {
    fn deref_mut(&mut self) -> &mut Buffer {
        match self {
            Self::Whole(buffer) => buffer,
            Self::Joined { buffer, .. } => buffer,
        }
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        if let Self::Joined {
            buffer,
            cut: Some(length),
        } = self
        {
            buffer.0.truncate(*length);
        }
    }
}

/// Error of a commit with a condition that does not hold.
fn conflict() -> StoreError {
    StoreError::new(StoreErrorKind::Conflict, "a condition does not hold")
}

impl OneCommit {
    /// Answer to a claim, of which nothing is written.
    async fn foresee(
        &self,
        observed: Option<&Observation>,
        claim: &ClaimRequest,
    ) -> Result<ClaimOutcome, StoreError> {
        let Some(mut record) = self.get(&claim.id).await? else {
            let begun = transitions::begin(claim, None, self.now().await?);
            return Ok(ClaimOutcome::Granted(Granted::on(&begun)));
        };
        Ok(match observed {
            Some(observed) => transitions::take_over(&mut record, observed, claim),
            None => transitions::claim(&mut record, claim),
        })
    }

    async fn claim_now(
        &self,
        observed: Option<&Observation>,
        claim: &ClaimRequest,
    ) -> Result<ClaimOutcome, StoreError> {
        match observed {
            Some(observed) => self.take_over(observed, claim).await,
            None => self.claim(claim).await,
        }
    }

    async fn apply(&self, writes: &[Write]) -> Result<(), StoreError> {
        let _alone = self.beside.commits.lock().await;
        let mut owners = BTreeMap::new();
        for write in writes {
            let done = match write {
                Write::Claim(observed, claim, foreseen) => {
                    let owner = match self.beside.claims {
                        Claims::Reserving => *foreseen,
                        Claims::Optimistic => {
                            let claimed = self.claim_now(observed.as_ref(), claim).await?;
                            let ClaimOutcome::Granted(granted) = claimed else {
                                return Err(conflict());
                            };
                            owned_by(claim, &granted)
                        }
                    };
                    owners.insert(*foreseen.claim_id.as_bytes(), owner);
                    FencedWrite::Applied
                }
                Write::Complete(owner, outcome) => {
                    let owner = owners.get(owner.claim_id.as_bytes()).unwrap_or(owner);
                    self.complete(owner, outcome).await?
                }
                Write::SaveStep(owner, name, payload) => {
                    let steps = self.steps().expect("the store saves steps");
                    steps.save_step(owner, name, payload).await?
                }
                Write::Add(name) => {
                    let counts = &self.beside.counts.0;
                    let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
                    *counts.entry(name.clone()).or_default() += 1;
                    FencedWrite::Applied
                }
            };
            if done == FencedWrite::Fenced {
                return Err(conflict());
            }
        }
        Ok(())
    }

    /// Removes the records that these writes have reserved.
    async fn give_back(&self, writes: &[Write]) -> Result<(), StoreError> {
        for write in writes {
            if let (Claims::Reserving, Write::Claim(_, _, owner)) = (self.beside.claims, write) {
                self.release(owner).await?;
                if let Some(record) = self.get(&owner.id).await? {
                    let observed = record.observation();
                    self.resolve(&observed, &Resolution::Erase).await?;
                }
            }
        }
        Ok(())
    }
}

fn owned_by(claim: &ClaimRequest, granted: &Granted) -> Owner {
    Owner {
        id: claim.id,
        claim_id: claim.claim_id,
        fencing_token: granted.fencing_token,
    }
}

impl TransactionalStore for OneCommit {
    type Connection = Buffer;
    type Transaction<'c> = Transaction<'c>;
    type Savepoint = usize;

    async fn begin(&self) -> Result<Self::Transaction<'static>, StoreError> {
        Ok(Transaction::Whole(Buffer::default()))
    }

    async fn join<'c>(&self, buffer: &'c mut Buffer) -> Result<Self::Transaction<'c>, StoreError> {
        let cut = Some(buffer.0.len());
        Ok(Transaction::Joined { buffer, cut })
    }

    fn is_in_transaction(_: &Buffer) -> bool {
        true
    }

    async fn claim_in(
        &self,
        transaction: &mut Self::Transaction<'_>,
        observed: Option<&Observation>,
        claim: &ClaimRequest,
    ) -> Result<ClaimInTransaction, StoreError> {
        let claimed = match self.beside.claims {
            Claims::Optimistic => self.foresee(observed, claim).await?,
            Claims::Reserving => self.claim_now(observed, claim).await?,
        };
        Ok(match claimed {
            ClaimOutcome::Existing(record) => ClaimInTransaction::Existing(record),
            ClaimOutcome::Granted(granted) => {
                let owner = owned_by(claim, &granted);
                let claim = Box::new(claim.clone());
                transaction
                    .0
                    .push(Write::Claim(observed.copied(), claim, owner));
                ClaimInTransaction::Granted(granted)
            }
        })
    }

    async fn complete_in(
        &self,
        transaction: &mut Self::Transaction<'_>,
        owner: &Owner,
        outcome: &Outcome,
    ) -> Result<FencedWrite, StoreError> {
        let is_held = |write: &Write| matches!(write, Write::Claim(_, _, it) if it == owner);
        if !transaction.0.iter().any(is_held) {
            return Ok(FencedWrite::Fenced);
        }
        let write = Write::Complete(*owner, outcome.clone());
        transaction.0.push(write);
        Ok(FencedWrite::Applied)
    }

    async fn save_step_in(
        &self,
        transaction: &mut Self::Transaction<'_>,
        owner: &Owner,
        name: &str,
        payload: &Payload,
    ) -> Result<FencedWrite, StoreError> {
        let steps = self.steps().expect("the store saves steps");
        let saved = steps.saved_steps(owner).await?;
        if saved.is_none_or(|saved| saved.iter().any(|step| step.name == name)) {
            return Ok(FencedWrite::Fenced);
        }
        let write = Write::SaveStep(*owner, name.to_owned(), payload.clone());
        transaction.0.push(write);
        Ok(FencedWrite::Applied)
    }

    async fn savepoint(&self, buffer: &mut Buffer) -> Result<usize, StoreError> {
        Ok(buffer.0.len())
    }

    async fn rollback_to(&self, buffer: &mut Buffer, length: &usize) -> Result<(), StoreError> {
        buffer.0.truncate(*length);
        Ok(())
    }

    async fn commit(&self, mut transaction: Self::Transaction<'_>) -> Result<(), StoreError> {
        match &mut transaction {
            Transaction::Whole(buffer) => self.apply(&buffer.0).await,
            Transaction::Joined { cut, .. } => {
                *cut = None;
                Ok(())
            }
        }
    }

    async fn rollback(&self, transaction: Self::Transaction<'_>) -> Result<(), StoreError> {
        let since = match &transaction {
            Transaction::Whole(_) | Transaction::Joined { cut: None, .. } => 0,
            Transaction::Joined {
                cut: Some(length), ..
            } => *length,
        };
        self.give_back(&transaction.0[since..]).await
    }
}
