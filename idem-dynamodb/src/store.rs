//! The store, its steps and its attempts.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use aws_sdk_dynamodb::operation::update_item::builders::UpdateItemFluentBuilder;
use aws_sdk_dynamodb::types::{ReturnValue, ReturnValuesOnConditionCheckFailure};
use idem_store::clock::Now;
use idem_store::record::{FencingToken, Observation, Outcome, Owner, OwnerLabel, Payload};
use idem_store::store::transitions::{self, At};
use idem_store::store::{
    AttemptLog, AttemptStore, Attempts, AuditStore, ClaimOutcome, ClaimRequest, FencedWrite,
    Filter, Granted, OperationStore, Page, PageRequest, Purged, RecoveryStore, Resolution,
    Resolved, SavedStep, StepStore,
};
use idem_store::{Record, RecordId, RecordState, Store, StoreError, Timestamp};

use crate::DynamoDbStore;
use crate::error::corrupt;
use crate::item::{self, Entry, HEAD, Head, Item, Stored, blob, key, number, text};
use crate::request::{LARGEST_PAYLOAD, LARGEST_STEP, Rounds, Written, names};

/// The owner may write: it has the record, which has neither ended nor expired.
const OWNED: &str = "#cid = :cid AND #ft = :ft AND #st IN (:running, :interrupted) \
                     AND (attribute_not_exists(#ex) OR #ex > :now)";

impl DynamoDbStore {
    /// Claims, or takes over what was observed.
    ///
    /// A claim begins with a write on condition that there is no item, without a read: of two concurrent claims one creates
    /// the record. All other writes have the condition that the head is as it was read.
    async fn claim_by(
        &self,
        claim: &ClaimRequest,
        observed: Option<&Observation>,
    ) -> Result<ClaimOutcome, StoreError> {
        let id = &claim.id;
        let label = claim.owner_label.as_ref();
        let mut rounds = Rounds::default();
        let mut missing = None;
        // What is known to be there: an item, or nothing.
        let mut known = (observed.is_none() && !self.reads_first).then_some(None);
        loop {
            let item = match known.take() {
                Some(known) => known,
                None => self.item(id).await?,
            };
            let (now, read_at) = (self.time().await?, Instant::now());
            let mut head = match &item {
                Some(item) => Some(Head::read(id, item, now.earliest)?),
                None => None,
            };
            let revision = head.as_ref().map(|it| it.revision);
            let (written, granted) = match head.as_mut().and_then(Head::live_mut) {
                Some(entry) => {
                    let before = entry.record.observation();
                    let answer = match observed {
                        None => transitions::claim(entry.at(now), claim),
                        Some(observed) => transitions::take_over(entry.at(now), observed, claim),
                    };
                    match answer {
                        ClaimOutcome::Existing(_) => {
                            if self.load(entry, &mut missing).await? {
                                let record = Box::new(entry.record.clone());
                                return Ok(ClaimOutcome::Existing(record));
                            }
                            rounds.next().await?;
                            continue;
                        }
                        ClaimOutcome::Granted(granted) => {
                            entry.log.follow(&before, &entry.record, label);
                            // A takeover leaves the members as they are.
                            if observed.is_none() {
                                entry.members.clone_from(&claim.members);
                            }
                            let revision = revision.unwrap_or_default();
                            let update = self.updating(entry, revision, now);
                            (self.update(update).await?, granted)
                        }
                    }
                }
                None => {
                    let previous = head.as_ref().map(|it| it.fencing_token);
                    let record = transitions::begin(claim, previous, now);
                    let granted = Granted::on(&record);
                    let log = AttemptLog::begin(label);
                    let entry = Entry::new(record, log, claim.members.clone());
                    (self.begin(&entry, revision, now).await?, granted)
                }
            };
            match written {
                Written::Done(_) if self.confirm(now, read_at) => {
                    return Ok(ClaimOutcome::Granted(granted));
                }
                Written::Refused(Some(item)) => known = Some(Some(item)),
                // Either the lease began too early: then the claim is repeated, finds itself, and renews the lease. Or the
                // answer does not have the item.
                Written::Done(_) | Written::Refused(None) => {}
            }
            rounds.next().await?;
        }
    }

    /// A write on condition that this owner may write.
    pub(crate) fn as_owner(
        &self,
        owner: &Owner,
        now: Now,
        expression: &str,
    ) -> UpdateItemFluentBuilder {
        let update = self.client.update_item().table_name(&self.table);
        update
            .set_key(Some(key(owner.id.as_bytes(), HEAD)))
            .update_expression(expression)
            .condition_expression(OWNED)
            .set_expression_attribute_names(Some(names(&[expression, OWNED])))
            .expression_attribute_values(":cid", blob(*owner.claim_id.as_bytes()))
            .expression_attribute_values(":ft", number(owner.fencing_token.number()))
            .expression_attribute_values(":running", text(RecordState::Running.as_str()))
            .expression_attribute_values(":interrupted", text(RecordState::Interrupted.as_str()))
            .expression_attribute_values(":now", number(now.earliest.as_micros()))
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
    }

    /// Answers a completion that was refused: it may be a repetition.
    async fn repeated(&self, owner: &Owner, item: Option<Item>) -> Result<FencedWrite, StoreError> {
        let item = match item {
            Some(item) => Some(item),
            None => self.item(&owner.id).await?,
        };
        let Some(item) = item else {
            return Ok(FencedWrite::Fenced);
        };
        let now = self.time().await?;
        let head = Head::read(&owner.id, &item, now.earliest)?;
        let has_ended = |it: &Entry| it.record.state.is_ended() && owner.owns(&it.record);
        Ok(match head.live().is_some_and(has_ended) {
            true => FencedWrite::Applied,
            false => FencedWrite::Fenced,
        })
    }

    /// Makes the payload of an outcome ready. A large one is written only if the owner may complete the record:
    /// otherwise this returns the answer to the completion.
    async fn ready(
        &self,
        owner: &Owner,
        payload: &Payload,
    ) -> Result<Result<Stored, FencedWrite>, StoreError> {
        if payload.to_bytes().len() <= LARGEST_PAYLOAD {
            return Ok(Ok(Stored::Here(payload.clone())));
        }
        let item = self.item(&owner.id).await?;
        let now = self.time().await?;
        let head = match &item {
            Some(item) => Some(Head::read(&owner.id, item, now.earliest)?),
            None => None,
        };
        let entry = head.as_ref().and_then(Head::live);
        match entry.filter(|it| owner.may_write(&it.record)) {
            Some(entry) => {
                let retention = entry.record.retention;
                let stored = self.store_outcome(&owner.id, payload, retention, now);
                Ok(Ok(stored.await?))
            }
            None => Ok(Err(self.repeated(owner, item).await?)),
        }
    }

    async fn owner_writes(
        &self,
        owner: &Owner,
        transition: impl Fn(At<'_>) -> FencedWrite + Send + Sync,
    ) -> Result<FencedWrite, StoreError> {
        let written = self.apply(&owner.id, |entry, now| {
            let before = entry.record.observation();
            let written = transition(entry.at(now));
            entry.log.follow(&before, &entry.record, None);
            written
        });
        Ok(written.await?.unwrap_or(FencedWrite::Fenced))
    }
}

#[async_trait]
impl Store for DynamoDbStore {
    async fn claim(&self, claim: &ClaimRequest) -> Result<ClaimOutcome, StoreError> {
        self.claim_by(claim, None).await
    }

    async fn take_over(
        &self,
        observed: &Observation,
        claim: &ClaimRequest,
    ) -> Result<ClaimOutcome, StoreError> {
        self.claim_by(claim, Some(observed)).await
    }

    /// The condition excludes a takeover: whichever comes second is refused.
    async fn renew(&self, owner: &Owner, lease: Duration) -> Result<FencedWrite, StoreError> {
        let mut rounds = Rounds::default();
        loop {
            let (now, read_at) = (self.time().await?, Instant::now());
            let until = now.latest.after(lease);
            let update = self
                .as_owner(
                    owner,
                    now,
                    "SET #v = #v + :one, #st = :running, #lu = :lu, #ex = :lu + #xr, #ttl = :lus + #xs",
                )
                .expression_attribute_values(":one", number(1))
                .expression_attribute_values(":lu", number(until.as_micros()))
                .expression_attribute_values(":lus", number(until.as_micros() / 1_000_000));
            match self.update(update).await? {
                Written::Refused(_) => return Ok(FencedWrite::Fenced),
                Written::Done(_) if self.confirm(now, read_at) => return Ok(FencedWrite::Applied),
                Written::Done(_) => rounds.next().await?,
            }
        }
    }

    /// The condition excludes a takeover and another completion: whichever comes second is refused.
    async fn complete(&self, owner: &Owner, outcome: &Outcome) -> Result<FencedWrite, StoreError> {
        let stored = match outcome.payload() {
            None => None,
            Some(payload) => match self.ready(owner, payload).await? {
                Ok(stored) => Some(stored),
                Err(answer) => return Ok(answer),
            },
        };
        let now = self.time().await?;
        let set = match &stored {
            None => "",
            Some(Stored::Here(_)) => ", #p = :p",
            Some(Stored::InParts(_)) => ", #pp = :p",
        };
        let expression = format!(
            "SET #v = #v + :one, #st = :ended, #ea = :at, #ex = :at + #rt, #ttl = :ats + #rs{set} REMOVE #g, #sp"
        );
        let at = now.latest.as_micros();
        let mut update = self
            .as_owner(owner, now, &expression)
            .expression_attribute_values(":one", number(1))
            .expression_attribute_values(":ended", text(outcome.state().as_str()))
            .expression_attribute_values(":at", number(at))
            .expression_attribute_values(":ats", number(at / 1_000_000))
            .return_values(ReturnValue::AllOld);
        if let Some(stored) = &stored {
            update = update.expression_attribute_values(":p", stored.to_value());
        }
        match self.update(update).await? {
            Written::Done(old) => {
                let steps = item::step_parts(&old.unwrap_or_default());
                self.drop_parts(&owner.id, steps).await;
                Ok(FencedWrite::Applied)
            }
            // DynamoDB deletes the parts of the payload.
            Written::Refused(item) => self.repeated(owner, item).await,
        }
    }

    async fn release(&self, owner: &Owner) -> Result<FencedWrite, StoreError> {
        self.owner_writes(owner, |at| transitions::release(at, owner))
            .await
    }

    async fn interrupt(&self, owner: &Owner) -> Result<FencedWrite, StoreError> {
        self.owner_writes(owner, |at| transitions::interrupt(at, owner))
            .await
    }

    async fn resolve(
        &self,
        observed: &Observation,
        resolution: &Resolution,
    ) -> Result<Resolved, StoreError> {
        self.resolve_with(observed, resolution, None).await
    }

    async fn get(&self, id: &RecordId) -> Result<Option<Record>, StoreError> {
        Ok(self.read(id).await?.map(|it| it.record))
    }

    async fn list(&self, filter: &Filter, page: &PageRequest) -> Result<Page, StoreError> {
        self.page(filter, page).await
    }

    async fn now(&self) -> Result<Timestamp, StoreError> {
        Ok(self.server_time().await?.earliest)
    }

    async fn purge(&self, limit: u32, as_of: Timestamp) -> Result<Purged, StoreError> {
        self.purge_batch(limit, as_of).await
    }

    fn expires_by_itself(&self) -> bool {
        true
    }

    fn bottleneck(&self) -> Option<String> {
        let throttled = self.throttled();
        self.answers.is_throttled().then(|| {
            format!("DynamoDB throttles this table, which has refused {throttled} requests")
        })
    }

    fn time_uncertainty(&self) -> Duration {
        self.answers.uncertainty()
    }

    fn attempts(&self) -> Option<&dyn AttemptStore> {
        Some(self)
    }

    fn audit(&self) -> Option<&dyn AuditStore> {
        Some(self)
    }

    fn operations(&self) -> Option<&dyn OperationStore> {
        Some(self)
    }

    fn recovery(&self) -> Option<&dyn RecoveryStore> {
        Some(self)
    }

    fn steps(&self) -> Option<&dyn StepStore> {
        Some(self)
    }
}

#[async_trait]
impl StepStore for DynamoDbStore {
    /// One conditional update: no takeover can come between the check of the owner and the write, and a step that is
    /// there stays as it is.
    async fn save_step(
        &self,
        owner: &Owner,
        name: &str,
        payload: &Payload,
    ) -> Result<FencedWrite, StoreError> {
        let stored = self.store(&owner.id, payload, LARGEST_STEP, None).await?;
        let now = self.time().await?;
        let expression = "SET #sp.#step = if_not_exists(#sp.#step, :step)";
        let update = self
            .as_owner(owner, now, expression)
            .expression_attribute_names("#step", name)
            .expression_attribute_values(":step", stored.to_value());
        let parts = stored.parts().cloned();
        let update = match &parts {
            Some(_) => update.return_values(ReturnValue::AllNew),
            None => update,
        };
        let (written, item) = match self.update(update).await? {
            Written::Done(item) => (FencedWrite::Applied, item),
            Written::Refused(_) => (FencedWrite::Fenced, None),
        };
        if let Some(parts) = parts {
            let steps = item.as_ref().map(item::steps).transpose()?;
            let saved = steps.into_iter().flatten().find(|it| it.0 == name);
            if saved.is_none_or(|(_, saved)| saved != stored) {
                self.drop_parts(&owner.id, [parts]).await;
            }
        }
        Ok(written)
    }

    async fn saved_steps(&self, owner: &Owner) -> Result<Option<Vec<SavedStep>>, StoreError> {
        let mut missing = None;
        'round: loop {
            let Some(item) = self.item(&owner.id).await? else {
                return Ok(None);
            };
            let now = self.time().await?;
            let head = Head::read(&owner.id, &item, now.earliest)?;
            let may_write = |it: &Entry| owner.may_write(&it.record);
            if !head.live().is_some_and(may_write) {
                return Ok(None);
            }
            let mut saved = Vec::new();
            for (name, stored) in item::steps(&item)? {
                let Some(payload) = self.payload(&owner.id, &stored).await? else {
                    // A second head that refers to the same parts proves that they are gone.
                    if missing.as_ref() == Some(&stored) {
                        return Err(corrupt());
                    }
                    missing = Some(stored);
                    continue 'round;
                };
                saved.push(SavedStep { name, payload });
            }
            return Ok(Some(saved));
        }
    }
}

#[async_trait]
impl AttemptStore for DynamoDbStore {
    async fn attempts(&self, id: &RecordId) -> Result<Option<Attempts>, StoreError> {
        let Some(entry) = self.read(id).await? else {
            return Ok(None);
        };
        let attempts = entry.log.attempts(entry.record);
        Ok(Some(attempts.with_members(entry.members)))
    }

    async fn note_replay(
        &self,
        id: &RecordId,
        fencing_token: FencingToken,
        by: Option<&OwnerLabel>,
    ) -> Result<bool, StoreError> {
        let noted = self.apply(id, |entry, _| {
            let record = &entry.record;
            record.fencing_token == fencing_token && entry.log.note_replay(record, by)
        });
        Ok(noted.await?.unwrap_or_default())
    }
}
