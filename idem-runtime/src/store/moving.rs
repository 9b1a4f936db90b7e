//! Store that moves from one store to another while calls continue.
//!
//! Two stores share no transaction. A caller that was granted a claim in one of them therefore reads the other one. If it
//! finds a record there, it gives its claim back. Each caller writes before it reads, so of two callers at least one sees
//! the other.

use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::try_join;

use self::place::{Pair, Place, is_active};
use crate::error::{StoreError, StoreErrorKind};
use crate::key::{Operation, RecordId};
use crate::record::{
    FencingToken, Observation, OnCrash, Outcome, Owner, OwnerLabel, Payload, Record, Timestamp,
};
use crate::store::{
    AttemptStore, Attempts, AuditStore, ClaimOutcome, ClaimRequest, Cursor, ErasureStore,
    FencedWrite, Filter, ForgettingStore, Granted, ImmediateStore, OperationStore, Page,
    PageRequest, Purged, RecoveryInput, RecoveryStore, Resolution, Resolved, SavedStep, StepStore,
    Store,
};

mod place;

/// Store that moves from an old store to a new one without a gap, while services are deployed one process at a time.
///
/// Deploy three times. Each deployment must have replaced every process before the next one begins:
///
/// 1. [`claims_in_old`](Self::claims_in_old): new records are created in the old store, and the new store is read.
///    Processes that still use the old store alone may run beside these.
/// 2. [`claims_in_new`](Self::claims_in_new): new records are created in the new store, and the old store is read.
/// 3. The new store alone, when the old store has no record any more: after the longest `ttl`, and after the last
///    interrupted record was resolved. List what is left in [the old store](Self::old_store).
///
/// ```
/// # #[cfg(all(feature = "memory", feature = "moving"))]
/// # fn main() {
/// use idem_runtime::{Idem, MemoryStore, Moving};
///
/// let (old, new) = (MemoryStore::new(), MemoryStore::new());
/// let idem = Idem::new(Moving::claims_in_new(old, new));
/// # }
/// # #[cfg(not(all(feature = "memory", feature = "moving")))]
/// # fn main() {}
/// ```
///
/// # What holds
///
/// A record stays in the store in which it was created, with its steps, attempts and recovery input, until it expires. A
/// call finds it in either store. Of all callers of a key, in both stores, one runs the body. If two callers create a
/// record in different stores concurrently, each may see the other and give its claim back. Both then wait, and try again
/// as for any other record that is in progress.
///
/// A fencing token is made from its store's clock. The tokens of a key therefore increase over the move only if the clock
/// of the new store is not behind that of the old one by more than the shortest `ttl`. Where an operator erases a record
/// of the old store, the next token of its key comes from the new store's clock at once.
///
/// While the stores move, a call needs both of them. If one store is unavailable, claims fail. An owner can still write to
/// the store that has its record.
///
/// # Costs
///
/// A first call reads both stores concurrently, claims, and reads the other store once more: two round trips more. A
/// replay reads both stores concurrently.
///
/// # Operators
///
/// Records are changed manually in the store that has them, with the command or the page for that store. This store
/// keeps no audit of its own. Its lists contain the records of the old store first. A record that was given back in one
/// store and exists in the other one is on both parts.
///
/// # Not for transactions
///
/// A function with `tx` keeps its record beside its data, so its record moves with the database. This store opens no
/// transactions.
///
/// # Cancel safety
///
/// That of [`Store`]. A claim whose future is dropped before the other store was read may own its record until its lease
/// ends. No body runs under it.
#[derive(Debug)]
pub struct Moving<Old, New> {
    old: Old,
    new: New,
    first: Place,
}

impl<Old: Store, New: Store> Moving<Old, New> {
    /// Creates records in the old store, as processes without this store do.
    pub fn claims_in_old(old: Old, new: New) -> Self {
        let first = Place::Old;
        Self { old, new, first }
    }

    /// Creates records in the new store. No process that uses the old store alone may run any more.
    pub fn claims_in_new(old: Old, new: New) -> Self {
        let first = Place::New;
        Self { old, new, first }
    }

    /// Old store.
    pub fn old_store(&self) -> &Old {
        &self.old
    }

    /// New store.
    pub fn new_store(&self) -> &New {
        &self.new
    }

    fn at(&self, place: Place) -> &dyn Store {
        match place {
            Place::Old => &self.old,
            Place::New => &self.new,
        }
    }

    /// Both stores, first the one in which records are created.
    fn stores(&self) -> [&dyn Store; 2] {
        [self.at(self.first), self.at(self.first.other())]
    }

    async fn read(&self, id: &RecordId) -> Result<Pair, StoreError> {
        let (old, new) = try_join(self.old.get(id), self.new.get(id)).await?;
        Ok(Pair { old, new })
    }

    /// Reads the other store after a claim was granted here. If a record is there, the claim is given back: its caller
    /// may run its body.
    async fn confirm(
        &self,
        place: Place,
        claim: &ClaimRequest,
        granted: Granted,
        is_takeover: bool,
    ) -> Result<ClaimOutcome, StoreError> {
        let record = self.at(place.other()).get(&claim.id).await?;
        let Some(record) = record.filter(is_active) else {
            return Ok(ClaimOutcome::Granted(granted));
        };
        // An earlier try of this claim, which took effect late.
        if claim.is_repeated_on(&record) {
            let granted_there = Granted::on(&record);
            let gives_back = self.give_back(place.other(), claim, granted_there, false);
            gives_back.await?;
            return Ok(ClaimOutcome::Granted(granted));
        }
        self.give_back(place, claim, granted, is_takeover).await?;
        Ok(ClaimOutcome::Existing(Box::new(record)))
    }

    /// Gives back this claim, under which no body ran. A record that was taken over under `refuse` or `reconcile` has an
    /// unknown outcome again.
    async fn give_back(
        &self,
        place: Place,
        claim: &ClaimRequest,
        granted: Granted,
        is_takeover: bool,
    ) -> Result<(), StoreError> {
        let owner = Owner {
            id: claim.id,
            claim_id: claim.claim_id,
            fencing_token: granted.fencing_token,
        };
        let store = self.at(place);
        if is_takeover && granted.on_crash != OnCrash::Rerun {
            store.interrupt(&owner).await?;
        } else {
            store.release(&owner).await?;
        }
        Ok(())
    }

    /// Sends an owner's write to the store that has its record. The other one refuses it, because it does not know the
    /// claim id.
    async fn write(&self, owner: &Owner, write: Write<'_>) -> Result<FencedWrite, StoreError> {
        let [first, second] = self.stores();
        let error = match write.send(owner, first).await {
            Ok(FencedWrite::Applied) => return Ok(FencedWrite::Applied),
            Ok(FencedWrite::Fenced) => return write.send(owner, second).await,
            Err(error) => error,
        };
        // The record may be in the store that still answers.
        match write.send(owner, second).await {
            Ok(FencedWrite::Applied) => Ok(FencedWrite::Applied),
            Ok(FencedWrite::Fenced) | Err(_) => Err(error),
        }
    }

    /// Deletes the RELEASED record that a claim has left in the other store by giving it back.
    async fn erase_remainder(&self, observed: &Observation) -> Result<(), StoreError> {
        let pair = self.read(&observed.id).await?;
        let remainder = pair.at(pair.place(self.first).other());
        let remainder = remainder.filter(|it| !is_active(it) && it.observation() != *observed);
        if let Some(remainder) = remainder {
            let store = self.at(pair.place(self.first).other());
            let observed = remainder.observation();
            store.resolve(&observed, &Resolution::Erase).await?;
        }
        Ok(())
    }
}

/// Write that only the owner of a record may make.
#[derive(Clone, Copy)]
enum Write<'a> {
    Renew(Duration),
    Complete(&'a Outcome),
    CompleteFor(&'a Outcome, Duration),
    Release,
    Interrupt,
    SaveStep(&'a str, &'a Payload),
    SaveInput(&'a Payload, Duration),
}

impl Write<'_> {
    async fn send(self, owner: &Owner, store: &dyn Store) -> Result<FencedWrite, StoreError> {
        match self {
            Self::Renew(lease) => store.renew(owner, lease).await,
            Self::Complete(outcome) => store.complete(owner, outcome).await,
            Self::CompleteFor(outcome, payload_for) => match store.forgetting() {
                Some(store) => store.complete_for(owner, outcome, payload_for).await,
                None => store.complete(owner, outcome).await,
            },
            Self::Release => store.release(owner).await,
            Self::Interrupt => store.interrupt(owner).await,
            Self::SaveStep(name, payload) => {
                let steps = store.steps().ok_or_else(|| lacks("steps"))?;
                steps.save_step(owner, name, payload).await
            }
            Self::SaveInput(input, lease) => {
                let inputs = store.recovery().ok_or_else(|| lacks("recovery inputs"))?;
                inputs.save_input(owner, input, lease).await
            }
        }
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<Old: Store, New: Store> Store for Moving<Old, New> {
    async fn claim(&self, claim: &ClaimRequest) -> Result<ClaimOutcome, StoreError> {
        let pair = self.read(&claim.id).await?;
        let place = pair.place(self.first);
        let other = pair.at(place.other());
        if let Some(repeated) = other.filter(|it| claim.is_repeated_on(it)) {
            let granted = Granted::on(repeated);
            let gives_back = self.give_back(place.other(), claim, granted, false);
            gives_back.await?;
        }
        let record = pair.take(place);
        let refuses = |it: &Record| is_active(it) && !claim.is_repeated_on(it);
        if let Some(record) = record.filter(refuses) {
            return Ok(ClaimOutcome::Existing(Box::new(record)));
        }
        match self.at(place).claim(claim).await? {
            ClaimOutcome::Granted(granted) => self.confirm(place, claim, granted, false).await,
            existing @ ClaimOutcome::Existing(_) => Ok(existing),
        }
    }

    async fn take_over(
        &self,
        observed: &Observation,
        claim: &ClaimRequest,
    ) -> Result<ClaimOutcome, StoreError> {
        let pair = self.read(&claim.id).await?;
        let Some(place) = pair.observed(observed, claim) else {
            let place = pair.place(self.first);
            return match pair.take(place) {
                Some(record) => Ok(ClaimOutcome::Existing(Box::new(record))),
                None => self.claim(claim).await,
            };
        };
        match self.at(place).take_over(observed, claim).await? {
            ClaimOutcome::Granted(granted) => self.confirm(place, claim, granted, true).await,
            existing @ ClaimOutcome::Existing(_) => Ok(existing),
        }
    }

    async fn renew(&self, owner: &Owner, lease: Duration) -> Result<FencedWrite, StoreError> {
        self.write(owner, Write::Renew(lease)).await
    }

    async fn complete(&self, owner: &Owner, outcome: &Outcome) -> Result<FencedWrite, StoreError> {
        self.write(owner, Write::Complete(outcome)).await
    }

    async fn release(&self, owner: &Owner) -> Result<FencedWrite, StoreError> {
        self.write(owner, Write::Release).await
    }

    async fn interrupt(&self, owner: &Owner) -> Result<FencedWrite, StoreError> {
        self.write(owner, Write::Interrupt).await
    }

    async fn resolve(
        &self,
        observed: &Observation,
        resolution: &Resolution,
    ) -> Result<Resolved, StoreError> {
        if *resolution == Resolution::Erase {
            self.erase_remainder(observed).await?;
        }
        let [first, second] = self.stores();
        match first.resolve(observed, resolution).await? {
            Resolved::Done => Ok(Resolved::Done),
            Resolved::Stale => second.resolve(observed, resolution).await,
        }
    }

    async fn get(&self, id: &RecordId) -> Result<Option<Record>, StoreError> {
        let pair = self.read(id).await?;
        let place = pair.place(self.first);
        Ok(pair.take(place))
    }

    async fn list(&self, filter: &Filter, page: &PageRequest) -> Result<Page, StoreError> {
        let (place, inner) = page_of(page)?;
        let mut found = self.at(place).list(filter, &inner).await?;
        found.next = next_page(place, found.next.take());
        Ok(found)
    }

    /// The earlier of both clocks, so that a purge is limited by each of them.
    async fn now(&self) -> Result<Timestamp, StoreError> {
        Ok(self.old.now().await?.min(self.new.now().await?))
    }

    async fn purge(&self, limit: u32, as_of: Timestamp) -> Result<Purged, StoreError> {
        let old = self.old.purge(limit, as_of).await?;
        let done = u32::try_from(old.changed()).unwrap_or(u32::MAX);
        let left = limit.saturating_sub(done);
        if left == 0 {
            return Ok(Purged { more: true, ..old });
        }
        let new = self.new.purge(left, as_of).await?;
        let mut both = old;
        both.add(&new);
        both.more |= old.more;
        Ok(both)
    }

    /// A transition may read both stores.
    fn immediate(&self) -> Option<&dyn ImmediateStore> {
        None
    }

    /// Which of the two stores has the record is known only to a claim.
    async fn cached(&self, _: &RecordId) -> Option<Record> {
        None
    }

    /// Operators change a record in the store that has it.
    fn can_resolve_manually(&self) -> bool {
        self.old.can_resolve_manually() && self.new.can_resolve_manually()
    }

    fn bottleneck(&self) -> Option<String> {
        self.old.bottleneck().or_else(|| self.new.bottleneck())
    }

    fn expires_by_itself(&self) -> bool {
        self.old.expires_by_itself() || self.new.expires_by_itself()
    }

    fn time_uncertainty(&self) -> Duration {
        self.old.time_uncertainty().max(self.new.time_uncertainty())
    }

    fn claim_concurrency(&self) -> usize {
        self.old
            .claim_concurrency()
            .min(self.new.claim_concurrency())
    }

    /// Records are changed manually in the store that has them.
    fn audit(&self) -> Option<&dyn AuditStore> {
        None
    }

    /// Records are erased in the store that has them.
    fn erasure(&self) -> Option<&dyn ErasureStore> {
        None
    }

    /// The names of operations stay with the new store.
    fn operations(&self) -> Option<&dyn OperationStore> {
        self.new.operations()
    }

    fn attempts(&self) -> Option<&dyn AttemptStore> {
        self.old.attempts().and(self.new.attempts())?;
        Some(self)
    }

    /// Payloads are dropped in those of the stores that drop them. In the other one they are kept as long as their records,
    /// as they were before the move.
    fn forgetting(&self) -> Option<&dyn ForgettingStore> {
        self.old.forgetting().or(self.new.forgetting())?;
        Some(self)
    }

    fn recovery(&self) -> Option<&dyn RecoveryStore> {
        self.old.recovery().and(self.new.recovery())?;
        Some(self)
    }

    fn steps(&self) -> Option<&dyn StepStore> {
        self.old.steps().and(self.new.steps())?;
        Some(self)
    }
}

#[async_trait]
impl<Old: Store, New: Store> ForgettingStore for Moving<Old, New> {
    async fn complete_for(
        &self,
        owner: &Owner,
        outcome: &Outcome,
        payload_for: Duration,
    ) -> Result<FencedWrite, StoreError> {
        self.write(owner, Write::CompleteFor(outcome, payload_for))
            .await
    }
}

#[async_trait]
impl<Old: Store, New: Store> StepStore for Moving<Old, New> {
    async fn save_step(
        &self,
        owner: &Owner,
        name: &str,
        payload: &Payload,
    ) -> Result<FencedWrite, StoreError> {
        self.write(owner, Write::SaveStep(name, payload)).await
    }

    async fn saved_steps(&self, owner: &Owner) -> Result<Option<Vec<SavedStep>>, StoreError> {
        for store in self.stores() {
            let steps = store.steps().ok_or_else(|| lacks("steps"))?;
            if let Some(saved) = steps.saved_steps(owner).await? {
                return Ok(Some(saved));
            }
        }
        Ok(None)
    }
}

#[async_trait]
impl<Old: Store, New: Store> AttemptStore for Moving<Old, New> {
    async fn attempts(&self, id: &RecordId) -> Result<Option<Attempts>, StoreError> {
        let pair = self.read(id).await?;
        let store = self.at(pair.place(self.first));
        let attempts = store.attempts().ok_or_else(|| lacks("attempts"))?;
        attempts.attempts(id).await
    }

    async fn note_replay(
        &self,
        id: &RecordId,
        fencing_token: FencingToken,
        by: Option<&OwnerLabel>,
    ) -> Result<bool, StoreError> {
        for store in self.stores() {
            let attempts = store.attempts().ok_or_else(|| lacks("attempts"))?;
            if attempts.note_replay(id, fencing_token, by).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

#[async_trait]
impl<Old: Store, New: Store> RecoveryStore for Moving<Old, New> {
    async fn save_input(
        &self,
        owner: &Owner,
        input: &Payload,
        lease: Duration,
    ) -> Result<FencedWrite, StoreError> {
        self.write(owner, Write::SaveInput(input, lease)).await
    }

    async fn due(
        &self,
        operation: &Operation,
        limit: u32,
    ) -> Result<Vec<RecoveryInput>, StoreError> {
        let mut due = Vec::new();
        for store in self.stores() {
            due.extend(inputs(store)?.due(operation, limit).await?);
        }
        due.sort_by_key(|input| input.due_at);
        due.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        Ok(due)
    }

    async fn begin_recovery(
        &self,
        input: &RecoveryInput,
        by: Duration,
    ) -> Result<Resolved, StoreError> {
        let [first, second] = self.stores();
        match inputs(first)?.begin_recovery(input, by).await? {
            Resolved::Done => Ok(Resolved::Done),
            Resolved::Stale => inputs(second)?.begin_recovery(input, by).await,
        }
    }

    async fn postpone(&self, input: &RecoveryInput, by: Duration) -> Result<Resolved, StoreError> {
        let [first, second] = self.stores();
        match inputs(first)?.postpone(input, by).await? {
            Resolved::Done => Ok(Resolved::Done),
            Resolved::Stale => inputs(second)?.postpone(input, by).await,
        }
    }

    async fn forget(&self, input: &RecoveryInput) -> Result<Resolved, StoreError> {
        let [first, second] = self.stores();
        match inputs(first)?.forget(input).await? {
            Resolved::Done => Ok(Resolved::Done),
            Resolved::Stale => inputs(second)?.forget(input).await,
        }
    }
}

fn inputs(store: &dyn Store) -> Result<&dyn RecoveryStore, StoreError> {
    store.recovery().ok_or_else(|| lacks("recovery inputs"))
}

/// Error of a method that this store offers only if both stores do.
fn lacks(what: &str) -> StoreError {
    StoreError::new(
        StoreErrorKind::Other,
        format!("one of the two stores of a move stores no {what}"),
    )
}

const OF_NEW: &str = "new:";
const OF_OLD: &str = "old:";

/// Store of a page, and the page there. The pages of the old store come first.
fn page_of(page: &PageRequest) -> Result<(Place, PageRequest), StoreError> {
    let inner = |after: Option<&str>| PageRequest {
        limit: page.limit,
        after: after.map(Cursor::new),
    };
    let Some(cursor) = &page.after else {
        return Ok((Place::Old, inner(None)));
    };
    if let Some(after) = cursor.as_str().strip_prefix(OF_OLD) {
        return Ok((Place::Old, inner(Some(after))));
    }
    match cursor.as_str().strip_prefix(OF_NEW) {
        Some("") => Ok((Place::New, inner(None))),
        Some(after) => Ok((Place::New, inner(Some(after)))),
        None => Err(StoreError::new(
            StoreErrorKind::Other,
            "the cursor is not one of this store, list from the beginning",
        )),
    }
}

fn next_page(place: Place, next: Option<Cursor>) -> Option<Cursor> {
    match (place, next) {
        (Place::Old, Some(next)) => Some(Cursor::new(format!("{OF_OLD}{}", next.as_str()))),
        (Place::Old, None) => Some(Cursor::new(OF_NEW)),
        (Place::New, next) => next.map(|next| Cursor::new(format!("{OF_NEW}{}", next.as_str()))),
    }
}
