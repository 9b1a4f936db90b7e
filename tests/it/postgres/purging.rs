//! Purges beside other purges, owners and transactions.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use idem_runtime::Store as _;
use idem_runtime::record::Timestamp;
use idem_runtime::store::Purged;
use idem_tests::until;
use sqlx::PgPool;
use tokio::task::JoinSet;

use super::{Database, execute, number};
use crate::purging::purge_at_once;
use crate::records::{claim, full_text, outcome, own};

/// Copies the only record as this number of records that are due.
async fn add_due(pool: &PgPool, records: u64) {
    let copy = format!(
        "INSERT INTO idem_records SELECT sha256(n::text::bytea), scope, operation, n::text, fingerprint, 'completed', \
         claim_id, fencing_token, attempt, 1, 1, on_crash, 'json/1', '\\x00', 1, 1, n \
         FROM idem_records, generate_series(1, {records}) n"
    );
    execute(pool, &copy).await;
}

/// Many purges find the same due records. Together they delete each record once.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn purges_of_many_processes_delete_each_record_once() {
    const RECORDS: u64 = 1_000;
    let database = Database::new().await;
    let store = database.store().await;
    let pool = database.pool(1).await;
    own(&store, &claim("held")).await;
    add_due(&pool, RECORDS).await;
    assert_eq!(purge_at_once(&store).await, RECORDS);
    database.drop().await;
}

/// Owners and purgers work on the same records, in overlapping batches, while other callers claim.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn purging_and_claims_do_not_block_each_other() {
    const RECORDS: u64 = 2_000;
    let database = Database::new().await;
    let store = database.store().await;
    let pool = database.pool(1).await;
    own(&store, &claim("held")).await;
    add_due(&pool, RECORDS).await;
    // Another open transaction locks an expired row.
    let mut holding = pool.begin().await.unwrap();
    sqlx::query("SELECT id FROM idem_records WHERE idempotency_key = '1' FOR UPDATE")
        .execute(&mut *holding)
        .await
        .unwrap();

    let purging = Arc::new(AtomicBool::new(true));
    let mut owners = JoinSet::new();
    for task in 0..4 {
        let (store, purging) = (store.clone(), Arc::clone(&purging));
        owners.spawn(async move {
            let mut number = 0;
            while purging.load(Ordering::Relaxed) || number < 20 {
                let mut claim = claim(&format!("t{task}-{number}"));
                claim.retention = Duration::from_millis(1);
                let owner = own(&store, &claim).await;
                store.complete(&owner, &outcome(b"1")).await.unwrap();
                number += 1;
            }
        });
    }
    let mut purgers = JoinSet::new();
    for _ in 0..3 {
        let store = store.clone();
        purgers.spawn(async move {
            let mut removed = 0;
            for _ in 0..200 {
                let Purged {
                    removed: batch,
                    more,
                    ..
                } = store
                    .purge(50, Timestamp::MAX)
                    .await
                    .map_err(|it| full_text(&it))
                    .unwrap();
                removed += batch;
                if !more {
                    break;
                }
            }
            removed
        });
    }
    let removed: u64 = purgers.join_all().await.into_iter().sum();
    purging.store(false, Ordering::Relaxed);
    owners.join_all().await;
    assert!(removed >= RECORDS - 1, "{removed}");
    holding.rollback().await.unwrap();
    until(async || {
        store.purge(500, Timestamp::MAX).await.unwrap();
        number(
            &pool,
            "SELECT count(*) FROM idem_records WHERE idempotency_key = '1'",
        )
        .await
            == 0
    })
    .await;
    database.drop().await;
}
