//! The connection that stays with the batcher from one batch to the next: others get theirs, and none is lost.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use idem_runtime::error::StoreErrorKind;
use idem_runtime::store::{ClaimOutcome, FencedWrite};
use idem_runtime::{PostgresStore, Store as _};
use idem_tests::until;
use sqlx::PgPool;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{Database, number};
use crate::records::{claim, outcome, own};

/// Time limit for what must not wait for ever.
const LIMIT: Duration = Duration::from_secs(60);
const CALLERS: u64 = 64;

/// Callers that claim new keys without a pause, until one of their claims fails.
struct Load {
    callers: JoinSet<StoreErrorKind>,
    claims: Arc<AtomicU64>,
}

impl Load {
    fn on(store: &PostgresStore) -> Self {
        let claims = Arc::new(AtomicU64::new(0));
        let callers = (0..CALLERS).map(|caller| {
            let (store, claims) = (store.clone(), Arc::clone(&claims));
            async move {
                for call in 0_u64.. {
                    match store.claim(&claim(&format!("{caller}-{call}"))).await {
                        Ok(claimed) => assert!(matches!(claimed, ClaimOutcome::Granted(_))),
                        Err(error) => return error.kind(),
                    }
                    claims.fetch_add(1, Ordering::Relaxed);
                }
                pending().await
            }
        });
        let callers = callers.collect();
        Self { callers, claims }
    }

    /// Waits until the callers have made more claims.
    async fn goes_on(&self) {
        let enough = self.claims.load(Ordering::Relaxed) + 5 * CALLERS;
        until(async || self.claims.load(Ordering::Relaxed) >= enough).await;
    }
}

async fn store_with(pool: &PgPool) -> PostgresStore {
    let store = PostgresStore::new(pool.clone());
    store.migrate().await.unwrap();
    store
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn busy_callers_leave_the_connections_of_the_pool_to_others() {
    let database = Database::new().await;
    let pool = database.pool(3).await;
    let store = store_with(&pool).await;
    let load = Load::on(&store);
    load.goes_on().await;
    let first = timeout(LIMIT, pool.acquire()).await.unwrap().unwrap();
    let second = timeout(LIMIT, pool.acquire()).await.unwrap().unwrap();
    // One connection is left: the callers share it with whoever else wants it.
    load.goes_on().await;
    let third = timeout(LIMIT, pool.acquire()).await.unwrap().unwrap();
    drop((first, second, third));
    load.goes_on().await;
    drop(load);
    database.drop().await;
}

/// Each body takes the connection that the claims of the other callers use.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn bodies_and_batches_share_a_pool_of_one() {
    let database = Database::new().await;
    let pool = database.pool(1).await;
    let store = store_with(&pool).await;
    let calls: JoinSet<()> = (0..CALLERS)
        .map(|caller| {
            let (store, pool) = (store.clone(), pool.clone());
            async move {
                for call in 0..5 {
                    let owner = own(&store, &claim(&format!("{caller}-{call}"))).await;
                    assert_eq!(number(&pool, "SELECT 1::bigint").await, 1);
                    let done = store.complete(&owner, &outcome(b"1")).await.unwrap();
                    assert_eq!(done, FencedWrite::Applied);
                }
            }
        })
        .collect();
    timeout(LIMIT, calls.join_all()).await.unwrap();
    database.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn a_pool_closes_under_load() {
    let database = Database::new().await;
    let pool = database.pool(2).await;
    let load = Load::on(&store_with(&pool).await);
    load.goes_on().await;
    timeout(LIMIT, pool.close()).await.unwrap();
    let ended = timeout(LIMIT, load.callers.join_all()).await.unwrap();
    assert!(
        ended.iter().all(|it| *it == StoreErrorKind::Unavailable),
        "{ended:?}"
    );
    assert_eq!(pool.size(), 0);
    database.drop().await;
}

/// The server ends all connections again and again. A claim may fail, and then a repetition tells what became of it.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn connections_that_are_cut_during_batches_lose_no_claim() {
    let database = Database::new().await;
    let pool = database.pool(4).await;
    let store = store_with(&pool).await;
    let claims = Arc::new(AtomicU64::new(0));
    let mut callers: JoinSet<()> = (0..CALLERS)
        .map(|caller| {
            let (store, claims) = (store.clone(), Arc::clone(&claims));
            async move {
                for call in 0..30 {
                    let request = claim(&format!("{caller}-{call}"));
                    loop {
                        match store.claim(&request).await {
                            Ok(claimed) => {
                                break assert!(matches!(claimed, ClaimOutcome::Granted(_)));
                            }
                            Err(error) => assert!(error.is_retryable(), "{error}"),
                        }
                    }
                    claims.fetch_add(1, Ordering::Relaxed);
                }
            }
        })
        .collect();
    let cut = format!(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = '{}'",
        database.name
    );
    let mut cuts = 0;
    for enough in (1..=10).map(|tenth| tenth * 3 * CALLERS) {
        until(async || claims.load(Ordering::Relaxed) >= enough.min(29 * CALLERS)).await;
        cuts += number(&database.server, &cut).await;
    }
    while let Some(ended) = timeout(LIMIT, callers.join_next()).await.unwrap() {
        ended.unwrap();
    }
    assert!(cuts > 10, "{cuts}");
    // Not by the pool of the callers, in which the last cut may have left connections that are gone.
    let records = number(&database.pool(1).await, "SELECT count(*) FROM idem_records").await;
    assert_eq!(records.unsigned_abs(), 30 * CALLERS);
    database.drop().await;
}
