//! Messages whose handlers fail.

use idem_runtime::error::InvalidOutbox;
use idem_runtime::outbox::{self, Message, Relay};
use idem_runtime::{Error, Key};
use idem_tests::on_stores;
use idem_tests::places;

use super::{Database, Log, Placed, TOPIC, placed, seen, until};

on_stores! { [transactions] Database::open:
    a_message_that_failed_is_delivered_again_with_the_same_key,
    a_failing_message_is_parked_after_max_attempts_and_can_be_requeued,
    a_parked_message_blocks_its_ordering_key_until_it_is_discarded,
    later_messages_continue_if_parked_ones_are_skipped,
    an_unreadable_payload_is_parked_immediately,
    a_message_of_an_unknown_topic_waits_for_another_relay,
}

async fn a_message_that_failed_is_delivered_again_with_the_same_key(database: Database) {
    let key = database.enqueue(outbox::message(TOPIC, &placed(1))).await;
    let handled = Log::new();
    let log = handled.clone();
    let relay = database
        .relay()
        .on(TOPIC, move |message: Message<Placed>| {
            log.push(seen(&message));
            // Before there is a future, inside the future, and as an error.
            assert!(message.attempt() != 1, "at the call");
            async move {
                match message.attempt() {
                    2 => panic!("while it is polled"),
                    3 => Err("as an error"),
                    _ => Ok(()),
                }
            }
        })
        .start()
        .unwrap();
    until(async || relay.stats().delivered == 1).await;
    let stats = relay.stats();
    relay.stop().await;
    assert_eq!((stats.failed, stats.parked, stats.lost), (3, 0, 0));
    let key = key.as_str().to_owned();
    let expected = [1, 2, 3, 4].map(|attempt| (key.clone(), 1, attempt));
    assert_eq!(handled.entries(), expected);
    assert_eq!(database.rows().await, 0);
}

#[derive(Debug, thiserror::Error)]
#[error("the mail was refused")]
struct Refused(#[source] std::io::Error);

async fn a_failing_message_is_parked_after_max_attempts_and_can_be_requeued(database: Database) {
    let poison = database.enqueue(outbox::message(TOPIC, &placed(1))).await;
    let good = database.enqueue(outbox::message(TOPIC, &placed(2))).await;
    let handled = Log::new();
    let start = |is_mended: bool| {
        let log = handled.clone();
        database
            .relay()
            .max_attempts(3)
            .on(TOPIC, move |message: Message<Placed>| {
                log.push(seen(&message));
                async move {
                    if message.payload.order == 1 && !is_mended {
                        return Err(Refused(std::io::Error::other("\0no such address")));
                    }
                    Ok(())
                }
            })
            .start()
            .unwrap()
    };
    let relay = start(false);
    until(async || relay.stats().parked == 1 && relay.stats().delivered == 1).await;
    relay.stop().await;
    let mut entries = handled.entries();
    entries.sort();
    let mut expected = vec![(good.as_str().to_owned(), 2, 1)];
    expected.extend([1, 2, 3].map(|attempt| (poison.as_str().to_owned(), 1, attempt)));
    expected.sort();
    assert_eq!(entries, expected);

    // The message is kept, with the details that an operator needs.
    let parked = database.outbox.parked(None, 10).await.unwrap().messages;
    let [message] = &parked[..] else {
        panic!("{parked:?}");
    };
    assert_eq!((message.key(), message.topic()), (&poison, TOPIC));
    assert_eq!(message.attempts(), 3);
    assert_eq!(
        message.last_error(),
        "the mail was refused: no such address"
    );
    assert_eq!(
        serde_json::from_str::<Placed>(message.payload()).unwrap(),
        placed(1)
    );
    assert!(message.parked_at() >= message.enqueued_at());
    assert_eq!(database.outbox.backlog().await.unwrap().parked, 1);
    let first = database.outbox.parked(None, 1).await.unwrap();
    let rest = database.outbox.parked(first.next.as_ref(), 10).await;
    let rest = rest.unwrap();
    assert!(first.next.is_some() && rest.messages.is_empty() && rest.next.is_none());

    let nobody = Key::new("nobody's").unwrap();
    assert!(!database.manually().requeue(&nobody).await.unwrap());
    assert!(database.manually().requeue(&poison).await.unwrap());
    assert!(
        !database.manually().requeue(&poison).await.unwrap(),
        "it waits"
    );
    assert!(
        !database.manually().discard(&poison).await.unwrap(),
        "it waits"
    );
    let relay = start(true);
    until(async || relay.stats().delivered == 1).await;
    relay.stop().await;
    assert_eq!(
        handled.entries().last(),
        Some(&(poison.as_str().to_owned(), 1, 1))
    );
    assert_eq!(database.rows().await, 0);
}

/// Enqueues orders 1 to 3 of one customer, of which the first fails, and order 4 of another customer.
async fn enqueue_behind_poison(database: &Database) -> Key {
    let mut keys = Vec::new();
    for (order, customer) in [(1, "ann"), (2, "ann"), (3, "ann"), (4, "bob")] {
        let order = placed(order);
        let message = outbox::message(TOPIC, &order).ordered_by(customer);
        keys.push(database.enqueue(message).await);
    }
    keys.swap_remove(0)
}

async fn a_parked_message_blocks_its_ordering_key_until_it_is_discarded(database: Database) {
    let poison = enqueue_behind_poison(&database).await;
    let handled = Log::new();
    let log = handled.clone();
    let relay = database
        .relay()
        .max_attempts(1)
        .on(TOPIC, move |message: Message<Placed>| {
            log.push(message.payload.order);
            async move {
                match message.payload.order {
                    1 => Err("poison"),
                    _ => Ok(()),
                }
            }
        })
        .start()
        .unwrap();
    until(async || relay.stats().parked == 1 && relay.stats().delivered == 1).await;
    // A message that is enqueued and handled now proves that the relay has polled again.
    database.enqueue(outbox::message(TOPIC, &placed(5))).await;
    until(async || relay.stats().delivered == 2).await;
    let mut first = handled.entries();
    first.sort_unstable();
    assert_eq!(first, [1, 4, 5]);
    assert!(database.manually().discard(&poison).await.unwrap());
    assert_eq!(handled.reached(5).await[3..], [2, 3]);
    until(async || relay.stats().delivered == 4).await;
    relay.stop().await;
    assert_eq!(database.rows().await, 0);
}

async fn later_messages_continue_if_parked_ones_are_skipped(database: Database) {
    enqueue_behind_poison(&database).await;
    let handled = Log::new();
    let log = handled.clone();
    let relay = database
        .relay()
        .max_attempts(2)
        .skip_parked()
        .on(TOPIC, move |message: Message<Placed>| {
            log.push(message.payload.order);
            async move {
                match message.payload.order {
                    1 => Err("poison"),
                    _ => Ok(()),
                }
            }
        })
        .start()
        .unwrap();
    until(async || relay.stats().delivered == 3).await;
    relay.stop().await;
    let mut of_ann = handled.entries();
    of_ann.retain(|order| *order != 4);
    assert_eq!(of_ann, [1, 1, 2, 3]);
    assert_eq!(database.outbox.backlog().await.unwrap().parked, 1);
}

async fn an_unreadable_payload_is_parked_immediately(database: Database) {
    database
        .enqueue(outbox::message(TOPIC, "a secret, not an order"))
        .await;
    let relay = database
        .relay()
        .on(TOPIC, |_: Message<Placed>| async {
            panic!("there is nothing to handle");
            #[expect(unreachable_code, reason = "it tells the type")]
            Ok::<_, Error>(())
        })
        .start()
        .unwrap();
    until(async || relay.stats().parked == 1).await;
    assert_eq!(relay.stats().failed, 0);
    relay.stop().await;
    let parked = database.outbox.parked(None, 10).await.unwrap().messages;
    assert_eq!(parked[0].attempts(), 1);
    let error = parked[0].last_error();
    assert!(
        error.contains("does not match the expected type"),
        "{error}"
    );
    assert!(!error.contains("secret"), "{error}");
}

async fn a_message_of_an_unknown_topic_waits_for_another_relay(database: Database) {
    database.enqueue(outbox::message("new", &placed(1))).await;
    database.enqueue(outbox::message("old", &placed(2))).await;
    let handled = Log::new();
    let on = |topic: &str| {
        let log = handled.clone();
        database
            .relay()
            .on(topic, move |message: Message<Placed>| {
                log.push(message.payload.order);
                async { Ok::<_, Error>(()) }
            })
            .start()
            .unwrap()
    };
    let old = on("old");
    until(async || old.stats().delivered == 1).await;
    old.stop().await;
    assert_eq!(database.number("SELECT attempt FROM idem_outbox").await, 0);
    let new = on("new");
    until(async || new.stats().delivered == 1).await;
    new.stop().await;
    assert_eq!(handled.entries(), [2, 1]);
}

#[tokio::test]
async fn a_relay_with_invalid_settings_does_not_start() {
    let database = Database::open(places::sqlite()).await;
    let handler = |_: Message<Placed>| async { Ok::<_, Error>(()) };
    let refused = |relay: Relay| match relay.start().map(drop).unwrap_err() {
        Error::InvalidOutbox(error) => error,
        other => panic!("{other:?}"),
    };
    let relay = || Relay::new(&database.outbox);
    assert!(matches!(refused(relay()), InvalidOutbox::NoHandler));
    let error = refused(relay().on("a", handler).on("b", handler).on("a", handler));
    assert!(matches!(&error, InvalidOutbox::TwoHandlers(topic) if topic == "a"));
    let error = refused(relay().on("", handler).on("b", handler));
    assert!(matches!(error, InvalidOutbox::Topic));
    let error = refused(relay().on("a", handler).lease(std::time::Duration::ZERO));
    assert!(matches!(error, InvalidOutbox::ZeroLease));
    let error = refused(relay().on("a", handler).concurrency(0));
    assert!(matches!(error, InvalidOutbox::ZeroConcurrency));
    let many = (0..101).fold(relay(), |relay, n| relay.on(format!("t{n}"), handler));
    assert!(matches!(refused(many), InvalidOutbox::TooManyTopics));

    let started = std::thread::spawn({
        let relay = relay().on("a", handler);
        move || relay.start().map(drop)
    });
    let error = started.join().unwrap().unwrap_err();
    assert!(matches!(error, Error::NoRuntime), "{error:?}");
}
