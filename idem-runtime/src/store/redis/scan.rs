//! Scan for the keys of records, by listing, counting and purging.

use redis::cmd;

use super::RedisStore;
use super::connection::Primary;
use super::decode::time as time_of;
use super::errors::unreadable;
use crate::error::StoreError;
use crate::key::RecordId;
use crate::record::Timestamp;
use crate::store::operator::Scanned;

/// Number of keys that a server checks for one answer. It serves no other client during that time.
const BATCH: u32 = 500;

impl RedisStore {
    /// Scans keys of a server until it has found this many records, or has examined ten times as many keys. Returns the ids
    /// of the records, and the numbers of keys; `None` instead of the numbers if these are all keys.
    pub(super) async fn scan_some(
        &self,
        primary: &Primary,
        size: usize,
    ) -> Result<(Vec<RecordId>, Option<Scanned>), StoreError> {
        let most = size.saturating_mul(10) as u64;
        let (mut ids, mut examined) = (Vec::new(), 0);
        let mut cursor = b"0".to_vec();
        loop {
            // Without a pattern: keys that do not match would not be counted.
            let mut scan = cmd("SCAN");
            scan.arg(&cursor).arg("COUNT").arg(most.min(BATCH.into()));
            let commands = [cmd("DBSIZE"), scan];
            let [all, found] = self.connection.ask(primary, commands, self.timeout).await?;
            let all = redis::from_redis_value(all).map_err(|_| unreadable())?;
            let (next, keys): (Vec<u8>, Vec<Vec<u8>>) =
                redis::from_redis_value(found).map_err(|_| unreadable())?;
            cursor = next;
            let mut keys = keys.iter();
            while ids.len() < size
                && examined < most
                && let Some(key) = keys.next()
            {
                examined += 1;
                ids.extend(self.id_of_key(key));
            }
            let is_whole = cursor == b"0" && keys.len() == 0;
            if is_whole || ids.len() >= size || examined >= most {
                // SCAN returns a key more than once if the server's table grows or shrinks during the scan.
                ids.sort_unstable();
                ids.dedup();
                return Ok((ids, (!is_whole).then_some(Scanned { all, examined })));
            }
        }
    }

    /// Earliest time of the servers with their own keys.
    pub(super) async fn time(&self) -> Result<Timestamp, StoreError> {
        let mut earliest = None;
        for primary in self.connection.primaries(self.timeout).await? {
            let time = [cmd("TIME")];
            let [time] = self.connection.ask(&primary, time, self.timeout).await?;
            let time = time_of(time).ok_or_else(unreadable)?;
            earliest = Some(earliest.map_or(time, |it: Timestamp| it.min(time)));
        }
        earliest.ok_or_else(unreadable)
    }

    /// Scans one batch of the keys of a server.
    pub(super) async fn scan(
        &self,
        primary: &Primary,
        cursor: &[u8],
    ) -> Result<ScanBatch, StoreError> {
        let mut scan = cmd("SCAN");
        scan.arg(cursor)
            .arg("MATCH")
            .arg(format!("{}*", self.prefix))
            .arg("COUNT")
            .arg(BATCH);
        let commands = [cmd("TIME"), scan];
        let [time, found] = self.connection.ask(primary, commands, self.timeout).await?;
        let (cursor, keys): (Vec<u8>, Vec<Vec<u8>>) =
            redis::from_redis_value(found).map_err(|_| unreadable())?;
        Ok(ScanBatch {
            now: time_of(time).ok_or_else(unreadable)?,
            ids: keys.iter().filter_map(|key| self.id_of_key(key)).collect(),
            audits: keys
                .iter()
                .filter_map(|key| self.id_of_audit_key(key))
                .collect(),
            cursor,
        })
    }
}

/// Keys of a scan, as ids of records.
pub(super) struct ScanBatch {
    /// Time of the server before it was asked.
    pub(super) now: Timestamp,
    pub(super) ids: Vec<RecordId>,
    /// Ids of records that have an audit, whether the records exist or not.
    pub(super) audits: Vec<RecordId>,
    /// Position after this batch; `0` after the last one.
    pub(super) cursor: Vec<u8>,
}
