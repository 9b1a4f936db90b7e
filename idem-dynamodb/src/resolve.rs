//! Resolutions, by the program and by operators, and the audit of manual changes.
//!
//! The entries of the audit are the items of one partition, sorted by time. A manual resolution and its entry are one
//! transaction of DynamoDB.

use async_trait::async_trait;
use aws_sdk_dynamodb::types::{AttributeValue, Put, TransactWriteItem};
use idem_store::key::Identity;
use idem_store::record::{FencingToken, Observation, Outcome};
use idem_store::store::{
    AuditAction, AuditEntry, AuditFilter, AuditPage, AuditStore, AuditSubject, AuditedRecord,
    Cursor, ManualChange, PageRequest, Purged, Resolution, Resolved, Unreadable, ValueHash,
    transitions,
};
use idem_store::{
    Key, Operation, RecordId, RecordState, Scope, StoreError, StoreErrorKind, Timestamp, random,
};

use crate::DynamoDbStore;
use crate::error::{corrupt, failed, foreign_cursor, unbuilt};
use crate::item::{self, Head, Item, blob, key, number, text};
use crate::request::{Rounds, Written, part_of_put, part_of_update, send};

/// Partition of the audit.
const AUDIT: &[u8] = b"audit";

/// Sort key of an entry: its time in 20 digits, and a random number.
fn new_name(at: Timestamp) -> String {
    let number: [u8; 16] = random::bytes();
    let number: String = number.iter().map(|it| format!("{it:02x}")).collect();
    format!("{:020} {number}", at.as_micros().max(0))
}

fn is_name(text: &str) -> bool {
    let is_digit = |it: u8| it.is_ascii_digit();
    text.len() == 53
        && text.bytes().take(20).all(is_digit)
        && text.as_bytes().get(20) == Some(&b' ')
}

fn item_of(name: &str, entry: &AuditEntry) -> Item {
    let mut item = key(AUDIT, name);
    let mut add = |name: &str, value| item.insert(name.to_owned(), value);
    add("t", number(entry.at.as_micros()));
    add("actor", text(entry.change.actor()));
    add("reason", text(entry.change.reason()));
    add("action", text(entry.action.as_str()));
    match &entry.subject {
        AuditSubject::Record(record) => {
            add("id", blob(*record.id.as_bytes()));
            add("st", text(record.state.as_str()));
            add("ft", number(record.fencing_token.number()));
            add("at", number(record.attempt));
            for (name, hash) in [("ov", &record.old_value), ("nv", &record.new_value)] {
                if let Some(hash) = hash {
                    add(name, blob(*hash.as_bytes()));
                }
            }
            if let Some(identity) = &record.identity {
                add("op", text(identity.operation.as_str()));
                add("k", text(identity.key.as_str()));
                add("sc", text(identity.scope.as_str()));
            }
        }
        AuditSubject::Purge {
            removed,
            abandoned,
            interrupted,
        } => {
            add("removed", number(removed));
            add("abandoned", number(abandoned));
            add("interrupted", number(interrupted));
        }
        // This store erases no scopes.
        _ => {}
    }
    item
}

fn read_entry(item: &Item) -> Option<AuditEntry> {
    let text = |name: &str| item.get(name)?.as_s().ok().map(String::as_str);
    let number = |name: &str| item.get(name)?.as_n().ok()?.parse::<i64>().ok();
    let count = |name: &str| number(name)?.try_into().ok();
    let hash = |name: &str| match item.get(name) {
        Some(hash) => {
            let hash = hash.as_b().ok()?.as_ref().try_into().ok()?;
            Some(Some(ValueHash::from_bytes(hash)))
        }
        None => Some(None),
    };
    let subject = match item.get("id") {
        Some(id) => AuditSubject::Record(AuditedRecord {
            id: RecordId::from_bytes(id.as_b().ok()?.as_ref().try_into().ok()?),
            identity: match text("op") {
                Some(operation) => Some(Identity {
                    scope: Scope::from_stored(text("sc")?),
                    operation: Operation::new(operation.to_owned()).ok()?,
                    key: Key::new(text("k")?).ok()?,
                }),
                None => None,
            },
            state: RecordState::from_stored(text("st")?)?,
            fencing_token: FencingToken::from_number(number("ft")?),
            attempt: number("at")?.try_into().ok()?,
            old_value: hash("ov")?,
            new_value: hash("nv")?,
        }),
        None => AuditSubject::Purge {
            removed: count("removed")?,
            abandoned: count("abandoned")?,
            interrupted: count("interrupted")?,
        },
    };
    Some(AuditEntry {
        at: Timestamp::from_micros(number("t")?),
        change: ManualChange::new(text("actor")?, text("reason")?).ok()?,
        user: None,
        action: AuditAction::from_stored(text("action")?)?,
        subject,
    })
}

impl DynamoDbStore {
    /// Resolves a record. A manual change is written into the audit, in one transaction with the record.
    ///
    /// The condition on the revision excludes a takeover and another resolution: whichever comes second reads again.
    pub(crate) async fn resolve_with(
        &self,
        observed: &Observation,
        resolution: &Resolution,
        change: Option<&ManualChange>,
    ) -> Result<Resolved, StoreError> {
        let id = &observed.id;
        let mut rounds = Rounds::default();
        let mut payload = None;
        loop {
            let Some(item) = self.item(id).await? else {
                return Ok(Resolved::Stale);
            };
            let now = self.time().await?;
            let mut head = Head::read(id, &item, now.earliest)?;
            let revision = head.revision;
            let Some(entry) = head.live_mut() else {
                return Ok(Resolved::Stale);
            };
            let mut before = entry.record.clone();
            if transitions::resolve(entry.at(now), observed, resolution) == Resolved::Stale {
                return Ok(Resolved::Stale);
            }
            entry.log.follow(observed, &entry.record, None);
            entry.record.payload = None;
            if let (Resolution::Correct(_), Some(replaced)) = (resolution, entry.payload.take()) {
                let Some(replaced) = self.payload(id, &replaced).await? else {
                    // Another correction has replaced it since the read.
                    rounds.next().await?;
                    continue;
                };
                before.payload = Some(replaced);
            }
            if let Some(result) = resolution.outcome().and_then(Outcome::payload) {
                let stored = match payload.take() {
                    Some(stored) => stored,
                    None => {
                        let retention = before.retention;
                        self.store_outcome(id, result, retention, now).await?
                    }
                };
                entry.payload = Some(stored.clone());
                payload = Some(stored);
            }
            let is_written = match (resolution, change) {
                (Resolution::Erase, None) => {
                    let put = self.burying(id, &head, now);
                    matches!(self.put(put).await?, Written::Done(_))
                }
                (_, None) => {
                    let update = self.updating(entry, revision, now);
                    matches!(self.update(update).await?, Written::Done(_))
                }
                (_, Some(change)) => {
                    let write = match resolution {
                        Resolution::Erase => part_of_put(&self.burying(id, &head, now))?,
                        _ => part_of_update(&self.updating(entry, revision, now))?,
                    };
                    let entry = AuditEntry {
                        at: now.earliest,
                        change: change.clone(),
                        // DynamoDB does not tell a caller who it is.
                        user: None,
                        action: AuditAction::of(resolution),
                        subject: AuditSubject::Record(AuditedRecord::before(&before, resolution)),
                    };
                    let put = Put::builder()
                        .table_name(&self.table)
                        .set_item(Some(item_of(&new_name(entry.at), &entry)));
                    let put = put.build().map_err(|_| unbuilt())?;
                    let put = TransactWriteItem::builder().put(put).build();
                    self.transact(vec![write, put]).await?
                }
            };
            if is_written {
                // Steps that were saved since the read remain as waste.
                let parts = match resolution {
                    Resolution::Erase => item::all_parts(&item),
                    Resolution::Complete(_) => item::step_parts(&item),
                    Resolution::Correct(_) => item::outcome_parts(&item).into_iter().collect(),
                    Resolution::Release | Resolution::Interrupt => Vec::new(),
                };
                self.drop_parts(id, parts).await;
                return Ok(Resolved::Done);
            }
            rounds.next().await?;
        }
    }

    async fn put_entry(&self, name: &str, entry: &AuditEntry) -> Result<(), StoreError> {
        let put = self.client.put_item().table_name(&self.table);
        let put = put.set_item(Some(item_of(name, entry)));
        send!(self, put).map_err(|error| self.note(failed(&error)))?;
        Ok(())
    }
}

#[async_trait]
impl AuditStore for DynamoDbStore {
    async fn resolve_manually(
        &self,
        observed: &Observation,
        resolution: &Resolution,
        change: &ManualChange,
    ) -> Result<Resolved, StoreError> {
        self.resolve_with(observed, resolution, Some(change)).await
    }

    async fn purge_manually(
        &self,
        limit: u32,
        change: &ManualChange,
    ) -> Result<Purged, StoreError> {
        // The entry exists before the first change can be seen.
        let at = self.time().await?.earliest;
        let mut entry = AuditEntry {
            at,
            change: change.clone(),
            user: None,
            action: AuditAction::Purged,
            subject: AuditSubject::of_purge(&Purged::default()),
        };
        let name = new_name(at);
        self.put_entry(&name, &entry).await?;
        let purged = self.purge_batch(limit, Timestamp::MAX).await?;
        if purged.is_nothing() {
            let delete = self.client.delete_item().table_name(&self.table);
            let delete = delete.set_key(Some(key(AUDIT, &name)));
            send!(self, delete).map_err(|error| self.note(failed(&error)))?;
        } else {
            entry.subject = AuditSubject::of_purge(&purged);
            self.put_entry(&name, &entry).await?;
        }
        Ok(purged)
    }

    async fn audit(
        &self,
        filter: &AuditFilter,
        page: &PageRequest,
    ) -> Result<AuditPage, StoreError> {
        let after = page.after.as_ref().map(Cursor::as_str);
        if after.is_some_and(|it| !is_name(it)) {
            return Err(foreign_cursor());
        }
        let limit = limit_of(page)?;
        let mut found = AuditPage {
            entries: Vec::new(),
            unreadable: Vec::new(),
            next: None,
        };
        let mut start = after.map(|it| key(AUDIT, it));
        loop {
            let query = self.client.query().table_name(&self.table);
            let query = query
                .consistent_read(true)
                .scan_index_forward(false)
                .key_condition_expression("pk = :pk")
                .expression_attribute_values(":pk", blob(AUDIT))
                .set_exclusive_start_key(start.take());
            let output = send!(self, query).map_err(|error| self.note(failed(&error)))?;
            let now = self.time().await?.earliest;
            for item in output.items.unwrap_or_default() {
                let Some(AttributeValue::S(name)) = item.get("sk") else {
                    return Err(corrupt());
                };
                let read = read_entry(&item).ok_or_else(corrupt);
                let (read, unreadable) = Unreadable::sort([(name.clone(), read)])?;
                found.unreadable.extend(unreadable);
                found
                    .entries
                    .extend(read.into_iter().filter(|it| filter.matches(it, now)));
                if found.entries.len() + found.unreadable.len() == limit {
                    found.next = Some(Cursor::new(name.as_str()));
                    return Ok(found);
                }
            }
            start = output.last_evaluated_key;
            if start.is_none() {
                return Ok(found);
            }
        }
    }
}

/// Maximum number of entries or records on a page.
pub(crate) fn limit_of(page: &PageRequest) -> Result<usize, StoreError> {
    match page.limit {
        0 => Err(StoreError::new(
            StoreErrorKind::Other,
            "a page holds at least 1 record, ask for more than 0",
        )),
        limit => Ok(limit as usize),
    }
}
