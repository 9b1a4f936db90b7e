//! Keys after the retention of their outcome: they are refused while they are remembered, at the edges of both times, under
//! purges and concurrent calls, on each store. Old keys and restored stores are in the modules below.

mod old_keys;
mod restored;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use idem_runtime::advanced::RunOptions;
use idem_runtime::error::InvalidCall;
use idem_runtime::operator::Explanation;
use idem_runtime::record::{Record, Timestamp};
use idem_runtime::{
    Cached, Call, Error, Idem, MemoryStore, Moving, OnCrash, Store, TypedOperation, idempotent,
};
use idem_tests::places::{Backend as _, Place, shared};
use idem_tests::sql::{AnyPool, Sql};
use idem_tests::{on_stores, until};

use crate::records::manually;

on_stores! { [] shared: a_key_is_refused_after_its_outcome_on_each_store }

mod databases {
    use super::*;

    on_stores! { [transactions forgetting] Aged::open:
        each_time_ends_at_its_edge,
        a_transactional_call_is_remembered,
        the_next_generation_keeps_its_outcome,
    }
}

const HOUR: Duration = Duration::from_secs(3600);
const MINUTE: Duration = Duration::from_secs(60);
const TICK: Duration = Duration::from_millis(1);

/// A service with one countable effect.
struct Service<S: Store + ?Sized = MemoryStore> {
    idem: Idem<S>,
    effects: AtomicU32,
}

impl<S: Store + ?Sized> Service<S> {
    fn new(idem: Idem<S>) -> Self {
        let effects = AtomicU32::new(0);
        Self { idem, effects }
    }

    async fn run(&self, call: Call) -> Result<u32, Error> {
        let body = async || Ok(self.effects.fetch_add(1, Ordering::SeqCst) + 1);
        self.idem.run(call, body).await
    }

    fn effects(&self) -> u32 {
        self.effects.load(Ordering::SeqCst)
    }

    async fn record(&self) -> Option<Record> {
        let found = self.idem.records().find("charges.create", "order-1").await;
        found.unwrap()
    }
}

impl Service {
    fn in_memory() -> Self {
        Self::new(Idem::new(MemoryStore::new()))
    }
}

async fn purge_all(store: &(impl Store + ?Sized)) {
    while store.purge(100, Timestamp::MAX).await.unwrap().more {}
}

/// A call that replays its outcome for an hour, and remembers its key for a day.
fn call() -> Call {
    Call::new("charges.create", "order-1", &500_u64, HOUR).remember(24 * HOUR)
}

#[track_caller]
fn assert_expired<T: std::fmt::Debug>(answer: &Result<T, Error>) {
    assert!(matches!(answer, Err(Error::Expired)), "{answer:?}");
}

async fn a_key_is_refused_after_its_outcome_on_each_store(store: Arc<dyn Store>) {
    const BRIEF: Duration = Duration::from_millis(30);
    let service = Service::new(Idem::new(Arc::clone(&store)));
    let call = |cents: u64| Call::new("charges.create", "order-1", &cents, BRIEF).remember(HOUR);
    assert_eq!(service.run(call(500)).await.unwrap(), 1);
    // Until then the answer is the outcome, and never another run.
    until(async || match service.run(call(500)).await {
        Ok(1) => false,
        Err(Error::Expired) => true,
        other => panic!("{other:?}"),
    })
    .await;
    let record = service.record().await.unwrap();
    assert!(record.retention >= HOUR, "{record:?}");
    if store.forgetting().is_some() {
        assert_eq!(record.payload_for, Some(BRIEF));
        until(async || {
            purge_all(&store).await;
            service.record().await.unwrap().is_forgotten()
        })
        .await;
        let explained = Explanation::of(&service.record().await.unwrap());
        assert!(
            explained.answer.contains("`Expired`"),
            "{}",
            explained.answer
        );
    }
    for answer in join_all((0..20).map(|_| service.run(call(500)))).await {
        assert_expired(&answer);
    }
    let other = service.run(call(501)).await;
    assert!(matches!(other, Err(Error::KeyReused)), "{other:?}");
    // A call that remembers nothing learns the same: the record decides.
    if store.forgetting().is_some() {
        let forgetful = Call::new("charges.create", "order-1", &500_u64, HOUR);
        assert_expired(&service.run(forgetful).await);
    }
    assert_eq!(service.effects(), 1);
}

/// A service on a database, in which a test can move the times of a record.
struct Aged<S: Sql> {
    service: Service<S>,
    pool: AnyPool,
}

impl<S: Sql> Aged<S> {
    async fn open(place: Place<S>) -> Self {
        let home = place.home().await.unwrap();
        Self {
            service: Service::new(Idem::new(S::open(&home).await.unwrap())),
            pool: S::any(&home),
        }
    }

    /// Moves all times of the records into the past.
    async fn age(&self, by: Duration) {
        self.pool.age(by).await.unwrap();
    }

    async fn assert_replayed(&self) {
        assert_eq!(self.service.run(call()).await.unwrap(), 1);
    }
}

async fn each_time_ends_at_its_edge<S: Sql>(at: Aged<S>) {
    at.assert_replayed().await;
    let store = at.service.idem.store();
    // Shorter than the hour by less than the test may take on a slow machine.
    at.age(HOUR - 5 * MINUTE).await;
    purge_all(store).await;
    at.assert_replayed().await;
    assert!(at.service.record().await.unwrap().payload.is_some());

    at.age(5 * MINUTE).await;
    assert_expired(&at.service.run(call()).await);
    purge_all(store).await;
    let forgotten = at.service.record().await.unwrap();
    assert!(forgotten.is_forgotten(), "{forgotten:?}");
    assert_expired(&at.service.run(call()).await);
    // A purge of a record that has nothing more to drop changes nothing.
    purge_all(store).await;
    let again = at.service.record().await.unwrap();
    assert_eq!(again.observation(), forgotten.observation());

    at.age(23 * HOUR - 5 * MINUTE).await;
    purge_all(store).await;
    assert_expired(&at.service.run(call()).await);
    assert_eq!(at.service.effects(), 1);

    at.age(5 * MINUTE).await;
    assert_eq!(at.service.run(call()).await.unwrap(), 2);
    at.age(24 * HOUR).await;
    purge_all(store).await;
    let left = at.pool.number("SELECT count(*) FROM idem_records").await;
    assert_eq!(left.unwrap(), 0);
}

async fn a_transactional_call_is_remembered<S: Sql>(at: Aged<S>) {
    let effects = AtomicU32::new(0);
    let run = async || {
        let options = RunOptions::<u32, Error>::new();
        let body = async |_: &mut S::Connection, _| Ok(effects.fetch_add(1, Ordering::SeqCst) + 1);
        at.service
            .idem
            .run_in_transaction(call(), options, body)
            .await
    };
    assert_eq!(run().await.unwrap(), 1);
    let record = at.service.record().await.unwrap();
    assert_eq!(
        (record.payload_for, record.retention),
        (Some(HOUR), 24 * HOUR)
    );
    assert_eq!(run().await.unwrap(), 1);
    at.age(HOUR).await;
    assert_expired(&run().await);
    purge_all(at.service.idem.store()).await;
    assert!(at.service.record().await.unwrap().is_forgotten());
    assert_expired(&run().await);
    assert_eq!(effects.load(Ordering::SeqCst), 1);
    at.age(23 * HOUR).await;
    assert_eq!(run().await.unwrap(), 2);
}

async fn the_next_generation_keeps_its_outcome<S: Sql>(at: Aged<S>) {
    at.assert_replayed().await;
    at.age(24 * HOUR).await;
    // Replaces the expired record, which no purge has removed.
    let forgetful = || Call::new("charges.create", "order-1", &500_u64, 24 * HOUR);
    assert_eq!(at.service.run(forgetful()).await.unwrap(), 2);
    at.age(23 * HOUR).await;
    purge_all(at.service.idem.store()).await;
    assert_eq!(at.service.run(forgetful()).await.unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn both_times_count_from_the_end_of_the_work() {
    let service = Service::in_memory();
    let body = async || {
        tokio::time::sleep(2 * HOUR).await;
        Ok::<_, Error>(1)
    };
    service.idem.run(call(), body).await.unwrap();
    tokio::time::sleep(HOUR - TICK).await;
    assert_eq!(service.run(call()).await.unwrap(), 1);
    tokio::time::sleep(TICK).await;
    assert_expired(&service.run(call()).await);
    tokio::time::sleep(23 * HOUR - TICK).await;
    assert_expired(&service.run(call()).await);
    assert_eq!(service.effects(), 0);
    tokio::time::sleep(TICK).await;
    assert_eq!(service.run(call()).await.unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_for_the_work_gets_its_outcome() {
    let service = Service::in_memory();
    let slow = async || {
        tokio::time::sleep(MINUTE).await;
        Ok::<_, Error>(7)
    };
    let first = service.idem.run(call(), slow);
    let second = service.run(call().wait(HOUR));
    let (first, second) = tokio::join!(first, second);
    assert_eq!((first.unwrap(), second.unwrap()), (7, 7));
    assert_eq!(service.effects(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_time_of_the_record_outlives_a_deploy_with_another_time() {
    let service = Service::in_memory();
    service.run(call()).await.unwrap();
    let later = || Call::new("charges.create", "order-1", &500_u64, 20 * HOUR).remember(48 * HOUR);
    tokio::time::sleep(HOUR).await;
    assert_expired(&service.run(later()).await);

    // A record without a time: the call's own decides.
    let other = |ttl| Call::new("charges.create", "order-2", &500_u64, ttl);
    service.run(other(24 * HOUR)).await.unwrap();
    tokio::time::sleep(2 * HOUR).await;
    assert_expired(&service.run(other(HOUR).remember(24 * HOUR)).await);
    assert_eq!(service.run(other(24 * HOUR)).await.unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_outcome_by_an_operator_is_replayed_for_the_time_of_the_call() {
    const CREATE: TypedOperation<u32> = TypedOperation::new("charges.create");
    let refuse = || call().on_crash(OnCrash::Refuse);
    let service = Service::in_memory();
    let crash = async || Err::<u32, _>(Error::LeaseLost);
    let answer = service.idem.run(refuse(), crash).await;
    assert!(answer.is_err());
    let record = service.record().await.unwrap();
    let observed = record.observation();
    manually(&service.idem)
        .complete(CREATE, &observed, &9)
        .await
        .unwrap();
    tokio::time::sleep(HOUR - TICK).await;
    assert_eq!(service.run(refuse()).await.unwrap(), 9);
    tokio::time::sleep(TICK).await;
    assert_expired(&service.run(refuse()).await);
    purge_all(service.idem.store()).await;
    assert!(service.record().await.unwrap().payload.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_forgotten_holds_on_either_side_of_a_move() {
    let (old, new) = (Arc::new(MemoryStore::new()), Arc::new(MemoryStore::new()));
    let before = Service::new(Idem::new(Arc::clone(&old)));
    before.run(call()).await.unwrap();
    let moving = Moving::claims_in_new(Arc::clone(&old), Arc::clone(&new));
    let moved = Service::new(Idem::new(moving));
    assert_eq!(moved.run(call()).await.unwrap(), 1);
    let second = || Call::new("charges.create", "order-2", &500_u64, HOUR).remember(24 * HOUR);
    moved.run(second()).await.unwrap();
    tokio::time::sleep(HOUR).await;
    for purged in [false, true] {
        if purged {
            purge_all(moved.idem.store()).await;
        }
        assert_expired(&moved.run(call()).await);
        assert_expired(&moved.run(second()).await);
    }
    let after = Service::new(Idem::new(Arc::clone(&new)));
    assert_expired(&after.run(second()).await);
    assert_eq!(moved.effects(), 1, "only the second key was new");
    assert_eq!(after.effects(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_cached_outcome_is_replayed_no_longer_than_a_stored_one() {
    let store = Arc::new(MemoryStore::new());
    let cached = Cached::new(Arc::clone(&store)).max_age(48 * HOUR);
    let service = Service::new(Idem::new(cached));
    service.run(call()).await.unwrap();
    assert_eq!(service.run(call()).await.unwrap(), 1);
    tokio::time::sleep(HOUR - TICK).await;
    assert_eq!(service.run(call()).await.unwrap(), 1);
    assert_eq!(service.idem.store().stats().hits, 1);
    tokio::time::sleep(TICK).await;
    assert_expired(&service.run(call()).await);
    purge_all(&store).await;
    // From the store, then from the cache.
    assert_expired(&service.run(call()).await);
    assert_expired(&service.run(call()).await);
    assert_eq!(service.effects(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_purge_counts_what_it_forgets() {
    let service = Service::in_memory();
    service.run(call()).await.unwrap();
    let purge = async || {
        let store = service.idem.store();
        let purged = store.purge(100, Timestamp::MAX).await.unwrap();
        (purged.removed, purged.forgotten)
    };
    tokio::time::sleep(HOUR - TICK).await;
    assert_eq!(purge().await, (0, 0));
    tokio::time::sleep(TICK).await;
    assert_eq!(purge().await, (0, 1));
    assert_eq!(purge().await, (0, 0));
    tokio::time::sleep(23 * HOUR).await;
    assert_eq!(purge().await, (1, 0));
    assert!(service.idem.store().is_empty());
}

#[tokio::test]
async fn a_key_cannot_be_remembered_for_less_than_its_outcome() {
    let service = Service::in_memory();
    for remember in [Duration::ZERO, HOUR, HOUR - TICK] {
        let answer = service.run(call().remember(remember)).await;
        let Err(Error::InvalidCall(InvalidCall::ShortRemember)) = answer else {
            panic!("{answer:?}");
        };
    }
    assert_eq!(service.effects(), 0);
}

#[idempotent(key = key, ttl = "1h", remember = "1d", name = "orders.place", store = idem, skip(runs))]
async fn place(idem: &Idem<MemoryStore>, key: &str, runs: &AtomicU32) -> Result<u32, Error> {
    Ok(runs.fetch_add(1, Ordering::SeqCst) + 1)
}

#[tokio::test(start_paused = true)]
async fn the_attribute_remembers() {
    let (idem, runs) = (Idem::new(MemoryStore::new()), AtomicU32::new(0));
    assert_eq!(place(&idem, "order-1", &runs).await.unwrap(), 1);
    tokio::time::sleep(HOUR).await;
    assert_expired(&place(&idem, "order-1", &runs).await);
    tokio::time::sleep(23 * HOUR).await;
    assert_eq!(place(&idem, "order-1", &runs).await.unwrap(), 2);
}
