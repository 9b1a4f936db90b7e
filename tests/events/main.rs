//! The contents of spans and events, and the secrets that they never contain. This is a separate process: subscribers
//! would interfere with the callsites that other threads register at the same time.

#![expect(
    clippy::unwrap_used,
    reason = "a panic fails the test that it happens in"
)]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use idem_runtime::advanced::RunOptions;
use idem_runtime::conformance::faults::{FaultStore, Op};
use idem_runtime::{Cached, Call, Error, Idem, MemoryStore, OnCrash, RedisStore, Store};
use idem_servers::{Options, Server};
use idem_tests::recording::Recording;
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use tokio::sync::Notify;
use tracing::field::{Field, Visit};
use tracing::instrument::WithSubscriber as _;
use tracing::span::{Attributes, Id, Record};
use tracing::{Instrument as _, Level};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

mod crashes;
mod metrics;
mod names;
mod printed;

const LEASE: Duration = Duration::from_secs(30);

/// Makes a call whose owner is gone without a trace once its body has begun.
async fn kill<S: Store>(idem: &Idem<S>, call: Call) {
    let begun = Notify::new();
    let mut dead = Box::pin(idem.run(call, async || {
        begun.notify_one();
        std::future::pending::<Result<String, Error>>().await
    }));
    tokio::select! {
        ended = &mut dead => panic!("it never ends: {ended:?}"),
        () = begun.notified() => {}
    }
    std::mem::forget(dead);
}

/// Spans and events at the default level, as text.
#[derive(Debug, Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn add(&self, line: String) {
        self.0.lock().unwrap().push(line);
    }

    /// Takes all lines so far.
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl Visit for Log {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.add(format!("{}={value:?}", field.name()));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(format!("{}={value}", field.name()));
    }
}

impl<S: tracing::Subscriber> Layer<S> for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>, _: Context<'_, S>) -> bool {
        *metadata.level() <= Level::INFO
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, _: &Id, _: Context<'_, S>) {
        self.add(format!("span={}", attributes.metadata().name()));
        attributes.record(&mut self.clone());
    }

    fn on_record(&self, _: &Id, values: &Record<'_>, _: Context<'_, S>) {
        values.record(&mut self.clone());
    }

    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        self.add(format!("level={}", event.metadata().level()));
        event.record(&mut self.clone());
    }
}

/// A service whose key, scope and results are secrets.
struct Service {
    idem: Idem<FaultStore<MemoryStore>>,
    log: Log,
    everything: Vec<String>,
}

impl Service {
    fn call(key: &str, request: u64) -> Call {
        let ttl = Duration::from_secs(3600);
        Call::new("test.operation", &format!("secret-{key}"), &request, ttl).scope("secret-scope")
    }

    async fn run(&self, call: Call) -> Result<String, Error> {
        self.idem
            .run(call, async || Ok("secret value".to_owned()))
            .await
    }

    /// Spans and events since the last call: the outcomes of spans, and the levels of events.
    #[track_caller]
    fn said(&mut self, expected: &[&str]) {
        let lines = self.log.take();
        let spans = lines.iter().filter(|line| *line == "span=idempotent");
        assert_eq!(spans.count(), 1, "one span a call: {lines:?}");
        let said: Vec<_> = lines
            .iter()
            .filter(|line| line.starts_with("idem.outcome=") || line.starts_with("level="))
            .map(String::as_str)
            .collect();
        assert_eq!(said, expected, "{lines:?}");
        self.everything.extend(lines);
    }
}

#[tokio::test(start_paused = true)]
async fn each_call_is_a_span_with_its_outcome_and_without_secrets() {
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(log.clone()));
    let store = FaultStore::new(MemoryStore::new());
    let mut service = Service {
        idem: Idem::builder(store.clone()).max_result_bytes(20).build(),
        log,
        everything: Vec::new(),
    };
    let call = Service::call;

    service.run(call("k", 1)).await.unwrap();
    service.said(&["idem.outcome=executed"]);
    service.run(call("k", 1)).await.unwrap();
    service.said(&["idem.outcome=replayed"]);
    service.run(call("k", 2)).await.unwrap_err();
    service.said(&["idem.outcome=key_reused"]);

    // One call that holds the key, one that gets the in-flight error, and one that waits.
    let gate = store.hold_after(Op::Complete);
    let mut first = Box::pin(service.run(call("slow", 1)));
    assert!(first.as_mut().now_or_never().is_none());
    service.log.take();
    service.run(call("slow", 1)).await.unwrap_err();
    let mut waiter = Box::pin(service.run(call("slow", 1).wait(LEASE)));
    let logged = service.log.take();
    assert!(
        logged.contains(&"idem.outcome=in_flight".to_owned()),
        "{logged:?}"
    );
    assert!(waiter.as_mut().now_or_never().is_none());
    gate.open();
    let (first, waiter) = tokio::join!(first, waiter);
    assert_eq!(first.unwrap(), waiter.unwrap());
    let logged = service.log.take();
    assert!(
        logged.contains(&"idem.outcome=waited".to_owned()),
        "{logged:?}"
    );
    service.everything.extend(logged);

    // Interrupted: its owner under `refuse` was cancelled.
    let refuse = || call("dead", 1).on_crash(OnCrash::Refuse);
    let dead = service
        .idem
        .run(refuse(), async || -> Result<String, Error> {
            std::future::pending().await
        });
    assert!(Box::pin(dead).now_or_never().is_none());
    tokio::task::yield_now().await;
    service.log.take();
    service.run(refuse()).await.unwrap_err();
    service.said(&["idem.outcome=refused"]);

    // A result above the size limit.
    let long = service.idem.run(call("long", 1), async || {
        Ok::<_, Error>("secret ".repeat(10))
    });
    long.await.unwrap();
    service.said(&["level=ERROR", "idem.outcome=unrecorded"]);
    service.run(call("long", 1)).await.unwrap_err();
    service.said(&["idem.outcome=no_result"]);

    // A record that holds a result of another type.
    let other = service
        .idem
        .run(call("k", 1), async || Ok::<_, Error>(1_u64));
    other.await.unwrap_err();
    service.said(&["idem.outcome=decode_error"]);

    // Taken over while it was paused, by a call that still runs.
    let rival = Idem::new(store.clone());
    let overtaken = service.idem.run(call("paused", 1), async || {
        tokio::time::advance(LEASE).await;
        let running = rival.run(call("paused", 1), async || -> Result<String, Error> {
            std::future::pending().await
        });
        assert!(Box::pin(running).now_or_never().is_none());
        service.log.take();
        Ok::<_, Error>("secret value".to_owned())
    });
    overtaken.await.unwrap_err();
    let logged = service.log.take();
    assert!(
        logged.contains(&"idem.outcome=lease_lost".to_owned()),
        "{logged:?}"
    );
    service.everything.extend(logged);

    // The store is unreachable: an error for one call, an event for another that may run without a store.
    store.outage();
    service.run(call("down", 1)).await.unwrap_err();
    service.said(&["idem.outcome=store_error"]);
    service
        .run(call("down", 1).run_on_store_error())
        .await
        .unwrap();
    service.said(&["level=WARN", "idem.outcome=unprotected"]);

    let all = service.everything.join("\n");
    assert!(all.contains("idem.operation=test.operation") && all.contains("idem.attempt=1"));
    assert!(!all.contains("secret"), "{all}");
}

/// Calls continue without the cache. Only one of them emits an event, when the cache is lost and again when it is back.
/// Events of the service, each with the names of the spans around it.
#[derive(Clone, Default)]
struct Scopes(Arc<Mutex<Vec<Vec<&'static str>>>>);

impl<S> Layer<S> for Scopes
where
    S: tracing::Subscriber + for<'a> LookupSpan<'a>,
{
    fn on_event(&self, event: &tracing::Event<'_>, context: Context<'_, S>) {
        if event.metadata().target() == "service" {
            let scope = context.event_scope(event).into_iter().flatten();
            let names = scope.map(|span| span.name()).collect();
            self.0.lock().unwrap().push(names);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_detached_body_has_the_span_and_the_subscriber_of_its_caller() {
    let scopes = Scopes::default();
    let subscriber = tracing_subscriber::registry().with(scopes.clone());
    let idem = Idem::new(MemoryStore::new());
    let calls = async {
        let call = Call::new("test.detached", "k", "request", Duration::from_secs(3600));
        let body = async |_| {
            tokio::task::yield_now().await;
            tracing::info!(target: "service", "in the body");
            Ok::<_, Error>(())
        };
        idem.run_detached(call, RunOptions::new(), body).await?;
        let future = async {
            tracing::info!(target: "service", "in the future");
            Ok::<_, Error>(())
        };
        idem.detach(future).await
    };
    // The subscriber is that of the caller's task, and not that of the thread.
    let handler = async { calls.instrument(tracing::info_span!("handler")).await };
    handler.with_subscriber(subscriber).await.unwrap();
    let seen = scopes.0.lock().unwrap().clone();
    assert_eq!(seen, [vec!["idempotent", "handler"], vec!["handler"]]);
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn a_cache_logs_when_redis_is_lost_and_back() {
    let server = Server::redis(&Options::fast()).unwrap();
    let recording = Recording::default();
    let _recorder = ::metrics::set_default_local_recorder(&recording);
    let open_circuits = || {
        let open = |action| format!("idem_cache_circuits_open{{action=\"{action}\"}}");
        ["reading", "writing"].map(|action| recording.gauge(&open(action)).unwrap_or(0.0))
    };
    let client = redis::Client::open(server.url()).unwrap();
    let config = ConnectionManagerConfig::new().set_max_delay(Duration::from_millis(50));
    let connection = ConnectionManager::new_lazy_with_config(client, config).unwrap();
    let cached = Arc::new(Cached::in_redis(MemoryStore::new(), connection, "events"));
    let idem = Idem::new(Arc::clone(&cached));
    let call = async |number: u64| {
        let call = Call::new("test.operation", &number, &number, LEASE);
        idem.run(call, async || Ok::<_, Error>(number)).await
    };
    call(0).await.unwrap();

    let log = Log::default();
    let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(log.clone()));
    let mut number = 0;
    let mut calls_until = async |circuit_open: bool| {
        let deadline = std::time::Instant::now() + Duration::from_secs(30);
        // Some further calls after the change of state: they emit no event.
        let mut more = 5;
        while more > 0 {
            assert!(std::time::Instant::now() < deadline, "{:?}", log.take());
            number += 1;
            assert_eq!(call(number).await.unwrap(), number);
            if cached.stats().circuit_open == circuit_open {
                more -= 1;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let mut logged = log.take();
        logged.retain(|line| line.starts_with("message=the cache"));
        logged
    };
    server.kill().unwrap();
    assert_eq!(
        calls_until(true).await,
        ["message=the cache in redis fails, going on without it until it answers again"]
    );
    assert_eq!(open_circuits()[0], 1.0);
    // Longer than some back-off intervals, after each of which a caller tries the cache.
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(1_100)).await;
        assert!(calls_until(true).await.is_empty());
    }
    server.restart().unwrap();
    assert_eq!(
        calls_until(false).await,
        ["message=the cache in redis answers again"]
    );
    assert_eq!(open_circuits()[0], 0.0);
    drop((idem, cached));
    assert_eq!(open_circuits(), [0.0, 0.0]);
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn a_server_that_may_evict_records_causes_a_warning() {
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(log.clone()));
    for (policy, warned) in [
        ("noeviction", false),
        ("volatile-lru", true),
        ("allkeys-random", true),
    ] {
        let options = Options::fast().set("maxmemory-policy", policy);
        let server = Server::redis(&options).unwrap();
        let store = RedisStore::connect(&server.url()).await.unwrap();
        let logged = log.take().join(" ");
        assert_eq!(logged.contains("level=WARN"), warned, "{policy}: {logged}");
        assert_eq!(
            logged.contains(&format!("policy={policy}")),
            warned,
            "{logged}"
        );
        assert_eq!(store.warn_of_eviction().await.unwrap(), warned);
        log.take();
    }
}
