//! Listing of records, for operators.

use std::time::Duration;

use redis::{Value, cmd};
use tokio::task::JoinSet;

use super::errors::task_failed;
use super::layout::{HEAD, read_status};
use super::scripts::{self, ScriptCall};
use super::{MAX_CONCURRENT, RedisStore, decode};
use crate::error::StoreError;
use crate::key::RecordId;
use crate::record::{RecordState, Timestamp};
use crate::store::status::Status;
use crate::store::{Cursor, Filter, ListedRecord, Page, PageRequest, Unreadable};

/// Number of records whose status is read in one round trip.
const STATUSES: usize = 500;
/// Largest difference between the clock that was read and that of a record's server.
const SLACK: Duration = Duration::from_secs(60);

impl RedisStore {
    /// Finds the records of a page.
    pub(super) async fn page(
        &self,
        filter: &Filter,
        page: &PageRequest,
    ) -> Result<Page, StoreError> {
        let (after, limit) = page.in_id_order()?;
        let ids = match filter.id {
            Some(id) => vec![id],
            None => self.ids().await?,
        };
        let begin = after.map_or(0, |after| ids.partition_point(|id| *id <= after));
        // The clocks of a cluster may differ, and time goes on.
        let now = self.time().await?.after(SLACK);
        let (mut records, mut unreadable) = (Vec::new(), Vec::new());
        'page: for ids in ids[begin..].chunks(STATUSES) {
            for ids in self
                .candidates(ids, filter, now)
                .await?
                .chunks(MAX_CONCURRENT)
            {
                let (read, passed_over) = self.read_listed(ids, filter).await?;
                records.extend(read.into_iter().filter(|it| {
                    filter.matches(&it.record) && filter.matches_owner(it.owner.as_ref())
                }));
                unreadable.extend(passed_over);
                // One more record than requested shows that there is a next page.
                if records.len() > limit {
                    break 'page;
                }
            }
        }
        let more = records.len() > limit;
        records.truncate(limit);
        let next = records.last().filter(|_| more);
        let last = next.map(|listed| listed.record.id);
        if let Some(last) = &last {
            // The next page names the others.
            let last = last.to_string();
            unreadable.retain(|it: &Unreadable| it.name <= last);
        }
        Ok(Page {
            records,
            unreadable,
            next: last.as_ref().map(Cursor::after),
        })
    }

    /// Returns the ids of records that may match. Mostly few do, and one round trip shows this for many ids. The values that
    /// are read here decide nothing: each record is checked again when it is read.
    async fn candidates(
        &self,
        ids: &[RecordId],
        filter: &Filter,
        now: Timestamp,
    ) -> Result<Vec<RecordId>, StoreError> {
        let by_status = filter.state.is_some()
            || filter.lapsed
            || filter.stuck
            || filter.older_than.is_some()
            || filter.newer_than.is_some();
        if !by_status {
            return Ok(ids.to_vec());
        }
        let statuses = self.statuses(ids).await?;
        let candidates = ids.iter().zip(statuses);
        let candidates = candidates.filter(|(_, status)| may_match(status.as_ref(), filter, now));
        Ok(candidates.map(|(id, _)| *id).collect())
    }

    /// Reads the statuses of these ids. Returns `None` for a key that cannot be read, is erased, or is not a record. The two
    /// reads of a key are not atomic, so a status decides nothing.
    pub(super) async fn statuses(
        &self,
        ids: &[RecordId],
    ) -> Result<Vec<Option<Status>>, StoreError> {
        let mut commands = Vec::with_capacity(2 * ids.len());
        for id in ids {
            let key = self.key(id);
            let mut head = cmd("GETRANGE");
            head.arg(&key).arg(0).arg(HEAD - 1);
            let mut expiry = cmd("PEXPIRETIME");
            expiry.arg(&key);
            commands.extend([head, expiry]);
        }
        let answers = self.connection.read_each(commands, self.timeout).await?;
        let status = |answers: &[Value]| match answers {
            [Value::BulkString(head), Value::Int(at)] => {
                read_status(head, Some(*at).filter(|at| *at >= 0)).ok()?
            }
            _ => None,
        };
        Ok(answers.chunks(2).map(status).collect())
    }

    /// Returns the ids of all records, in order, including those that expired or were erased a moment ago.
    pub(super) async fn ids(&self) -> Result<Vec<RecordId>, StoreError> {
        let mut ids = Vec::new();
        for primary in self.connection.primaries(self.timeout).await? {
            let mut cursor = b"0".to_vec();
            loop {
                let found = self.scan(&primary, &cursor).await?;
                ids.extend(found.ids);
                cursor = found.cursor;
                if cursor == b"0" {
                    break;
                }
            }
        }
        // SCAN returns a key more than once if the server's table grows or shrinks during the scan.
        ids.sort_unstable();
        ids.dedup();
        Ok(ids)
    }

    /// Reads what exists of these ids concurrently, in their order. Names the records that cannot be read.
    pub(super) async fn read_listed(
        &self,
        ids: &[RecordId],
        filter: &Filter,
    ) -> Result<(Vec<ListedRecord>, Vec<Unreadable>), StoreError> {
        let mut reading = JoinSet::new();
        for (place, id) in ids.iter().enumerate() {
            let (store, id, filter) = (self.clone(), *id, filter.clone());
            reading.spawn(async move { (place, store.listed(&id, &filter).await) });
        }
        let mut all = Vec::with_capacity(ids.len());
        while let Some(read) = reading.join_next().await {
            let (place, read) = read.map_err(task_failed)?;
            all.extend(read.transpose().map(|read| (place, read)));
        }
        all.sort_unstable_by_key(|(place, _)| *place);
        let named = all
            .into_iter()
            .map(|(place, read)| (ids[place].to_string(), read));
        Unreadable::sort(named)
    }

    /// Reads a record. Without its payload, reading its begin is mostly enough.
    async fn listed(
        &self,
        id: &RecordId,
        filter: &Filter,
    ) -> Result<Option<ListedRecord>, StoreError> {
        if !filter.payloads {
            let key = self.key(id);
            let call = ScriptCall::new(&scripts::BEGINNING, &key);
            let answer = self.connection.run(&call, self.timeout).await?;
            if let Some(listed) = decode::listed_by_beginning(id, answer, filter)? {
                return Ok(listed);
            }
        }
        let Some(snapshot) = self.snapshot(id).await? else {
            return Ok(None);
        };
        let listed = decode::listed(id, &snapshot, snapshot.value.len(), filter)?;
        Ok(listed.flatten())
    }
}

/// Returns true if a record with this status may match. What has no status is left to the read of the record.
fn may_match(status: Option<&Status>, filter: &Filter, now: Timestamp) -> bool {
    let Some(status) = status else {
        return true;
    };
    let is_lapsed = status.state == RecordState::Running && status.lease_until <= now;
    filter.state.is_none_or(|state| status.state == state)
        && (!filter.lapsed || is_lapsed)
        && (!filter.stuck || is_lapsed || status.state == RecordState::Interrupted)
        && filter
            .older_than
            .is_none_or(|age| now.since(status.granted.first_claimed_at) >= age)
        // The clock that was read is ahead of that of the record by the slack at most.
        && filter.newer_than.is_none_or(|age| {
            now.since(status.granted.first_claimed_at) <= age.saturating_add(SLACK).saturating_add(SLACK)
        })
}
