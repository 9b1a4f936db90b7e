//! The outbox on each SQL database.

use std::time::Duration;

use idem_runtime::Key;
use idem_runtime::outbox::{Message, Outbox, Relay};
use idem_runtime::store::ManualChange;
use idem_tests::sql::{AnyPool, Sql};
use idem_tests::{on_stores, places};

use super::{Asked, Place, unique};

on_stores! { [transactions] Desk::open: parked_messages_are_requeued_and_discarded }

/// A store, and an outbox in its database. On a server, the table of the outbox has a name of its own.
struct Desk {
    place: Place,
    pool: AnyPool,
    outbox: Outbox,
    /// Option of the command that names the table, if it is not the default.
    table: Vec<String>,
}

impl Desk {
    async fn open<S: Sql>(place: places::Place<S>) -> Self {
        let home = place.home().await.unwrap();
        let (mut outbox, mut table) = (S::outbox(&home), Vec::new());
        if !place.needs().is_empty() {
            let name = unique();
            outbox = outbox.with_table(&name).unwrap();
            table = vec!["--outbox-table".to_owned(), name];
        }
        outbox.migrate().await.unwrap();
        Self {
            place: Place::in_home(&place, &home).await,
            pool: S::any(&home),
            outbox,
            table,
        }
    }
}

/// Enqueues a message that every delivery fails, and waits until it is parked.
async fn park(outbox: &Outbox, pool: &AnyPool) -> Key {
    let mut tx = pool.begin().await.unwrap();
    let key = tx.enqueue(outbox.message("letters", &7)).await.unwrap();
    tx.commit().await.unwrap();
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
async fn parked_messages_are_requeued_and_discarded(desk: Desk) {
    let Desk {
        place,
        pool,
        outbox,
        table,
    } = &desk;
    let table: Vec<_> = table.iter().map(String::as_str).collect();
    let idem = |arguments: &[&str]| place.idem(&[&["outbox"], &table[..], arguments].concat());
    let key = park(outbox, pool).await;
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
    idem(&["audit", "--actor", "bob"]).expect(3, &["no manual changes"]);
}

#[tokio::test]
#[ignore = "IDEM_TEST_REDIS_URL"]
async fn a_redis_store_has_none() {
    let place = Place::open(places::redis()).await;
    place
        .idem(&["outbox", "list"])
        .expect_error(1, "a Redis store has no outbox");
}

#[tokio::test]
async fn a_message_that_was_parked_again_is_left_as_it_is() {
    let Desk {
        place,
        pool,
        outbox,
        ..
    } = Desk::open(places::sqlite()).await;
    let key = park(&outbox, &pool).await;
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
