//! Metrics: what they count, their labels, and gauges that return to zero whatever callers do.

use std::collections::BTreeSet;
use std::future::{Future, pending};
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::routing::post;
use futures_util::FutureExt;
use idem_runtime::advanced::RunOptions;
use idem_runtime::conformance::faults::{FaultStore, Op};
use idem_runtime::fingerprint::Secret;
use idem_runtime::http::{IdempotencyLayer, unscoped};
use idem_runtime::key::RecordId;
use idem_runtime::metrics::{CallOutcome, METRICS, MetricKind};
use idem_runtime::outbox::Outbox;
use idem_runtime::{
    Cached, Call, Error, Idem, MemoryStore, OnCrash, Purger, SqliteStore, Store as _,
};
use idem_tests::claims::{end_lease, identity};
use idem_tests::clocked::ClockedStore;
use idem_tests::recording::Recording;
use tokio::time::{Instant, advance, sleep};
use tower_service::Service as _;

use crate::kill;

const LEASE: Duration = Duration::from_secs(30);
const OPERATION: &str = "test.metrics";

struct Service {
    idem: Idem<FaultStore<MemoryStore>>,
    store: FaultStore<MemoryStore>,
    recording: Recording,
}

impl Service {
    fn new(recording: &Recording) -> Self {
        let store = FaultStore::new(MemoryStore::new());
        let secret = Secret::new([7; 32]).unwrap();
        Self {
            idem: Idem::builder(store.clone())
                .max_result_bytes(20)
                .fingerprint_secret(secret)
                .build(),
            store,
            recording: recording.clone(),
        }
    }

    fn calls(&self, outcome: CallOutcome) -> u64 {
        calls(&self.recording, outcome)
    }

    fn all_calls(&self) -> u64 {
        let counters = self.recording.counters();
        let calls = counters
            .iter()
            .filter(|(name, _)| name.starts_with("idem_calls_total"));
        calls.map(|(_, count)| count).sum()
    }

    fn level(&self, gauge: &str) -> f64 {
        let name = format!("{gauge}{{operation=\"{OPERATION}\"}}");
        self.recording.gauge(&name).unwrap_or(0.0)
    }

    fn durations(&self, histogram: &str) -> Vec<f64> {
        self.recording
            .histogram(&format!("{histogram}{{operation=\"{OPERATION}\"}}"))
    }

    async fn run(&self, call: Call) -> Result<String, Error> {
        self.idem.run(call, async || Ok("a value".to_owned())).await
    }

    /// Runs one call, which must end with this outcome and be counted once.
    #[track_caller]
    fn ends<T>(
        &self,
        outcome: CallOutcome,
        call: impl Future<Output = T>,
    ) -> impl Future<Output = T> {
        let place = std::panic::Location::caller();
        let (before, all) = (self.calls(outcome), self.all_calls());
        async move {
            let ended = call.await;
            assert_eq!(self.calls(outcome), before + 1, "{outcome:?} at {place}");
            assert_eq!(self.all_calls(), all + 1, "one outcome a call, at {place}");
            ended
        }
    }
}

/// Number of calls that ended with this outcome.
fn calls(recording: &Recording, outcome: CallOutcome) -> u64 {
    let outcome = outcome.as_str();
    recording.counter(&format!(
        "idem_calls_total{{operation=\"{OPERATION}\",outcome=\"{outcome}\"}}"
    ))
}

fn call(key: &str, request: u64) -> Call {
    let key = format!("secret-{key}");
    Call::new(OPERATION, &key, &request, Duration::from_secs(3600)).scope("secret-scope")
}

/// Starts a call whose body never ends, and drops it.
async fn crash(service: &Service, call: Call) {
    let hanging = service
        .idem
        .run(call, async || -> Result<String, Error> { pending().await });
    assert!(Box::pin(hanging).now_or_never().is_none());
    settled().await;
}

/// Lets the tasks of the runtime do their work.
async fn settled() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn each_call_is_counted_once_with_its_outcome() {
    use CallOutcome::{
        Cancelled, DecodeError, Executed, Expired, InFlight, Interrupted, Invalid, KeyReused,
        LeaseLost, NoResult, Overloaded, Panicked, Refused, Released, Replayed, StoreError,
        Superseded, TakenOver, Unprotected, Unrecorded, Waited,
    };
    let recording = Recording::default();
    let _guard = metrics::set_default_local_recorder(&recording);
    let service = Service::new(&recording);
    let failing = async || -> Result<String, Error> { Err(Error::LeaseLost) };

    service
        .ends(Executed, service.run(call("k", 1)))
        .await
        .unwrap();
    service
        .ends(Replayed, service.run(call("k", 1)))
        .await
        .unwrap();
    service
        .ends(KeyReused, service.run(call("k", 2)))
        .await
        .unwrap_err();
    let other = service
        .idem
        .run(call("k", 1), async || Ok::<_, Error>(1_u64));
    service.ends(DecodeError, other).await.unwrap_err();
    let zero = call("zero", 1).lease(Duration::ZERO);
    service.ends(Invalid, service.run(zero)).await.unwrap_err();
    let released = service.idem.run(call("released", 1), failing);
    service.ends(Released, released).await.unwrap_err();

    // A call that waits, and one that does not.
    let gate = service.store.hold_after(Op::Complete);
    let mut first = Box::pin(service.run(call("slow", 1)));
    assert!(first.as_mut().now_or_never().is_none());
    service
        .ends(InFlight, service.run(call("slow", 1)))
        .await
        .unwrap_err();
    let mut waiter = Box::pin(service.run(call("slow", 1).wait(LEASE)));
    assert!(waiter.as_mut().now_or_never().is_none());
    assert_eq!(service.level("idem_waiting_callers"), 1.0);
    advance(Duration::from_secs(2)).await;
    gate.open();
    let executed = service.calls(Executed);
    service.ends(Executed, first).await.unwrap();
    service.ends(Waited, waiter).await.unwrap();
    assert_eq!(service.calls(Executed), executed + 1);
    assert_eq!(service.level("idem_waiting_callers"), 0.0);
    assert_eq!(
        service.durations("idem_wait_duration_seconds").last(),
        Some(&2.0)
    );

    // A result above the limit.
    let long = service
        .idem
        .run(call("long", 1), async || Ok::<_, Error>("long ".repeat(10)));
    service.ends(Unrecorded, long).await.unwrap();
    service
        .ends(NoResult, service.run(call("long", 1)))
        .await
        .unwrap_err();

    // An owner that crashed, under `rerun` and under `refuse`.
    service
        .ends(Cancelled, crash(&service, call("crashed", 1)))
        .await;
    advance(LEASE * 2).await;
    service
        .ends(TakenOver, service.run(call("crashed", 1)))
        .await
        .unwrap();
    let refuse = || call("unknown", 1).on_crash(OnCrash::Refuse);
    let interrupted = service.idem.run(refuse(), failing);
    service.ends(Interrupted, interrupted).await.unwrap_err();
    service
        .ends(Refused, service.run(refuse()))
        .await
        .unwrap_err();
    let panics = service
        .idem
        .run(call("panics", 1), async || -> Result<String, Error> {
            panic!("the body panics")
        });
    let caught = AssertUnwindSafe(panics).catch_unwind();
    service.ends(Panicked, caught).await.unwrap_err();

    // Another call took over: one that has ended, and one that still runs.
    let rival = Idem::builder(service.store.clone())
        .fingerprint_secret(Secret::new([7; 32]).unwrap())
        .build();
    for (outcome, ends) in [(Superseded, true), (LeaseLost, false)] {
        let key = outcome.as_str();
        let overtaken = service.idem.run(call(key, 1), async || {
            advance(LEASE * 2).await;
            // Not counted here.
            metrics::with_local_recorder(&metrics::NoopRecorder, || {
                let rival = rival.run(call(key, 1), async || {
                    if !ends {
                        pending::<()>().await;
                    }
                    Ok::<_, Error>("of the rival".to_owned())
                });
                let mut rival = Box::pin(rival);
                let ended = rival.as_mut().now_or_never().is_some();
                assert_eq!(ended, ends);
                // A call that was dropped counts as well.
                std::mem::forget(rival);
            });
            Ok::<_, Error>("of the first".to_owned())
        });
        let answer = service.ends(outcome, overtaken).await;
        assert_eq!(answer.ok().as_deref(), ends.then_some("of the rival"));
    }

    // An issued key that has expired.
    let token = service
        .idem
        .issue(OPERATION, "ann", Duration::from_secs(60))
        .await
        .unwrap();
    let ttl = Duration::from_secs(3600);
    let late = Call::new(OPERATION, &token, &1_u64, ttl)
        .scope("ann")
        .issued();
    sleep(Duration::from_secs(61)).await;
    service.ends(Expired, service.run(late)).await.unwrap_err();

    let late = call("late", 1).deadline(Instant::now());
    service
        .ends(Overloaded, service.run(late))
        .await
        .unwrap_err();

    service.store.outage();
    service
        .ends(StoreError, service.run(call("down", 1)))
        .await
        .unwrap_err();
    let unprotected = service.run(call("down", 1).run_on_store_error());
    service.ends(Unprotected, unprotected).await.unwrap();

    for outcome in CallOutcome::ALL {
        assert!(service.calls(*outcome) > 0, "{outcome:?} was never counted");
    }
    let words: BTreeSet<_> = CallOutcome::ALL.iter().map(|it| it.as_str()).collect();
    assert_eq!(words.len(), CallOutcome::ALL.len());
    names_are_listed(&recording);
}

/// A call without a transaction dies, as an older version of the function made it. A transactional one takes over.
#[tokio::test]
async fn a_takeover_in_a_transaction_is_counted_as_one() {
    let recording = Recording::default();
    let _guard = metrics::set_default_local_recorder(&recording);
    let store = SqliteStore::in_memory().await.unwrap();
    // Another process: in this one, calls would wait for the owner that died.
    kill(&Idem::new(store.clone()), call("k", 1)).await;
    let idem = Idem::new(store);
    let id = RecordId::of(&identity("secret-scope", OPERATION, "secret-k"));
    let left = idem.store().get(&id).await.unwrap();
    end_lease(idem.store(), &left.unwrap()).await.unwrap();
    let patient = call("k", 1).wait(LEASE);
    let next = idem.run_in_transaction(patient, RunOptions::new(), async |_, _| Ok::<_, Error>(7));
    assert_eq!(next.await.unwrap(), 7);
    assert_eq!(calls(&recording, CallOutcome::TakenOver), 1);
    assert_eq!(calls(&recording, CallOutcome::Executed), 0);
}

/// Refusals before the claim are no calls, and are counted by their problem.
#[tokio::test]
async fn refusals_of_a_layer_are_counted() {
    let recording = Recording::default();
    let _guard = metrics::set_default_local_recorder(&recording);
    let service = Service::new(&recording);
    let ttl = Duration::from_secs(3600);
    let layer = IdempotencyLayer::builder(&service.idem, OPERATION, ttl, unscoped());
    let layer = layer.max_request_bytes(10).build().unwrap();
    let mut router = Router::new().route("/", post(async || "made")).layer(layer);
    let mut send = async |key: &str, body: &str| {
        let request = Request::post("/").header("idempotency-key", key);
        let request = request.body(Body::from(body.to_owned())).unwrap();
        router.call(request).await.unwrap().status().as_u16()
    };
    assert_eq!(send("secret", "short").await, 200);
    assert_eq!(send("secret", "longer than that").await, 413);
    assert_eq!(send("secret", "longer than that").await, 413);
    assert_eq!(send("\"secret", "short").await, 400);
    let refused = |problem: &str| {
        recording.counter(&format!(
            "idem_http_refused_total{{operation=\"{OPERATION}\",problem=\"{problem}\"}}"
        ))
    };
    assert_eq!(refused("body-too-large"), 2);
    assert_eq!(refused("malformed-key"), 1);
    assert_eq!(service.all_calls(), 1);
    names_are_listed(&recording);
}

/// Every metric is listed and described, has the labels that the list says, and contains no secret.
fn names_are_listed(recording: &Recording) {
    for name in recording.names() {
        assert!(!name.contains("secret"), "{name}");
        let (metric, labels) = name.split_once('{').unwrap_or((&name, ""));
        let listed = METRICS.iter().find(|it| it.name == metric);
        let listed = listed.unwrap_or_else(|| panic!("{metric} is not listed"));
        let labels: BTreeSet<_> = labels.split_terminator([',', '}']).collect();
        let labels: BTreeSet<_> = labels
            .iter()
            .filter_map(|it| it.split('=').next())
            .collect();
        assert_eq!(labels, listed.labels.iter().copied().collect(), "{name}");
    }
    for metric in METRICS {
        let (unit, help) = recording.description(metric.name).unwrap();
        assert!(unit.is_some() && help == metric.help, "{}", metric.name);
        let is_counter = metric.kind == MetricKind::Counter;
        assert_eq!(
            metric.name.ends_with("_total"),
            is_counter,
            "{}",
            metric.name
        );
    }
}

#[tokio::test(start_paused = true)]
async fn durations_are_those_of_the_parts_of_a_call() {
    let recording = Recording::default();
    let _guard = metrics::set_default_local_recorder(&recording);
    let service = Service::new(&recording);
    let held = [
        service.store.hold_before(Op::Claim),
        service.store.hold_before(Op::Complete),
    ];
    let gates = async {
        for gate in held {
            sleep(Duration::from_secs(1)).await;
            gate.open();
            // The body runs between the two.
            sleep(Duration::from_millis(500)).await;
        }
    };
    let slow = service.idem.run(call("k", 1), async || {
        sleep(Duration::from_millis(250)).await;
        assert_eq!(service.level("idem_leases_held"), 1.0);
        Ok::<_, Error>(())
    });
    let (ended, ()) = tokio::join!(slow, gates);
    ended.unwrap();
    assert_eq!(service.durations("idem_claim_duration_seconds"), [1.0]);
    assert_eq!(service.durations("idem_body_duration_seconds"), [0.25]);
    assert_eq!(service.durations("idem_complete_duration_seconds"), [1.25]);
    assert_eq!(service.durations("idem_wait_duration_seconds"), [0.0; 0]);
    assert_eq!(service.level("idem_leases_held"), 0.0);
}

/// A call that is dropped at any of its polls leaves no gauge raised, and is counted once.
#[tokio::test(start_paused = true)]
async fn a_call_dropped_at_any_poll_leaves_no_gauge_raised() {
    let recording = Recording::default();
    let _guard = metrics::set_default_local_recorder(&recording);
    for detached in [false, true] {
        let mut raised = BTreeSet::new();
        for polls in 0..40 {
            let service = Service::new(&recording);
            let counted = service.all_calls();
            // Another process has the key for a while, so that the leader polls, and the other call waits for it.
            let rival = Idem::builder(service.store.clone())
                .fingerprint_secret(Secret::new([7; 32]).unwrap())
                .build();
            let slow = rival.run(call("k", 1), async || -> Result<String, Error> {
                sleep(Duration::from_millis(300)).await;
                Err(Error::LeaseLost)
            });
            let body = || {
                async |_| {
                    sleep(Duration::from_millis(10)).await;
                    tokio::task::yield_now().await;
                    Ok::<_, Error>("a value".to_owned())
                }
            };
            let waiting = || call("k", 1).wait(LEASE);
            let first = async {
                match detached {
                    true => {
                        service
                            .idem
                            .run_detached(waiting(), RunOptions::new(), body())
                            .await
                    }
                    false => {
                        service
                            .idem
                            .run_with(waiting(), RunOptions::new(), body())
                            .await
                    }
                }
            };
            let second = service.run(waiting());
            {
                let mut all = [
                    Box::pin(slow) as Pin<Box<dyn Future<Output = Result<String, Error>>>>,
                    Box::pin(first),
                    Box::pin(second),
                ];
                let mut context = Context::from_waker(Waker::noop());
                assert!(all[0].as_mut().poll(&mut context).is_pending());
                for _ in 0..polls {
                    for one in &mut all {
                        if one.as_mut().poll(&mut context).is_ready() {
                            // A future that has ended must not be polled again.
                            *one = Box::pin(pending());
                        }
                    }
                    let gauges = recording.gauges().into_iter();
                    raised.extend(
                        gauges
                            .filter(|(_, level)| *level > 0.0)
                            .map(|(name, _)| name),
                    );
                    sleep(Duration::from_millis(40)).await;
                }
            }
            // Detached bodies, settlements and abandoned claims come to their end.
            sleep(LEASE * 3).await;
            for (name, level) in recording.gauges() {
                assert_eq!(level, 0.0, "{name} after {polls} polls");
            }
            // Only the rival was polled before the first round.
            let made = if polls == 0 { 1 } else { 3 };
            let counted = service.all_calls() - counted;
            assert_eq!(counted, made, "outcomes after {polls} polls");
        }
        let raised: Vec<_> = raised
            .iter()
            .filter_map(|name| name.split('{').next())
            .collect();
        assert_eq!(raised, ["idem_leases_held", "idem_waiting_callers"]);
    }
}

/// Transactional calls count, measure and hold as others do, also when they are dropped.
#[tokio::test]
async fn transactional_calls_are_measured() {
    let recording = Recording::default();
    let _guard = metrics::set_default_local_recorder(&recording);
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&folder.path().join("calls.db"))
        .await
        .unwrap();
    let idem = Idem::new(store);
    let run = async |key: &str, ends: bool| {
        let body = async |_: &mut _, _| {
            if !ends {
                tokio::task::yield_now().await;
                pending::<()>().await;
            }
            Ok::<_, Error>(1_u64)
        };
        idem.run_in_transaction(call(key, 1), RunOptions::new(), body)
            .await
    };
    run("one", true).await.unwrap();
    run("one", true).await.unwrap();
    let held = format!("idem_leases_held{{operation=\"{OPERATION}\"}}");
    {
        let mut hanging = Box::pin(run("two", false));
        while recording.gauge(&held) != Some(1.0) {
            assert!(futures_util::poll!(&mut hanging).is_pending());
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(recording.gauge(&held), Some(0.0));
    let count = |outcome: &str| {
        let labels = format!("{{operation=\"{OPERATION}\",outcome=\"{outcome}\"}}");
        recording.counter(&format!("idem_calls_total{labels}"))
    };
    assert_eq!(
        [count("executed"), count("replayed"), count("cancelled")],
        [1, 1, 1]
    );
    for part in ["body", "complete"] {
        let name = format!("idem_{part}_duration_seconds{{operation=\"{OPERATION}\"}}");
        assert_eq!(recording.histogram(&name).len(), 1, "{name}");
    }
    names_are_listed(&recording);
}

#[tokio::test]
async fn batches_and_cache_lookups_are_counted() {
    let recording = Recording::default();
    let _guard = metrics::set_default_local_recorder(&recording);
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&folder.path().join("calls.db"))
        .await
        .unwrap();
    let idem = Idem::new(Arc::new(Cached::new(store)));
    let run = async |number: u64| {
        idem.run(call(&number.to_string(), number), async || {
            Ok::<_, Error>(number)
        })
        .await
    };
    let all = futures_util::future::join_all((0..50).map(run)).await;
    assert!(
        all.into_iter()
            .enumerate()
            .all(|(at, it)| it.unwrap() == at as u64)
    );
    let sizes = recording.histogram("idem_batch_size");
    // Each call claims and completes; a request that a batch left unanswered runs once more on its own.
    assert!(sizes.iter().sum::<f64>() >= 100.0, "{sizes:?}");
    assert!(
        sizes.iter().any(|size| *size > 1.0) && sizes.contains(&1.0),
        "{sizes:?}"
    );
    run(7).await.unwrap();
    run(7).await.unwrap();
    let lookups = |result: &str| {
        recording.counter(&format!("idem_cache_lookups_total{{result=\"{result}\"}}"))
    };
    assert_eq!([lookups("hit"), lookups("miss")], [1, 51]);
    names_are_listed(&recording);
}

#[tokio::test(start_paused = true)]
async fn the_lag_of_the_purger_grows_while_it_fails() {
    let recording = Recording::default();
    let _guard = metrics::set_default_local_recorder(&recording);
    let service = Service::new(&recording);
    let expiring = Call::new(OPERATION, "k", &1_u64, Duration::from_secs(5));
    service.run(expiring).await.unwrap();
    let interval = Duration::from_secs(60);
    let purger = Purger::new(&service.idem)
        .poll_interval(interval)
        .start()
        .unwrap();
    let lag = || recording.gauge("idem_purge_lag_seconds").unwrap();
    sleep(interval * 2).await;
    assert_eq!(lag(), 0.0);
    assert_eq!(
        recording.counter("idem_purged_records_total{result=\"removed\"}"),
        1
    );
    service.store.outage();
    sleep(interval * 10).await;
    assert!(lag() > 300.0, "{}", lag());
    service.store.reset();
    sleep(interval * 10).await;
    assert_eq!(lag(), 0.0);
    purger.stop().await;
    names_are_listed(&recording);
}

#[tokio::test(start_paused = true)]
async fn a_jump_of_the_clock_is_reported_until_it_is_undone() {
    let recording = Recording::default();
    let _guard = metrics::set_default_local_recorder(&recording);
    let store = ClockedStore::open();
    let idem = Idem::new(store.clone());
    let interval = Duration::from_secs(60);
    let purger = Purger::new(&idem).poll_interval(interval).start().unwrap();
    let ahead = || recording.gauge("idem_store_clock_ahead_seconds");
    sleep(interval * 3).await;
    assert_eq!(ahead(), Some(0.0));
    let day = Duration::from_secs(24 * 3600);
    store.set_forward(day);
    sleep(interval * 3).await;
    assert_eq!(ahead(), Some(day.as_secs_f64()));
    store.set_back(day);
    sleep(interval * 2).await;
    assert_eq!(ahead(), Some(0.0));
    purger.stop().await;
    names_are_listed(&recording);
}

#[tokio::test]
async fn the_backlog_of_an_outbox_is_reported_until_the_reporter_stops() {
    let recording = Recording::default();
    let _guard = metrics::set_default_local_recorder(&recording);
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&folder.path().join("calls.db"))
        .await
        .unwrap();
    let outbox = Outbox::new(&store);
    outbox.migrate().await.unwrap();
    let pool = sqlx::SqlitePool::connect_with(SqliteStore::connect_options(
        folder.path().join("calls.db"),
    ))
    .await
    .unwrap();
    let mut transaction = pool.begin().await.unwrap();
    for number in 0..3 {
        outbox
            .enqueue(&mut *transaction, "mails", &number)
            .await
            .unwrap();
    }
    transaction.commit().await.unwrap();
    let reporter = outbox.report_backlog(Duration::from_millis(5)).unwrap();
    let waiting = r#"idem_outbox_messages{outbox="idem_outbox",state="waiting"}"#;
    let age = r#"idem_outbox_oldest_message_age_seconds{outbox="idem_outbox"}"#;
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    while recording.gauge(waiting) != Some(3.0) || recording.gauge(age) <= Some(0.0) {
        assert!(
            std::time::Instant::now() < deadline,
            "{:?}",
            recording.gauges()
        );
        sleep(Duration::from_millis(5)).await;
    }
    reporter.stop().await;
    assert_eq!(
        [recording.gauge(waiting), recording.gauge(age)],
        [Some(0.0), Some(0.0)]
    );
    names_are_listed(&recording);
}
