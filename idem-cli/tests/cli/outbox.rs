//! The outbox on each SQL database.

use std::time::Duration;

use idem_runtime::outbox::{Connection, Message, Outbox, Relay};
use idem_runtime::store::ManualChange;
use idem_runtime::{Key, MySqlStore, PostgresStore, SqliteStore};
use idem_tests::backends::{MARIADB, POSTGRES};

use super::{Asked, Place, unique, variable};

/// Enqueues a message that every delivery fails, and waits until it is parked.
async fn park<C: Connection + ?Sized>(outbox: &Outbox, connection: &mut C) -> Key {
    let key = outbox.enqueue(connection, "letters", &7).await.unwrap();
    deliver(outbox).await;
    key
}

/// Runs a relay until no message waits. Its handler refuses every message.
async fn deliver(outbox: &Outbox) {
    let relay = Relay::new(outbox)
        .on("letters", async |_: Message<u64>| Err("no stamps\u{1b}[2J"))
        .max_attempts(1)
        .start()
        .unwrap();
    while outbox.backlog().await.unwrap().waiting > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    relay.stop().await;
}

/// Parked messages are listed without their payloads, delivered again, and deleted.
async fn parked_messages_are_requeued_and_discarded<C: Connection + ?Sized>(
    place: &Place,
    outbox: &Outbox,
    connection: &mut C,
    table: &[&str],
) {
    let idem = |arguments: &[&str]| place.idem(&[&["outbox"], table, arguments].concat());
    let key = park(outbox, connection).await;
    let listed = idem(&["list"]).expect(0, &["parked     1", "letters", "no stamps\\u{1b}[2J"]);
    assert!(!listed.out.contains('\u{1b}'), "{listed:?}");
    let listed = idem(&["list", "--json", "--payloads"]).expect(0, &[]);
    let listed: serde_json::Value = serde_json::from_str(&listed.out).unwrap();
    assert_eq!(listed["messages"][0]["key"], key.as_str());
    assert_eq!(listed["messages"][0]["payload"], "7");
    assert_eq!(listed["messages"][0]["attempts"], 1);

    idem(&["requeue", key.as_str()]).expect_error(1, "pass --yes");
    idem(&["requeue", key.as_str(), "--yes"]).expect_error(1, "reason");
    assert_eq!(outbox.backlog().await.unwrap().waiting, 0);
    let reason = ["--reason", "stamps arrived", "--actor", "ann"];
    let by_ann = |command| idem(&[&[command, key.as_str(), "--yes"], &reason[..]].concat());
    by_ann("requeue").expect(0, &["done"]);
    assert_eq!(outbox.backlog().await.unwrap().waiting, 1);
    by_ann("discard").expect(3, &["No parked message"]);
    deliver(outbox).await;
    by_ann("discard").expect(0, &["done"]);
    idem(&["list"]).expect(0, &["waiting    0", "parked     0"]);

    // The change that found no parked message left no entry.
    let audit = idem(&["audit", key.as_str(), "--json"]).expect(0, &[]);
    let audit: serde_json::Value = serde_json::from_str(&audit.out).unwrap();
    let told: Vec<_> = audit["entries"].as_array().unwrap().iter().collect();
    let actions: Vec<_> = told.iter().map(|it| it["action"].as_str()).collect();
    assert_eq!(actions, [Some("discarded"), Some("requeued")]);
    assert_eq!(told[0]["reason"], "stamps arrived");
    assert_eq!(told[0]["topic"], "letters");
    let first = idem(&["audit", "--actor", "ann", "--limit", "1"]);
    let first = first.expect(0, &["discarded", "stamps arrived", "more: --after"]);
    assert!(!first.out.contains("requeued"), "{first:?}");
    idem(&["audit", "--actor", "bob"]).expect(3, &["no changes by hand"]);
}

#[tokio::test]
async fn sqlite() {
    let place = Place::sqlite().await;
    let store = SqliteStore::connect(&place.url).await.unwrap();
    let outbox = Outbox::new(&store);
    outbox.migrate().await.unwrap();
    let mut connection = store.pool().acquire().await.unwrap();
    parked_messages_are_requeued_and_discarded(&place, &outbox, &mut *connection, &[]).await;
}

#[tokio::test]
#[ignore = "IDEM_TEST_POSTGRES_URL"]
async fn postgres() {
    let (place, name) = (Place::postgres().await, unique());
    let store = PostgresStore::connect(&variable(POSTGRES)).await.unwrap();
    let outbox = Outbox::new(&store).with_table(&name).unwrap();
    outbox.migrate().await.unwrap();
    let mut connection = store.pool().acquire().await.unwrap();
    let table = ["--outbox-table", &name];
    parked_messages_are_requeued_and_discarded(&place, &outbox, &mut *connection, &table).await;
}

#[tokio::test]
#[ignore = "IDEM_TEST_MARIADB_URL"]
async fn mysql() {
    let (place, name) = (Place::mysql().await, unique());
    let store = MySqlStore::connect(&variable(MARIADB)).await.unwrap();
    let outbox = Outbox::new(&store).with_table(&name).unwrap();
    outbox.migrate().await.unwrap();
    let mut connection = store.pool().acquire().await.unwrap();
    let table = ["--outbox-table", &name];
    parked_messages_are_requeued_and_discarded(&place, &outbox, &mut *connection, &table).await;
}

#[tokio::test]
#[ignore = "IDEM_TEST_REDIS_URL"]
async fn a_redis_store_has_none() {
    let place = Place::redis().await;
    place
        .idem(&["outbox", "list"])
        .expect_error(1, "a Redis store has no outbox");
}

#[tokio::test]
async fn a_message_that_was_parked_again_is_left_as_it_is() {
    let place = Place::sqlite().await;
    let store = SqliteStore::connect(&place.url).await.unwrap();
    let outbox = Outbox::new(&store);
    outbox.migrate().await.unwrap();
    let mut connection = store.pool().acquire().await.unwrap();
    let key = park(&outbox, &mut *connection).await;
    let asked = Asked::new(
        &place,
        &format!("outbox discard {} --reason late", key.as_str()),
    );
    // Meanwhile another operator requeues the message, and it is parked again.
    let change = ManualChange::new("bob", "the stamps arrived").unwrap();
    assert!(outbox.by(&change).requeue(&key).await.unwrap());
    deliver(&outbox).await;
    let (code, rest) = asked.answer(b"y\n");
    assert_eq!(code, Some(4), "{rest}");
    assert!(rest.contains("no longer parked as it was shown"), "{rest}");
    assert_eq!(outbox.backlog().await.unwrap().parked, 1);
}
