//! Handlers that hang: they are cut off, and do not stop the handlers of other topics.

use std::time::Duration;

use idem_runtime::outbox::{self, Message};
use idem_tests::on_stores;

use super::{Database, Log, Placed, TOPIC, placed, until};

on_stores! { [transactions] Database::open:
    hanging_handlers_of_one_topic_leave_room_for_others,
    a_handler_that_hangs_is_cut_off_and_called_again,
    keys_that_differ_in_trailing_blanks_are_two_keys,
}

async fn hanging_handlers_of_one_topic_leave_room_for_others(database: Database) {
    const HANGING: &str = "hanging";
    let hanging = Log::new();
    let handled = Log::new();
    for order in 0..32 {
        let message = placed(order);
        database.enqueue(outbox::message(HANGING, &message)).await;
    }
    let (seen_hanging, seen) = (hanging.clone(), handled.clone());
    let relay = database
        .relay()
        .concurrency(8)
        .on(HANGING, move |message: Message<Placed>| {
            seen_hanging.push(message.payload.order);
            std::future::pending::<Result<(), String>>()
        })
        .on(TOPIC, move |message: Message<Placed>| {
            seen.push(message.payload.order);
            async { Ok::<_, String>(()) }
        })
        .start()
        .unwrap();
    hanging.reached(6).await;
    for order in 0..3 {
        database
            .enqueue(outbox::message(TOPIC, &placed(order)))
            .await;
    }
    handled.reached(3).await;
    assert_eq!(hanging.entries().len(), 6, "three quarters of eight");
    drop(relay);
}

async fn a_handler_that_hangs_is_cut_off_and_called_again(database: Database) {
    let attempts = Log::new();
    let seen = attempts.clone();
    let relay = database
        .relay()
        .handler_timeout(Duration::from_millis(50))
        .max_attempts(3)
        .on(TOPIC, move |message: Message<Placed>| {
            seen.push(message.attempt());
            std::future::pending::<Result<(), String>>()
        })
        .start()
        .unwrap();
    database.enqueue(outbox::message(TOPIC, &placed(1))).await;
    until(async || relay.stats().parked == 1).await;
    relay.stop().await;
    assert_eq!(attempts.entries(), [1, 2, 3]);
    let parked = database.outbox.parked(None, 10).await.unwrap().messages;
    let error = parked[0].last_error();
    assert!(error.contains("took longer than 50ms"), "{error}");
}

async fn keys_that_differ_in_trailing_blanks_are_two_keys(database: Database) {
    let key_of = |key: &str| idem_runtime::Key::new(key).unwrap();
    for key in ["Job-1", "Job-1 ", "Job-1  "] {
        database
            .enqueue(outbox::message(TOPIC, &placed(7)).key(&key_of(key)))
            .await;
    }
    assert_eq!(database.rows().await, 3);
    let relay = database
        .relay()
        .max_attempts(1)
        .on(TOPIC, async |_: Message<Placed>| Err("no stamps"))
        .start()
        .unwrap();
    until(async || relay.stats().parked == 3).await;
    relay.stop().await;
    assert!(
        !database
            .manually()
            .discard(&key_of("Job-1   "))
            .await
            .unwrap()
    );
    assert!(
        database
            .manually()
            .discard(&key_of("Job-1 "))
            .await
            .unwrap()
    );
    let rest = database.outbox.parked(None, 10).await.unwrap().messages;
    let rest: Vec<_> = rest.iter().map(|it| it.key().as_str()).collect();
    assert_eq!(rest, ["Job-1", "Job-1  "]);
    let audit = outbox::MessageAuditFilter::default();
    let page = idem_runtime::store::PageRequest::default();
    let entries = database.outbox.audit(&audit, &page).await.unwrap().entries;
    assert_eq!(entries[0].key, key_of("Job-1 "));
}
