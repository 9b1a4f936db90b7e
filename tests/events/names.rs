//! Names of spans, attributes, metrics and outcomes: those of the code are those of the documentation.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::post;
use idem_client::{IdempotencyMiddleware, RetryPolicy};
use idem_runtime::metrics::{CallOutcome, METRICS};
use idem_runtime::outbox::{Message, Outbox, Relay};
use idem_runtime::{Error, Idem, MemoryStore, SqliteStore, idempotent};
use tracing::Subscriber;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

const PAGE: &str = include_str!("../../docs/book/src/metrics.md");

/// Rows of the table under a heading, without the marks of code.
fn table(heading: &str) -> Vec<Vec<String>> {
    let section = PAGE.split(&format!("\n## {heading}\n")).nth(1).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| {
        let cells = row.trim_matches('|').split(" | ");
        cells
            .map(|cell| cell.replace('`', "").trim().to_owned())
            .collect()
    })
    .collect()
}

/// Spans of the target `idem`: the attributes that each declares, and the values that it got.
#[derive(Debug, Clone, Default)]
struct Spans(Arc<Mutex<Vec<Seen>>>);

#[derive(Debug, Clone)]
struct Seen {
    id: u64,
    name: &'static str,
    declared: BTreeSet<&'static str>,
    values: BTreeMap<&'static str, String>,
}

impl Visit for Seen {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.values.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.values.insert(field.name(), value.to_owned());
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Spans {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, _: Context<'_, S>) {
        let metadata = attributes.metadata();
        if metadata.target() != "idem" {
            return;
        }
        let mut seen = Seen {
            id: id.into_u64(),
            name: metadata.name(),
            declared: metadata.fields().iter().map(|field| field.name()).collect(),
            values: BTreeMap::new(),
        };
        attributes.record(&mut seen);
        self.0.lock().unwrap().push(seen);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, _: Context<'_, S>) {
        let mut spans = self.0.lock().unwrap();
        // Ids are used again.
        let seen = spans.iter_mut().rev().find(|seen| seen.id == id.into_u64());
        if let Some(seen) = seen {
            values.record(seen);
        }
    }
}

impl Spans {
    /// Values of the spans with this name, in the order of their creation.
    fn named(&self, name: &str) -> Vec<BTreeMap<&'static str, String>> {
        let spans = self.0.lock().unwrap();
        let named = spans.iter().filter(|seen| seen.name == name);
        named.map(|seen| seen.values.clone()).collect()
    }
}

#[tokio::test]
async fn attributes_are_those_of_the_documentation() {
    let spans = Spans::default();
    let _guard =
        tracing::subscriber::set_default(tracing_subscriber::registry().with(spans.clone()));
    call_twice().await;
    deliver().await;
    send().await;

    let documented: BTreeSet<_> = table("Spans")
        .into_iter()
        .map(|row| (row[0].clone(), row[1].clone()))
        .collect();
    let declared: BTreeSet<_> = spans
        .0
        .lock()
        .unwrap()
        .iter()
        .flat_map(|seen| {
            seen.declared
                .iter()
                .map(|field| (seen.name.to_owned(), (*field).to_owned()))
        })
        .collect();
    assert_eq!(declared, documented);

    let calls = spans.named("idempotent");
    assert_eq!(calls.len(), 2);
    assert_eq!(calls[0]["idem.operation"], "test.names");
    assert_eq!(
        calls[0]["code.function.name"],
        concat!(module_path!(), "::named")
    );
    assert_eq!(
        [&calls[0]["idem.outcome"], &calls[0]["idem.attempt"]],
        ["executed", "1"]
    );
    assert!(!calls[0].contains_key("error.type") && calls[0].contains_key("idem.record"));
    assert_eq!(
        [&calls[1]["idem.outcome"], &calls[1]["error.type"]],
        ["key_reused"; 2]
    );

    let deliveries = spans.named("outbox");
    assert_eq!(deliveries.len(), 2);
    for (delivery, attempt) in deliveries.iter().zip(["1", "2"]) {
        assert_eq!(delivery["messaging.destination.name"], "mails");
        assert_eq!(delivery["messaging.message.id"], "1");
        assert_eq!(delivery["idem.attempt"], attempt);
        assert_eq!(delivery["otel.kind"], "consumer");
    }
    let errors = deliveries
        .iter()
        .map(|it| it.get("error.type").map(String::as_str));
    assert_eq!(errors.collect::<Vec<_>>(), [Some("failed"), None]);

    let tries = spans.named("http_request");
    let of = |name: &str| {
        tries
            .iter()
            .map(|it| it.get(name).cloned())
            .collect::<Vec<_>>()
    };
    let texts = |them: [Option<&str>; 2]| them.map(|it| it.map(str::to_owned)).to_vec();
    assert_eq!(of("http.request.resend_count"), texts([None, Some("1")]));
    assert_eq!(
        of("http.response.status_code"),
        texts([Some("503"), Some("200")])
    );
    assert_eq!(of("error.type"), texts([Some("503"), None]));
    assert_eq!(of("http.request.method"), texts([Some("POST"); 2]));
    assert_eq!(of("server.address"), texts([Some("127.0.0.1"); 2]));
    let all = format!("{:?}", spans.0.lock().unwrap());
    assert!(!all.contains("secret"), "{all}");
}

#[idempotent(key = constant("secret"), ttl = "1m", store = idem, name = "test.names")]
async fn named(idem: &Idem<MemoryStore>, request: u64) -> Result<u64, Error> {
    Ok(request)
}

/// A call, and another request with its key.
async fn call_twice() {
    let idem = Idem::new(MemoryStore::new());
    for request in 0..2_u64 {
        let answer = named(&idem, request).await;
        assert_eq!(answer.is_ok(), request == 0);
    }
}

/// A message whose first delivery fails.
async fn deliver() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&folder.path().join("outbox.db"))
        .await
        .unwrap();
    let outbox = Outbox::new(&store);
    outbox.migrate().await.unwrap();
    let pool = SqliteStore::connect_options(folder.path().join("outbox.db"));
    let pool = sqlx::SqlitePool::connect_with(pool).await.unwrap();
    let mut connection = pool.acquire().await.unwrap();
    outbox
        .enqueue(&mut *connection, "mails", "secret")
        .await
        .unwrap();
    drop(connection);
    let (delivered, mut arrived) = tokio::sync::mpsc::unbounded_channel();
    let relay = Relay::new(&outbox)
        .backoff(Duration::from_millis(1), Duration::from_millis(1))
        .poll_interval(Duration::from_millis(5))
        .on("mails", move |message: Message<String>| {
            let delivered = delivered.clone();
            async move {
                match message.attempt() {
                    1 => Err("the first delivery fails"),
                    _ => delivered.send(()).map_err(|_| "nobody listens"),
                }
            }
        })
        .start()
        .unwrap();
    arrived.recv().await.unwrap();
    relay.stop().await;
}

/// A request that the server answers at the second try.
async fn send() {
    let tries = Arc::new(AtomicU32::new(0));
    let handler = async move || -> Result<StatusCode, Infallible> {
        Ok(match tries.fetch_add(1, Ordering::SeqCst) {
            0 => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::OK,
        })
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/secret", listener.local_addr().unwrap());
    tokio::spawn(async move {
        axum::serve(listener, Router::new().route("/secret", post(handler))).await
    });
    let middleware = IdempotencyMiddleware::new().policy(RetryPolicy::default());
    let client = middleware
        .client(reqwest::Client::builder())
        .unwrap()
        .build();
    let answer = client.post(url).body("secret").send().await.unwrap();
    assert_eq!(answer.status(), 200);
}

#[test]
fn metrics_and_outcomes_are_those_of_the_documentation() {
    let listed: Vec<_> = METRICS
        .iter()
        .map(|metric| {
            let kind = format!("{:?}", metric.kind).to_lowercase();
            let labels = match metric.labels {
                [] => "–".to_owned(),
                labels => labels.join(", "),
            };
            vec![metric.name.to_owned(), kind, labels, metric.help.to_owned()]
        })
        .collect();
    assert_eq!(table("Metrics"), listed);
    let outcomes: Vec<_> = CallOutcome::ALL.iter().map(|it| it.as_str()).collect();
    let documented = table("Outcomes");
    let documented: Vec<_> = documented.iter().map(|row| row[0].as_str()).collect();
    assert_eq!(documented, outcomes);
}
