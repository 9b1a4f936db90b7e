//! A handle's cost, its events, and the default handles for calls that name none.

use std::sync::Arc;
use std::time::Duration;

use idem_runtime::conformance::faults::{FaultStore, Op};
use idem_runtime::fingerprint::Secret;
use idem_runtime::{Error, Idem, MemoryStore, Purger, Scope, Store};

use super::{Effects, Failure, LEASE, call, idem, refusal};

#[tokio::test(start_paused = true)]
async fn a_first_call_is_two_store_operations_a_replay_one_and_neither_spawns_a_task() {
    let idem = Idem::new(FaultStore::new(MemoryStore::new()));
    let effects = Effects::default();
    let tasks = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    // A task notes the name of the operation once.
    effects.run(&idem, call("earlier", 1)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    let (before, earlier) = (tasks(), idem.store().total());
    let short = LEASE / 3 - Duration::from_millis(2);
    idem.run(call("k", 1), async || {
        tokio::time::sleep(short).await;
        assert_eq!(tasks(), before, "no heartbeat for a body this short");
        Ok::<_, Failure>(effects.happen())
    })
    .await
    .unwrap();
    assert_eq!(idem.store().total(), earlier + 2);
    assert_eq!(idem.store().count(Op::Renew), 0);

    effects.run(&idem, call("k", 1)).await.unwrap();
    assert_eq!(idem.store().total(), earlier + 3);
    assert_eq!(tasks(), before);
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_renewed_after_each_third() {
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
async fn a_new_secret_accepts_fingerprints_of_the_old_one() {
    let store = Arc::new(MemoryStore::new());
    let effects = Effects::default();
    let (old, new) = (
        Secret::new("the old secret, of thirty-two bytes").unwrap(),
        Secret::new("the new secret, of thirty-two bytes").unwrap(),
    );
    let signed = Idem::builder(store.clone())
        .fingerprint_secret(old.clone())
        .build();
    effects.run(&signed, call("k", 1)).await.unwrap();

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
    let record = without
        .records()
        .find_scoped("test.operation", "k", &none)
        .await;
    let stored = record.unwrap().unwrap().fingerprint;
    let plain = idem_runtime::fingerprint::digest(&1_u64).unwrap();
    assert_ne!(stored.hash(), plain.hash());
}

#[tokio::test(start_paused = true)]
async fn a_key_released_under_an_old_secret_is_claimed_under_a_new_one() {
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

#[test]
fn a_call_outside_of_a_runtime_is_an_error() {
    let idem = idem();
    let call = Effects::default();
    let mut run = Box::pin(call.run(&idem, super::call("k", 1)));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let std::task::Poll::Ready(result) = run.as_mut().poll(&mut context) else {
        panic!("there is nothing to wait for");
    };
    assert!(matches!(refusal(result), Error::NoRuntime));
    assert!(matches!(Purger::new(&idem).start(), Err(Error::NoRuntime)));
}

#[tokio::test(start_paused = true)]
async fn a_handle_without_its_type_is_the_same_handle() {
    let limit = Duration::from_secs(7);
    let idem = Idem::builder(MemoryStore::new())
        .store_timeout(limit)
        .build();
    let effects = Effects::default();
    let erased: Idem = idem.clone().erased();
    assert_eq!(idem.policy().store_timeout, limit);
    assert_eq!(erased.policy().store_timeout, limit);
    effects.run(&idem, call("k", 1)).await.unwrap();
    assert_eq!(effects.run(&erased, call("k", 1)).await.unwrap(), 1);
    let _: &dyn Store = erased.store();
    let shared: Arc<dyn Store> = Arc::new(MemoryStore::new());
    assert!(effects.run(&Idem::new(shared), call("k", 1)).await.is_ok());
}
