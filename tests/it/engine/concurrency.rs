//! Calls that share a key at the same time, in one process and across several.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use idem_runtime::advanced::{ResultSource, with_provenance};
use idem_runtime::conformance::faults::{FaultStore, Op};
use idem_runtime::error::InvalidCall;
use idem_runtime::record::{Owner, Record};
use idem_runtime::store::{FencedWrite, Filter, PageRequest, Resolution, Resolved};
use idem_runtime::{Call, Error, Idem, MemoryStore, Store as _};
use tokio::sync::Notify;

use super::{Effects, Failure, LEASE, call, refusal};

/// Handle of one service.
fn service() -> Idem<FaultStore<MemoryStore>> {
    Idem::new(FaultStore::new(MemoryStore::new()))
}

/// Handles of two services on one store.
fn services() -> [Idem<Arc<FaultStore<MemoryStore>>>; 2] {
    let store = Arc::new(FaultStore::new(MemoryStore::new()));
    [Idem::new(store.clone()), Idem::new(store)]
}

fn patient(key: &str) -> Call {
    call(key, 1).wait(LEASE)
}

async fn fails_after_a_second() -> Result<u32, Failure> {
    tokio::time::sleep(Duration::from_secs(1)).await;
    Err(Failure::TimedOut)
}

/// A call that has begun, and waits.
fn polled_once<F: Future>(call: F) -> Pin<Box<F>> {
    let mut call = Box::pin(call);
    assert!(call.as_mut().now_or_never().is_none());
    call
}

#[tokio::test(start_paused = true)]
async fn a_hundred_duplicates_that_wait_run_once_and_never_poll() {
    let (idem, effects) = (service(), Effects::default());
    let duplicates = (0..100).map(|_| {
        with_provenance(idem.run(patient("k"), async || {
            tokio::time::sleep(Duration::from_secs(5)).await;
            Ok::<_, Failure>(effects.happen())
        }))
    });
    let results = join_all(duplicates).await;
    let mut waited = 0;
    for (result, provenance) in results {
        assert_eq!(result.unwrap(), 1);
        waited += u32::from(provenance.unwrap().source == ResultSource::Waited);
    }
    assert_eq!((waited, effects.count()), (99, 1));
    let store = idem.store();
    assert_eq!((store.count(Op::Claim), store.count(Op::Complete)), (1, 1));
    assert_eq!(store.count(Op::Get), 0, "woken, not polling");
}

#[tokio::test(start_paused = true)]
async fn a_hundred_duplicates_that_do_not_wait_are_refused_as_in_flight() {
    let (idem, effects) = (service(), Effects::default());
    let duplicates = (0..100).map(|_| {
        idem.run(call("k", 1), async || {
            tokio::time::sleep(Duration::from_secs(5)).await;
            Ok::<_, Failure>(effects.happen())
        })
    });
    let results = join_all(duplicates).await;
    let refused = results.iter().filter(|result| {
        matches!(
            result,
            Err(Failure::Idempotency(Error::InFlight { retry_after })) if *retry_after > Duration::ZERO
        )
    });
    assert_eq!((refused.count(), effects.count()), (99, 1));
    assert_eq!(idem.store().count(Op::Claim), 1);
}

#[tokio::test(start_paused = true)]
async fn many_concurrent_duplicates_of_a_completed_call_are_replayed() {
    let (idem, effects) = (service(), Effects::default());
    effects.run(&idem, call("k", 1)).await.unwrap();
    let duplicates = (0..100).map(|_| effects.run(&idem, call("k", 1)));
    for result in join_all(duplicates).await {
        assert_eq!(result.unwrap(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_duplicate_with_another_request_fails_immediately_while_the_first_runs() {
    let (idem, effects) = (service(), Effects::default());
    let first = idem.run(call("k", 1), async || {
        tokio::time::sleep(Duration::from_secs(5)).await;
        Ok::<_, Failure>(effects.happen())
    });
    let other = effects.run(&idem, call("k", 2).wait(LEASE));
    let started = tokio::time::Instant::now();
    let other = async move {
        let result = other.await;
        (refusal(result), started.elapsed())
    };
    let (first, (reused, after)) = tokio::join!(first, other);
    assert!(first.is_ok() && matches!(reused, Error::KeyReused));
    assert_eq!(after, Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn waiting_calls_run_one_after_the_other_while_runs_fail() {
    let (idem, effects) = (service(), Effects::default());
    let calls = (0..10).map(|_| {
        idem.run(patient("k"), async || {
            tokio::time::sleep(Duration::from_millis(10)).await;
            if effects.happen() < 4 {
                Err(Failure::TimedOut)
            } else {
                Ok(effects.count())
            }
        })
    });
    let results = join_all(calls).await;
    let failed = results.iter().filter(|result| result.is_err()).count();
    assert_eq!((failed, effects.count()), (3, 4));
}

/// A failed body wakes one of the calls that wait. If it woke all, the work would grow with the square of their number.
#[tokio::test(start_paused = true)]
async fn a_failure_does_not_wake_all_that_wait() {
    let (idem, effects) = (service(), Effects::default());
    let polls = Cell::new(0);
    let calls = (0..300).map(|_| {
        let mut call = Box::pin(idem.run(patient("k"), async || {
            tokio::time::sleep(Duration::from_millis(1)).await;
            effects.happen();
            Err::<u32, _>(Failure::TimedOut)
        }));
        let polls = &polls;
        poll_fn(move |context| {
            polls.set(polls.get() + 1);
            call.as_mut().poll(context)
        })
    });
    let results = join_all(calls).await;
    assert!(
        results
            .iter()
            .all(|it| matches!(it, Err(Failure::TimedOut)))
    );
    assert_eq!(effects.count(), 300);
    assert!(polls.get() < 300 * 6, "{} polls", polls.get());
    assert_eq!(idem.store().count(Op::Get), 0);
}

/// A body fails, and the call that was woken to run next is a future that is not polled any more.
#[tokio::test(start_paused = true)]
async fn waiting_calls_do_not_hang_with_a_successor_that_is_not_polled() {
    let (idem, effects) = (service(), Effects::default());
    let first = polled_once(idem.run(patient("k"), fails_after_a_second));
    let successor = polled_once(effects.run(&idem, patient("k")));
    let started = tokio::time::Instant::now();
    let (failed, result) = tokio::join!(first, effects.run(&idem, patient("k")));
    assert!(matches!(failed, Err(Failure::TimedOut)));
    assert_eq!(result.unwrap(), 1);
    assert!(started.elapsed() <= Duration::from_secs(1) + idem.policy().store_timeout);
    drop(successor);
}

/// As above, but the caller of the woken call leaves, so that the next one is woken without a delay.
#[tokio::test(start_paused = true)]
async fn a_successor_that_leaves_wakes_the_next_one() {
    let (idem, effects) = (service(), Effects::default());
    let first = polled_once(idem.run(patient("k"), fails_after_a_second));
    let successor = polled_once(effects.run(&idem, patient("k")));
    let started = tokio::time::Instant::now();
    let failed = async move {
        let failed = first.await;
        drop(successor);
        failed
    };
    let (failed, result) = tokio::join!(failed, effects.run(&idem, patient("k")));
    assert!(matches!(failed, Err(Failure::TimedOut)));
    assert_eq!(result.unwrap(), 1);
    assert_eq!(started.elapsed(), Duration::from_secs(1));
}

/// The key of a failed body is claimed by a call with another request. Those that wait stay undisturbed.
#[tokio::test(start_paused = true)]
async fn a_reused_key_does_not_send_those_that_wait_to_the_store() {
    let (idem, effects) = (service(), Effects::default());
    let first = idem.run(patient("k"), fails_after_a_second);
    let waiting = join_all((0..100).map(|_| effects.run(&idem, patient("k"))));
    // After the failure this call is polled before the one that was woken.
    let reused = async {
        let failed = first.await;
        let gate = idem.store().hold_before(Op::Claim);
        let reused = effects.run(&idem, call("k", 2));
        let opened = async {
            gate.reached().await;
            tokio::task::yield_now().await;
            gate.open();
        };
        (failed, tokio::join!(reused, opened).0)
    };
    let ((failed, reused), results) = tokio::join!(reused, waiting);
    assert!(matches!(failed, Err(Failure::TimedOut)));
    assert!(matches!(refusal(reused), Error::KeyReused));
    assert!(results.into_iter().all(|it| it.unwrap() == 1));
    let claims = idem.store().count(Op::Claim);
    assert!(claims <= 4, "{claims} claims");
}

#[tokio::test(start_paused = true)]
async fn a_duplicate_waits_as_long_as_its_own_wait_option() {
    let (idem, effects) = (service(), Effects::default());
    let long = idem.run(call("k", 1), async || {
        tokio::time::sleep(Duration::from_secs(100)).await;
        Ok::<_, Failure>(effects.happen())
    });
    let started = tokio::time::Instant::now();
    let waiter = async {
        let result = effects
            .run(&idem, call("k", 1).wait(Duration::from_secs(7)))
            .await;
        (refusal(result), started.elapsed())
    };
    let (_, (error, after)) = tokio::join!(long, waiter);
    assert!(matches!(error, Error::InFlight { .. }));
    assert_eq!(after, Duration::from_secs(7));
}

#[tokio::test(start_paused = true)]
async fn in_another_service_waiting_duplicates_poll_with_growing_pauses() {
    let ([one, two], effects) = (services(), Effects::default());
    let first = one.run(call("k", 1), async || {
        tokio::time::sleep(Duration::from_secs(20)).await;
        Ok::<_, Failure>(effects.happen())
    });
    let duplicates = join_all((0..50).map(|_| with_provenance(effects.run(&two, patient("k")))));
    let (first, duplicates) = tokio::join!(first, duplicates);
    assert_eq!(first.unwrap(), 1);
    for (result, provenance) in duplicates {
        assert_eq!(result.unwrap(), 1);
        assert_eq!(provenance.unwrap().source, ResultSource::Waited);
    }
    let store = one.store();
    assert_eq!(store.count(Op::Claim), 2, "one a service");
    let reads = store.count(Op::Get);
    // One read in about a tenth of the time waited, up to a second; one poller for all fifty.
    assert!((20..90).contains(&reads), "{reads} reads");
}

#[tokio::test(start_paused = true)]
async fn in_another_service_duplicates_that_do_not_wait_share_one_claim() {
    let ([one, two], effects) = (services(), Effects::default());
    let first = one.run(call("k", 1), async || {
        let gate = two.store().hold_before(Op::Claim);
        let duplicates = join_all((0..50).map(|_| effects.run(&two, call("k", 1))));
        let opened = async {
            tokio::task::yield_now().await;
            gate.open();
        };
        let (duplicates, ()) = tokio::join!(duplicates, opened);
        for result in duplicates {
            assert!(matches!(refusal(result), Error::InFlight { .. }));
        }
        Ok::<_, Failure>(effects.happen())
    });
    assert_eq!(first.await.unwrap(), 1);
    assert_eq!(one.store().count(Op::Claim), 2);
}

#[tokio::test(start_paused = true)]
async fn a_follower_replaces_a_dropped_leader() {
    let (idem, effects) = (service(), Effects::default());
    let mut leader = Box::pin(idem.run(call("k", 1), async || -> Result<u32, Failure> {
        std::future::pending().await
    }));
    assert!(leader.as_mut().now_or_never().is_none());
    let followers = join_all((0..10).map(|_| effects.run(&idem, call("k", 1).wait(LEASE * 2))));
    let dropped = async move {
        tokio::time::sleep(Duration::from_secs(1)).await;
        drop(leader);
    };
    let (results, ()) = tokio::join!(followers, dropped);
    for result in results {
        assert_eq!(result.unwrap(), 1);
    }
    assert_eq!(
        effects.count(),
        1,
        "one of them took over once the lease was over"
    );
}

#[tokio::test(start_paused = true)]
async fn followers_do_not_hang_with_a_leader_whose_claim_hangs() {
    let (idem, effects) = (service(), Effects::default());
    idem.store().hang_before(Op::Claim, 1);
    let mut leader = Box::pin(effects.run(&idem, call("k", 1)));
    assert!(leader.as_mut().now_or_never().is_none());
    // The leader is never polled again; the follower stops waiting for it after the store time-out.
    let follower = effects.run(&idem, call("k", 1)).await;
    assert_eq!(follower.unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn followers_send_no_claim_while_their_leader_claims() {
    let (idem, effects) = (service(), Effects::default());
    let gate = idem.store().hold_before(Op::Claim);
    let calls = join_all((0..10).map(|_| effects.run(&idem, patient("k"))));
    let opened = async {
        gate.reached().await;
        tokio::time::sleep(idem.policy().store_timeout / 2).await;
        assert_eq!(idem.store().count(Op::Claim), 1);
        gate.open();
    };
    let (results, ()) = tokio::join!(calls, opened);
    assert!(results.into_iter().all(|it| it.unwrap() == 1));
    assert_eq!(idem.store().count(Op::Claim), 1);
}

/// A leader leaves while others wait for it. One of them claims, and the others wait for that one.
#[tokio::test(start_paused = true)]
async fn followers_of_a_leader_that_left_have_one_leader_again() {
    let (idem, effects) = (service(), Effects::default());
    idem.store().hang_before(Op::Claim, 1);
    let mut leader = Box::pin(effects.run(&idem, call("k", 1)));
    assert!(leader.as_mut().now_or_never().is_none());
    let mut followers = Box::pin(join_all((0..10).map(|_| effects.run(&idem, patient("k")))));
    assert!(followers.as_mut().now_or_never().is_none());
    let gate = idem.store().hold_before(Op::Claim);
    drop(leader);
    let opened = async {
        gate.reached().await;
        tokio::time::sleep(idem.policy().store_timeout / 2).await;
        assert_eq!(idem.store().count(Op::Claim), 2);
        gate.open();
    };
    let (results, ()) = tokio::join!(followers, opened);
    assert!(results.into_iter().all(|it| it.unwrap() == 1));
}

#[tokio::test(start_paused = true)]
async fn a_follower_gets_a_value_only_after_the_store_acknowledged_it() {
    let (idem, effects) = (service(), Effects::default());
    idem.store().hang_before(Op::Complete, 1);
    let first = effects.run(&idem, call("k", 1));
    let started = tokio::time::Instant::now();
    let follower = async {
        let result = effects.run(&idem, patient("k")).await;
        (result, started.elapsed())
    };
    let (first, (followed, after)) = tokio::join!(first, follower);
    assert_eq!((first.unwrap(), followed.unwrap()), (1, 1));
    assert!(
        after >= idem.policy().store_timeout,
        "after the repeated completion: {after:?}"
    );
}

/// The only record of a store.
async fn the_record(store: &MemoryStore) -> Record {
    let page = PageRequest {
        limit: 2,
        after: None,
    };
    let mut records = store.list(&Filter::default(), &page).await.unwrap().records;
    assert_eq!(records.len(), 1);
    records.remove(0).record
}

/// The store answers, and the process stands still. Meanwhile an operator erases the record.
async fn stand_still_while_the_record_is_erased(idem: &Idem<FaultStore<MemoryStore>>) {
    let store = idem.store().inner();
    let seen = the_record(store).await.observation();
    let erased = store.resolve(&seen, &Resolution::Erase);
    assert_eq!(erased.await.unwrap(), Resolved::Done);
    tokio::time::advance(idem.policy().store_timeout * 2).await;
}

#[tokio::test(start_paused = true)]
async fn an_outcome_that_was_read_long_ago_is_not_shared_with_a_later_call() {
    let (idem, effects) = (service(), Effects::default());
    effects.run(&idem, call("k", 1)).await.unwrap();
    let gate = idem.store().hold_after(Op::Claim);
    let reader = polled_once(effects.run(&idem, call("k", 1)));
    stand_still_while_the_record_is_erased(&idem).await;
    let mut later = polled_once(join_all((0..10).map(|_| effects.run(&idem, patient("k")))));
    let claims = idem.store().count(Op::Claim);
    let next = idem.store().hold_before(Op::Claim);
    gate.open();
    assert_eq!(reader.await.unwrap(), 1, "it began before the erasure");
    assert!(later.as_mut().now_or_never().is_none());
    next.open();
    for later in later.await {
        assert_eq!(later.unwrap(), 2, "the key is free");
    }
    assert_eq!(
        idem.store().count(Op::Claim),
        claims + 1,
        "one asks for all"
    );
}

#[tokio::test(start_paused = true)]
async fn an_outcome_that_was_acknowledged_long_ago_is_not_shared_with_a_later_call() {
    let (idem, effects) = (service(), Effects::default());
    let gate = idem.store().hold_after(Op::Complete);
    let runner = polled_once(effects.run(&idem, call("k", 1)));
    stand_still_while_the_record_is_erased(&idem).await;
    let later = polled_once(effects.run(&idem, patient("k")));
    gate.open();
    assert_eq!(runner.await.unwrap(), 1);
    assert_eq!(later.await.unwrap(), 2, "the key is free");
}

#[tokio::test(start_paused = true)]
async fn a_follower_never_gets_a_value_that_the_store_refused() {
    let (idem, effects) = (service(), Effects::default());
    let store = idem.store().inner();
    let first = idem.run(patient("k"), async || {
        tokio::time::sleep(Duration::from_secs(1)).await;
        // The record is released under the running call, whose lease still holds by its own clock.
        let record = the_record(store).await;
        let owner = Owner {
            id: record.id,
            claim_id: record.claim_id.unwrap(),
            fencing_token: record.fencing_token,
        };
        assert_eq!(store.release(&owner).await.unwrap(), FencedWrite::Applied);
        Ok::<_, Failure>(effects.happen())
    });
    let follower = with_provenance(effects.run(&idem, patient("k")));
    let (first, (followed, provenance)) = tokio::join!(first, follower);
    assert!(matches!(
        refusal(first),
        Error::LeaseLost | Error::InFlight { .. }
    ));
    assert_eq!(followed.unwrap(), 2, "its own run");
    assert_eq!(provenance.unwrap().source, ResultSource::Executed);
}

#[tokio::test(start_paused = true)]
async fn a_follower_with_another_request_gets_no_outcome_that_its_leader_found() {
    let ([other, idem], effects) = (services(), Effects::default());
    effects.run(&other, call("k", 1)).await.unwrap();
    let claims_before = idem.store().count(Op::Claim);
    let gate = idem.store().hold_before(Op::Claim);
    let leader = effects.run(&idem, call("k", 1));
    let follower = effects.run(&idem, call("k", 2).wait(LEASE));
    let opened = async {
        gate.reached().await;
        gate.open();
    };
    let (led, followed, ()) = tokio::join!(leader, follower, opened);
    assert_eq!(led.unwrap(), 1);
    assert!(matches!(refusal(followed), Error::KeyReused));
    assert_eq!(
        idem.store().count(Op::Claim) - claims_before,
        1,
        "the leader's"
    );
    assert_eq!(effects.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_body_may_make_other_idempotent_calls() {
    let (idem, effects) = (service(), Effects::default());
    let outer = || {
        idem.run(call("outer", 1), async || {
            let one = effects.run(&idem, call("one", 1)).await?;
            let two = effects.run(&idem, call("two", 1)).await?;
            // A call inside the body with the same key would wait for itself.
            let own = effects.run(&idem, call("outer", 1)).await;
            let own = refusal(own);
            assert!(matches!(own, Error::InvalidCall(InvalidCall::OwnKey)));
            Ok::<_, Failure>(one + two)
        })
    };
    assert_eq!((outer().await.unwrap(), outer().await.unwrap()), (3, 3));
    assert_eq!(effects.count(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_sixty_four_calls_on_many_threads_one_runs() {
    let (idem, effects) = (Idem::new(MemoryStore::new()), Effects::default());
    for round in 0..20 {
        let key = format!("k{round}");
        let barrier = Arc::new(tokio::sync::Barrier::new(64));
        let tasks = (0..64).map(|_| {
            let (idem, effects, barrier) = (idem.clone(), effects.clone(), barrier.clone());
            let call = patient(&key);
            tokio::spawn(async move {
                barrier.wait().await;
                idem.run(call, async || {
                    tokio::task::yield_now().await;
                    Ok::<_, Failure>(effects.happen())
                })
                .await
            })
        });
        for task in join_all(tasks).await {
            assert_eq!(task.unwrap().unwrap(), round + 1);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_owner_is_not_delayed_by_waiting_calls() {
    let (idem, effects) = (service(), Effects::default());
    let gate = Notify::new();
    let owner = idem.run(call("k", 1), async || {
        gate.notified().await;
        Ok::<_, Failure>(effects.happen())
    });
    let waiters = (0..10).map(|_| Box::pin(effects.run(&idem, patient("k"))));
    let mut waiters: Vec<_> = waiters.collect();
    let mut owner = Box::pin(owner);
    assert!(owner.as_mut().now_or_never().is_none());
    for waiter in &mut waiters {
        assert!(waiter.as_mut().now_or_never().is_none());
    }
    gate.notify_one();
    assert_eq!(owner.await.unwrap(), 1);
    drop(waiters);
}
