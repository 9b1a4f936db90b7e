//! Listings and purges.
//!
//! A listing of records without an outcome reads the index `open`, in the order of ids. Any other listing reads the whole
//! table, in the order in which DynamoDB has it.

use std::sync::{Mutex, PoisonError};

use aws_sdk_dynamodb::types::AttributeValue;
use idem_store::clock::Now;
use idem_store::store::transitions::{self, Purge};
use idem_store::store::{
    Cursor, Filter, ListedRecord, Page, PageRequest, PayloadSummary, Purged, Unreadable,
};
use idem_store::{RecordId, RecordState, StoreError, StoreErrorKind, Timestamp};

use crate::DynamoDbStore;
use crate::error::{failed, foreign_cursor};
use crate::item::{self, DIGITS, Entry, HEAD, Head, Item, OPEN, Stored, blob, id_of, key, text};
use crate::request::{BATCH, Written, send};
use crate::resolve::limit_of;

/// Largest number of requests to the table or its index for one page of a listing, or one batch of a purge.
const REQUESTS: usize = 32;
/// Largest number of items that one request reads of the table. It stops earlier after 1 MB.
const SCAN: i32 = 500;

/// How far the purges of a store have come: the lap through all records without an outcome, and the last one that was
/// looked at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    lap: u64,
    after: Option<[u8; 32]>,
}

impl Place {
    /// Keeps this place, unless a concurrent purge has come further.
    fn keep(self, kept: &Mutex<Self>) {
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        *kept = (*kept).max(self);
    }
}

/// A page that is being read.
struct Reading<'a> {
    filter: &'a Filter,
    limit: usize,
    page: Page,
}

impl Reading<'_> {
    fn is_full(&self) -> bool {
        self.page.records.len() + self.page.unreadable.len() >= self.limit
    }
}

impl DynamoDbStore {
    /// Reads a page of matching records.
    pub(crate) async fn page(
        &self,
        filter: &Filter,
        page: &PageRequest,
    ) -> Result<Page, StoreError> {
        let mut reading = Reading {
            filter,
            limit: limit_of(page)?,
            page: Page {
                records: Vec::new(),
                unreadable: Vec::new(),
                next: None,
            },
        };
        let after = page.after.as_ref().map(|it| read_cursor(it.as_str()));
        let after = match after {
            Some(None) => return Err(foreign_cursor()),
            Some(Some(after)) => Some(after),
            None => None,
        };
        let is_open = matches!(
            filter.state,
            Some(RecordState::Running | RecordState::Interrupted)
        );
        if let Some(id) = &filter.id {
            if after.is_none_or(|after| id.as_bytes()[..] > after[..])
                && let Some(item) = self.item(id).await?
            {
                self.add(item, &mut reading).await?;
            }
        } else if (is_open || filter.lapsed || filter.stuck) && !filter.expired {
            let after = match after.map(<[u8; 32]>::try_from) {
                Some(Err(_)) => return Err(foreign_cursor()),
                Some(Ok(after)) => Some(RecordId::from_bytes(after)),
                None => None,
            };
            self.page_of_open(after, &mut reading).await?;
        } else {
            self.page_of_all(after, &mut reading).await?;
        }
        Ok(reading.page)
    }

    async fn page_of_all(
        &self,
        after: Option<Vec<u8>>,
        reading: &mut Reading<'_>,
    ) -> Result<(), StoreError> {
        let mut start = after.map(|it| key(&it, HEAD));
        for _ in 0..REQUESTS {
            let scan = self.client.scan().table_name(&self.table);
            let mut scan = scan
                .consistent_read(true)
                .limit(SCAN)
                .expression_attribute_names("#st", "st")
                .expression_attribute_values(":head", text(HEAD))
                .set_exclusive_start_key(start.take());
            let mut condition = "sk = :head AND attribute_exists(#st)".to_owned();
            if let Some(operation) = &reading.filter.operation {
                condition += " AND #op = :op";
                scan = scan
                    .expression_attribute_names("#op", "op")
                    .expression_attribute_values(":op", text(operation));
            }
            if let Some(wanted) = &reading.filter.key {
                condition += " AND #k = :k";
                scan = scan
                    .expression_attribute_names("#k", "k")
                    .expression_attribute_values(":k", text(wanted));
            }
            let scan = scan.filter_expression(condition);
            let output = send!(self, scan).map_err(|error| self.note(failed(&error)))?;
            for item in output.items.unwrap_or_default() {
                let pk = pk_of(&item);
                self.add(item, reading).await?;
                if reading.is_full() {
                    reading.page.next = pk.map(|it| cursor(&it));
                    return Ok(());
                }
            }
            start = output.last_evaluated_key;
            if start.is_none() {
                return Ok(());
            }
        }
        // A page of rare records is short, so that reading it takes no longer than any other call.
        reading.page.next = start.as_ref().and_then(pk_of).map(|it| cursor(&it));
        Ok(())
    }

    async fn page_of_open(
        &self,
        mut after: Option<RecordId>,
        reading: &mut Reading<'_>,
    ) -> Result<(), StoreError> {
        for _ in 0..REQUESTS {
            let ids = self.open_after(after).await?;
            let Some(last) = ids.last().copied() else {
                return Ok(());
            };
            let mut items = self.items(&ids).await?;
            items.sort_by_cached_key(pk_of);
            for item in items {
                let id = id_of(&item)?;
                self.add(item, reading).await?;
                if reading.is_full() {
                    reading.page.next = Some(cursor(id.as_bytes()));
                    return Ok(());
                }
            }
            after = Some(last);
        }
        reading.page.next = after.map(|it| cursor(it.as_bytes()));
        Ok(())
    }

    /// Reads up to [`BATCH`] ids of records without an outcome after this one, in their order. Without any, there are no more.
    async fn open_after(&self, after: Option<RecordId>) -> Result<Vec<RecordId>, StoreError> {
        let first = after.as_ref().map_or(0, item::digit);
        for (n, digit) in DIGITS.chars().enumerate().skip(first) {
            let query = self.client.query().table_name(&self.table).index_name(OPEN);
            let mut query = query
                .limit(i32::try_from(BATCH).unwrap_or(i32::MAX))
                .expression_attribute_values(":g", text(digit));
            let mut condition = "g = :g".to_owned();
            if let Some(after) = after.filter(|_| n == first) {
                condition += " AND pk > :after";
                query = query.expression_attribute_values(":after", blob(*after.as_bytes()));
            }
            let query = query.key_condition_expression(condition);
            let output = send!(self, query).map_err(|error| self.note(failed(&error)))?;
            let ids: Result<Vec<_>, _> =
                output.items.unwrap_or_default().iter().map(id_of).collect();
            let ids = ids?;
            if !ids.is_empty() {
                return Ok(ids);
            }
        }
        Ok(Vec::new())
    }

    /// Adds a record to a page, if it matches.
    async fn add(&self, item: Item, reading: &mut Reading<'_>) -> Result<(), StoreError> {
        let name = pk_of(&item).as_deref().map_or_else(String::new, hex);
        let read = self.listed(item, reading.filter).await;
        let (read, unreadable) = Unreadable::sort([(name, read)])?;
        reading.page.records.extend(read.into_iter().flatten());
        reading.page.unreadable.extend(unreadable);
        Ok(())
    }

    /// Reads a record, if it matches.
    async fn listed(
        &self,
        mut item: Item,
        filter: &Filter,
    ) -> Result<Option<ListedRecord>, StoreError> {
        let id = id_of(&item)?;
        let mut missing = None;
        loop {
            let now = self.time().await?;
            let head = Head::read(&id, &item, now.earliest)?;
            let entry = match filter.expired {
                true => head.entry.as_ref(),
                false => head.live(),
            };
            let is_wanted =
                |it: &&Entry| filter.matches(&it.record) && filter.matches_owner(it.log.owner());
            let Some(mut entry) = entry.filter(is_wanted).cloned() else {
                return Ok(None);
            };
            let payload = entry.payload.as_ref().map(summary);
            if filter.payloads && !self.load(&mut entry, &mut missing).await? {
                match self.item(&id).await? {
                    Some(again) => item = again,
                    None => return Ok(None),
                }
                continue;
            }
            return Ok(Some(ListedRecord {
                payload,
                owner: entry.log.owner().cloned(),
                ..ListedRecord::new(entry.record, filter)
            }));
        }
    }

    /// Purges one batch of the records without an outcome: all others are deleted by DynamoDB. It begins where the last
    /// batch stopped, and continues with the first record after the last one, up to where it began.
    pub(crate) async fn purge_batch(
        &self,
        limit: u32,
        as_of: Timestamp,
    ) -> Result<Purged, StoreError> {
        let mut purged = Purged::default();
        let kept = self.purged_until.lock();
        let mut place = *kept.unwrap_or_else(PoisonError::into_inner);
        let began = place.after;
        let mut has_ended_a_lap = false;
        for _ in 0..REQUESTS {
            let after = place.after.map(RecordId::from_bytes);
            let ids = self.open_after(after).await?;
            let Some(last) = ids.last() else {
                place.lap += 1;
                place.after = None;
                place.keep(&self.purged_until);
                if has_ended_a_lap || began.is_none() {
                    return Ok(purged);
                }
                has_ended_a_lap = true;
                continue;
            };
            let mut items = self.items(&ids).await?;
            let now = self.time().await?;
            items.sort_by_cached_key(pk_of);
            for item in items {
                let id = id_of(&item)?;
                if has_ended_a_lap && began.is_some_and(|began| *id.as_bytes() > began) {
                    return Ok(purged);
                }
                if purged.changed() >= u64::from(limit) {
                    purged.more = true;
                    return Ok(purged);
                }
                // An item that cannot be read is left to operators, who see it in a listing.
                match self.purge_one(&id, &item, now, as_of, &mut purged).await {
                    Err(error) if error.kind() != StoreErrorKind::Corrupt => return Err(error),
                    _ => {}
                }
                place.after = Some(*id.as_bytes());
                place.keep(&self.purged_until);
            }
            place.after = Some(*last.as_bytes());
            place.keep(&self.purged_until);
        }
        purged.more = !has_ended_a_lap;
        Ok(purged)
    }

    /// Purges a record, if it is due and has not changed since it was read.
    async fn purge_one(
        &self,
        id: &RecordId,
        item: &Item,
        now: Now,
        as_of: Timestamp,
        purged: &mut Purged,
    ) -> Result<(), StoreError> {
        let mut head = Head::read(id, item, now.earliest.min(as_of))?;
        let revision = head.revision;
        let Some(entry) = &mut head.entry else {
            return Ok(());
        };
        let before = entry.record.observation();
        let purge = transitions::purge(&mut entry.record);
        let record = entry.record.clone();
        let written = match purge {
            Purge::NotDue | Purge::Forgotten => return Ok(()),
            Purge::Interrupted => {
                entry.log.follow(&before, &entry.record, None);
                self.update(self.updating(entry, revision, now)).await?
            }
            Purge::Expired => self.put(self.burying(id, &head, now)).await?,
        };
        // Another caller has changed a record that was refused.
        if let Written::Done(old) = written {
            if let (Purge::Expired, Some(old)) = (purge, old) {
                self.drop_parts(id, item::all_parts(&old)).await;
            }
            purged.count(purge, &record);
        }
        Ok(())
    }
}

fn summary(stored: &Stored) -> PayloadSummary {
    match stored {
        Stored::Here(payload) => payload.into(),
        Stored::InParts(parts) => PayloadSummary {
            codec: parts.codec.clone().into(),
            size: parts.size,
        },
    }
}

/// The first part of an item's key.
fn pk_of(item: &Item) -> Option<Vec<u8>> {
    match item.get("pk") {
        Some(AttributeValue::B(pk)) => Some(pk.as_ref().to_vec()),
        _ => None,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|it| format!("{it:02x}")).collect()
}

/// Cursor of a listing that continues after this key. The key may be that of an item which is no record.
fn cursor(pk: &[u8]) -> Cursor {
    Cursor::new(hex(pk))
}

fn read_cursor(text: &str) -> Option<Vec<u8>> {
    let is_hex = text.bytes().all(|it| it.is_ascii_hexdigit());
    if text.is_empty() || text.len() > 64 || !text.len().is_multiple_of(2) || !is_hex {
        return None;
    }
    let digits = (0..text.len()).step_by(2);
    let byte = |at: usize| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
    digits.map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_as_it_was_made() {
        for key in [&b"audit"[..], &[0, 255, 16], &[7; 32]] {
            assert_eq!(read_cursor(cursor(key).as_str()).as_deref(), Some(key));
        }
        for text in ["", "0", "0g", "é0", &"00".repeat(33), "+1"] {
            assert_eq!(read_cursor(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_slower_purge_moves_no_place_back() {
        let kept = Mutex::new(Place {
            lap: 1,
            after: Some([5; 32]),
        });
        let place = |lap, after| Place { lap, after };
        place(1, Some([4; 32])).keep(&kept);
        place(1, None).keep(&kept);
        place(0, Some([9; 32])).keep(&kept);
        assert_eq!(*kept.lock().unwrap(), place(1, Some([5; 32])));
        place(2, None).keep(&kept);
        assert_eq!(*kept.lock().unwrap(), place(2, None));
    }
}
