//! Counts in the server's `pg_stat_statements` for a store: statements, rows, and bytes of the log.

use std::sync::Arc;

use futures_util::future::join_all;
use idem_runtime::error::StoreError;
use idem_runtime::record::{FencingToken, Owner, Payload, RecordState};
use idem_runtime::store::{ClaimOutcome, FencedWrite};
use idem_runtime::{PostgresStore, Store};
use idem_servers::{Options, Server};
use idem_tests::until;
use sqlx::postgres::{PgPool, PgPoolOptions};

use super::{execute, number};
use crate::batches::Crowd;
use crate::records::{claim, outcome, own};

/// A transition: how often it ran, the rows that it returned or changed, and the log records and bytes that it wrote.
type Counted = (String, i64, i64, i64, i64);

/// Counts for statements on the store's tables since the last reset.
async fn counted(looking: &PgPool) -> Vec<Counted> {
    sqlx::query_as(
        "SELECT CASE WHEN query LIKE '%idem_records_begin%' THEN 'claim' \
           WHEN query LIKE 'UPDATE%' THEN 'complete' ELSE query END AS step, \
           calls, rows, wal_records, wal_bytes::bigint \
         FROM pg_stat_statements WHERE query LIKE '%\"idem_records\"%' ORDER BY step",
    )
    .fetch_all(looking)
    .await
    .unwrap()
}

#[tokio::test]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn a_first_call_is_two_statements_and_a_replay_one_that_logs_no_byte() {
    const CALLS: i64 = 200;
    // A dedicated server: the counters belong to the whole server, and an autovacuum would add writes.
    let options = Options::durable()
        .set("shared_preload_libraries", "pg_stat_statements")
        .set("pg_stat_statements.track_utility", "off")
        .set("autovacuum", "off");
    let server = Server::postgres(&options).unwrap();
    let connect = async || {
        PgPoolOptions::new()
            .max_connections(1)
            .test_before_acquire(false)
            .connect(&server.url())
            .await
            .unwrap()
    };
    let looking = connect().await;
    execute(&looking, "CREATE EXTENSION pg_stat_statements").await;
    let store = PostgresStore::new(connect().await);
    store.migrate().await.unwrap();
    execute(&looking, "SELECT pg_stat_statements_reset()").await;

    for call in 0..CALLS {
        let owner = own(&store, &claim(&format!("k{call}"))).await;
        store.complete(&owner, &outcome(b"1")).await.unwrap();
    }
    let first = counted(&looking).await;
    let steps: Vec<_> = first
        .iter()
        .map(|(step, calls, rows, ..)| (step.as_str(), *calls, *rows))
        .collect();
    assert_eq!(
        steps,
        [("claim", CALLS, CALLS), ("complete", CALLS, CALLS)],
        "{first:?}"
    );
    assert!(first.iter().all(|(.., bytes)| *bytes > 0), "{first:?}");

    // The first read of a page prunes the dead rows that updates left on it, and logs that. A vacuum prunes all pages.
    execute(&looking, "VACUUM (FREEZE) idem_records").await;
    own(&store, &claim("running")).await;
    execute(&looking, "VACUUM (FREEZE) idem_records").await;
    execute(&looking, "SELECT pg_stat_statements_reset()").await;
    for call in 0..CALLS {
        let answer = store.claim(&claim(&format!("k{call}"))).await.unwrap();
        assert!(
            matches!(&answer, ClaimOutcome::Existing(record) if record.outcome() == Some(outcome(b"1"))),
            "{answer:?}"
        );
        let answer = store.claim(&claim("running")).await.unwrap();
        assert!(matches!(answer, ClaimOutcome::Existing(_)), "{answer:?}");
    }
    // Each statement returned its row.
    let replays = ("claim".to_owned(), 2 * CALLS, 2 * CALLS, 0, 0);
    assert_eq!(counted(&looking).await, [replays]);
}

/// Waiting requests are claimed, and completed, in one or two statements.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn concurrent_calls_share_statements() {
    let options = Options::fast()
        .set("shared_preload_libraries", "pg_stat_statements")
        .set("pg_stat_statements.track_utility", "off");
    let server = Server::postgres(&options).unwrap();
    let looking = PgPool::connect(&server.url()).await.unwrap();
    execute(&looking, "CREATE EXTENSION pg_stat_statements").await;
    let store = PostgresStore::connect(&server.url()).await.unwrap();
    store.migrate().await.unwrap();
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%unnest%'";
    let counted =
        "SELECT sum(calls)::bigint FROM pg_stat_statements WHERE query LIKE '%\"idem_records\"%'";

    let mut crowd = Crowd::gather(&store).await;
    let shared: Arc<dyn Store> = Arc::new(store.clone());
    for step in [Crowd::claim, Crowd::complete] {
        let mut lock = looking.begin().await.unwrap();
        sqlx::query("LOCK TABLE idem_records IN ACCESS EXCLUSIVE MODE")
            .execute(&mut *lock)
            .await
            .unwrap();
        execute(&looking, "SELECT pg_stat_statements_reset()").await;
        let asked = step(&crowd, &shared);
        until(async || number(&looking, waiting).await > 0).await;
        lock.commit().await.unwrap();
        crowd.hear(asked).await;
        let statements = number(&looking, counted).await;
        // Existing records are claimed by separate statements, and refusals are read again.
        assert!(statements < crowd.size() / 2, "{statements} statements");
    }
    crowd.check(&store).await;
}

fn payload(number: usize) -> Payload {
    Payload {
        codec: "json/1".into(),
        bytes: number.to_string().into_bytes().into(),
    }
}

async fn save_step(
    store: &PostgresStore,
    owner: &Owner,
    name: &str,
    number: usize,
) -> Result<FencedWrite, StoreError> {
    let steps = store.steps().unwrap();
    steps.save_step(owner, name, &payload(number)).await
}

/// All requests wait for the only connection of the pool, so that one batch contains them: claims, completions and steps of
/// many records. Each gets the answer that it gets on its own.
#[tokio::test]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn claims_completions_and_steps_share_one_statement() {
    const EACH: usize = 8;
    let options = Options::fast().set("shared_preload_libraries", "pg_stat_statements");
    let server = Server::postgres(&options).unwrap();
    let looking = PgPool::connect(&server.url()).await.unwrap();
    execute(&looking, "CREATE EXTENSION pg_stat_statements").await;
    for (round, is_prepared) in [true, false].into_iter().enumerate() {
        let pool = PgPoolOptions::new().max_connections(1);
        let pool = pool.connect(&server.url()).await.unwrap();
        let store = match is_prepared {
            true => PostgresStore::new(pool.clone()),
            false => PostgresStore::new(pool.clone()).without_prepared_statements(),
        };
        store.migrate().await.unwrap();
        let key = |kind: &str, n: usize| claim(&format!("{kind}-{round}-{n}"));
        let (mut completing, mut saving) = (Vec::new(), Vec::new());
        for n in 0..EACH {
            completing.push(own(&store, &key("complete", n)).await);
            saving.push(own(&store, &key("save", n)).await);
        }
        let stranger = Owner {
            fencing_token: FencingToken::from_number(1),
            ..saving[0]
        };
        execute(&looking, "SELECT pg_stat_statements_reset()").await;

        let store = &store;
        let connection = pool.acquire().await.unwrap();
        let first = key("first", 0);
        let new: Vec<_> = (0..EACH).map(|n| key("new", n)).collect();
        // A second claim of a record that runs, and one of a record that is completed in the same statement.
        let taken = [key("save", 0), key("complete", 0)];
        let claims = || new.iter().chain(&taken).map(|claim| store.claim(claim));
        let completed = completing.iter().enumerate();
        let completed = completed.map(|(n, owner)| async move {
            let outcome = outcome(&payload(n).bytes);
            store.complete(owner, &outcome).await
        });
        let saved = saving.iter().enumerate();
        let saved = saved.map(|(n, owner)| save_step(store, owner, "step", n));
        let refused = outcome(b"104");
        let requests = async {
            tokio::join!(
                store.claim(&first),
                join_all(claims()),
                join_all(completed),
                join_all(saved),
                // A second step of a record, a second value of a step, a step of a record that the same statement
                // completes, and requests of somebody who does not own the record.
                save_step(store, &saving[0], "other", 100),
                save_step(store, &saving[1], "step", 101),
                save_step(store, &completing[0], "step", 102),
                save_step(store, &stranger, "strange", 103),
                store.complete(&stranger, &refused),
            )
        };
        let ((first, claims, completed, saved, second, value, late, strange, refused), ()) =
            tokio::join!(requests, async {
                // The first request waits for the connection, and all others for the first one.
                drop(connection);
            });

        assert!(matches!(first.unwrap(), ClaimOutcome::Granted(_)));
        for (n, claimed) in claims.into_iter().enumerate() {
            match claimed.unwrap() {
                ClaimOutcome::Granted(granted) => assert!(n < EACH && granted.attempt == 1),
                ClaimOutcome::Existing(record) => assert!(n >= EACH, "{record:?}"),
            }
        }
        for written in completed.into_iter().chain(saved) {
            assert_eq!(written.unwrap(), FencedWrite::Applied);
        }
        assert_eq!(second.unwrap(), FencedWrite::Applied);
        assert_eq!(value.unwrap(), FencedWrite::Applied);
        assert_eq!(late.unwrap(), FencedWrite::Fenced);
        assert_eq!(strange.unwrap(), FencedWrite::Fenced);
        assert_eq!(refused.unwrap(), FencedWrite::Fenced);
        for (n, owner) in completing.iter().enumerate() {
            let record = store.get(&owner.id).await.unwrap().unwrap();
            assert_eq!(record.state, RecordState::Completed);
            assert_eq!(record.outcome(), Some(outcome(&payload(n).bytes)));
        }
        for (n, owner) in saving.iter().enumerate() {
            let steps = store.steps().unwrap().saved_steps(owner).await.unwrap();
            let steps = steps.unwrap().into_iter().map(|it| (it.name, it.payload));
            let mut steps: Vec<_> = steps.collect();
            steps.sort_by(|(a, _), (b, _)| a.cmp(b));
            let mut expected = vec![("step".to_owned(), payload(n))];
            if n == 0 {
                expected.insert(0, ("other".to_owned(), payload(100)));
            }
            assert_eq!(steps, expected);
        }
        let batches =
            "SELECT sum(calls)::bigint FROM pg_stat_statements WHERE query LIKE '%steps_to_save%'";
        assert_eq!(number(&looking, batches).await, 1);
    }
}

/// Planning the statement of a batch takes as long as its execution, so the server plans it five times and not more.
#[tokio::test]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn batches_are_not_planned_again() {
    const ROUNDS: usize = 12;
    let server = Server::postgres(&Options::fast()).unwrap();
    let pool = PgPoolOptions::new().max_connections(1);
    let pool = pool.connect(&server.url()).await.unwrap();
    let store = &PostgresStore::new(pool.clone());
    store.migrate().await.unwrap();
    let mut owners: Vec<Owner> = Vec::new();
    for round in 0..ROUNDS {
        let first = claim(&format!("first-{round}"));
        // Batches of different sizes: a plan for the values of a small one is cheap.
        let claims = (0..=round).map(|n| claim(&format!("{round}-{n}")));
        let claims: Vec<_> = claims.collect();
        let result = outcome(b"1");
        let connection = pool.acquire().await.unwrap();
        let requests = async {
            tokio::join!(
                store.claim(&first),
                join_all(claims.iter().map(|claim| store.claim(claim))),
                join_all(owners.iter().map(|owner| store.complete(owner, &result))),
            )
        };
        let ((_, granted, completed), ()) = tokio::join!(requests, async { drop(connection) });
        for written in completed {
            assert_eq!(written.unwrap(), FencedWrite::Applied);
        }
        let owned = claims.iter().zip(granted);
        owners = owned
            .map(|(claim, outcome)| match outcome.unwrap() {
                ClaimOutcome::Granted(granted) => Owner {
                    id: claim.id,
                    claim_id: claim.claim_id,
                    fencing_token: granted.fencing_token,
                },
                ClaimOutcome::Existing(record) => panic!("{record:?} is in the way"),
            })
            .collect();
    }
    let plans: (i64, i64) = sqlx::query_as(
        "SELECT custom_plans, generic_plans FROM pg_prepared_statements WHERE statement LIKE 'WITH%steps_to_save%'",
    )
    .fetch_one(&pool)
    .await
    .unwrap();
    // The first round has no owners: it has claims alone, which another statement makes.
    assert_eq!(plans, (5, ROUNDS as i64 - 1 - 5));
}
