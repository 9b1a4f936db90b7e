//! Portable form of the tables: how it is chosen and found, and what only it does.

use std::sync::Arc;
use std::time::Duration;

use idem_runtime::error::StoreErrorKind;
use idem_runtime::operator::OperatorStore as _;
use idem_runtime::record::{FencingToken, Payload, Timestamp};
use idem_runtime::store::postgres::PostgresForm;
use idem_runtime::store::{
    ClaimInTransaction, ClaimOutcome, ClaimRequest, FencedWrite, Resolution, Resolved,
    TransactionalStore,
};
use idem_runtime::{PostgresStore, Store as _};
use idem_servers::{Options, Server};
use idem_tests::backends;
use idem_tests::until;
use sqlx::error::DatabaseError;
use sqlx::{AssertSqlSafe, PgPool};
use tokio::task::JoinSet;

use super::{Database, WAITING, every_case_holds_despite_conflicts, execute, number, pool};
use crate::records::{HOUR, claim, full_text, manual_change, outcome, own};

const STANDARD: Option<PostgresForm> = Some(PostgresForm::Standard);
const PORTABLE: Option<PostgresForm> = Some(PostgresForm::Portable);

async fn store() -> (PostgresStore, PgPool) {
    let pool = backends::postgres_portable().await.unwrap();
    let store = PostgresStore::new(pool.clone());
    store.migrate().await.unwrap();
    (store, pool)
}

#[tokio::test]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn a_migration_chooses_the_form_that_the_server_can_run_and_keeps_it() {
    // Given a database with PL/pgSQL and one without it, then each gets its form, and other stores find it.
    for (pool, form) in [
        (backends::postgres().await.unwrap(), STANDARD),
        (backends::postgres_portable().await.unwrap(), PORTABLE),
    ] {
        let new = || PostgresStore::new(pool.clone());
        let early = new();
        assert_eq!(early.form().await.unwrap(), None);
        let error = early.claim(&claim("k")).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Schema);
        let store = new();
        store.migrate().await.unwrap();
        assert_eq!(store.form().await.unwrap(), form);
        // A store that was used before there were tables finds them.
        own(&early, &claim("k")).await;
        assert_eq!(early.form().await.unwrap(), form);
        assert_eq!(new().form().await.unwrap(), form);
        new().migrate().await.unwrap();
        assert_eq!(new().form().await.unwrap(), form);
    }
}

#[tokio::test]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn a_requested_form_is_created_and_another_form_is_refused() {
    let pool = backends::postgres().await.unwrap();
    let new = || PostgresStore::new(pool.clone());
    let portable = new().with_form(PostgresForm::Portable);
    portable.migrate().await.unwrap();
    // The form stays where the server could run the standard form.
    new().migrate().await.unwrap();
    assert_eq!(new().form().await.unwrap(), PORTABLE);
    let tables = "SELECT count(*) FROM pg_class WHERE relname = 'idem_records_migrations'";
    assert_eq!(number(&pool, tables).await, 0);
    let standard = new().with_form(PostgresForm::Standard);
    let error = standard.migrate().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Schema);
    assert!(error.to_string().contains("portable form"), "{error}");

    // A server that refuses a definition of the requested form is reported.
    let poor = PostgresStore::new(backends::postgres_portable().await.unwrap());
    let error = poor
        .with_form(PostgresForm::Standard)
        .migrate()
        .await
        .unwrap_err();
    assert_eq!(
        error.kind(),
        StoreErrorKind::Denied,
        "{}",
        full_text(&error)
    );
}

#[tokio::test]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn ten_stores_migrate_to_the_portable_form_concurrently() {
    let pool = backends::postgres_portable().await.unwrap();
    execute(&pool, "CREATE SCHEMA \"Apart\"").await;
    let new = || {
        let store = PostgresStore::new(pool.clone()).with_schema("Apart");
        store.unwrap().with_table("order").unwrap()
    };
    let mut migrating = JoinSet::new();
    for number in 0..10 {
        let store = new();
        migrating.spawn(async move {
            let migrated = store.migrate().await;
            migrated.map_err(|error| full_text(&error)).unwrap();
            own(&store, &claim(&format!("k{number}"))).await;
        });
    }
    migrating.join_all().await;
    let versions = "SELECT count(*) FROM \"Apart\".order_portable";
    assert_eq!(number(&pool, versions).await, 4);
    assert_eq!(
        number(&pool, "SELECT count(*) FROM \"Apart\".\"order\"").await,
        10
    );
    // The connections of the pool have their own search path.
    let elsewhere = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'";
    assert_eq!(number(&pool, elsewhere).await, 0);
}

#[tokio::test]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn the_statements_of_a_plan_create_the_same_tables_as_a_migration() {
    let pool = backends::postgres_portable().await.unwrap();
    let new = |schema| {
        let store = PostgresStore::new(pool.clone()).with_schema(schema);
        store.unwrap().with_table("order").unwrap()
    };
    let tables = async |schema: &str| -> Vec<String> {
        let query = format!(
            "SELECT concat_ws(' ', table_name, ordinal_position, column_name, data_type, is_nullable) AS line \
             FROM information_schema.columns WHERE table_schema = '{schema}' \
             UNION ALL SELECT replace(indexdef, '{schema}', 's') FROM pg_indexes WHERE schemaname = '{schema}' \
             ORDER BY line"
        );
        let lines = sqlx::query_scalar(AssertSqlSafe(query)).fetch_all(&pool);
        lines.await.unwrap()
    };
    execute(&pool, "CREATE SCHEMA applied; CREATE SCHEMA printed").await;
    new("applied").migrate().await.unwrap();
    let printed = new("printed");
    let plan = printed.migration_plan().await.unwrap().unwrap();
    assert_eq!((plan.applied, plan.pending.len()), (0, plan.known));
    // They may be repeated.
    for pending in plan.pending.iter().chain(&plan.pending) {
        execute(&pool, &pending.sql).await;
    }
    let applied = tables("applied").await;
    assert!(
        applied.iter().any(|it| it.contains("order_purge")),
        "{applied:?}"
    );
    assert_eq!(applied, tables("printed").await);
    let plan = printed.migration_plan().await.unwrap().unwrap();
    assert_eq!((plan.applied, plan.pending.len()), (plan.known, 0));
    assert_eq!(printed.form().await.unwrap(), PORTABLE);
    own(&printed, &claim("k")).await;
    assert_eq!(
        number(&pool, "SELECT count(*) FROM printed.\"order\"").await,
        1
    );
}

/// The database refuses the functions of advisory locks and has no PL/pgSQL, so that all tests of the portable form show
/// that it needs neither. This test shows that the refusal works, and that the form needs no trigger and no sequence.
#[tokio::test]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn the_portable_form_has_no_functions_triggers_or_sequences() {
    let (_, pool) = store().await;
    for refused in [
        "SELECT pg_try_advisory_xact_lock(1)",
        "SELECT pg_advisory_lock(1)",
        "DO $$ BEGIN END $$",
        "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN END $$",
    ] {
        let error = sqlx::raw_sql(refused).execute(&pool).await.unwrap_err();
        let code = error.as_database_error().and_then(DatabaseError::code);
        let code = code.unwrap_or_default();
        assert!(["42501", "42704"].contains(&&*code), "{refused}: {error}");
    }
    for of_the_form in [
        "SELECT count(*) FROM pg_trigger",
        "SELECT count(*) FROM pg_class WHERE relkind = 'S'",
        "SELECT count(*) FROM pg_proc WHERE proowner = current_user::regrole",
        "SELECT count(*) FROM pg_class WHERE reloptions IS NOT NULL AND relname LIKE 'idem%'",
    ] {
        assert_eq!(number(&pool, of_the_form).await, 0, "{of_the_form}");
    }
}

#[tokio::test]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn every_deletion_of_the_store_raises_the_fencing_floor() {
    let (store, pool) = store().await;
    let ahead = async |key: &str, hours: i64| {
        let change = format!(
            "UPDATE idem_records SET fencing_token = fencing_token + {hours} * 3600000000 \
             WHERE idempotency_key = '{key}'"
        );
        execute(&pool, &change).await;
        store.get(&claim(key).id).await.unwrap().unwrap()
    };
    let floor = "SELECT fencing_token FROM idem_records_fencing_floor";

    // When a record is erased whose fencing token is ahead of the clock.
    let owner = own(&store, &claim("erased")).await;
    let payload = Payload {
        codec: "json/1".into(),
        bytes: (*b"1").into(),
    };
    let steps = store.steps().unwrap();
    let saved = steps.save_step(&owner, "charge", &payload).await.unwrap();
    assert_eq!(saved, FencedWrite::Applied);
    let recovery = store.recovery().unwrap();
    let saved = recovery.save_input(&owner, &payload, HOUR).await.unwrap();
    assert_eq!(saved, FencedWrite::Applied);
    let beside = "SELECT (SELECT count(*) FROM idem_records_steps) + (SELECT count(*) FROM idem_records_recovery)";
    assert_eq!(number(&pool, beside).await, 2);
    store.complete(&owner, &outcome(b"1")).await.unwrap();
    let erased = ahead("erased", 1).await;
    let done = store
        .resolve(&erased.observation(), &Resolution::Erase)
        .await
        .unwrap();
    assert_eq!(done, Resolved::Done);
    assert_eq!(number(&pool, beside).await, 0);
    assert_eq!(number(&pool, floor).await, erased.fencing_token.number());
    let again = own(&store, &claim("erased")).await;
    assert!(again.fencing_token > erased.fencing_token);

    // When a record with a higher token is purged.
    let short = ClaimRequest {
        retention: Duration::from_millis(1),
        ..claim("purged")
    };
    let owner = own(&store, &short).await;
    let purged = ahead("purged", 2).await;
    let complete = "UPDATE idem_records SET state = 'completed', ended_at = 1, codec = 'json/1', \
         payload = '\\x31', retention = 1, purge_after = 1 WHERE idempotency_key = 'purged'";
    execute(&pool, complete).await;
    assert_eq!(store.purge(10, Timestamp::MAX).await.unwrap().removed, 1);
    assert_eq!(number(&pool, floor).await, purged.fencing_token.number());
    let again = own(&store, &short).await;
    assert!(
        again.fencing_token > purged.fencing_token && again.fencing_token > owner.fencing_token
    );

    // A lower token that is deleted later does not lower the floor.
    let owner = own(&store, &claim("low")).await;
    store.complete(&owner, &outcome(b"1")).await.unwrap();
    execute(
        &pool,
        "UPDATE idem_records SET fencing_token = 1 WHERE idempotency_key = 'low'",
    )
    .await;
    let low = store.get(&owner.id).await.unwrap().unwrap();
    assert_eq!(low.fencing_token, FencingToken::from_number(1));
    store
        .resolve(&low.observation(), &Resolution::Erase)
        .await
        .unwrap();
    assert_eq!(number(&pool, floor).await, purged.fencing_token.number());
}

/// No sequence numbers the entries. Two transactions that take the same number conflict, and one of them runs again.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn concurrent_manual_changes_get_numbers_without_gaps() {
    let (store, pool) = store().await;
    entries_have_numbers_without_gaps(store, &pool).await;
    let (_, pool) = self::store().await;
    entries_have_numbers_without_gaps(serializable(&pool).await, &pool).await;
}

async fn entries_have_numbers_without_gaps(store: PostgresStore, pool: &PgPool) {
    const CHANGES: usize = 12;
    let store = Arc::new(store);
    let mut changes = JoinSet::new();
    for number in 0..CHANGES {
        let owner = own(&*store, &claim(&format!("k{number}"))).await;
        store.interrupt(&owner).await.unwrap();
        let observed = store.get(&owner.id).await.unwrap().unwrap().observation();
        let store = Arc::clone(&store);
        changes.spawn(async move {
            let audit = store.audit().unwrap();
            let resolved = audit
                .resolve_manually(&observed, &Resolution::Release, &manual_change())
                .await;
            resolved.map_err(|error| full_text(&error)).unwrap()
        });
    }
    let resolved = changes.join_all().await;
    assert!(resolved.iter().all(|it| *it == Resolved::Done));
    let numbers = "SELECT count(*) FROM (SELECT entry, row_number() OVER (ORDER BY entry) AS place \
         FROM idem_records_audit) AS entries WHERE entry = place";
    assert_eq!(number(pool, numbers).await, CHANGES as i64);
}

/// A claim in a transaction limits its own wait for locks. The statements of the body have the limit of the caller.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn a_claim_in_a_transaction_restores_the_limit_of_waits_for_locks() {
    let (store, pool) = store().await;
    let released = own(&store, &claim("released")).await;
    store.release(&released).await.unwrap();
    let done = own(&store, &claim("done")).await;
    store.complete(&done, &outcome(b"1")).await.unwrap();
    let lapsed = ClaimRequest {
        lease: Duration::ZERO,
        ..claim("lapsed")
    };
    own(&store, &lapsed).await;
    let observed = store.get(&lapsed.id).await.unwrap().unwrap().observation();

    // Given another transaction that has claimed a new record and one that was released.
    let mut holding = store.begin().await.unwrap();
    for key in ["held", "held-released"] {
        if key == "held-released" {
            let owner = own(&store, &claim(key)).await;
            store.release(&owner).await.unwrap();
        }
        let granted = store.claim_in(&mut holding, None, &claim(key)).await;
        assert!(matches!(granted.unwrap(), ClaimInTransaction::Granted(_)));
    }

    // When a caller's own transaction, which has a limit of its own, makes all kinds of claims.
    let mut outer = pool.begin().await.unwrap();
    sqlx::raw_sql("SET LOCAL lock_timeout = '7s'")
        .execute(&mut *outer)
        .await
        .unwrap();
    let mut joined = store.join(&mut outer).await.unwrap();
    for (key, observed, is_granted) in [
        ("new", None, true),
        ("released", None, true),
        ("lapsed", Some(&observed), true),
        ("done", None, false),
        ("held", None, false),
        ("held-released", None, false),
    ] {
        let answer = store.claim_in(&mut joined, observed, &claim(key)).await;
        let answer = answer.map_err(|error| full_text(&error)).unwrap();
        let is_held = key.starts_with("held");
        match answer {
            ClaimInTransaction::Granted(_) => assert!(is_granted, "{key}"),
            ClaimInTransaction::Existing(_) => assert!(!is_granted && !is_held, "{key}"),
            ClaimInTransaction::Locked { .. } => assert!(is_held, "{key}"),
        }
        // Then its statements have its limit, and it can go on.
        let limit: String = sqlx::query_scalar("SHOW lock_timeout")
            .fetch_one(&mut *joined)
            .await
            .unwrap();
        assert_eq!(limit, "7s", "{key}");
    }
    store.rollback(joined).await.unwrap();
    outer.rollback().await.unwrap();
    store.rollback(holding).await.unwrap();
    let renewed = store.renew(&done, HOUR).await.unwrap();
    assert_eq!(renewed, FencedWrite::Fenced);
}

/// Only a store that neither migrated nor was told the form reads it, once, whatever it does first.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn a_store_reads_the_form_once() {
    // A dedicated server: the counters belong to the whole server.
    let options = Options::fast()
        .set("shared_preload_libraries", "pg_stat_statements")
        .set("pg_stat_statements.track_utility", "off");
    let server = Server::postgres(&options).unwrap();
    let pool = PgPool::connect(&server.url()).await.unwrap();
    execute(&pool, "CREATE EXTENSION pg_stat_statements").await;
    const READS: &str = "SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements \
         WHERE query LIKE '%to_regclass%' AND query NOT LIKE '%pg_stat_statements%'";
    let reset = async || execute(&pool, "SELECT pg_stat_statements_reset()").await;

    for (table, form) in [
        ("first", PostgresForm::Standard),
        ("second", PostgresForm::Portable),
    ] {
        let new = || PostgresStore::new(pool.clone()).with_table(table).unwrap();
        let migrated = new().with_form(form);
        migrated.migrate().await.unwrap();
        reset().await;
        own(&migrated, &claim("k")).await;
        assert_eq!(number(&pool, READS).await, 0, "{form:?}");

        let store = Arc::new(new());
        let mut calls = JoinSet::new();
        for number in 0..32 {
            let store = Arc::clone(&store);
            calls.spawn(async move {
                let owner = own(&*store, &claim(&format!("k{number}"))).await;
                store.complete(&owner, &outcome(b"1")).await.unwrap()
            });
        }
        let completed = calls.join_all().await;
        assert!(completed.iter().all(|it| *it == FencedWrite::Applied));
        assert_eq!(number(&pool, READS).await, 1, "{form:?}");

        // A claim in a transaction reads the form on its own connection.
        reset().await;
        let store = new();
        for key in ["t1", "t2"] {
            let mut transaction = store.begin().await.unwrap();
            let granted = store.claim_in(&mut transaction, None, &claim(key)).await;
            assert!(matches!(granted.unwrap(), ClaimInTransaction::Granted(_)));
            store.commit(transaction).await.unwrap();
        }
        assert_eq!(number(&pool, READS).await, 1, "{form:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn every_conformance_case_holds_where_the_default_isolation_is_serializable() {
    let store = serializable(&backends::postgres_portable().await.unwrap()).await;
    every_case_holds_despite_conflicts(&store, PostgresForm::Portable).await;
}

/// A store whose connections have the strictest isolation level, at which the server rolls back statements that conflict.
async fn serializable(made: &PgPool) -> PostgresStore {
    let options = made.connect_options().as_ref().clone();
    let options = options.options([("default_transaction_isolation", "serializable")]);
    PostgresStore::new(pool(options, 8).await)
}

/// A statement waits for another transaction, which then changes its row: the server rolls the statement back, with the
/// code 40001. A trigger that counts statements shows that the store runs it again.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn what_the_server_rolls_back_runs_again() {
    let database = Database::new().await;
    let pool = database.pool(3).await;
    let store = serializable(&pool).await.with_form(PostgresForm::Portable);
    store.migrate().await.unwrap();
    execute(
        &pool,
        "CREATE SEQUENCE tries MINVALUE 0; SELECT nextval('tries'); \
         CREATE FUNCTION count_try() RETURNS trigger LANGUAGE plpgsql AS \
         $$ BEGIN PERFORM nextval('tries'); RETURN NULL; END $$; \
         CREATE TRIGGER count_try BEFORE INSERT OR UPDATE OR DELETE ON idem_records \
         FOR EACH STATEMENT EXECUTE FUNCTION count_try(); \
         CREATE TRIGGER count_try BEFORE INSERT ON idem_records_audit \
         FOR EACH STATEMENT EXECUTE FUNCTION count_try()",
    )
    .await;
    let tries = async || number(&pool, "SELECT last_value FROM tries").await;
    let waits = async || until(async || number(&pool, WAITING).await == 1).await;
    // Changes nothing that the store compares, and counts as one statement.
    let change = async |key: &str| {
        let mut holding = pool.begin().await.unwrap();
        let update = "UPDATE idem_records SET owner = 'another' WHERE idempotency_key = $1";
        let changed = sqlx::query(update).bind(key).execute(&mut *holding).await;
        assert_eq!(changed.unwrap().rows_affected(), 1);
        holding
    };

    // A renewal and a completion.
    let owner = own(&store, &claim("k")).await;
    let before = tries().await;
    for is_renewal in [true, false] {
        let holding = change("k").await;
        let (store, owner) = (store.clone(), owner);
        let written = tokio::spawn(async move {
            match is_renewal {
                true => store.renew(&owner, HOUR).await,
                false => store.complete(&owner, &outcome(b"1")).await,
            }
        });
        waits().await;
        holding.commit().await.unwrap();
        assert_eq!(written.await.unwrap().unwrap(), FencedWrite::Applied);
    }
    assert_eq!(tries().await - before, 2 * (1 + 2));

    // A claim of a record that another transaction inserts.
    let before = tries().await;
    let mut holding = store.begin().await.unwrap();
    let first = claim("new");
    let granted = store.claim_in(&mut holding, None, &first).await.unwrap();
    assert!(matches!(granted, ClaimInTransaction::Granted(_)));
    let claiming = store.clone();
    let claimed = tokio::spawn(async move { claiming.claim(&claim("new")).await });
    waits().await;
    store.commit(holding).await.unwrap();
    let claimed = claimed.await.unwrap().unwrap();
    assert!(
        matches!(&claimed, ClaimOutcome::Existing(record) if record.claim_id == Some(first.claim_id)),
        "{claimed:?}"
    );
    assert_eq!(tries().await - before, 1 + 2);

    // The transaction of a manual change: an entry of the audit, rolled back, and again with the change itself.
    let owner = own(&store, &claim("interrupted")).await;
    store.interrupt(&owner).await.unwrap();
    let observed = store.get(&owner.id).await.unwrap().unwrap().observation();
    let before = tries().await;
    let holding = change("interrupted").await;
    let resolving = store.clone();
    let resolved = tokio::spawn(async move {
        let audit = resolving.audit().unwrap();
        audit
            .resolve_manually(&observed, &Resolution::Release, &manual_change())
            .await
    });
    waits().await;
    holding.commit().await.unwrap();
    assert_eq!(resolved.await.unwrap().unwrap(), Resolved::Done);
    assert_eq!(tries().await - before, 1 + 1 + 2);
    let entries = "SELECT count(*) FROM idem_records_audit";
    assert_eq!(number(&pool, entries).await, 1);
    database.drop().await;
}
