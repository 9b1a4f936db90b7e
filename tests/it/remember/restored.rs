//! Keys whose records may have been lost with a store that was restored from a backup.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use idem_runtime::advanced::RunOptions;
use idem_runtime::error::StoreErrorKind;
use idem_runtime::record::RecordState;
use idem_runtime::{Call, Error, Idem, Key, MemoryStore, OnCrash, Reconciled, Store};
use idem_tests::on_stores;
use idem_tests::places::{Backend as _, Place, shared};
use idem_tests::sql::Sql;

use super::old_keys::made_at;
use super::{HOUR, Service};
use crate::records::manually;

on_stores! { [] shared: under_refuse_an_operator_decides }

mod databases {
    use super::*;

    on_stores! { [transactions] opened: in_a_transaction_an_operator_decides }
}

/// A key that was made, and may have been used, before the restore of these tests.
fn lost() -> Key {
    made_at(SystemTime::now() - 2 * HOUR)
}

/// The time of the restore.
fn restore() -> SystemTime {
    SystemTime::now() - HOUR
}

fn call(key: &Key, on_crash: OnCrash) -> Call {
    Call::new("charges.create", key, &500_u64, 24 * HOUR).on_crash(on_crash)
}

async fn under_refuse_an_operator_decides(store: Arc<dyn Store>) {
    let idem = Idem::builder(store).restored_at(restore()).build();
    let service = Service::new(idem);
    let refuse = |key: &Key| call(key, OnCrash::Refuse);
    let (lost, later) = (lost(), made_at(SystemTime::now()));
    for _ in 0..2 {
        let answer = service.run(refuse(&lost)).await;
        assert!(matches!(answer, Err(Error::Interrupted)), "{answer:?}");
    }
    assert_eq!(service.effects(), 0);
    assert_eq!(service.run(refuse(&later)).await.unwrap(), 1);
    assert_eq!(service.run(refuse(&Key::generate_v4())).await.unwrap(), 2);

    let records = service.idem.records();
    let record = records.find("charges.create", &lost).await.unwrap();
    let record = record.unwrap();
    assert_eq!(record.state, RecordState::Interrupted);
    let released = manually(&service.idem).release(&record.observation()).await;
    released.unwrap();
    assert_eq!(service.run(refuse(&lost)).await.unwrap(), 3);
    assert_eq!(service.run(refuse(&lost)).await.unwrap(), 3);
}

async fn opened<S: Sql>(place: Place<S>) -> Service<S> {
    let home = place.home().await.unwrap();
    let store = S::open(&home).await.unwrap();
    Service::new(Idem::builder(store).restored_at(restore()).build())
}

async fn in_a_transaction_an_operator_decides<S: Sql>(service: Service<S>) {
    let (lost, effects) = (lost(), AtomicU32::new(0));
    let run = async || {
        let call = Call::new("charges.create", &lost, &500_u64, 24 * HOUR);
        let body = async |_: &mut S::Connection, _| Ok(effects.fetch_add(1, Ordering::SeqCst) + 1);
        let options = RunOptions::<u32, Error>::new();
        service.idem.run_in_transaction(call, options, body).await
    };
    for _ in 0..2 {
        let answer = run().await;
        assert!(matches!(answer, Err(Error::Interrupted)), "{answer:?}");
    }
    let records = service.idem.records();
    let record = records.find("charges.create", &lost).await.unwrap();
    let observed = record.unwrap().observation();
    manually(&service.idem).release(&observed).await.unwrap();
    assert_eq!(run().await.unwrap(), 1);
    assert_eq!(run().await.unwrap(), 1);
}

fn in_memory() -> Service {
    Service::new(
        Idem::builder(MemoryStore::new())
            .restored_at(restore())
            .build(),
    )
}

#[tokio::test]
async fn under_reconcile_the_call_asks() {
    let service = in_memory();
    let lost = lost();
    for (answer, runs) in [(Reconciled::Done(9), 0), (Reconciled::NotDone, 1)] {
        let service = in_memory();
        let mut answer = Some(answer);
        let options = RunOptions::<u32, Error>::new()
            .reconcile(move |_| std::future::ready(Ok(answer.take().unwrap())));
        let body = async |_| Ok(service.effects.fetch_add(1, Ordering::SeqCst) + 1);
        let call = Call::new("charges.create", &lost, &500_u64, 24 * HOUR);
        let got = service.idem.run_with(call, options, body).await.unwrap();
        assert_eq!(
            (got, service.effects()),
            (if runs == 0 { 9 } else { 1 }, runs)
        );
    }
    assert_eq!(service.effects(), 0);
}

#[tokio::test]
async fn under_rerun_the_store_is_unavailable_for_the_key() {
    let service = in_memory();
    let answer = service.run(call(&lost(), OnCrash::Rerun)).await;
    let Err(Error::Store(error)) = answer else {
        panic!("{answer:?}");
    };
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    assert!(error.to_string().contains("restored"), "{error}");
    assert_eq!(service.effects(), 0);
    assert!(service.idem.store().is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_switch_ends_with_the_retention() {
    let service = in_memory();
    tokio::time::sleep(23 * HOUR - Duration::from_secs(60)).await;
    assert!(service.run(call(&lost(), OnCrash::Rerun)).await.is_err());
    tokio::time::sleep(Duration::from_secs(120)).await;
    let answer = service.run(call(&lost(), OnCrash::Rerun)).await;
    assert_eq!(answer.unwrap(), 1);
}

#[tokio::test]
async fn by_choice_each_key_waits_for_an_operator() {
    let idem = Idem::builder(MemoryStore::new())
        .restored_at_for_all_keys(restore())
        .build();
    let service = Service::new(idem);
    for key in [Key::generate(), Key::generate_v4()] {
        let answer = service.run(call(&key, OnCrash::Refuse)).await;
        assert!(matches!(answer, Err(Error::Interrupted)), "{answer:?}");
    }
    assert_eq!(service.effects(), 0);
}

#[tokio::test]
async fn a_record_that_was_restored_is_replayed() {
    let store = Arc::new(MemoryStore::new());
    let lost = lost();
    let before = Service::new(Idem::new(Arc::clone(&store)));
    before.run(call(&lost, OnCrash::Refuse)).await.unwrap();
    let idem = Idem::builder(store).restored_at(restore()).build();
    let service = Service::new(idem);
    assert_eq!(service.run(call(&lost, OnCrash::Refuse)).await.unwrap(), 1);
    assert_eq!(service.effects(), 0);
}
