//! The helpers that tests use on their own: the store that fails on demand, the fake provider and the clock.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests fail by panicking, too"
)]

use std::sync::Arc;
use std::time::Duration;

use idem_runtime::advanced::{ResultSource, with_provenance};
use idem_runtime::{Call, Error, Idem, Key};
use idem_testing::{Clock, Failure, Provider, ProviderError, StoreMethod, TestStore};
use tokio::sync::Notify;

const DAY: Duration = Duration::from_secs(24 * 3600);

fn key() -> Key {
    "order-1".parse().unwrap()
}

fn call() -> Call {
    Call::new("helpers.call", &key(), "request", DAY)
}

/// A call whose body waits for the door, in a task of its own.
async fn begun(
    idem: &Idem<TestStore>,
    door: &Arc<Notify>,
) -> tokio::task::JoinHandle<Result<u32, Error>> {
    let inside = Arc::new(Notify::new());
    let task = tokio::spawn({
        let (idem, door, inside) = (idem.clone(), Arc::clone(door), Arc::clone(&inside));
        async move {
            let body = async || {
                inside.notify_one();
                door.notified().await;
                Ok(1)
            };
            idem.run(call(), body).await
        }
    });
    inside.notified().await;
    task
}

#[tokio::test(start_paused = true)]
async fn a_lapsed_record_is_taken_over_and_its_owner_gets_the_stored_result() {
    let store = TestStore::new();
    let (one, other) = (Idem::new(store.clone()), Idem::new(store.clone()));
    let door = Arc::default();
    let first = begun(&one, &door).await;
    let second = other.run(call(), async || Ok::<_, Error>(2)).await;
    assert!(matches!(second, Err(Error::InFlight { .. })), "{second:?}");
    store.lapse(&key()).await.unwrap();
    let second = other.run(call(), async || Ok::<_, Error>(2)).await;
    assert_eq!(second.unwrap(), 2);
    door.notify_one();
    assert_eq!(first.await.unwrap().unwrap(), 2);
    assert!(store.calls().contains(&StoreMethod::TakeOver));
}

#[tokio::test(start_paused = true)]
async fn a_crashed_owner_reaches_the_store_no_more() {
    let store = TestStore::new();
    let (one, other) = (Idem::new(store.clone()), Idem::new(store.clone()));
    let door = Arc::default();
    let first = begun(&one, &door).await;
    store.crash_owner(&key()).await.unwrap();
    door.notify_one();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (second, from) = with_provenance(other.run(call(), async || Ok::<_, Error>(2))).await;
    assert_eq!(second.unwrap(), 2);
    let from = from.unwrap();
    assert_eq!((from.source, from.attempt), (ResultSource::Executed, 2));
    first.abort();
}

#[tokio::test(start_paused = true)]
async fn an_expired_record_is_gone() {
    let store = TestStore::new();
    let idem = Idem::new(store.clone());
    idem.run(call(), async || Ok::<_, Error>(1)).await.unwrap();
    let other: Key = "order-2".parse().unwrap();
    store.expire(&other).await.unwrap();
    assert_eq!(
        idem.run(call(), async || Ok::<_, Error>(2)).await.unwrap(),
        1
    );
    store.expire(&key()).await.unwrap();
    assert_eq!(
        idem.run(call(), async || Ok::<_, Error>(2)).await.unwrap(),
        2
    );
}

#[tokio::test(start_paused = true)]
async fn a_planned_failure_happens_once_and_an_absence_lasts() {
    let store = TestStore::new();
    let idem = Idem::new(store.clone());
    for failure in [Failure::Before, Failure::After] {
        store.fail_next(StoreMethod::Complete, failure);
        assert_eq!(
            idem.run(call(), async || Ok::<_, Error>(1)).await.unwrap(),
            1
        );
        let completions = store.calls();
        let completions = completions
            .iter()
            .filter(|it| **it == StoreMethod::Complete);
        assert!(completions.count() >= 2, "{:?}", store.calls());
        store.expire(&key()).await.unwrap();
    }
    store.go_away();
    let away = idem.run(call(), async || Ok::<_, Error>(2)).await;
    assert!(matches!(away, Err(Error::Store(_))), "{away:?}");
    store.come_back();
    assert_eq!(
        idem.run(call(), async || Ok::<_, Error>(3)).await.unwrap(),
        3
    );
}

#[tokio::test(start_paused = true)]
async fn a_provider_recognises_keys_and_loses_what_was_planned() {
    let bank = Provider::new("bank");
    assert_eq!(bank.send("key-1", "charge").await, Ok(1));
    assert_eq!(bank.send("key-1", "charge").await, Ok(1));
    assert_eq!(
        bank.send("key-1", "refund").await,
        Err(ProviderError::KeyReused)
    );
    bank.lose_next_request();
    assert_eq!(
        bank.send("key-2", "charge").await,
        Err(ProviderError::NoAnswer)
    );
    assert_eq!(bank.effects(), 1);
    bank.lose_next_answer();
    assert_eq!(
        bank.send("key-2", "charge").await,
        Err(ProviderError::NoAnswer)
    );
    assert_eq!(bank.effects(), 2);
    assert_eq!(bank.send("key-2", "charge").await, Ok(2));
    assert_eq!((bank.find("charge"), bank.find("refund")), (Some(1), None));
    let printer = Provider::without_keys("printer").delay(Duration::from_secs(7));
    let before = tokio::time::Instant::now();
    for label in [1, 2] {
        assert_eq!(printer.send("key-1", "label").await, Ok(label));
    }
    assert_eq!(before.elapsed(), Duration::from_secs(28));
    printer.reset();
    assert_eq!((printer.effects(), printer.requests().len()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_clock_follows_paused_time_and_can_be_moved() {
    let clock = Clock::new();
    let before = clock.now();
    tokio::time::sleep(DAY).await;
    assert_eq!(clock.now(), before + DAY);
    clock.clone().advance(DAY);
    assert_eq!(clock.now(), before + 2 * DAY);
}
