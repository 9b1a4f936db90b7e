//! What a relay costs the database, in statements.

use std::time::Duration;

use idem_runtime::Error;
use idem_runtime::outbox::{self, Message};
use idem_tests::statements::Statements;

use super::{Database, Log, Placed, TOPIC, placed, until};

/// On one thread, so that the statements of others do not count.
#[tokio::test]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn statements_are_few() {
    let database = Database::postgres().await;
    let statements = Statements::of_this_thread();

    // Enqueuing is one, in the transaction that is open.
    let mut tx = database.begin().await;
    statements.take();
    for order in 1..=8 {
        tx.enqueue(outbox::message(TOPIC, &placed(order)))
            .await
            .unwrap();
    }
    assert_eq!(statements.take_verbs(), ["INSERT"; 8]);
    tx.commit().await;
    statements.take();

    // All eight are claimed at once; each is then deleted.
    let handled = Log::new();
    let log = handled.clone();
    let relay = database
        .outbox
        .relay()
        .poll_every(Duration::from_secs(60 * 60))
        .on(TOPIC, move |message: Message<Placed>| {
            log.push(message.payload.order);
            async { Ok::<_, Error>(()) }
        })
        .start()
        .unwrap();
    until(async || relay.stats().delivered == 8).await;
    relay.shutdown().await;
    let ran = statements.take_verbs();
    let count = |word: &str| ran.iter().filter(|it| *it == word).count();
    assert_eq!(count("DELETE"), 8, "{ran:?}");
    // One looks, one claims, one finds that there is no more.
    assert_eq!(ran.len(), 8 + 3, "{ran:?}");
}
