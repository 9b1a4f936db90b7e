//! An annotated function on a SQLite file, with real threads and real time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use idem_runtime::advanced::{ResultSource, with_provenance};
use idem_runtime::{Error, Idem, SqliteStore, idempotent};
use tokio::task::JoinSet;

struct Ledger {
    idem: Idem<SqliteStore>,
    rows: AtomicU32,
}

impl Ledger {
    async fn open(directory: &tempfile::TempDir) -> Self {
        let file = directory.path().join("idem.db");
        let store = SqliteStore::open(file).await.unwrap();
        Self {
            idem: Idem::new(store),
            rows: AtomicU32::new(0),
        }
    }

    #[idempotent(key = key, ttl = "1h", name = "ledger.write", store = self.idem, wait = "60s")]
    async fn write(&self, key: &str, amount: u64) -> Result<(u32, u64), Error> {
        tokio::time::sleep(Duration::from_millis(5)).await;
        Ok((self.rows.fetch_add(1, Ordering::SeqCst) + 1, amount))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_concurrent_duplicates_run_once_on_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = Arc::new(Ledger::open(&directory).await);
    let mut calls = JoinSet::new();
    for _ in 0..50 {
        let ledger = Arc::clone(&ledger);
        calls.spawn(async move { with_provenance(ledger.write("k", 30)).await });
    }
    let mut executed = 0;
    for (result, provenance) in calls.join_all().await {
        assert_eq!(result.unwrap(), (1, 30));
        executed += u32::from(provenance.unwrap().source == ResultSource::Executed);
    }
    assert_eq!((executed, ledger.rows.load(Ordering::SeqCst)), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_of_another_process_is_compared_and_replayed() {
    let directory = tempfile::tempdir().unwrap();
    let first = Ledger::open(&directory).await;
    assert_eq!(first.write("k", 30).await.unwrap(), (1, 30));
    drop(first);
    let second = Ledger::open(&directory).await;
    assert_eq!(second.write("k", 30).await.unwrap(), (1, 30));
    super::assert_reused(second.write("k", 31).await);
    assert_eq!(second.rows.load(Ordering::SeqCst), 0);
}
