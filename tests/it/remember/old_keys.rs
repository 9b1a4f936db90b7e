//! Keys that say that they are older than records are kept.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use idem_runtime::conformance::faults::{FaultStore, Op};
use idem_runtime::policy::OnStoreError;
use idem_runtime::store::{Filter, PageRequest};
use idem_runtime::{Call, Error, Idem, Key, MemoryStore, Store, idempotent};
use idem_tests::on_stores;
use idem_tests::places::shared;

use super::{HOUR, MINUTE, Service, assert_expired};

on_stores! { [] shared: an_old_key_is_refused_without_a_record }

/// A key that was made this long ago.
fn made(ago: Duration) -> Key {
    made_at(SystemTime::now() - ago)
}

pub(super) fn made_at(time: SystemTime) -> Key {
    let millis = time.duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
    let mut bytes = [7; 16];
    bytes[..6].copy_from_slice(&millis.to_be_bytes()[2..]);
    Key::uuid(bytes, 7)
}

/// A call whose record is kept for a day, and whose key is new for an hour more.
fn call(key: &Key) -> Call {
    let call = Call::new("charges.create", key, &500_u64, 24 * HOUR);
    call.refuse_old_keys(HOUR)
}

async fn records(store: &(impl Store + ?Sized)) -> usize {
    let page = PageRequest::default();
    let listed = store.list(&Filter::default(), &page).await.unwrap();
    listed.records.len()
}

async fn an_old_key_is_refused_without_a_record(store: Arc<dyn Store>) {
    let service = Service::new(Idem::new(Arc::clone(&store)));
    let old = made(25 * HOUR + MINUTE);
    for key in [&old, &Key::new(format!("order/{}", old.as_str())).unwrap()] {
        assert_expired(&service.run(call(key)).await);
    }
    assert_eq!((service.effects(), records(&store).await), (0, 0));
    // With a record, the same key is a normal one: the option was turned on later.
    let without = Call::new("charges.create", &old, &500_u64, 24 * HOUR);
    assert_eq!(service.run(without).await.unwrap(), 1);
    assert_eq!(service.run(call(&old)).await.unwrap(), 1);
    for normal in [
        made(25 * HOUR - 5 * MINUTE),
        made(Duration::ZERO),
        made_at(SystemTime::now() + 1000 * HOUR),
        Key::generate_v4(),
        // No part of its own.
        Key::new(format!("order{}", old.as_str())).unwrap(),
    ] {
        let before = service.effects();
        service.run(call(&normal)).await.unwrap();
        assert_eq!(service.effects(), before + 1, "{normal:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_clock_of_the_store_decides() {
    let store = FaultStore::new(MemoryStore::new());
    let service = Service::new(Idem::new(store.clone()));
    // This process's clock stands still, and the store's goes on: the key looks new here, and is old there.
    let key = made(24 * HOUR);
    tokio::time::sleep(2 * HOUR).await;
    assert_expired(&service.run(call(&key)).await);
    assert_eq!(store.count(Op::Now), 0);
    assert_eq!(service.effects(), 0);
    assert_expired(&service.run(call(&key)).await);
}

#[tokio::test]
async fn only_an_old_key_costs_more() {
    let store = FaultStore::new(MemoryStore::new());
    let service = Service::new(Idem::new(store.clone()));
    service.run(call(&made(HOUR))).await.unwrap();
    assert_eq!((store.count(Op::Get), store.count(Op::Now)), (0, 0));
    assert_expired(&service.run(call(&made(30 * HOUR))).await);
    assert_eq!((store.count(Op::Get), store.count(Op::Now)), (1, 1));
    assert_eq!(store.count(Op::Claim), 1);
}

#[tokio::test]
async fn an_old_key_does_not_run_while_the_store_is_unreachable() {
    let store = FaultStore::new(MemoryStore::new());
    let idem = Idem::builder(store.clone())
        .on_store_error(OnStoreError::Run)
        .store_patience(Duration::from_millis(1))
        .build();
    let service = Service::new(idem);
    store.fail_before(Op::Get, 100);
    let answer = service.run(call(&made(30 * HOUR))).await;
    assert!(matches!(answer, Err(Error::Store(_))), "{answer:?}");
    assert_eq!(service.effects(), 0);
}

#[idempotent(key = key, ttl = "1d", refuse_old_keys = "1h", name = "orders.place", store = idem)]
async fn place(idem: &Idem<MemoryStore>, key: &Key) -> Result<u32, Error> {
    Ok(1)
}

#[tokio::test]
async fn the_attribute_refuses_old_keys() {
    let idem = Idem::new(MemoryStore::new());
    assert_expired(&place(&idem, &made(26 * HOUR)).await);
    assert_eq!(place(&idem, &made(24 * HOUR)).await.unwrap(), 1);
}
