//! Enqueued messages: their keys, and the time at which they become visible.

use std::collections::HashMap;
use std::time::Duration;

use idem_runtime::error::InvalidOutbox;
use idem_runtime::outbox::{self, Message, Relay};
use idem_runtime::{Error, Key, Scope};
use idem_tests::on_stores;
use serde::ser::Error as _;
use serde::{Serialize, Serializer};

use super::{Database, Log, TOPIC, placed, until};

on_stores! { [transactions] Database::open:
    a_message_is_stored_if_and_only_if_its_transaction_commits,
    a_handler_gets_the_enqueued_value,
    the_same_message_is_enqueued_once_under_its_own_key,
    a_malformed_message_is_refused_and_the_transaction_stays_usable,
    a_delayed_message_waits,
    a_message_enqueued_in_this_process_is_delivered_immediately,
}

async fn a_message_is_stored_if_and_only_if_its_transaction_commits(database: Database) {
    let mut tx = database.begin().await;
    tx.enqueue(outbox::message(TOPIC, &placed(1)))
        .await
        .unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(database.rows().await, 0);

    let mut tx = database.begin().await;
    tx.enqueue(outbox::message(TOPIC, &placed(2)))
        .await
        .unwrap();
    let backlog = database.outbox.backlog().await.unwrap();
    assert_eq!(backlog.waiting, 0, "seen before the commit");
    tx.commit().await.unwrap();
    assert_eq!(database.outbox.backlog().await.unwrap().waiting, 1);
}

async fn a_handler_gets_the_enqueued_value(database: Database) {
    let order = placed(7);
    let message = outbox::message(TOPIC, &order)
        .ordered_by("customer ä")
        .header("traceparent", "first")
        .header("traceparent", "00-ab-\"1\"")
        .header("tenant", "");
    let key = database.enqueue(message).await;
    let got = Log::new();
    let log = got.clone();
    let relay = database
        .relay()
        .on(TOPIC, move |message: Message<super::Placed>| {
            let log = log.clone();
            async move {
                log.push((
                    message.key().clone(),
                    message.topic().to_owned(),
                    message.ordering_key().map(str::to_owned),
                    message.header("traceparent").map(str::to_owned),
                    message.headers().len(),
                    message.attempt(),
                    message.payload,
                ));
                Ok::<_, Error>(())
            }
        })
        .start()
        .unwrap();
    let got = got.reached(1).await;
    relay.stop().await;
    let (topic, customer) = (TOPIC.to_owned(), Some("customer ä".to_owned()));
    let trace = Some("00-ab-\"1\"".to_owned());
    assert_eq!(got, [(key, topic, customer, trace, 2, 1, placed(7))]);
    assert_eq!(database.rows().await, 0);
}

async fn the_same_message_is_enqueued_once_under_its_own_key(database: Database) {
    let map = || HashMap::from([("a", 1), ("b", 2), ("c", 3), ("d", 4)]);
    let again = |order| outbox::message(TOPIC, order).key("order-1");
    // In one transaction, in two transactions, and as a map that serializes its members in varying order.
    let mut tx = database.begin().await;
    let (one, two) = (placed(1), placed(2));
    for _ in 0..2 {
        assert_eq!(tx.enqueue(again(&one)).await.unwrap().as_str(), "order-1");
    }
    for _ in 0..8 {
        let map = map();
        tx.enqueue(outbox::message("maps", &map).key("map"))
            .await
            .unwrap();
    }
    tx.commit().await.unwrap();
    database.enqueue(again(&one)).await;
    assert_eq!(database.rows().await, 2);

    // A different message with that key is an error, and the rest of its transaction is unaffected.
    let mut tx = database.begin().await;
    let differing = [
        again(&two),
        outbox::message("other", &one).key("order-1"),
        again(&one).ordered_by("ann"),
    ];
    for message in differing {
        let error = tx.enqueue(message).await.unwrap_err();
        assert!(matches!(error, Error::KeyReused), "{error:?}");
    }
    tx.enqueue(outbox::message(TOPIC, &two)).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(database.rows().await, 3);

    // The scope is part of the key.
    let scoped = Key::new("order-1")
        .unwrap()
        .scoped(&Scope::new("acme").unwrap());
    let key = database
        .enqueue(outbox::message(TOPIC, &one).key(&scoped))
        .await;
    assert_ne!(key.as_str(), "order-1");
    assert_eq!(database.rows().await, 4);
}

struct Unencodable;

impl Serialize for Unencodable {
    fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        Err(S::Error::custom("no"))
    }
}

async fn a_malformed_message_is_refused_and_the_transaction_stays_usable(database: Database) {
    let mut tx = database.begin().await;
    let order = placed(1);
    let long = "a".repeat(256);
    for topic in ["", " a", "a\n", &long] {
        let error = tx.enqueue(outbox::message(topic, &order)).await;
        assert!(
            matches!(error, Err(Error::InvalidOutbox(InvalidOutbox::Topic))),
            "{topic:?}: {error:?}"
        );
        let message = outbox::message(TOPIC, &order).ordered_by(topic);
        let error = tx.enqueue(message).await;
        assert!(
            matches!(error, Err(Error::InvalidOutbox(InvalidOutbox::OrderingKey))),
            "{topic:?}: {error:?}"
        );
    }
    let error = tx.enqueue(outbox::message(TOPIC, &order).key("ä")).await;
    assert!(matches!(error, Err(Error::InvalidKey(_))), "{error:?}");
    for (name, value) in [("", "a"), ("a", &*"a".repeat(64 * 1024))] {
        let message = outbox::message(TOPIC, &order).header(name, value);
        let error = tx.enqueue(message).await;
        assert!(
            matches!(error, Err(Error::InvalidOutbox(InvalidOutbox::Headers))),
            "{error:?}"
        );
    }
    let error = tx.enqueue(outbox::message(TOPIC, &Unencodable)).await;
    assert!(
        matches!(error, Err(Error::InvalidOutbox(InvalidOutbox::Payload(_)))),
        "{error:?}"
    );
    let small = database.outbox.clone().max_payload_bytes(100);
    let (fits, not) = ("a".repeat(98), "a".repeat(99));
    tx.enqueue(small.message(TOPIC, &fits)).await.unwrap();
    let error = tx.enqueue(small.message(TOPIC, &not)).await.unwrap_err();
    let Error::InvalidOutbox(InvalidOutbox::TooLarge { limit: 100 }) = error else {
        panic!("{error:?}");
    };
    tx.commit().await.unwrap();
    assert_eq!(database.rows().await, 1);
}

async fn a_delayed_message_waits(database: Database) {
    const HOUR: Duration = Duration::from_secs(60 * 60);
    let order = placed(1);
    let delayed = outbox::message(TOPIC, &order).ordered_by("ann").delay(HOUR);
    database.enqueue(delayed).await;
    let order = placed(2);
    // It is ordered behind the first message, so it waits as well.
    database
        .enqueue(outbox::message(TOPIC, &order).ordered_by("ann"))
        .await;
    let order = placed(3);
    database.enqueue(outbox::message(TOPIC, &order)).await;

    let handled = Log::new();
    let log = handled.clone();
    let relay = database
        .relay()
        .on(TOPIC, move |message: Message<super::Placed>| {
            log.push(message.payload.order);
            async { Ok::<_, Error>(()) }
        })
        .start()
        .unwrap();
    // The relay has examined the message behind it by the time that the third is delivered.
    until(async || relay.stats().delivered == 1).await;
    assert_eq!(handled.entries(), [3]);
    database
        .execute("UPDATE idem_outbox SET due_at = due_at - 3600000000 WHERE id = 1")
        .await;
    assert_eq!(handled.reached(3).await, [3, 1, 2]);
    relay.stop().await;
}

async fn a_message_enqueued_in_this_process_is_delivered_immediately(database: Database) {
    let handled = Log::new();
    let log = handled.clone();
    let relay = Relay::new(&database.outbox)
        .poll_interval(Duration::from_secs(60 * 60))
        .on(TOPIC, move |message: Message<super::Placed>| {
            log.push(message.payload.order);
            async { Ok::<_, Error>(()) }
        })
        .start()
        .unwrap();
    for order in 1..=3 {
        database
            .enqueue(outbox::message(TOPIC, &placed(order)))
            .await;
        handled.reached(order as usize).await;
    }
    relay.stop().await;
    assert_eq!(handled.entries(), [1, 2, 3]);
}
