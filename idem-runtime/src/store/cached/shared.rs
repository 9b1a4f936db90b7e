//! Ended records in a Redis that the processes of a service share. Nothing here fails a call: what Redis does not say in
//! time is asked of the store.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ::redis::aio::ConnectionManager;
use ::redis::{ExistenceCheck, RedisResult, SetExpiry, SetOptions};
use tokio::time::Instant;

use super::{Kept, wire};
use crate::key::{RecordId, hex};
use crate::record::Record;

pub(super) struct Shared {
    connection: ConnectionManager,
    prefix: String,
    /// How long a call waits for Redis each time that it asks.
    pub(super) timeout: Duration,
    /// Redis is left alone until then: a call that waits for a time-out in vain should be the exception.
    paused_until: Mutex<Option<Instant>>,
}

const TIMEOUT: Duration = Duration::from_millis(100);
const PAUSE: Duration = Duration::from_secs(1);

/// What stands for an erased record, for [`BARRED`]: while it does, nothing is put there.
const ERASED: &[u8] = b"idem-erased/1";
const BARRED: Duration = Duration::from_secs(10);

/// How long a read may have been under way to be kept: long before an erasure that overtook it stops being remembered.
const READ_WITHIN: Duration = Duration::from_secs(5);

/// Larger records are not kept: sending one could take so long that it looks like an outage.
const MOST_BYTES: usize = 1 << 20;

impl Shared {
    pub(super) fn new(connection: ConnectionManager, name: &str) -> Self {
        Self {
            connection,
            // The version of the form is in the name, so that builds with different ones do not meet.
            prefix: format!("{name}:record/1:"),
            timeout: TIMEOUT,
            paused_until: Mutex::new(None),
        }
    }

    pub(super) async fn find(&self, id: &RecordId) -> Option<Record> {
        if self.is_paused() {
            return None;
        }
        let asked_at = Instant::now();
        let key = self.key(id);
        let mut pipe = ::redis::pipe();
        // In one transaction, lest the record expires and another one takes its place in between.
        pipe.atomic().get(&key).pttl(&key);
        let mut connection = self.connection.clone();
        let answer = self.bounded(pipe.query_async(&mut connection)).await;
        let (value, left): (Option<Vec<u8>>, i64) = answer?;
        let value = value?;
        if value == ERASED {
            return None;
        }
        let Some(mut record) = wire::read(&value, id, left) else {
            tracing::debug!(
                target: "idem",
                "redis holds what no idem cache writes, dropping it and asking the store",
            );
            let mut connection = self.connection.clone();
            let mut command = ::redis::cmd("UNLINK");
            command.arg(&key);
            self.bounded(command.exec_async(&mut connection)).await;
            return None;
        };
        record.read_at = record.read_at.after(asked_at.elapsed());
        (!record.is_expired()).then_some(record)
    }

    pub(super) async fn keep(&self, kept: &Kept) {
        let now = Instant::now();
        let Some(record) = kept.at(now) else { return };
        let size = record.payload.as_ref().map_or(0, |it| it.bytes.len());
        if self.is_paused()
            || size > MOST_BYTES
            || now.saturating_duration_since(kept.sent_at) > READ_WITHIN
        {
            return;
        }
        let left = kept.valid_until.saturating_duration_since(now).as_millis();
        let Ok(left @ 1..) = u64::try_from(left) else {
            return;
        };
        let Some(value) = wire::write(&record, left) else {
            return;
        };
        // Never over what is there: that is this very record, or says that it was erased while it was read.
        let options = SetOptions::default()
            .conditional_set(ExistenceCheck::NX)
            .with_expiration(SetExpiry::PX(left));
        let mut connection = self.connection.clone();
        let mut command = ::redis::cmd("SET");
        command.arg(self.key(&record.id)).arg(value).arg(options);
        self.bounded(command.exec_async(&mut connection)).await;
    }

    /// Forgets a record, and keeps reads of it that are under way in any process from bringing it back.
    pub(super) async fn bar(&self, id: &RecordId) {
        // Tried during a pause, too: an erasure is rare, and what it leaves behind is replayed.
        let options =
            SetOptions::default().with_expiration(SetExpiry::PX(BARRED.as_millis() as u64));
        let mut connection = self.connection.clone();
        let mut command = ::redis::cmd("SET");
        command.arg(self.key(id)).arg(ERASED).arg(options);
        let barred = self.bounded(command.exec_async(&mut connection)).await;
        if barred.is_none() {
            tracing::warn!(
                target: "idem",
                "redis could not be told of an erasure, the record may be replayed from there up to the maximum age",
            );
        }
    }

    /// What Redis answers, where it does in time. After an error it is left alone for a moment.
    async fn bounded<T>(&self, asked: impl Future<Output = RedisResult<T>>) -> Option<T> {
        let error = match tokio::time::timeout(self.timeout, asked).await {
            Ok(Ok(answer)) => return Some(answer),
            Ok(Err(error)) => Some(error),
            Err(_) => None,
        };
        let mut paused_until = self.lock();
        // Of the calls that were waiting together one tells.
        if paused_until.is_none() {
            tracing::warn!(
                target: "idem",
                error = error.as_ref().map_or("time-out", |error| error.category()),
                "the cache in redis did not answer, going on without it for a moment",
            );
        }
        *paused_until = Some(Instant::now() + PAUSE);
        None
    }

    fn key(&self, id: &RecordId) -> String {
        format!("{}{}", self.prefix, hex(id.as_bytes()))
    }

    fn is_paused(&self) -> bool {
        let mut paused_until = self.lock();
        let paused = paused_until.is_some_and(|end| Instant::now() < end);
        if !paused {
            *paused_until = None;
        }
        paused
    }

    fn lock(&self) -> MutexGuard<'_, Option<Instant>> {
        // A point in time cannot be left half changed.
        self.paused_until
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("prefix", &self.prefix)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use ::redis::Client;
    use ::redis::aio::ConnectionManagerConfig;

    use super::*;

    #[tokio::test]
    async fn a_redis_that_failed_is_left_alone_for_a_moment() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let client = Client::open(format!("redis://{address}/")).unwrap();
        let config = ConnectionManagerConfig::new();
        let connection = ConnectionManager::new_lazy_with_config(client, config).unwrap();
        let mut shared = Shared::new(connection, "tests");
        shared.timeout = Duration::from_millis(10);
        assert!(!shared.is_paused());

        assert_eq!(shared.find(&RecordId::from_bytes([1; 32])).await, None);
        assert!(shared.is_paused());
        *shared.lock() = Some(Instant::now());
        assert!(!shared.is_paused());
    }
}
