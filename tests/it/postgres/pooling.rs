//! PgBouncer between the store and the server. The case table and the crash rounds run behind it too.

use idem_runtime::error::StoreErrorKind;
use idem_runtime::operator::{OperatorStore, Severity};
use idem_runtime::store::FencedWrite;
use idem_runtime::{PostgresStore, Store};
use idem_tests::backends::{self, PoolMode};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use tokio::task::JoinSet;

use crate::records::{claim, outcome, own};

/// Severity and text of the finding about poolers.
async fn finding(store: &PostgresStore) -> (Severity, String) {
    let findings = store.findings().await;
    let found = findings.into_iter().find(|it| it.check == "pooling");
    let found = found.expect("each server is checked for poolers");
    (
        found.severity,
        format!("{} {:?}", found.found, found.remedy),
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn a_pooler_that_mixes_up_prepared_statements_is_refused() {
    let pool = backends::pg_bouncer(PoolMode::Transaction).await.unwrap();
    let store = PostgresStore::new(pool);
    for _ in 0..2 {
        let refused = store.migrate().await.unwrap_err();
        assert_eq!(refused.kind(), StoreErrorKind::Other);
        assert!(!refused.is_retryable());
        let text = refused.to_string();
        for part in ["without_prepared_statements", "PgBouncer 1.21"] {
            assert!(text.contains(part), "{text}");
        }
    }
    let (severity, text) = finding(&store).await;
    assert_eq!(severity, Severity::Problem, "{text}");
    assert!(text.contains("without_prepared_statements"), "{text}");

    let store = store.without_prepared_statements();
    store.migrate().await.unwrap();
    let (severity, text) = finding(&store).await;
    assert_eq!(severity, Severity::Warning, "{text}");
}

/// A service that does not migrate meets the pooler in its calls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn the_error_of_a_call_names_the_pooler() {
    let pool = backends::pg_bouncer(PoolMode::Transaction).await.unwrap();
    let migrated = PostgresStore::new(pool.clone()).without_prepared_statements();
    migrated.migrate().await.unwrap();
    // Clients prepare their first statement under one name. On one connection of the server all but the first are refused.
    let client = || {
        let options = PgConnectOptions::clone(&pool.connect_options());
        let one = PgPoolOptions::new().max_connections(1);
        PostgresStore::new(one.connect_lazy_with(options))
    };
    let (mut refused, mut idle) = (Vec::new(), Vec::new());
    for client in [client(), client(), client()] {
        refused.extend(client.get(&claim("a").id).await.err());
        // The pool has then finished its exchange, so the connection of the server is free.
        idle.push(client.pool().acquire().await.unwrap());
    }
    assert!(!refused.is_empty(), "no statement met another one");
    for error in refused {
        assert_eq!(error.kind(), StoreErrorKind::Other, "{error:?}");
        let text = error.to_string();
        assert!(text.contains("without_prepared_statements"), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn a_pooler_in_session_mode_is_like_none() {
    let pool = backends::pg_bouncer(PoolMode::Session).await.unwrap();
    let store = PostgresStore::new(pool);
    store.migrate().await.unwrap();
    let (severity, text) = finding(&store).await;
    assert_eq!(severity, Severity::Ok, "{text}");
}

/// Sixty-four concurrent calls share statements. Their values arrive as they were sent, whatever is in them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn batches_without_prepared_statements_carry_any_value() {
    let pool = backends::pg_bouncer(PoolMode::Transaction).await.unwrap();
    let store = PostgresStore::new(pool).without_prepared_statements();
    store.migrate().await.unwrap();
    let mut calls = JoinSet::new();
    for number in 0..64 {
        let store = store.clone();
        calls.spawn(async move {
            let claim = claim(&format!("{number} ' \\ \" $1 ?1 {{}} -- ;"));
            let owner = own(&store, &claim).await;
            let ended = outcome(format!("'{number}\u{0}'").as_bytes());
            let done = store.complete(&owner, &ended).await.unwrap();
            assert_eq!(done, FencedWrite::Applied);
            let record = store.get(&claim.id).await.unwrap().unwrap();
            assert_eq!(record.identity, claim.identity);
            assert_eq!(record.fingerprint, claim.fingerprint);
            assert_eq!(record.payload.as_ref(), ended.payload());
        });
    }
    calls.join_all().await;
}
