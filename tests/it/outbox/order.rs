//! One message of a key at a time, and in order, with any number of relays.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use idem_runtime::Error;
use idem_runtime::outbox::{self, Message};
use idem_tests::on_stores;

use super::{Database, Log, Placed, TOPIC, placed, until};

on_stores! { [transactions] Database::open:
    four_relays_handle_each_of_a_thousand_messages_once_and_in_order,
    an_ordering_key_holds_across_topics,
    many_messages_of_one_key_are_ordered_and_do_not_delay_other_keys,
}

async fn four_relays_handle_each_of_a_thousand_messages_once_and_in_order(database: Database) {
    const MESSAGES: u64 = 1_000;
    const CUSTOMERS: u64 = 23;
    let mut tx = database.begin().await;
    for order in 0..MESSAGES {
        let customer = format!("customer-{}", order % CUSTOMERS);
        let order = placed(order);
        let mut message = outbox::message(TOPIC, &order);
        // Every fifth message has no ordering key.
        if !order.order.is_multiple_of(5) {
            message = message.ordered_by(&customer);
        }
        tx.enqueue(message).await.unwrap();
    }
    tx.commit().await.unwrap();

    let handled = Log::new();
    let busy: Arc<HashMap<u64, AtomicUsize>> =
        Arc::new((0..CUSTOMERS).map(|it| (it, AtomicUsize::new(0))).collect());
    let relays: Vec<_> = (0..4)
        .map(|relay| {
            let (log, busy) = (handled.clone(), Arc::clone(&busy));
            // Each relay has its own state, as in a separate process.
            database
                .relay()
                .concurrency(8)
                .on(TOPIC, move |message: Message<Placed>| {
                    let (log, busy) = (log.clone(), Arc::clone(&busy));
                    async move {
                        let order = message.payload.order;
                        let customer = &busy[&(order % CUSTOMERS)];
                        if message.ordering_key().is_some() {
                            assert_eq!(customer.fetch_add(1, Ordering::SeqCst), 0);
                            tokio::task::yield_now().await;
                        }
                        log.push((relay, order));
                        if message.ordering_key().is_some() {
                            customer.fetch_sub(1, Ordering::SeqCst);
                        }
                        Ok::<_, Error>(())
                    }
                })
                .start()
                .unwrap()
        })
        .collect();
    until(async || {
        let delivered: u64 = relays.iter().map(|it| it.stats().delivered).sum();
        delivered >= MESSAGES
    })
    .await;
    for relay in relays {
        let stats = relay.stats();
        assert_eq!((stats.failed, stats.lost), (0, 0));
        relay.stop().await;
    }
    let handled = handled.entries();
    assert_eq!(handled.len(), MESSAGES as usize, "each exactly once");
    let distinct: HashSet<_> = handled.iter().map(|(_, order)| order).collect();
    assert_eq!(distinct.len(), MESSAGES as usize);
    let at_work: HashSet<_> = handled.iter().map(|(relay, _)| relay).collect();
    assert!(at_work.len() > 1, "one relay did all of it");
    for customer in 0..CUSTOMERS {
        let of_one: Vec<_> = handled
            .iter()
            .map(|(_, order)| *order)
            .filter(|order| order % CUSTOMERS == customer && order % 5 > 0)
            .collect();
        assert!(of_one.is_sorted(), "customer {customer}: {of_one:?}");
    }
    assert_eq!(database.rows().await, 0);
}

async fn an_ordering_key_holds_across_topics(database: Database) {
    let mut tx = database.begin().await;
    for order in 0..40 {
        let topic = ["placed", "paid", "sent", "closed"][order % 4];
        let order = placed(order as u64);
        tx.enqueue(outbox::message(topic, &order).ordered_by("ann"))
            .await
            .unwrap();
    }
    tx.commit().await.unwrap();
    let handled = Log::new();
    let handler = || {
        let log = handled.clone();
        move |message: Message<Placed>| {
            let log = log.clone();
            async move {
                tokio::task::yield_now().await;
                log.push(message.payload.order);
                Ok::<_, Error>(())
            }
        }
    };
    // Neither relay can continue without the other.
    let one = database
        .relay()
        .on("placed", handler())
        .on("sent", handler())
        .start()
        .unwrap();
    let other = database
        .relay()
        .on("closed", handler())
        .on("paid", handler())
        .start()
        .unwrap();
    let handled = handled.reached(40).await;
    one.stop().await;
    other.stop().await;
    assert_eq!(handled, (0..40).collect::<Vec<_>>());
}

async fn many_messages_of_one_key_are_ordered_and_do_not_delay_other_keys(database: Database) {
    // The relay polls again after each hundred messages. MySQL then picks one of the candidates at random.
    const ORDERS: u64 = 2_000;
    const OF_BOB: u64 = 150;
    let mut tx = database.begin().await;
    for order in 0..ORDERS {
        let customer = if order == OF_BOB { "bob" } else { "ann" };
        let order = placed(order);
        tx.enqueue(outbox::message(TOPIC, &order).ordered_by(customer))
            .await
            .unwrap();
    }
    tx.commit().await.unwrap();
    let handled = Log::new();
    let log = handled.clone();
    let relay = database
        .relay()
        .concurrency(1)
        .on(TOPIC, move |message: Message<Placed>| {
            log.push(message.payload.order);
            async { Ok::<_, Error>(()) }
        })
        .start()
        .unwrap();
    let mut handled = handled.reached(ORDERS as usize).await;
    relay.stop().await;
    let bob = handled.iter().position(|order| *order == OF_BOB).unwrap();
    assert!(bob < ORDERS as usize - 1, "bob waited for all of ann's");
    handled.remove(bob);
    assert!(handled.is_sorted(), "{handled:?}");
    assert_eq!(handled.len() as u64, ORDERS - 1);
}
