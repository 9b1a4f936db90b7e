//! Scan for the keys of records, by listing and purging.

use redis::cmd;

use super::RedisStore;
use super::connection::Primary;
use super::decode::in_micros;
use super::errors::unreadable;
use crate::error::StoreError;
use crate::key::RecordId;
use crate::record::Timestamp;

/// Number of keys that a server checks for one answer. It serves no other client during that time.
const BATCH: u32 = 500;

impl RedisStore {
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
        let (seconds, micros): (i64, i64) =
            redis::from_redis_value(time).map_err(|_| unreadable())?;
        let (cursor, keys): (Vec<u8>, Vec<Vec<u8>>) =
            redis::from_redis_value(found).map_err(|_| unreadable())?;
        Ok(ScanBatch {
            now: Timestamp::from_micros(in_micros(seconds, micros)),
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
