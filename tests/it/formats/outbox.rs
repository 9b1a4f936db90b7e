//! Messages of an outbox, in each of their states.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use idem_runtime::Key;
use idem_runtime::outbox::{self, Message, MessageAuditFilter, Relay};
use idem_runtime::store::PageRequest;
use idem_tests::until;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Raw;
use super::entry::{DAY, change};
use super::times::Writing;

const TOPIC: &str = "order.placed";
/// Topic whose messages are handled while the data is written.
const HANDLED: &str = "order.handled";

/// Contents of an outbox.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Contents {
    waiting: u64,
    parked: Vec<String>,
    audit: Vec<String>,
    /// What a relay delivers of [`TOPIC`], in this order.
    deliveries: Vec<Delivery>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Delivery {
    key: String,
    ordering_key: Option<String>,
    headers: BTreeMap<String, String>,
    payload: Value,
}

fn deliveries() -> Vec<Delivery> {
    let delivery = |number: u32| Delivery {
        key: format!("m-{number}"),
        ordering_key: (number > 1).then(|| "order '7'".to_owned()),
        headers: match number {
            2 => BTreeMap::from([("trace".to_owned(), "00-ab \"c\"".to_owned())]),
            _ => BTreeMap::new(),
        },
        payload: json!({ "order": 7, "text": "Käse 'n' Brot", "number": number }),
    };
    (1..=3).map(delivery).collect()
}

/// Enqueues messages, and lets a relay deliver one and park others, which an operator requeues and discards.
pub(super) async fn write(raw: &Raw, writing: &Arc<Writing>) {
    let Raw::Sql(pool, outbox) = raw else { return };
    for delivery in deliveries() {
        let mut message = outbox::message(TOPIC, &delivery.payload).key(&*delivery.key);
        if let Some(key) = &delivery.ordering_key {
            message = message.ordered_by(key);
        }
        for (name, value) in &delivery.headers {
            message = message.header(name, value);
        }
        writing.tick().await;
        let mut tx = pool.begin().await.unwrap();
        tx.enqueue(message).await.unwrap();
        tx.commit().await.unwrap();
    }
    for key in ["delivered", "parked", "requeued", "discarded"] {
        writing.tick().await;
        let mut tx = pool.begin().await.unwrap();
        let message = outbox::message(HANDLED, &key).key(key);
        tx.enqueue(message).await.unwrap();
        tx.commit().await.unwrap();
        let clock = Arc::clone(writing);
        let relay = Relay::new(outbox)
            .poll_interval(Duration::from_millis(10))
            .max_attempts(1)
            .keep_delivered(365 * DAY)
            .on(HANDLED, move |message: Message<String>| {
                let clock = Arc::clone(&clock);
                async move {
                    clock.tick().await;
                    match &*message.payload {
                        "delivered" => Ok(()),
                        _ => Err("no stamps"),
                    }
                }
            })
            .start()
            .unwrap();
        until(async || relay.stats().parked + relay.stats().delivered == 1).await;
        relay.stop().await;
    }
    let change = change();
    for key in ["requeued", "discarded"] {
        writing.tick().await;
        let (by, key) = (outbox.by(&change), Key::new(key).unwrap());
        let changed = match key.as_str() {
            "requeued" => by.requeue(&key).await,
            _ => by.discard(&key).await,
        };
        assert!(changed.unwrap());
    }
    writing.tick().await;
}

/// Reads the outbox, without delivering anything.
pub(super) async fn contents(raw: &Raw) -> Option<Contents> {
    let Raw::Sql(_, outbox) = raw else {
        return None;
    };
    let parked = outbox.parked(None, 100).await.unwrap();
    assert_eq!(parked.unreadable, []);
    let parked = parked.messages.iter().map(|it| {
        let (key, attempts, error) = (it.key().as_str(), it.attempts(), it.last_error());
        format!("{key} {} after {attempts} attempts: {error}", it.payload())
    });
    let filter = MessageAuditFilter::default();
    let audit = outbox
        .audit(&filter, &PageRequest::default())
        .await
        .unwrap();
    assert_eq!(audit.unreadable, []);
    let audit = audit.entries.iter().rev().map(|it| {
        let (key, change) = (it.key.as_str(), &it.change);
        format!(
            "{:?} {key} by {}: {}",
            it.action,
            change.actor(),
            change.reason()
        )
    });
    Some(Contents {
        waiting: outbox.backlog().await.unwrap().waiting,
        parked: parked.collect(),
        audit: audit.collect(),
        deliveries: deliveries(),
    })
}

/// Delivers what waits. The messages have their keys, headers and order.
pub(super) async fn deliver(raw: &Raw, expected: Option<&Contents>) {
    let (Raw::Sql(_, outbox), Some(expected)) = (raw, expected) else {
        return;
    };
    let delivered: Arc<Mutex<Vec<Delivery>>> = Arc::default();
    let list = Arc::clone(&delivered);
    let relay = Relay::new(outbox)
        .poll_interval(Duration::from_millis(10))
        .concurrency(1)
        .on(TOPIC, move |message: Message<Value>| {
            list.lock().unwrap().push(Delivery {
                key: message.key().as_str().to_owned(),
                ordering_key: message.ordering_key().map(str::to_owned),
                headers: message.headers().clone(),
                payload: message.payload,
            });
            async { Ok::<_, String>(()) }
        })
        .on(HANDLED, async |_: Message<String>| Ok::<_, String>(()))
        .start()
        .unwrap();
    until(async || relay.stats().delivered == expected.waiting).await;
    relay.stop().await;
    let delivered = delivered.lock().unwrap().clone();
    // Only messages with one ordering key have an order.
    let of = |list: &[Delivery], ordered: bool| -> Vec<Delivery> {
        let found = list
            .iter()
            .filter(|it| it.ordering_key.is_some() == ordered);
        found.cloned().collect()
    };
    for ordered in [true, false] {
        assert_eq!(of(&delivered, ordered), of(&expected.deliveries, ordered));
    }
    let parked = outbox.parked(None, 100).await.unwrap().messages;
    let change = change();
    for message in &parked {
        assert!(outbox.by(&change).requeue_listed(message).await.unwrap());
    }
    assert_eq!(parked.len(), expected.parked.len());
}
