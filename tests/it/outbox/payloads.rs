//! A payload reaches its handler as the value that was enqueued.

use std::sync::Arc;

use idem_runtime::error::InvalidOutbox;
use idem_runtime::outbox::{self, Message};
use idem_runtime::{Error, Key};
use idem_tests::on_stores;
use serde::Serialize;

use super::{Database, Log, TOPIC, until};
use crate::replay::values::Any;
use crate::replay::{handed_on, is_readable};

on_stores! { [transactions] Database::open:
    any_enqueued_value_reaches_its_handler_unchanged,
    another_amount_beyond_64_bits_is_another_message,
}

async fn any_enqueued_value_reaches_its_handler_unchanged(database: Database) {
    let values = Arc::new(handed_on(100));
    let (mut enqueued, mut readable) = (0, 0);
    for (number, value) in values.iter().enumerate() {
        let message = (number, value);
        match database.try_enqueue(outbox::message(TOPIC, &message)).await {
            Ok(_) => {
                enqueued += 1;
                readable += usize::from(is_readable(value));
            }
            Err(Error::InvalidOutbox(InvalidOutbox::Payload(_))) => {}
            Err(error) => panic!("{error:?}: {value:?}"),
        }
    }
    assert!(readable > values.len() / 3, "{readable}");
    let handled = Log::new();
    let log = handled.clone();
    let relay = database
        .relay()
        .on(TOPIC, move |message: Message<(usize, Any)>| {
            log.push(message.payload);
            async { Ok::<_, Error>(()) }
        })
        .start()
        .unwrap();
    until(async || {
        let stats = relay.stats();
        stats.delivered + stats.parked == enqueued
    })
    .await;
    assert_eq!(relay.stats().delivered as usize, readable);
    relay.stop().await;
    for (number, value) in handled.entries() {
        assert_eq!(value, values[number]);
    }
}

#[derive(Debug, Serialize)]
struct Transfer {
    wei: u128,
}

async fn another_amount_beyond_64_bits_is_another_message(database: Database) {
    let key = Key::new("transfer-1").unwrap();
    let transfer = |wei| Transfer { wei };
    let first = transfer(1_000_000_000_000_000_000_000);
    let enqueue = async |transfer: &Transfer| {
        let message = outbox::message(TOPIC, transfer).key(&key);
        database.try_enqueue(message).await
    };
    assert_eq!(enqueue(&first).await.unwrap(), key);
    assert_eq!(enqueue(&first).await.unwrap(), key);
    for other in [1, 65_536].map(|more| transfer(first.wei + more)) {
        assert!(
            matches!(enqueue(&other).await, Err(Error::KeyReused)),
            "{other:?}"
        );
    }
    assert_eq!(database.rows().await, 1);
}
