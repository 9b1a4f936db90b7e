//! Relays that crash, pause or stop in the middle of a message.

use std::sync::Arc;
use std::time::Duration;

use idem_runtime::Error;
use idem_runtime::error::StoreErrorKind;
use idem_runtime::outbox::{self, Message};
use idem_tests::on_stores;
use tokio::sync::Semaphore;

use super::{Database, Log, Placed, TOPIC, placed, seen, until};

on_stores! { [transactions] Database::open:
    a_message_whose_relay_crashed_is_delivered_again_with_the_same_key,
    a_message_that_crashes_its_relay_every_time_is_parked,
    a_handler_that_is_slower_than_its_lease_keeps_its_message,
    a_relay_that_was_paused_past_its_lease_records_nothing,
    an_outcome_that_cannot_be_recorded_immediately_is_recorded_later,
    a_shutdown_finishes_running_deliveries_and_starts_none,
}

/// Ends the leases of all messages, as if their relays had crashed long ago.
const OVER: &str = "UPDATE idem_outbox SET due_at = 0";
/// Short enough for a test to wait for its end, long enough for a busy machine to renew it.
const LEASE: Duration = Duration::from_secs(4);

async fn a_message_whose_relay_crashed_is_delivered_again_with_the_same_key(database: Database) {
    let order = placed(1);
    let key = database
        .enqueue(outbox::message(TOPIC, &order).ordered_by("ann"))
        .await;
    let handled = Log::new();
    let log = handled.clone();
    let doomed = database
        .relay()
        .on(TOPIC, move |message: Message<Placed>| {
            // The effect has happened, and the handler never returns.
            log.push(seen(&message));
            std::future::pending::<Result<(), Error>>()
        })
        .start()
        .unwrap();
    handled.reached(1).await;
    drop(doomed);
    database.execute(OVER).await;
    let log = handled.clone();
    let relay = database
        .relay()
        .on(TOPIC, move |message: Message<Placed>| {
            log.push(seen(&message));
            async { Ok::<_, Error>(()) }
        })
        .start()
        .unwrap();
    until(async || relay.stats().delivered == 1).await;
    relay.stop().await;
    let key = key.as_str().to_owned();
    assert_eq!(handled.entries(), [(key.clone(), 1, 1), (key, 1, 2)]);
    assert_eq!(database.rows().await, 0);
}

async fn a_message_that_crashes_its_relay_every_time_is_parked(database: Database) {
    database.enqueue(outbox::message(TOPIC, &placed(1))).await;
    let handled = Log::new();
    let start = || {
        let log = handled.clone();
        database
            .relay()
            .max_attempts(2)
            .on(TOPIC, move |message: Message<Placed>| {
                log.push(message.attempt());
                std::future::pending::<Result<(), Error>>()
            })
            .start()
            .unwrap()
    };
    for attempt in 1..=2 {
        let doomed = start();
        handled.reached(attempt).await;
        drop(doomed);
        database.execute(OVER).await;
    }
    let relay = start();
    until(async || relay.stats().parked == 1).await;
    drop(relay);
    assert_eq!(handled.entries(), [1, 2]);
    let parked = database.outbox.parked(None, 1).await.unwrap().messages;
    assert!(
        parked[0].last_error().contains("no relay lived to tell"),
        "{}",
        parked[0].last_error()
    );
}

async fn a_handler_that_is_slower_than_its_lease_keeps_its_message(database: Database) {
    database.enqueue(outbox::message(TOPIC, &placed(1))).await;
    let handled = Log::new();
    let gate = Arc::new(Semaphore::new(0));
    let start = || {
        let (log, gate) = (handled.clone(), Arc::clone(&gate));
        database
            .relay()
            .lease(LEASE)
            .on(TOPIC, move |message: Message<Placed>| {
                log.push(message.attempt());
                let gate = Arc::clone(&gate);
                async move {
                    gate.acquire().await.unwrap().forget();
                    Ok::<_, Error>(())
                }
            })
            .start()
            .unwrap()
    };
    // Both relays poll for the message all the time.
    let relays = [start(), start()];
    handled.reached(1).await;
    let lease_end = "SELECT due_at FROM idem_outbox";
    let first = database.number(lease_end).await;
    let a_lease = LEASE.as_micros() as i64;
    until(async || database.number(lease_end).await > first + a_lease).await;
    gate.add_permits(2);
    until(async || database.rows().await == 0).await;
    let mut delivered = 0;
    for relay in relays {
        assert_eq!(relay.stats().lost, 0);
        delivered += relay.stats().delivered;
        relay.stop().await;
    }
    assert_eq!(handled.entries(), [1]);
    // The row may be deleted a moment before the delivery is counted.
    assert!(delivered <= 1);
}

async fn a_relay_that_was_paused_past_its_lease_records_nothing(database: Database) {
    let key = database.enqueue(outbox::message(TOPIC, &placed(1))).await;
    let handled = Log::new();
    let start = |gate: &Arc<Semaphore>, fails: bool| {
        let (log, gate) = (handled.clone(), Arc::clone(gate));
        database
            .relay()
            // While it works on one message it claims no other.
            .concurrency(1)
            .on(TOPIC, move |message: Message<Placed>| {
                log.push(seen(&message));
                let gate = Arc::clone(&gate);
                async move {
                    gate.acquire().await.unwrap().forget();
                    if fails { Err("late") } else { Ok(()) }
                }
            })
            .start()
            .unwrap()
    };
    let gates = [(); 3].map(|()| Arc::new(Semaphore::new(0)));
    let [late_success, late_failure, in_time] = &gates;
    // The first two relays lose their message in turn, because the test sets their leases to expired.
    let paused = start(late_success, false);
    handled.reached(1).await;
    database.execute(OVER).await;
    let failing = start(late_failure, true);
    handled.reached(2).await;
    database.execute(OVER).await;
    let owner = start(in_time, false);
    handled.reached(3).await;

    late_success.add_permits(1);
    until(async || paused.stats().lost == 1).await;
    late_failure.add_permits(1);
    until(async || failing.stats().lost == 1).await;
    assert_eq!(database.rows().await, 1, "the owner is still at work");
    assert_eq!(paused.stats().delivered, 0);
    in_time.add_permits(1);
    until(async || owner.stats().delivered == 1).await;
    assert_eq!(database.rows().await, 0);
    let key = key.as_str().to_owned();
    let expected = [1, 2, 3].map(|attempt| (key.clone(), 1, attempt));
    assert_eq!(handled.entries(), expected);
    for relay in [paused, failing, owner] {
        relay.stop().await;
    }
}

async fn an_outcome_that_cannot_be_recorded_immediately_is_recorded_later(database: Database) {
    database.enqueue(outbox::message(TOPIC, &placed(1))).await;
    let handled = Log::new();
    let log = handled.clone();
    let gate = Arc::new(Semaphore::new(0));
    let opened = Arc::clone(&gate);
    let relay = database
        .relay()
        .on(TOPIC, move |message: Message<Placed>| {
            log.push(message.attempt());
            let gate = Arc::clone(&opened);
            async move {
                gate.acquire().await.unwrap().forget();
                Ok::<_, Error>(())
            }
        })
        .start()
        .unwrap();
    handled.reached(1).await;
    // From now on every statement of the relay fails.
    database
        .execute("ALTER TABLE idem_outbox RENAME TO away")
        .await;
    gate.add_permits(1);
    // The handler has returned once only this test and the relay's own handler hold the gate.
    until(async || Arc::strong_count(&gate) == 2).await;
    // In the meantime the relay's statements have failed as well.
    for _ in 0..50 {
        let refused = database.outbox.backlog().await.unwrap_err();
        assert_eq!(refused.kind(), StoreErrorKind::Schema);
    }
    database
        .execute("ALTER TABLE away RENAME TO idem_outbox")
        .await;
    until(async || relay.stats().delivered == 1).await;
    relay.stop().await;
    assert_eq!(handled.entries(), [1]);
    assert_eq!(database.rows().await, 0);
}

async fn a_shutdown_finishes_running_deliveries_and_starts_none(database: Database) {
    for order in 1..=3 {
        let order = placed(order);
        database
            .enqueue(outbox::message(TOPIC, &order).ordered_by("ann"))
            .await;
    }
    let handled = Log::new();
    let log = handled.clone();
    let gate = Arc::new(Semaphore::new(0));
    let opened = Arc::clone(&gate);
    let relay = database
        .relay()
        .on(TOPIC, move |message: Message<Placed>| {
            log.push(message.payload.order);
            let gate = Arc::clone(&opened);
            async move {
                gate.acquire().await.unwrap().forget();
                Ok::<_, Error>(())
            }
        })
        .start()
        .unwrap();
    handled.reached(1).await;
    let mut stopping = Box::pin(relay.stop());
    let is_over = futures_util::poll!(stopping.as_mut()).is_ready();
    assert!(!is_over, "a handler is at work");
    gate.add_permits(3);
    stopping.await;
    assert_eq!(handled.entries(), [1]);
    assert_eq!(database.rows().await, 2);
    let backlog = database.outbox.backlog().await.unwrap();
    assert_eq!((backlog.waiting, backlog.parked), (2, 0));
}
