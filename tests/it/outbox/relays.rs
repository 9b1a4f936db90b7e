//! A relay's use of the database: its statements, its shutdown, and messages that other relays have taken over.

use std::task::Poll;
use std::time::Duration;

use idem_runtime::Error;
use idem_runtime::outbox::{self, Message, Relay};
use idem_tests::places;
use idem_tests::statements::Statements;

use super::{Database, Log, Placed, TOPIC, Tx, placed, until};

/// On one thread, so that statements of other tests do not count.
#[tokio::test]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn a_delivery_costs_few_statements() {
    let database = Database::open(places::postgres()).await;
    let statements = Statements::of_this_thread();

    // Enqueuing is one statement, in the open transaction.
    let mut tx = database.begin().await;
    statements.take();
    for order in 1..=8 {
        tx.enqueue(outbox::message(TOPIC, &placed(order)))
            .await
            .unwrap();
    }
    assert_eq!(statements.take_verbs(), ["INSERT"; 8]);
    tx.commit().await.unwrap();
    statements.take();

    // All eight are claimed in one statement; each is then deleted.
    let handled = Log::new();
    let log = handled.clone();
    let relay = Relay::new(&database.outbox)
        .poll_interval(Duration::from_secs(60 * 60))
        .on(TOPIC, move |message: Message<Placed>| {
            log.push(message.payload.order);
            async { Ok::<_, Error>(()) }
        })
        .start()
        .unwrap();
    until(async || relay.stats().delivered == 8).await;
    relay.stop().await;
    let ran = statements.take_verbs();
    let count = |word: &str| ran.iter().filter(|it| *it == word).count();
    assert_eq!(count("DELETE"), 8, "{ran:?}");
    assert_eq!(count("WITH"), 1, "{ran:?}");
    // One poll finds the messages, and one finds that there are no more. An enqueue of another test triggers one
    // further poll.
    assert!(count("SELECT") >= 2, "{ran:?}");
    assert_eq!(ran.len(), 8 + 1 + count("SELECT"), "{ran:?}");
}

/// The relay may deliver a message that it has already requested, but requests no further one.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn a_relay_that_is_shut_down_claims_no_further_message() {
    let database = Database::open(places::postgres()).await;
    let topics = ["a", "b", "c"];
    for topic in topics {
        database.enqueue(outbox::message(topic, &placed(1))).await;
    }
    // Given a relay that waits for its first claim,
    let mut lock = database.begin().await;
    let Tx::Postgres(tx) = &mut lock else {
        unreachable!("it is PostgreSQL");
    };
    sqlx::query("LOCK TABLE idem_outbox IN EXCLUSIVE MODE")
        .execute(&mut **tx)
        .await
        .unwrap();
    let handled = Log::new();
    let mut relay = database.relay();
    for topic in topics {
        let log = handled.clone();
        relay = relay.on(topic, move |message: Message<Placed>| {
            log.push(message.topic().to_owned());
            async { Ok::<_, Error>(()) }
        });
    }
    let relay = relay.start().unwrap();
    let waiting =
        "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'idem_outbox'::regclass";
    until(async || database.number(waiting).await == 1).await;
    // when it is shut down before the claim is granted,
    let mut shutdown = Box::pin(relay.stop());
    let polled = std::future::poll_fn(|cx| Poll::Ready(shutdown.as_mut().poll(cx))).await;
    assert!(polled.is_pending());
    lock.rollback().await.unwrap();
    shutdown.await;
    // then that claim was its last one.
    assert_eq!(handled.entries().len(), 1);
    assert_eq!(database.rows().await, 2);
    let taken = "SELECT count(*) FROM idem_outbox WHERE attempt > 0";
    assert_eq!(database.number(taken).await, 0);
}

/// The relay's first attempt to record an outcome fails, and its second finds that another relay has the message: the
/// relay does not count the message as delivered.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_another_relay_took_over_is_lost_and_not_delivered() {
    let database = Database::open(places::sqlite()).await;
    database.enqueue(outbox::message(TOPIC, &placed(1))).await;
    // The trigger counts the attempts, which FAIL does not roll back.
    database
        .execute(
            "CREATE TABLE tries (at INTEGER); \
             CREATE TRIGGER refuses BEFORE DELETE ON idem_outbox BEGIN \
               INSERT INTO tries VALUES (1); SELECT RAISE (FAIL, 'not now'); END",
        )
        .await;
    let relay = database
        .relay()
        .on(TOPIC, |_: Message<Placed>| async { Ok::<_, Error>(()) })
        .start()
        .unwrap();
    until(async || database.number("SELECT count(*) FROM tries").await > 0).await;
    database
        .execute(
            "BEGIN IMMEDIATE; UPDATE idem_outbox SET claim_id = x'00', attempt = attempt + 1; \
             DROP TRIGGER refuses; COMMIT",
        )
        .await;
    until(async || relay.stats().lost == 1).await;
    let stats = relay.stats();
    assert_eq!((stats.delivered, stats.failed, stats.parked), (0, 0, 0));
    relay.stop().await;
}

/// No other relay took the message over, so an outcome whose acknowledgement was lost turns out to be recorded.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_whose_outcome_lost_its_acknowledgement_is_delivered() {
    let database = Database::open(places::sqlite()).await;
    database.enqueue(outbox::message(TOPIC, &placed(1))).await;
    // The row is deleted, and the statement returns an error.
    database
        .execute(
            "CREATE TRIGGER unheard AFTER DELETE ON idem_outbox BEGIN SELECT RAISE (FAIL, 'lost'); END",
        )
        .await;
    let relay = database
        .relay()
        .on(TOPIC, |_: Message<Placed>| async { Ok::<_, Error>(()) })
        .start()
        .unwrap();
    until(async || relay.stats().delivered == 1).await;
    assert_eq!(relay.stats().lost, 0);
    relay.stop().await;
    assert_eq!(database.rows().await, 0);
}
