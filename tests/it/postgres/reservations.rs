//! Claims in transactions that hold their record by an advisory lock, and insert it when they end.

use futures_util::future::join_all;
use idem_runtime::error::StoreErrorKind;
use idem_runtime::record::{FencingToken, Owner, RecordState};
use idem_runtime::store::{
    ClaimInTransaction, ClaimOutcome, ClaimRequest, FencedWrite, TransactionalStore as _,
};
use idem_runtime::{PostgresStore, Store as _};
use idem_tests::until;

use super::{Database, execute, number};
use crate::records::{claim, outcome, own};

/// Claims in a new transaction, completes and commits.
pub(super) async fn run(store: &PostgresStore, claim: &ClaimRequest) -> Owner {
    let mut transaction = store.begin().await.unwrap();
    let answer = store.claim_in(&mut transaction, None, claim).await.unwrap();
    let owner = owner(claim, &answer);
    let outcome = outcome(b"1");
    // A repeated completion finds its own token.
    for _ in 0..2 {
        let completed = store.complete_in(&mut transaction, &owner, &outcome);
        assert_eq!(completed.await.unwrap(), FencedWrite::Applied);
    }
    store.commit(transaction).await.unwrap();
    owner
}

fn owner(claim: &ClaimRequest, answer: &ClaimInTransaction) -> Owner {
    let ClaimInTransaction::Granted(granted) = answer else {
        panic!("{answer:?}");
    };
    Owner {
        id: claim.id,
        claim_id: claim.claim_id,
        fencing_token: granted.fencing_token,
    }
}

/// Another call commits its record after the statement of the claim has taken its snapshot, and before it has the lock.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn the_look_under_the_lock_sees_what_was_committed_before_it() {
    let database = Database::new().await;
    let store = database.store().await;
    let pool = database.pool(3).await;
    execute(&pool, "CREATE SCHEMA other").await;
    let elsewhere = PostgresStore::new(pool.clone())
        .with_schema("other")
        .unwrap();
    elsewhere.migrate().await.unwrap();
    for (table, store) in [("public", &store), ("other", &elsewhere)] {
        let mut gate = pool.begin().await.unwrap();
        sqlx::raw_sql("SELECT pg_advisory_xact_lock(99)")
            .execute(&mut *gate)
            .await
            .unwrap();
        let key = claim(table);
        // The statement sees no record, waits at the gate, and then looks under the lock.
        let looking = tokio::spawn({
            let (pool, id) = (pool.clone(), key.id);
            async move {
                let look = format!(
                    "SELECT count(*), pg_advisory_xact_lock(99)::text, \
                     public.idem_records_reserve('{table}.idem_records', $1) FROM {table}.idem_records"
                );
                let look = sqlx::query_as::<_, (i64, String, i64)>(sqlx::AssertSqlSafe(look));
                let look = look.bind(&id.as_bytes()[..]).fetch_one(&pool);
                look.await.unwrap()
            }
        });
        let waiting = "SELECT count(*) FROM pg_locks AS l JOIN pg_database AS d ON d.oid = l.database \
             WHERE l.locktype = 'advisory' AND l.objid = 99 AND NOT l.granted AND d.datname = current_database()";
        until(async || number(&pool, waiting).await > 0).await;
        own(store, &key).await;
        gate.rollback().await.unwrap();
        let (seen, _, answer) = looking.await.unwrap();
        assert_eq!((seen, answer), (0, 0), "{table}");
    }
    database.drop().await;
}

/// Duplicates of a key that a transaction holds do not wait at the server: they would take all connections of the pool.
#[tokio::test]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn claims_of_a_held_key_leave_the_connections_to_others() {
    const CONNECTIONS: u32 = 3;
    let database = Database::new().await;
    let store = database.store().await;
    let held = claim("held");
    let mut transaction = store.begin().await.unwrap();
    let answer = store.claim_in(&mut transaction, None, &held).await.unwrap();
    let holder = owner(&held, &answer);

    let duplicates = PostgresStore::new(database.pool(CONNECTIONS).await);
    let claims = (0..2 * CONNECTIONS).map(|_| {
        let (store, claim) = (duplicates.clone(), claim("held"));
        async move { store.claim(&claim).await.unwrap_err().kind() }
    });
    for refused in join_all(claims).await {
        assert_eq!(refused, StoreErrorKind::Conflict);
    }
    own(&duplicates, &claim("other")).await;

    let outcome = outcome(b"1");
    let completed = store.complete_in(&mut transaction, &holder, &outcome);
    assert_eq!(completed.await.unwrap(), FencedWrite::Applied);
    store.commit(transaction).await.unwrap();
    let answer = duplicates.claim(&claim("held")).await.unwrap();
    assert!(matches!(answer, ClaimOutcome::Existing(_)), "{answer:?}");
    database.drop().await;
}

/// The fencing token is that of the claim, also after a record with a higher one was deleted, and only its owner completes.
#[tokio::test]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn a_reserved_record_is_fenced() {
    const HIGH: i64 = 9_000_000_000_000_000;
    let database = Database::new().await;
    let store = database.store().await;
    let pool = database.pool(2).await;
    own(&store, &claim("k")).await;
    execute(
        &pool,
        &format!("UPDATE idem_records SET fencing_token = {HIGH}"),
    )
    .await;
    execute(&pool, "DELETE FROM idem_records").await;

    let mut transaction = store.begin().await.unwrap();
    let key = claim("k");
    let answer = store.claim_in(&mut transaction, None, &key).await.unwrap();
    let right = owner(&key, &answer);
    assert_eq!(right.fencing_token, FencingToken::from_number(HIGH + 1));
    let other = outcome(b"2");
    for wrong in [
        Owner {
            fencing_token: FencingToken::from_number(HIGH),
            ..right
        },
        Owner {
            claim_id: claim("k").claim_id,
            ..right
        },
    ] {
        let refused = store.complete_in(&mut transaction, &wrong, &other);
        assert_eq!(refused.await.unwrap(), FencedWrite::Fenced);
    }
    assert!(store.get(&key.id).await.unwrap().is_none());
    store.rollback(transaction).await.unwrap();

    let owner = run(&store, &claim("k")).await;
    let record = store.get(&owner.id).await.unwrap().unwrap();
    assert_eq!(record.state, RecordState::Completed);
    assert_eq!(record.fencing_token, owner.fencing_token);
    assert_eq!(record.attempt, 1);
    // A purge looks at it when it expires.
    let exact = "SELECT count(*) FROM idem_records WHERE purge_after = ended_at + retention";
    assert_eq!(number(&pool, exact).await, 1);
    database.drop().await;
}

/// The body commits the transaction of its claim. Before it ends, a record with a higher fencing token is deleted.
#[tokio::test]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn the_record_of_a_body_that_commits_is_interrupted_whatever_was_deleted() {
    let database = Database::new().await;
    let store = database.store().await;
    let pool = database.pool(2).await;
    let mut transaction = store.begin().await.unwrap();
    let key = claim("k");
    let answer = store.claim_in(&mut transaction, None, &key).await.unwrap();
    let owner = owner(&key, &answer);
    sqlx::raw_sql("COMMIT")
        .execute(&mut *transaction)
        .await
        .unwrap();

    own(&store, &claim("other")).await;
    execute(
        &pool,
        "UPDATE idem_records SET fencing_token = 9000000000000000; DELETE FROM idem_records",
    )
    .await;

    let outcome = outcome(b"1");
    let completed = store.complete_in(&mut transaction, &owner, &outcome);
    assert_eq!(completed.await.unwrap(), FencedWrite::Fenced);
    let record = store.get(&key.id).await.unwrap().unwrap();
    assert_eq!(record.state, RecordState::Interrupted);
    assert_eq!(record.claim_id, Some(owner.claim_id));
    assert!(record.fencing_token > owner.fencing_token);
    let _ = store.rollback(transaction).await;
    database.drop().await;
}
