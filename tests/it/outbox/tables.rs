//! The table: created concurrently, under another name, and by the application's own migrations.

use std::time::Duration;

use idem_runtime::error::StoreErrorKind;
use idem_runtime::outbox::{self, Message, Outbox, Relay};
use idem_runtime::{Error, SqliteStore};
use idem_tests::on_stores;
use tokio::task::JoinSet;

use super::{Database, Log, Placed, Pool, TOPIC, placed, until};

on_stores! { [transactions] Database::open:
    ten_stores_migrate_concurrently,
    an_outbox_may_have_a_table_of_another_name,
    delivered_messages_are_deleted_after_their_retention,
    polls_find_due_messages_by_the_index,
}

async fn ten_stores_migrate_concurrently(database: Database) {
    let mut migrating = JoinSet::new();
    for _ in 0..10 {
        let outbox = database.outbox.clone().with_table("at_once").unwrap();
        migrating.spawn(async move { outbox.migrate().await });
    }
    for migrated in migrating.join_all().await {
        migrated.unwrap();
    }
    // One row for each migration.
    let applied = "SELECT count(*) FROM at_once_migrations";
    assert_eq!(database.number(applied).await, 2);
    assert_eq!(database.number("SELECT count(*) FROM at_once").await, 0);
}

async fn an_outbox_may_have_a_table_of_another_name(database: Database) {
    for name in ["", "a-b", "2a", "a b", &"a".repeat(49)] {
        let error = database.outbox.clone().with_table(name).unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Schema, "{name}");
    }
    // A reserved word of SQL.
    let order = database.outbox.clone().with_table("order").unwrap();
    let error = order.backlog().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Schema);
    order.migrate().await.unwrap();
    database.enqueue(order.message(TOPIC, &placed(1))).await;
    assert_eq!(database.rows().await, 0);
    assert_eq!(order.backlog().await.unwrap().waiting, 1);
    let handled = Log::new();
    let log = handled.clone();
    let relay = Relay::new(&order)
        .poll_interval(Duration::from_millis(20))
        .on(TOPIC, move |message: Message<Placed>| {
            log.push(message.payload.order);
            async { Ok::<_, Error>(()) }
        })
        .start()
        .unwrap();
    assert_eq!(handled.reached(1).await, [1]);
    relay.stop().await;
    assert_eq!(order.backlog().await.unwrap().waiting, 0);
}

async fn delivered_messages_are_deleted_after_their_retention(database: Database) {
    let day = Duration::from_secs(24 * 60 * 60);
    let start = |retention| {
        database
            .relay()
            .keep_delivered(retention)
            .on(TOPIC, |_: Message<Placed>| async { Ok::<_, Error>(()) })
            .start()
            .unwrap()
    };
    let order = placed(1);
    let again = || outbox::message(TOPIC, &order).key("order-1");
    database.enqueue(again()).await;
    let relay = start(day);
    until(async || relay.stats().delivered == 1).await;
    // While the delivered message is retained, the same one cannot be enqueued again, and it blocks no other message.
    database.enqueue(again()).await;
    let next = placed(2);
    database
        .enqueue(outbox::message(TOPIC, &next).ordered_by("ann"))
        .await;
    until(async || relay.stats().delivered == 2).await;
    relay.stop().await;
    let delivered = "SELECT count(*) FROM idem_outbox WHERE state = 'delivered'";
    assert_eq!(database.number(delivered).await, 2);
    assert_eq!(database.outbox.backlog().await.unwrap().waiting, 0);

    database
        .execute("UPDATE idem_outbox SET purge_after = 0 WHERE message_key = 'order-1'")
        .await;
    let relay = start(Duration::from_millis(10));
    until(async || database.rows().await == 1).await;
    relay.stop().await;
}

/// A poll must not read the backlog of a topic without a handler here, nor delayed messages.
async fn polls_find_due_messages_by_the_index(database: Database) {
    let plan = match &database.pool {
        // EXPLAIN without another statement uses the connection's cached schema, which may be older than the
        // migrations.
        Pool::Sqlite(_) => "SELECT count(*) FROM idem_outbox; EXPLAIN QUERY PLAN ",
        Pool::Postgres(_) => {
            // The planner would scan so small a table sequentially.
            "SET enable_seqscan = off; EXPLAIN "
        }
        Pool::MySql(_) => "EXPLAIN ",
    };
    let (unordered, ordered, due_unordered, due_ordered) = match &database.pool {
        Pool::MySql(_) => ("is_ordered = 0", "is_ordered = 1", "due", "due"),
        _ => (
            "ordering_key IS NULL",
            "ordering_key IS NOT NULL",
            "idem_outbox_due_unordered",
            "idem_outbox_due_ordered",
        ),
    };
    for (kind, index) in [(unordered, due_unordered), (ordered, due_ordered)] {
        let poll = format!(
            "SELECT id FROM idem_outbox WHERE topic = 'a' AND {kind} AND due_at <= 5 ORDER BY due_at, id LIMIT 10"
        );
        let plan = database.texts(&format!("{plan}{poll}")).await.join("\n");
        assert!(plan.contains(index), "{plan}");
        assert!(!plan.to_lowercase().contains("temp b-tree"), "{plan}");
        assert!(!plan.to_lowercase().contains("filesort"), "{plan}");
    }
}

#[tokio::test]
async fn an_application_runs_the_migrations_itself() {
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(directory.path().join("idem.db"))
        .await
        .unwrap();
    let pool = sqlx::SqlitePool::connect_with(SqliteStore::connect_options(
        directory.path().join("idem.db"),
    ))
    .await
    .unwrap();
    // As a migration of the application would.
    let migration = include_str!("../../../idem-runtime/migrations/sqlite/outbox/0001_outbox.sql");
    sqlx::raw_sql(migration).execute(&pool).await.unwrap();
    let outbox = Outbox::new(&store);
    let mut tx = pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
    outbox::enqueue(&mut *tx, TOPIC, &placed(1)).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(outbox.backlog().await.unwrap().waiting, 1);
    // A later `migrate` changes nothing.
    outbox.migrate().await.unwrap();
    assert_eq!(outbox.backlog().await.unwrap().waiting, 1);
}
