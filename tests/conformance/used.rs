//! A store of the toolkit that is in use, on a backend as slow as a server.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use idem_runtime::key::{Identity, Operation, RecordId};
use idem_runtime::record::{ClaimId, Digest, Timestamp};
use idem_runtime::store::{ClaimOutcome, ClaimRequest};
use idem_runtime::{Key, OnCrash, Scope, Store as _};
use idem_store::cas::{Backend, CasStore, Entry, Failure, Versioned};
use idem_store::clock::Now;
use idem_tests::cas::{Shelf, Shown};

/// Number of records that the store has at first: several times as many as a purge of the toolkit reads.
const RECORDS: u32 = 3_000;

/// Backend whose requests take time, also those for the time.
pub(crate) struct Slow {
    shelf: Arc<Shelf>,
    pause: Duration,
}

impl Slow {
    async fn pause(&self) {
        if !self.pause.is_zero() {
            tokio::time::sleep(self.pause).await;
        }
    }
}

#[async_trait]
impl Backend for Slow {
    type Revision = u64;

    async fn read(&self, key: &[u8]) -> Result<Option<Versioned<u64>>, Failure> {
        self.pause().await;
        self.shelf.read(key).await
    }

    async fn write(
        &self,
        key: &[u8],
        value: Vec<u8>,
        expected: Option<&u64>,
    ) -> Result<bool, Failure> {
        self.pause().await;
        self.shelf.write(key, value, expected).await
    }

    async fn delete(&self, key: &[u8], expected: &u64) -> Result<bool, Failure> {
        self.pause().await;
        self.shelf.delete(key, expected).await
    }

    async fn scan(
        &self,
        prefix: &[u8],
        after: &[u8],
        limit: usize,
    ) -> Result<Vec<Entry<u64>>, Failure> {
        self.pause().await;
        self.shelf.scan(prefix, after, limit).await
    }

    async fn now(&self) -> Result<Now, Failure> {
        self.pause().await;
        self.shelf.now().await
    }
}

/// Creates a store with many records, a third of which are valid, and two services that purge it again and again.
pub(crate) async fn store() -> anyhow::Result<Arc<CasStore<Slow>>> {
    let shelf = Arc::new(Shelf::new(Shown::Exactly));
    let quick = CasStore::new(Slow {
        shelf: Arc::clone(&shelf),
        pause: Duration::ZERO,
    });
    for number in 0..RECORDS {
        let answer = quick.claim(&claim(number)?).await?;
        anyhow::ensure!(matches!(answer, ClaimOutcome::Granted(_)), "{answer:?}");
    }
    let store = Arc::new(CasStore::new(Slow {
        shelf,
        pause: Duration::from_millis(1),
    }));
    for _ in 0..2 {
        let store = Arc::downgrade(&store);
        tokio::spawn(async move {
            while let Some(store) = store.upgrade() {
                store.purge(100, Timestamp::MAX).await?;
                drop(store);
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            anyhow::Ok(())
        });
    }
    Ok(store)
}

fn claim(number: u32) -> anyhow::Result<ClaimRequest> {
    let identity = Identity {
        scope: Scope::none(),
        operation: Operation::new("used")?,
        key: Key::new(number.to_string())?,
    };
    let lease = match number % 3 {
        0 => Duration::from_secs(3_600),
        _ => Duration::ZERO,
    };
    Ok(ClaimRequest {
        id: RecordId::of(&identity),
        identity,
        fingerprint: Digest::new(1, [0; 4], &[7; 32]),
        claim_id: ClaimId::random(),
        lease,
        retention: lease,
        on_crash: OnCrash::Rerun,
        owner_label: None,
        members: None,
    })
}
