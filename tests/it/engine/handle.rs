//! What a handle costs, whom it tells, and where calls find it that name none.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use idem_runtime::conformance::faults::{FaultStore, Op};
use idem_runtime::fingerprint::Secret;
use idem_runtime::{Error, Handling, Idem, MemoryStore, OnCrash, Scope, Store};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};

use super::{Effects, Failure, LEASE, TTL, call, idem, refusal};

#[tokio::test(start_paused = true)]
async fn a_first_call_is_two_store_operations_a_replay_one_and_neither_spawns_a_task() {
    let idem = Idem::new(FaultStore::new(MemoryStore::new()));
    let effects = Effects::default();
    let tasks = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    let before = tasks();
    let short = LEASE / 3 - Duration::from_millis(2);
    idem.run(call("k", 1), async || {
        tokio::time::sleep(short).await;
        assert_eq!(tasks(), before, "no heartbeat for a body this short");
        Ok::<_, Failure>(effects.happen())
    })
    .await
    .unwrap();
    assert_eq!(idem.store().total(), 2);
    assert_eq!(idem.store().count(Op::Renew), 0);

    effects.run(&idem, call("k", 1)).await.unwrap();
    assert_eq!(idem.store().total(), 3);
    assert_eq!(tasks(), before);
}

#[tokio::test(start_paused = true)]
async fn a_body_longer_than_a_third_of_its_lease_is_renewed_at_each_third() {
    let idem = Idem::new(FaultStore::new(MemoryStore::new()));
    idem.run(call("k", 1), async || {
        tokio::time::sleep(LEASE * 2 + Duration::from_secs(1)).await;
        Ok::<_, Failure>(())
    })
    .await
    .unwrap();
    assert_eq!(idem.store().count(Op::Renew), 6);
    tokio::task::yield_now().await;
    assert_eq!(
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks(),
        0
    );
}

#[tokio::test(start_paused = true)]
async fn a_running_call_keeps_less_than_a_kibibyte_beside_the_users_future() {
    let idem = idem();
    let bare = async || {
        tokio::task::yield_now().await;
        Ok::<_, Failure>(0_u32)
    };
    let alone = size_of_val(&bare());
    let whole = size_of_val(&idem.run_with(call("k", 1), Handling::new(), async |_| bare().await));
    // What was moved into `run_with` itself is there twice, as it is for any async function.
    let extra = whole - alone;
    assert!(extra <= 2048, "{extra} bytes");
}

#[tokio::test(start_paused = true)]
async fn another_secret_reads_what_the_old_one_sealed_and_none_reads_nothing() {
    let store = Arc::new(MemoryStore::new());
    let effects = Effects::default();
    let (old, new) = (
        Secret::new("the old secret, of thirty-two bytes").unwrap(),
        Secret::new("the new secret, of thirty-two bytes").unwrap(),
    );
    let sealed = Idem::builder(store.clone())
        .fingerprint_secret(old.clone())
        .build();
    effects.run(&sealed, call("k", 1)).await.unwrap();

    let rotated = Idem::builder(store.clone())
        .fingerprint_secret(new)
        .fingerprint_secret(old)
        .build();
    assert_eq!(effects.run(&rotated, call("k", 1)).await.unwrap(), 1);
    assert!(matches!(
        refusal(effects.run(&rotated, call("k", 2)).await),
        Error::KeyReused
    ));

    let without = Idem::new(store.clone());
    let error = refusal(effects.run(&without, call("k", 1)).await);
    assert!(
        matches!(error, Error::Decode(_)),
        "never a match: {error:?}"
    );

    let none = Scope::none();
    let record = without.records().find("test.operation", "k", &none).await;
    let stored = record.unwrap().unwrap().fingerprint;
    let plain = idem_runtime::fingerprint::digest(&1_u64).unwrap();
    assert_ne!(stored.hash(), plain.hash());
}

#[tokio::test(start_paused = true)]
async fn a_key_that_was_released_under_the_old_secret_is_claimed_under_the_new_one() {
    let store = Arc::new(MemoryStore::new());
    let effects = Effects::default();
    let old = Secret::new("the old secret, of thirty-two bytes").unwrap();
    let before = Idem::builder(store.clone())
        .fingerprint_secret(old.clone())
        .build();
    let failed = before
        .run(call("k", 1), async || Err::<u32, _>(Failure::TimedOut))
        .await;
    assert!(failed.is_err());
    let after = Idem::builder(store)
        .fingerprint_secret(Secret::new("the new secret, of thirty-two bytes").unwrap())
        .fingerprint_secret(old)
        .build();
    assert_eq!(effects.run(&after, call("k", 1)).await.unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_purger_removes_what_has_expired_while_it_lives() {
    let (idem, effects) = (idem(), Effects::default());
    let purger = idem.start_purger(Duration::from_secs(60)).unwrap();
    effects.run(&idem, call("k", 1)).await.unwrap();
    assert_eq!(idem.store().len(), 1);
    tokio::time::sleep(TTL + Duration::from_secs(120)).await;
    assert_eq!(idem.store().len(), 0);

    drop(purger);
    effects.run(&idem, call("k", 1)).await.unwrap();
    tokio::time::sleep(TTL + Duration::from_secs(120)).await;
    assert_eq!(idem.store().len(), 1, "stopped when it was dropped");
}

#[test]
fn outside_of_a_runtime_a_call_says_so() {
    let idem = idem();
    let call = Effects::default();
    let mut run = Box::pin(call.run(&idem, super::call("k", 1)));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let std::task::Poll::Ready(result) = run.as_mut().poll(&mut context) else {
        panic!("there is nothing to wait for");
    };
    assert!(matches!(refusal(result), Error::NoRuntime));
    assert!(matches!(idem.start_purger(TTL), Err(Error::NoRuntime)));
}

/// What spans and events said, as text.
#[derive(Debug, Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn add(&self, line: String) {
        self.0.lock().unwrap().push(line);
    }

    fn text(&self) -> String {
        self.0.lock().unwrap().join("\n")
    }

    /// The outcomes of the calls, in the order in which they ended.
    fn outcomes(&self) -> Vec<String> {
        let lines = self.0.lock().unwrap();
        let outcomes = lines
            .iter()
            .filter_map(|line| line.strip_prefix("outcome="));
        outcomes.map(str::to_owned).collect()
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
    fn on_new_span(&self, attributes: &Attributes<'_>, _: &Id, _: Context<'_, S>) {
        attributes.record(&mut self.clone());
    }

    fn on_record(&self, _: &Id, values: &Record<'_>, _: Context<'_, S>) {
        values.record(&mut self.clone());
    }

    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        event.record(&mut self.clone());
    }
}

#[tokio::test(start_paused = true)]
async fn each_call_is_a_span_with_its_outcome_and_without_anything_secret() {
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(log.clone()));
    let (idem, effects) = (
        Idem::new(FaultStore::new(MemoryStore::new())),
        Effects::default(),
    );
    let secret = |request| call("secret-key", request).scope("secret-scope");

    // Another test may be registering the span at this very moment, as one that nobody listens to.
    while log.outcomes().is_empty() {
        effects.run(&idem, call("warm", 1)).await.unwrap();
        tracing::callsite::rebuild_interest_cache();
    }
    log.0.lock().unwrap().clear();

    effects.run(&idem, secret(1)).await.unwrap();
    effects.run(&idem, secret(1)).await.unwrap();
    refusal(effects.run(&idem, secret(2)).await);
    idem.store().outage();
    refusal(effects.run(&idem, call("other", 1)).await);
    idem.store().reset();
    let texts = idem.run(call("text", 1), async || {
        Ok::<_, Failure>("secret-value".to_owned())
    });
    texts.await.unwrap();

    assert_eq!(
        log.outcomes(),
        [
            "executed",
            "replayed",
            "key_reused",
            "store_error",
            "executed"
        ]
    );
    let text = log.text();
    assert!(text.contains("operation=test.operation") && text.contains("attempt=1"));
    assert!(!text.contains("secret"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn the_rarer_outcomes_have_their_words_too() {
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(log.clone()));
    let store = Arc::new(MemoryStore::new());
    let (idem, other) = (
        Idem::builder(store.clone()).max_result_bytes(8).build(),
        Idem::new(store),
    );
    let effects = Effects::default();
    while log.outcomes().is_empty() {
        effects.run(&idem, call("warm", 1)).await.unwrap();
        tracing::callsite::rebuild_interest_cache();
    }
    log.0.lock().unwrap().clear();

    let long = || {
        idem.run(call("long", 1), async || {
            Ok::<_, Failure>("over the limit".to_owned())
        })
    };
    long().await.unwrap();
    assert!(long().await.is_err());
    assert_eq!(log.outcomes(), ["unrecorded", "unrecorded"]);
    log.0.lock().unwrap().clear();

    let refuse = || call("refuse", 1).on_crash(OnCrash::Refuse);
    let lost = idem.run(refuse(), async || Err::<u32, _>(Failure::Lost));
    assert!(lost.await.is_err());
    refusal(effects.run(&idem, refuse()).await);
    assert_eq!(log.outcomes(), ["interrupted", "interrupted"]);
    log.0.lock().unwrap().clear();

    let owner = idem.run(call("k", 1), async || {
        refusal(effects.run(&idem, call("k", 1)).await);
        tokio::time::sleep(Duration::from_secs(1)).await;
        Ok::<_, Failure>(effects.happen())
    });
    let waiter = effects.run(&idem, call("k", 1).wait(LEASE));
    let (owner, waiter) = tokio::join!(owner, waiter);
    assert_eq!(owner.unwrap(), waiter.unwrap());
    assert_eq!(log.outcomes(), ["in_flight", "executed", "waited"]);
    log.0.lock().unwrap().clear();

    let mut overtaker = Box::pin(other.run(call("slow", 1), async || {
        std::future::pending::<Result<u32, Failure>>().await
    }));
    let overtaken = idem.run(call("slow", 1), async || {
        // As a process that was paused: no heartbeat runs.
        tokio::time::advance(LEASE).await;
        assert!(overtaker.as_mut().now_or_never().is_none());
        Ok::<_, Failure>(effects.happen())
    });
    refusal(overtaken.await);
    assert_eq!(log.outcomes(), ["lease_lost"]);
}

#[tokio::test(start_paused = true)]
async fn a_handle_without_its_type_is_the_same_handle() {
    let (idem, effects) = (idem(), Effects::default());
    let erased: Idem = idem.clone().erased();
    effects.run(&idem, call("k", 1)).await.unwrap();
    assert_eq!(effects.run(&erased, call("k", 1)).await.unwrap(), 1);
    let _: &dyn Store = erased.store();
    let shared: Arc<dyn Store> = Arc::new(MemoryStore::new());
    assert!(effects.run(&Idem::new(shared), call("k", 1)).await.is_ok());
}
