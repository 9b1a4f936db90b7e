//! What a relay costs the database, in statements.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use idem_runtime::Error;
use idem_runtime::outbox::{self, Message};
use tracing::Subscriber;
use tracing::field::{Field, Visit};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};

use super::{Database, Log, Placed, TOPIC, placed, until};

/// The first word of each statement that sqlx ran on this thread.
#[derive(Clone, Default)]
struct Statements(Arc<Mutex<Vec<String>>>);

impl Statements {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl<S: Subscriber> Layer<S> for Statements {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        if event.metadata().target() == "sqlx::query" {
            let mut summary = Summary::default();
            event.record(&mut summary);
            let text = summary.0.trim_start_matches(|it: char| !it.is_alphabetic());
            let word = text.split_whitespace().next().unwrap_or_default();
            self.0.lock().unwrap().push(word.to_uppercase());
        }
    }
}

#[derive(Default)]
struct Summary(String);

impl Visit for Summary {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "summary" {
            self.0 = value.to_owned();
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "summary" {
            self.0 = format!("{value:?}");
        }
    }
}

/// On one thread, so that the statements of others do not count.
#[tokio::test]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn statements_are_few() {
    let database = Database::postgres().await;
    let statements = Statements::default();
    let subscriber = tracing_subscriber::registry().with(statements.clone());
    // With a single one in the process, `tracing` would ask the thread that comes first, of another test perhaps, whether
    // anybody is interested, and keep its answer for all threads.
    let _second = tracing::Dispatch::new(tracing_subscriber::registry());
    let _guard = tracing::subscriber::set_default(subscriber);
    tracing::callsite::rebuild_interest_cache();

    // Enqueuing is one, in the transaction that is open.
    let mut tx = database.begin().await;
    statements.take();
    for order in 1..=8 {
        tx.enqueue(outbox::message(TOPIC, &placed(order)))
            .await
            .unwrap();
    }
    assert_eq!(statements.take(), ["INSERT"; 8]);
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
    let ran = statements.take();
    let count = |word: &str| ran.iter().filter(|it| *it == word).count();
    assert_eq!(count("DELETE"), 8, "{ran:?}");
    // One looks, one claims, one finds that there is no more.
    assert_eq!(ran.len(), 8 + 3, "{ran:?}");
}
