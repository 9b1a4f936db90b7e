//! Callers that wait in the process of the call, and what becomes of them when one of them leaves. Time is paused.

use std::pin::Pin;

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use idem_runtime::conformance::faults::{Fault, Op};
use idem_runtime::error::{InvalidCall, StoreErrorKind};
use idem_runtime::store::Resolution;
use idem_runtime::{MemoryStore, SqliteStore};
use tokio::time::{Instant, sleep};

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(30);

type Faulty = Arc<FaultStore<MemoryStore>>;

/// Handles of two services on one store.
fn services() -> [Idem<Faulty>; 2] {
    let store = Arc::new(FaultStore::new(MemoryStore::new()));
    [Idem::new(store.clone()), Idem::new(store)]
}

/// A future that has begun, and waits.
fn polled_once<F: Future>(future: F) -> Pin<Box<F>> {
    let mut future = Box::pin(future);
    assert!(future.as_mut().now_or_never().is_none());
    future
}

async fn for_five_seconds(result: Result<u32, Failure>) -> Result<u32, Failure> {
    sleep(5 * SECOND).await;
    result
}

#[tokio::test(start_paused = true)]
async fn a_thousand_callers_in_the_process_of_the_call_never_poll() {
    let [idem, _] = services();
    let called = polled_once(idem.run(call("k"), || for_five_seconds(Ok(5))));
    let attached = join_all((0..1_000).map(|_| query(&idem, "k").request(&1).attach(LEASE)));
    let (called, answers) = tokio::join!(called, attached);
    assert_eq!(called, Ok(5));
    for answer in answers {
        let Ok(KeyStatus::Ended(Ok(5), provenance)) = answer else {
            panic!("{answer:?}");
        };
        assert_eq!(provenance.source, ResultSource::Waited);
        assert_eq!(provenance.kept_for, Some(TTL));
    }
    let store = idem.store();
    assert_eq!((store.count(Op::Get), store.count(Op::Claim)), (1_000, 1));
}

/// They are told by the caller that attached first, although it began to wait earlier.
#[tokio::test(start_paused = true)]
async fn callers_that_attach_later_are_told_as_well() {
    let [idem, _] = services();
    let called = polled_once(idem.run(call("k"), || for_five_seconds(Ok(5))));
    let attached = join_all((0..100).map(|number| {
        let query = query(&idem, "k");
        async move {
            sleep(Duration::from_millis(10) * number).await;
            query.attach(LEASE).await
        }
    }));
    let (_, answers) = tokio::join!(called, attached);
    for answer in answers {
        assert_eq!(answer.unwrap().result(), Some(Ok(5)));
    }
    assert_eq!(idem.store().count(Op::Get), 100);
}

#[tokio::test(start_paused = true)]
async fn callers_of_another_process_share_their_polls() {
    let [idem, other] = services();
    let called = polled_once(idem.run(call("k"), || for_five_seconds(Ok(5))));
    let attached = join_all((0..1_000).map(|_| query(&other, "k").attach(LEASE)));
    let (_, answers) = tokio::join!(called, attached);
    for answer in answers {
        assert_eq!(answer.unwrap().result(), Some(Ok(5)));
    }
    let polls = idem.store().count(Op::Get) - 1_000;
    assert!((5..100).contains(&polls), "{polls}");
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_passes_its_turn_to_poll_on() {
    let [idem, other] = services();
    let called = polled_once(idem.run(call("k"), || for_five_seconds(Ok(5))));
    let polls = polled_once(query(&other, "k").attach(LEASE));
    let waits = polled_once(query(&other, "k").attach(LEASE));
    let short = polled_once(query(&other, "k").attach(SECOND));
    drop(polls);
    let (_, waited, short) = tokio::join!(called, waits, short);
    assert_eq!(waited.unwrap().result(), Some(Ok(5)));
    assert!(matches!(short, Ok(KeyStatus::Running { .. })), "{short:?}");
}

/// The future of the caller that polls may stand still, as that of a runtime that is blocked.
#[tokio::test(start_paused = true)]
async fn a_caller_that_is_not_polled_does_not_hold_up_the_others() {
    let [idem, other] = services();
    let called = polled_once(idem.run(call("k"), || for_five_seconds(Ok(5))));
    let stands = polled_once(query(&other, "k").attach(10 * LEASE));
    let began = Instant::now();
    let waits = join_all([(); 3].map(|()| query(&other, "k").attach(10 * LEASE)));
    let (_, waited) = tokio::join!(called, waits);
    for answer in waited {
        assert_eq!(answer.unwrap().result(), Some(Ok(5)));
    }
    let timeout = idem.policy().store_timeout;
    assert!(
        began.elapsed() < 6 * SECOND + timeout,
        "{:?}",
        began.elapsed()
    );
    // It may go on later, and takes nothing from the caller that polls now.
    assert_eq!(stands.await.unwrap().result(), Some(Ok(5)));
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_with_its_time_and_says_until_when_the_lease_is_valid() {
    let [idem, other] = services();
    let called = polled_once(idem.run(call("k"), async || {
        sleep(10 * LEASE).await;
        Ok::<_, Failure>(5)
    }));
    let waits = async |idem: &Idem<Faulty>| {
        let began = Instant::now();
        let status = query(idem, "k").attach(5 * LEASE).await.unwrap();
        (status, began.elapsed())
    };
    let before = query(&idem, "k").await.unwrap();
    let (mut called, local, remote) = (called, waits(&idem), waits(&other));
    let answers = tokio::select! {
        answers = async { tokio::join!(local, remote) } => answers,
        _ = &mut called => panic!("it runs for longer"),
    };
    let until = |status| match status {
        KeyStatus::Running { until, .. } => until,
        other => panic!("{other:?}"),
    };
    let before = until(before);
    for (status, took) in [answers.0, answers.1] {
        assert_eq!(took, 5 * LEASE);
        // It was renewed meanwhile.
        assert!(until(status) > before + 4 * LEASE);
    }
    let immediately = query(&other, "k").attach(Duration::ZERO).now_or_never();
    assert!(matches!(immediately, Some(Ok(KeyStatus::Running { .. }))));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_leaves_no_outcome_ends_the_wait_at_once() {
    for (on_crash, is_dropped) in [
        (OnCrash::Rerun, false),
        (OnCrash::Refuse, false),
        (OnCrash::Refuse, true),
    ] {
        let [idem, other] = services();
        let failing = call("k").on_crash(on_crash);
        let called = polled_once(idem.run(failing, || for_five_seconds(Err(Failure::Declined))));
        let waits = [&idem, &other].map(|idem| polled_once(query(idem, "k").attach(10 * LEASE)));
        let began = Instant::now();
        if is_dropped {
            drop(called);
        } else {
            assert_eq!(called.await, Err(Failure::Declined));
        }
        for answer in join_all(waits).await {
            let expected = match on_crash {
                OnCrash::Rerun => KeyStatus::Absent,
                _ => KeyStatus::Interrupted,
            };
            assert_eq!(answer.unwrap(), expected);
        }
        assert!(began.elapsed() <= 6 * SECOND, "{:?}", began.elapsed());
    }
}

/// The owner stands still. Its lease lapses without a renewal, and nobody takes over.
#[tokio::test(start_paused = true)]
async fn a_frozen_owner_ends_the_wait_when_its_lease_lapses() {
    let [idem, other] = services();
    let frozen = polled_once(idem.run(call("k"), || for_five_seconds(Ok(5))));
    let waits = [&idem, &other].map(|idem| query(idem, "k").attach(10 * LEASE));
    let began = Instant::now();
    for answer in join_all(waits).await {
        assert!(matches!(answer, Ok(KeyStatus::Lapsed { .. })), "{answer:?}");
    }
    assert!(began.elapsed() <= LEASE + SECOND, "{:?}", began.elapsed());
    drop(frozen);
    assert_eq!(idem.store().count(Op::TakeOver), 0);
}

#[tokio::test(start_paused = true)]
async fn a_wait_for_a_record_that_was_replaced_is_a_reused_key() {
    let [idem, other] = services();
    let store = idem.store();
    own(store, &claim("k")).await;
    let waits = [&idem, &other].map(|idem| polled_once(query(idem, "k").attach(10 * LEASE)));
    let record = store.get(&id("k")).await.unwrap().unwrap();
    end_lease(store, &record).await.unwrap();
    let record = store.get(&id("k")).await.unwrap().unwrap();
    let seen = record.observation();
    store.resolve(&seen, &Resolution::Erase).await.unwrap();
    // The other request runs in one of the processes.
    let replaced = polled_once(idem.run(call("k"), || for_five_seconds(Ok(666))));
    let (_, answers) = tokio::join!(replaced, join_all(waits));
    for answer in answers {
        assert!(matches!(answer, Err(Error::KeyReused)), "{answer:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_for_a_while_does_not_end_a_wait() {
    let [idem, other] = services();
    let called = polled_once(idem.run(call("k"), || for_five_seconds(Ok(5))));
    let waits = polled_once(query(&other, "k").attach(LEASE));
    idem.store().fail_before(Op::Get, 5);
    let (_, answer) = tokio::join!(called, waits);
    assert_eq!(answer.unwrap().result(), Some(Ok(5)));

    let corrupt = Fault::FailBefore(StoreErrorKind::Corrupt);
    idem.store().always(Op::Get, corrupt);
    let failed = query(&other, "k").attach(LEASE).await;
    assert!(matches!(failed, Err(Error::Store(_))), "{failed:?}");
}

#[tokio::test(start_paused = true)]
async fn a_body_cannot_attach_to_itself() {
    let [idem, _] = services();
    let refused = idem.run(call("k"), async || {
        let attached = query(&idem, "k").attach(LEASE).await;
        let is_own = matches!(attached, Err(Error::InvalidCall(InvalidCall::OwnKey)));
        Ok::<_, Failure>(u32::from(is_own))
    });
    assert_eq!(refused.await, Ok(1));
}

/// The store has no record of it before the commit, but the process knows of it.
#[tokio::test]
async fn a_call_in_a_transaction_is_absent_until_its_commit_and_can_be_attached_to() {
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(directory.path().join("idem.db"))
        .await
        .unwrap();
    let idem = Idem::new(store);
    let (begun, end) = (tokio::sync::Notify::new(), tokio::sync::Notify::new());
    let called = idem.run_in_transaction(call("k"), RunOptions::new(), async |_, _| {
        let inside = query(&idem, "other").attach(LEASE).await;
        let is_refused = matches!(
            inside,
            Err(Error::InvalidCall(InvalidCall::InsideTransaction))
        );
        begun.notify_one();
        end.notified().await;
        Ok::<_, Failure>(u32::from(is_refused))
    });
    let asked = async {
        begun.notified().await;
        assert_eq!(query(&idem, "k").await.unwrap(), KeyStatus::Absent);
        let other = query(&idem, "k").request(&2).attach(LEASE).await;
        assert!(matches!(other, Err(Error::KeyReused)), "{other:?}");
        let mut attached = Box::pin(query(&idem, "k").attach(LEASE));
        // The read waits for the disk, so the wait begins later.
        let early = tokio::time::timeout(Duration::from_millis(300), attached.as_mut()).await;
        assert!(early.is_err(), "{early:?}");
        end.notify_one();
        attached.await
    };
    let (called, attached) = tokio::join!(called, asked);
    assert_eq!(called, Ok(1));
    assert_eq!(attached.unwrap().result(), Some(Ok(1)));
}
