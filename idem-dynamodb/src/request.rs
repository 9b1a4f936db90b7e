//! Requests of the store: reading and conditionally writing items.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use aws_sdk_dynamodb::operation::put_item::PutItemError;
use aws_sdk_dynamodb::operation::put_item::builders::PutItemFluentBuilder;
use aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsError;
use aws_sdk_dynamodb::operation::update_item::UpdateItemError;
use aws_sdk_dynamodb::operation::update_item::builders::UpdateItemFluentBuilder;
use aws_sdk_dynamodb::types::{
    KeysAndAttributes, Put, ReturnValue, ReturnValuesOnConditionCheckFailure, TransactWriteItem,
    Update,
};
use idem_store::clock::Now;
use idem_store::record::Payload;
use idem_store::{RecordId, StoreError, Timestamp, random};

use crate::DynamoDbStore;
use crate::error::{Failed, conflict, corrupt, failed, no_date, transaction_failed, unbuilt};
use crate::item::{self, Entry, HEAD, Head, Item, Parts, Stored, blob, key, next_revision, number};

/// Number of tries of a transition whose record other callers change.
const ROUNDS: u32 = 64;
/// Shortest limit of the pause before another round. It doubles with each round.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
/// Longest limit of the pause before another round.
const LAST_PAUSE: Duration = Duration::from_millis(100);

/// Largest payload, with its codec, in a head. Most heads then have less than 1 KB, for which DynamoDB charges one unit.
pub(crate) const LARGEST_PAYLOAD: usize = 512;
/// Largest step, with its codec, in a head.
pub(crate) const LARGEST_STEP: usize = 256;
/// Largest item of a payload in parts. DynamoDB takes 400 KB, names included.
const PART: usize = 384 * 1024;
/// How much longer the parts of a payload are kept than their head, which a caller may have read just before.
const PARTS_LONGER: Duration = Duration::from_secs(24 * 3600);
/// Largest number of items that DynamoDB reads in one request.
pub(crate) const BATCH: usize = 100;

/// Sends a request once, and takes note of the server's time in its answer.
macro_rules! send {
    ($store:expr, $request:expr) => {{
        let watch = $crate::clock::Watch::new(&$store.answers);
        let request = $request.customize().interceptor(watch);
        // The SDK's futures take kilobytes, and this one is a part of every call.
        Box::pin(request.send()).await
    }};
}

pub(crate) use send;

/// Result of a conditional write.
pub(crate) enum Written {
    /// The condition held. The item before, if there was one.
    Done(Option<Item>),
    /// The condition did not hold. The item that is there, if the answer has it.
    Refused(Option<Item>),
}

/// Rounds of a compare-and-swap.
#[derive(Default)]
pub(crate) struct Rounds(u32);

impl Rounds {
    /// Pauses before the next round: up to a limit that grows, so that callers of one record come apart. The first round
    /// after a write without a read follows immediately.
    pub(crate) async fn next(&mut self) -> Result<(), StoreError> {
        self.0 += 1;
        if self.0 >= ROUNDS {
            return Err(conflict());
        }
        if self.0 > 1 {
            let limit = FIRST_PAUSE.saturating_mul(1 << self.0.min(10));
            tokio::time::sleep(limit.min(LAST_PAUSE).mul_f64(random::fraction())).await;
        }
        Ok(())
    }
}

/// Names of attributes in these expressions: each is its placeholder without the `#`. Many short words are reserved.
pub(crate) fn names(expressions: &[&str]) -> HashMap<String, String> {
    let is_other = |it: char| !it.is_ascii_alphanumeric() && it != '#';
    let words = expressions.iter().flat_map(|it| it.split(is_other));
    let names = words.filter_map(|it| Some((it.to_owned(), it.strip_prefix('#')?.to_owned())));
    names.collect()
}

impl DynamoDbStore {
    /// Counts the failure if it was caused by the rate of requests.
    pub(crate) fn note(&self, failed: Failed) -> StoreError {
        if failed.is_throttled {
            self.answers.note_throttled();
        }
        failed.error
    }

    /// The present time. Before the first answer, a request asks for it.
    pub(crate) async fn time(&self) -> Result<Now, StoreError> {
        if let Some(now) = self.answers.now() {
            return Ok(now);
        }
        self.server_time().await
    }

    /// The present time, with a request.
    pub(crate) async fn server_time(&self) -> Result<Now, StoreError> {
        let get = self.client.get_item().table_name(&self.table);
        send!(self, get.set_key(Some(key(b"time", HEAD))))
            .map_err(|error| self.note(failed(&error)))?;
        self.answers.now().ok_or_else(no_date)
    }

    /// Reads the head of a record.
    pub(crate) async fn item(&self, id: &RecordId) -> Result<Option<Item>, StoreError> {
        self.item_at(key(id.as_bytes(), HEAD)).await
    }

    async fn item_at(&self, key: Item) -> Result<Option<Item>, StoreError> {
        let get = self.client.get_item().table_name(&self.table);
        let get = get.set_key(Some(key)).consistent_read(true);
        let output = send!(self, get).map_err(|error| self.note(failed(&error)))?;
        Ok(output.item)
    }

    /// Reads the heads of these records, at most [`BATCH`] of them, in no particular order. Those that are not there are
    /// missing in the answer.
    pub(crate) async fn items(&self, ids: &[RecordId]) -> Result<Vec<Item>, StoreError> {
        let mut found = Vec::new();
        let mut keys: Vec<_> = ids.iter().map(|id| key(id.as_bytes(), HEAD)).collect();
        let mut rounds = Rounds::default();
        while !keys.is_empty() {
            let wanted = KeysAndAttributes::builder().consistent_read(true);
            let wanted = wanted.set_keys(Some(keys)).build().map_err(|_| unbuilt())?;
            let get = self.client.batch_get_item();
            let get = get.request_items(&self.table, wanted);
            let output = send!(self, get).map_err(|error| self.note(failed(&error)))?;
            let mut responses = output.responses.unwrap_or_default();
            found.extend(responses.remove(&self.table).unwrap_or_default());
            // DynamoDB leaves out what would exceed 16 MB or the capacity.
            let left = output.unprocessed_keys.unwrap_or_default();
            keys = left.into_values().flat_map(|it| it.keys).collect();
            if !keys.is_empty() {
                rounds.next().await?;
            }
        }
        Ok(found)
    }

    /// Reads a payload. Returns `None` if one of its parts is not there.
    pub(crate) async fn payload(
        &self,
        id: &RecordId,
        stored: &Stored,
    ) -> Result<Option<Payload>, StoreError> {
        let parts = match stored {
            Stored::Here(payload) => return Ok(Some(payload.clone())),
            Stored::InParts(parts) => parts,
        };
        let mut bytes = Vec::new();
        for name in parts.names() {
            let Some(item) = self.item_at(key(id.as_bytes(), &name)).await? else {
                return Ok(None);
            };
            let part = item.get("b").and_then(|it| it.as_b().ok());
            bytes.extend_from_slice(part.ok_or_else(corrupt)?.as_ref());
        }
        let payload = Payload::from_bytes(&bytes).ok_or_else(corrupt)?;
        let is_whole = payload.bytes.len() as u64 == parts.size && payload.codec == parts.codec;
        is_whole.then_some(payload).map(Some).ok_or_else(corrupt)
    }

    /// Makes a payload ready for a head: writes it into items of its own if it is larger than this.
    ///
    /// The parts are written before the head refers to them, so that a head never refers to parts which are not there.
    pub(crate) async fn store(
        &self,
        id: &RecordId,
        payload: &Payload,
        largest: usize,
        ttl: Option<i64>,
    ) -> Result<Stored, StoreError> {
        let bytes = payload.to_bytes();
        if bytes.len() <= largest {
            return Ok(Stored::Here(payload.clone()));
        }
        let nonce: [u8; 12] = random::bytes();
        let parts = Parts {
            nonce: nonce.iter().map(|it| format!("{it:02x}")).collect(),
            count: u32::try_from(bytes.len().div_ceil(PART)).map_err(|_| unbuilt())?,
            size: payload.bytes.len() as u64,
            codec: payload.codec.to_string(),
        };
        for (name, part) in parts.names().zip(bytes.chunks(PART)) {
            let mut item = key(id.as_bytes(), &name);
            item.insert("b".to_owned(), blob(part));
            if let Some(ttl) = ttl {
                item.insert("ttl".to_owned(), number(ttl));
            }
            let put = self.client.put_item().table_name(&self.table);
            send!(self, put.set_item(Some(item))).map_err(|error| self.note(failed(&error)))?;
        }
        Ok(Stored::InParts(parts))
    }

    /// Makes the payload of an outcome ready for the head of a record with this retention. DynamoDB deletes the parts
    /// after the head.
    pub(crate) async fn store_outcome(
        &self,
        id: &RecordId,
        payload: &Payload,
        retention: Duration,
        now: Now,
    ) -> Result<Stored, StoreError> {
        let until = now.latest.after(retention).after(PARTS_LONGER);
        let ttl = Some(item::ttl(until));
        self.store(id, payload, LARGEST_PAYLOAD, ttl).await
    }

    /// Deletes parts to which no head refers any more. If that fails, they remain as waste.
    pub(crate) async fn drop_parts(&self, id: &RecordId, parts: impl IntoIterator<Item = Parts>) {
        for parts in parts {
            for name in parts.names() {
                let delete = self.client.delete_item().table_name(&self.table);
                let _ = send!(self, delete.set_key(Some(key(id.as_bytes(), &name))));
            }
        }
    }

    /// Puts a whole head in place of one with this revision, or of none.
    ///
    /// The condition excludes all others: of two callers that have read the same revision, one writes.
    fn putting(
        &self,
        id: &RecordId,
        mut item: Item,
        before: Option<i64>,
        now: Now,
    ) -> PutItemFluentBuilder {
        item.extend(key(id.as_bytes(), HEAD));
        item.insert("v".to_owned(), number(next_revision(before, now)));
        let put = self.client.put_item().table_name(&self.table);
        let put = put
            .set_item(Some(item))
            .return_values(ReturnValue::AllOld)
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld);
        match before {
            None => put.condition_expression("attribute_not_exists(pk)"),
            Some(before) => put
                .condition_expression("#v = :before")
                .expression_attribute_names("#v", "v")
                .expression_attribute_values(":before", number(before)),
        }
    }

    pub(crate) async fn put(&self, put: PutItemFluentBuilder) -> Result<Written, StoreError> {
        match send!(self, put) {
            Ok(output) => Ok(Written::Done(output.attributes)),
            Err(error) => match error.as_service_error() {
                Some(PutItemError::ConditionalCheckFailedException(it)) => {
                    Ok(Written::Refused(it.item.clone()))
                }
                _ => Err(self.note(failed(&error))),
            },
        }
    }

    /// Puts the head of a record that begins, in place of one with this revision, or of none.
    pub(crate) async fn begin(
        &self,
        entry: &Entry,
        before: Option<i64>,
        now: Now,
    ) -> Result<Written, StoreError> {
        let id = &entry.record.id;
        let put = self.putting(id, entry.to_item(), before, now);
        let written = self.put(put).await?;
        if let Written::Done(Some(old)) = &written {
            self.drop_parts(id, item::lasting_parts(old)).await;
        }
        Ok(written)
    }

    /// Puts a tombstone in place of a head: the next record of this key gets a higher fencing token.
    pub(crate) fn burying(&self, id: &RecordId, head: &Head, now: Now) -> PutItemFluentBuilder {
        let token = Timestamp::from_micros(head.fencing_token.number());
        let ttl = item::ttl(token.max(now.latest));
        let item = [
            ("ft".to_owned(), number(head.fencing_token.number())),
            ("ttl".to_owned(), number(ttl)),
        ];
        self.putting(id, item.into(), Some(head.revision), now)
    }

    /// Writes what a transition has changed, if the head still has this revision.
    pub(crate) fn updating(&self, entry: &Entry, before: i64, now: Now) -> UpdateItemFluentBuilder {
        let (mut set, mut remove) = (vec!["#v = :v".to_owned()], Vec::new());
        let mut update = self.client.update_item().table_name(&self.table);
        for (name, value) in entry.changing() {
            match value {
                Some(value) => {
                    set.push(format!("#{name} = :{name}"));
                    update = update.expression_attribute_values(format!(":{name}"), value);
                }
                None => remove.push(format!("#{name}")),
            }
        }
        // Nobody can read the steps of a record that has ended.
        if entry.record.state.is_ended() {
            remove.push("#sp".to_owned());
        }
        let mut expression = format!("SET {}", set.join(", "));
        if !remove.is_empty() {
            expression = format!("{expression} REMOVE {}", remove.join(", "));
        }
        let condition = "#v = :before";
        update
            .set_key(Some(key(entry.record.id.as_bytes(), HEAD)))
            .set_expression_attribute_names(Some(names(&[&expression, condition])))
            .update_expression(expression)
            .condition_expression(condition)
            .expression_attribute_values(":before", number(before))
            .expression_attribute_values(":v", number(next_revision(Some(before), now)))
            .return_values(ReturnValue::AllOld)
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
    }

    pub(crate) async fn update(
        &self,
        update: UpdateItemFluentBuilder,
    ) -> Result<Written, StoreError> {
        match send!(self, update) {
            Ok(output) => Ok(Written::Done(output.attributes)),
            Err(error) => match error.as_service_error() {
                Some(UpdateItemError::ConditionalCheckFailedException(it)) => {
                    Ok(Written::Refused(it.item.clone()))
                }
                _ => Err(self.note(failed(&error))),
            },
        }
    }

    /// Sends writes that take effect together or not at all. Returns false if a condition did not hold.
    pub(crate) async fn transact(
        &self,
        writes: Vec<TransactWriteItem>,
    ) -> Result<bool, StoreError> {
        let request = self.client.transact_write_items();
        match send!(self, request.set_transact_items(Some(writes))) {
            Ok(_) => Ok(true),
            Err(error) => match error.as_service_error() {
                Some(TransactWriteItemsError::TransactionCanceledException(it))
                    if it
                        .cancellation_reasons()
                        .iter()
                        .any(|it| it.code() == Some("ConditionalCheckFailed")) =>
                {
                    Ok(false)
                }
                _ => Err(self.note(transaction_failed(&error))),
            },
        }
    }

    /// Applies a transition to a record, and begins again if another caller has changed its head. Returns `None` if there is
    /// no record.
    pub(crate) async fn apply<T>(
        &self,
        id: &RecordId,
        transition: impl Fn(&mut Entry, Now) -> T + Send + Sync,
    ) -> Result<Option<T>, StoreError> {
        let mut rounds = Rounds::default();
        let mut known = None;
        loop {
            let item = match known.take() {
                Some(item) => Some(item),
                None => self.item(id).await?,
            };
            let Some(item) = item else { return Ok(None) };
            let now = self.time().await?;
            let mut head = Head::read(id, &item, now.earliest)?;
            let revision = head.revision;
            let Some(entry) = head.live_mut() else {
                return Ok(None);
            };
            let before = entry.clone();
            let result = transition(entry, now);
            if *entry == before {
                return Ok(Some(result));
            }
            match self.update(self.updating(entry, revision, now)).await? {
                Written::Done(old) => {
                    if entry.record.state.is_ended() && !before.record.state.is_ended() {
                        let old = old.unwrap_or_default();
                        self.drop_parts(id, item::step_parts(&old)).await;
                    }
                    return Ok(Some(result));
                }
                Written::Refused(item) => known = item,
            }
            rounds.next().await?;
        }
    }

    /// Reads the record and its payload, unless it has expired.
    pub(crate) async fn read(&self, id: &RecordId) -> Result<Option<Entry>, StoreError> {
        let mut missing = None;
        loop {
            let Some(item) = self.item(id).await? else {
                return Ok(None);
            };
            let now = self.time().await?;
            let head = Head::read(id, &item, now.earliest)?;
            let Some(mut entry) = head.live().cloned() else {
                return Ok(None);
            };
            if self.load(&mut entry, &mut missing).await? {
                return Ok(Some(entry));
            }
        }
    }

    /// Reads the payload of a record whose head was read. Returns false if the parts are missing, because another caller
    /// has replaced or deleted the record: then the head has to be read again.
    pub(crate) async fn load(
        &self,
        entry: &mut Entry,
        missing: &mut Option<Stored>,
    ) -> Result<bool, StoreError> {
        let Some(stored) = &entry.payload else {
            return Ok(true);
        };
        if let Some(payload) = self.payload(&entry.record.id, stored).await? {
            entry.record.payload = Some(payload);
            return Ok(true);
        }
        // A second head that refers to the same parts proves that they are gone.
        if missing.as_ref() == Some(stored) {
            return Err(corrupt());
        }
        *missing = Some(stored.clone());
        Ok(false)
    }

    /// Returns true if what was written at this time lasts as long as was asked for. See [`crate::clock::Answers::confirm`].
    pub(crate) fn confirm(&self, used: Now, read: Instant) -> bool {
        self.answers.confirm(used, read)
    }
}

/// An update as a part of a transaction.
pub(crate) fn part_of_update(
    input: &UpdateItemFluentBuilder,
) -> Result<TransactWriteItem, StoreError> {
    let update = Update::builder()
        .set_table_name(input.get_table_name().clone())
        .set_key(input.get_key().clone())
        .set_update_expression(input.get_update_expression().clone())
        .set_condition_expression(input.get_condition_expression().clone())
        .set_expression_attribute_names(input.get_expression_attribute_names().clone())
        .set_expression_attribute_values(input.get_expression_attribute_values().clone());
    let update = update.build().map_err(|_| unbuilt())?;
    Ok(TransactWriteItem::builder().update(update).build())
}

/// A put as a part of a transaction.
pub(crate) fn part_of_put(input: &PutItemFluentBuilder) -> Result<TransactWriteItem, StoreError> {
    let put = Put::builder()
        .set_table_name(input.get_table_name().clone())
        .set_item(input.get_item().clone())
        .set_condition_expression(input.get_condition_expression().clone())
        .set_expression_attribute_names(input.get_expression_attribute_names().clone())
        .set_expression_attribute_values(input.get_expression_attribute_values().clone());
    let put = put.build().map_err(|_| unbuilt())?;
    Ok(TransactWriteItem::builder().put(put).build())
}

#[cfg(test)]
mod tests {
    use super::names;

    #[test]
    fn placeholders_are_named_after_attributes() {
        let names = names(&[
            "SET #v = #v + :one, #sp.#step = :s REMOVE #ttl",
            "#ex > :now",
        ]);
        let mut names: Vec<_> = names.iter().map(|(a, b)| format!("{a}={b}")).collect();
        names.sort();
        assert_eq!(
            names,
            ["#ex=ex", "#sp=sp", "#step=step", "#ttl=ttl", "#v=v"]
        );
    }
}
