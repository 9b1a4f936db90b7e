//! Claims whose callers left: how they are searched for, released, and in the end left to their leases.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use idem_runtime::conformance::faults::{Fault, FaultStore, Gate, Op};
use idem_runtime::error::StoreErrorKind;
use idem_runtime::record::{Record, RecordState};
use idem_runtime::store::{ClaimOutcome, ClaimRequest, Filter, PageRequest};
use idem_runtime::{Idem, MemoryStore, OnCrash, Store};
use tokio::runtime::{Builder, Runtime};

use super::plain::Plain;
use super::{Effects, Failure, LEASE, TTL, call};

/// Time for which the answer to an abandoned claim is only waited for.
const ANSWER_SOON: Duration = Duration::from_millis(250);
/// A moment that is longer than a round of the timer.
const MOMENT: Duration = Duration::from_millis(5);

fn service() -> Idem<FaultStore<MemoryStore>> {
    Idem::new(FaultStore::new(MemoryStore::new()))
}

/// A service on a store that works on this number of claims at the same time.
fn working_on(claims: usize) -> Idem<FaultStore<Plain<MemoryStore>>> {
    Idem::new(FaultStore::new(Plain::working_on(
        claims,
        MemoryStore::new(),
    )))
}

/// Drops a call while its claim is under way.
fn leave<S: Store>(idem: &Idem<S>, key: &str) {
    let effects = Effects::default();
    let claiming = effects.run(idem, call(key, 1).on_crash(OnCrash::Refuse));
    assert!(claiming.now_or_never().is_none());
    assert_eq!(effects.count(), 0);
}

/// Drops this number of calls while their claims are under way: as many at once as the handle sends to a store.
async fn leave_all<S: Store>(idem: &Idem<S>, calls: usize) {
    let at_once = idem.store().claim_concurrency();
    for number in 0..calls {
        leave(idem, &number.to_string());
        if (number + 1) % at_once == 0 || number + 1 == calls {
            tokio::time::sleep(ANSWER_SOON + MOMENT).await;
        }
    }
}

/// The only record of the store.
async fn record(idem: &Idem<FaultStore<MemoryStore>>) -> Record {
    let page = PageRequest {
        limit: 2,
        after: None,
    };
    let listed = idem.store().inner().list(&Filter::default(), &page).await;
    let [listed] = listed.unwrap().records.try_into().unwrap();
    listed.record
}

/// Another try of the claim that has this record, which arrives now.
async fn arrives_again(idem: &Idem<FaultStore<MemoryStore>>, record: &Record) {
    let late = ClaimRequest {
        id: record.id,
        identity: record.identity.clone(),
        fingerprint: record.fingerprint,
        claim_id: record.claim_id.unwrap(),
        lease: LEASE,
        retention: TTL,
        on_crash: record.on_crash,
        owner_label: None,
        members: None,
    };
    let granted = idem.store().inner().claim(&late).await.unwrap();
    assert!(matches!(granted, ClaimOutcome::Granted(_)), "{granted:?}");
}

/// A runtime of its own, with a paused clock.
fn paused_runtime() -> Runtime {
    let mut builder = Builder::new_current_thread();
    builder.enable_time().start_paused(true).build().unwrap()
}

/// Lets background work finish that waits only for the store.
async fn settle() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

/// Number of records in this state.
async fn count<S: Store>(idem: &Idem<FaultStore<S>>, state: RecordState) -> usize {
    let page = PageRequest {
        limit: 100_000,
        after: None,
    };
    let listed = idem.store().inner().list(&Filter::default(), &page).await;
    let records = listed.unwrap().records;
    records.iter().filter(|it| it.record.state == state).count()
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_never_arrives_is_searched_for_until_a_minute_is_over() {
    let idem = service();
    idem.store().hang_before(Op::Claim, 1);
    leave(&idem, "k");
    let reads = || idem.store().count(Op::Get);
    let half = idem.policy().store_timeout / 2;
    tokio::time::sleep(ANSWER_SOON - MOMENT).await;
    assert_eq!(reads(), 0, "the answer may still come");
    tokio::time::sleep(2 * MOMENT).await;
    assert_eq!(reads(), 1);
    tokio::time::sleep(half - 2 * MOMENT).await;
    assert_eq!(reads(), 1);
    tokio::time::sleep(3 * MOMENT).await;
    assert_eq!(reads(), 2);
    tokio::time::sleep(half).await;
    assert_eq!(reads(), 3, "at the end of the time of a store call");
    // The claim may still wait for a lock. Each pause is twice the one before, up to half a lease.
    tokio::time::sleep(half + MOMENT).await;
    assert_eq!(reads(), 3);
    tokio::time::sleep(half).await;
    assert_eq!(reads(), 4);
    tokio::time::sleep(3 * half).await;
    assert_eq!(reads(), 4);
    tokio::time::sleep(half).await;
    assert_eq!(reads(), 5);
    tokio::time::sleep(LEASE / 2 + MOMENT).await;
    assert_eq!(reads(), 6);
    tokio::time::sleep(Duration::from_secs(60) + 4 * LEASE).await;
    let all = reads();
    tokio::time::sleep(Duration::from_secs(60) + 4 * LEASE).await;
    assert_eq!(reads(), all);
    assert_eq!(idem.store().count(Op::Release), 0);
}

/// The first search finds the record of another call. Then that call releases the key, and the claim arrives after all.
#[tokio::test(start_paused = true)]
async fn a_claim_that_arrives_after_another_calls_release_is_found_and_released() {
    let store = Arc::new(MemoryStore::new());
    let other = Idem::new(store.clone());
    let idem = Idem::new(FaultStore::new(FaultStore::new(store)));
    let arrives = idem.store().inner().hold_before(Op::Claim);
    let _answer_is_lost = idem.store().hold_after(Op::Claim);
    let failed = other.run(call("k", 1), async || {
        leave(&idem, "k");
        tokio::time::sleep(ANSWER_SOON + MOMENT).await;
        assert_eq!(idem.store().count(Op::Get), 1);
        assert_eq!(idem.store().count(Op::Release), 0, "it is not its own");
        Err::<u32, _>(Failure::TimedOut)
    });
    assert!(matches!(failed.await, Err(Failure::TimedOut)));
    let state = async || {
        let found = other.records().find("test.operation", "k").await;
        found.unwrap().map(|record| record.state)
    };
    assert_eq!(state().await, Some(RecordState::Released));
    arrives.open();
    settle().await;
    assert_eq!(state().await, Some(RecordState::Running));
    tokio::time::sleep(idem.policy().store_timeout).await;
    assert_eq!(state().await, Some(RecordState::Released));
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_answered_with_an_error_is_searched_for_and_released() {
    let store = Arc::new(MemoryStore::new());
    let idem = Idem::new(FaultStore::new(FaultStore::new(store.clone())));
    let gate = idem.store().hold_before(Op::Claim);
    idem.store().inner().fail_after(Op::Claim, 1);
    leave(&idem, "k");
    gate.open();
    settle().await;
    let found = Idem::new(store).records().find("test.operation", "k").await;
    assert_eq!(found.unwrap().unwrap().state, RecordState::Released);
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_arrives_again_after_its_release_is_released_again() {
    let idem = service();
    idem.store().hang_after(Op::Claim, 1);
    leave(&idem, "k");
    let claimed = record(&idem).await;
    tokio::time::sleep(ANSWER_SOON + MOMENT).await;
    assert_eq!(record(&idem).await.state, RecordState::Released);
    arrives_again(&idem, &claimed).await;
    assert_eq!(record(&idem).await.state, RecordState::Running);
    tokio::time::sleep(idem.policy().store_timeout).await;
    assert_eq!(record(&idem).await.state, RecordState::Released);
}

/// The first try of the claim fails and arrives late. The caller leaves during the second one, which is granted.
#[tokio::test(start_paused = true)]
async fn a_try_that_arrives_after_a_later_one_was_released_is_released() {
    let idem = service();
    idem.store()
        .next(Op::Claim, Fault::FailBefore(StoreErrorKind::Unavailable));
    let answers = Gate::new();
    idem.store()
        .next(Op::Claim, Fault::HoldAfter(answers.clone()));
    let effects = Effects::default();
    let claiming = effects.run(&idem, call("k", 1).on_crash(OnCrash::Refuse));
    let left = tokio::time::timeout(ANSWER_SOON, claiming).await;
    assert!(left.is_err());
    let claimed = record(&idem).await;
    answers.open();
    settle().await;
    assert_eq!(record(&idem).await.state, RecordState::Released);
    arrives_again(&idem, &claimed).await;
    tokio::time::sleep(idem.policy().store_timeout).await;
    assert_eq!(record(&idem).await.state, RecordState::Released);
}

#[tokio::test(start_paused = true)]
async fn a_claim_whose_answer_comes_is_released_without_a_search() {
    let idem = service();
    let gate = idem.store().hold_after(Op::Claim);
    leave(&idem, "k");
    settle().await;
    assert_eq!(count(&idem, RecordState::Running).await, 1);
    gate.open();
    settle().await;
    assert_eq!(count(&idem, RecordState::Released).await, 1);
    tokio::time::sleep(2 * LEASE).await;
    assert_eq!(idem.store().count(Op::Get), 0);
    assert_eq!(idem.store().count(Op::Release), 1);
}

#[tokio::test(start_paused = true)]
async fn after_an_outage_of_a_minute_an_abandoned_claim_is_left_to_its_lease() {
    let idem = service();
    idem.store().hang_after(Op::Claim, 1);
    leave(&idem, "k");
    let unavailable = Fault::FailBefore(StoreErrorKind::Unavailable);
    idem.store().always(Op::Get, unavailable);
    tokio::time::sleep(Duration::from_secs(55)).await;
    let reads = idem.store().count(Op::Get);
    assert!(reads > 50, "{reads}");
    tokio::time::sleep(Duration::from_secs(10)).await;
    let reads = idem.store().count(Op::Get);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(idem.store().count(Op::Get), reads, "given up");
}

/// The store is asked about one claim first. Once it has answered, as many releases are under way as it works on claims.
#[tokio::test(start_paused = true)]
async fn abandoned_claims_are_released_together_once_the_store_answers() {
    let idem = service();
    let answers = Gate::new();
    idem.store()
        .always(Op::Claim, Fault::HoldAfter(answers.clone()));
    for number in 0..40 {
        leave(&idem, &number.to_string());
    }
    settle().await;
    let (first, others) = (Gate::new(), Gate::new());
    idem.store()
        .next(Op::Release, Fault::HoldBefore(first.clone()));
    idem.store()
        .always(Op::Release, Fault::HoldBefore(others.clone()));
    answers.open();
    settle().await;
    assert_eq!(idem.store().count(Op::Release), 1);
    first.open();
    settle().await;
    assert_eq!(idem.store().count(Op::Release), 40);
    others.open();
    settle().await;
    assert_eq!(count(&idem, RecordState::Released).await, 40);
}

/// The store gives no answer about one claim, for example because an operator has locked its record.
#[tokio::test(start_paused = true)]
async fn a_claim_that_cannot_be_released_does_not_hold_up_another() {
    let idem = service();
    idem.store().hang_after(Op::Claim, 1);
    idem.store().always(Op::Get, Fault::HangBefore);
    leave(&idem, "locked");
    tokio::time::sleep(ANSWER_SOON + MOMENT).await;
    assert_eq!(idem.store().count(Op::Get), 1);
    let gate = idem.store().hold_after(Op::Claim);
    leave(&idem, "free");
    settle().await;
    gate.open();
    tokio::time::sleep(3 * idem.policy().store_timeout).await;
    assert_eq!(count(&idem, RecordState::Released).await, 1);
}

/// The first try of a claim is not answered, and the second one is granted. The first one may still hold a connection, or
/// the turn to write.
#[tokio::test(start_paused = true)]
async fn an_unanswered_try_goes_on_while_the_body_runs() {
    let idem = service();
    let gate = idem.store().hold_before(Op::Claim);
    let body = async || {
        tokio::time::sleep(2 * ANSWER_SOON).await;
        let before = record(&idem).await.lease_until;
        gate.open();
        settle().await;
        // It is a repeated claim, which renews the lease.
        assert!(record(&idem).await.lease_until > before);
        Ok::<_, Failure>(1)
    };
    idem.run(call("k", 1), body).await.unwrap();
}

/// Number of abandoned claims that a handle remembers.
const REMEMBERED: usize = 65_536;

/// An outage in which more callers leave than any time before: all of their claims were granted, and the answers are lost.
#[tokio::test(start_paused = true)]
async fn fifty_thousand_abandoned_claims_are_all_released_after_an_outage() {
    const LEFT: usize = 50_000;
    let idem = working_on(LEFT / 4);
    let unavailable = Fault::FailBefore(StoreErrorKind::Unavailable);
    idem.store().always(Op::Get, unavailable);
    idem.store().always(Op::Claim, Fault::HangAfter);
    leave_all(&idem, LEFT).await;
    assert_eq!(count(&idem, RecordState::Running).await, LEFT);
    idem.store().always(Op::Get, Fault::None);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(count(&idem, RecordState::Released).await, LEFT);
}

#[tokio::test(start_paused = true)]
async fn more_abandoned_claims_than_a_handle_remembers_are_left_to_their_leases() {
    let idem = working_on(REMEMBERED / 4);
    let unavailable = Fault::FailBefore(StoreErrorKind::Unavailable);
    idem.store().always(Op::Get, unavailable);
    idem.store().always(Op::Claim, Fault::HangAfter);
    leave_all(&idem, REMEMBERED + 100).await;
    idem.store().always(Op::Get, Fault::None);
    tokio::time::sleep(Duration::from_secs(10)).await;
    let released = count(&idem, RecordState::Released).await;
    assert!(
        (REMEMBERED..=REMEMBERED + 1).contains(&released),
        "{released}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_was_searched_for_in_vain_gives_way_to_a_later_one() {
    let idem = working_on(REMEMBERED / 4);
    idem.store().always(Op::Claim, Fault::HangBefore);
    leave_all(&idem, REMEMBERED).await;
    tokio::time::sleep(idem.policy().store_timeout).await;
    assert!(idem.store().count(Op::Get) >= 3 * REMEMBERED as u64);
    idem.store().always(Op::Claim, Fault::HangAfter);
    leave(&idem, "later");
    tokio::time::sleep(ANSWER_SOON + MOMENT).await;
    assert_eq!(count(&idem, RecordState::Released).await, 1);
}

/// Maximum number of claims of a handle whose answers are waited for without a caller.
const ORPHANS: usize = 1024;

/// The store leaves as many claims unanswered as the handle waits for. The first claim of another call is not answered
/// either, and its second one is granted. Both have one claim id: nobody may look for the first one and release it.
#[tokio::test(start_paused = true)]
async fn a_claim_that_a_later_try_of_its_call_uses_is_not_searched_for() {
    let idem = working_on(ORPHANS);
    idem.store().always(Op::Claim, Fault::HangBefore);
    for number in 0..ORPHANS {
        leave(&idem, &number.to_string());
    }
    idem.store().always(Op::Claim, Fault::None);
    idem.store().next(Op::Claim, Fault::HangAfter);
    // Longer than the reads that a search begins with.
    let long = idem.policy().store_timeout * 4;
    let body = async || {
        tokio::time::sleep(long).await;
        assert_eq!(idem.store().count(Op::Release), 0);
        Ok::<_, Failure>(1)
    };
    idem.run(call("k", 1), body).await.unwrap();
    assert_eq!(count(&idem, RecordState::Completed).await, 1);
}

/// The task that releases claims ends with its runtime, while the store works on the release of one claim and others
/// wait for it. The next runtime releases all of them.
#[test]
fn claims_whose_release_was_interrupted_are_released_on_the_next_runtime() {
    const LEFT: usize = 3;
    let idem = service();
    paused_runtime().block_on(async {
        let answers = Gate::new();
        idem.store()
            .always(Op::Claim, Fault::HoldAfter(answers.clone()));
        for number in 0..LEFT {
            leave(&idem, &number.to_string());
        }
        settle().await;
        idem.store().always(Op::Release, Fault::HangBefore);
        answers.open();
        settle().await;
        assert_eq!(idem.store().count(Op::Release), 1);
    });
    paused_runtime().block_on(async {
        idem.store().always(Op::Release, Fault::None);
        let gate = idem.store().hold_after(Op::Claim);
        leave(&idem, "later");
        settle().await;
        gate.open();
        tokio::time::sleep(2 * Duration::from_secs(1)).await;
        assert_eq!(count(&idem, RecordState::Released).await, LEFT + 1);
    });
}

/// A runtime ends while the store works on the release of a claim. Another runtime has released its own claim before, and
/// gets no further one.
#[test]
fn claims_whose_release_was_interrupted_are_released_by_another_runtime() {
    let idem = service();
    let (first, second) = (paused_runtime(), paused_runtime());
    let release = |runtime: &Runtime, key: &str, fault: Fault| {
        runtime.block_on(async {
            let gate = idem.store().hold_after(Op::Claim);
            leave(&idem, key);
            settle().await;
            idem.store().always(Op::Release, fault);
            gate.open();
            settle().await;
        });
    };
    release(&first, "first", Fault::HangBefore);
    release(&second, "second", Fault::None);
    drop(first);
    second.block_on(async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(count(&idem, RecordState::Released).await, 2);
    });
}

/// Its runtime ends with claims that are not released yet. The claims of calls on the next runtime are released, and so
/// are the earlier ones.
#[test]
fn a_handle_releases_abandoned_claims_on_the_runtime_after_the_first() {
    let idem = service();
    let unavailable = Fault::FailBefore(StoreErrorKind::Unavailable);
    idem.store().always(Op::Release, unavailable);
    for key in ["first", "second"] {
        paused_runtime().block_on(async {
            let gate = idem.store().hold_after(Op::Claim);
            leave(&idem, key);
            settle().await;
            gate.open();
            settle().await;
            assert_eq!(count(&idem, RecordState::Released).await, 0);
            if key == "second" {
                idem.store().always(Op::Release, Fault::None);
                tokio::time::sleep(LEASE / 2).await;
                assert_eq!(count(&idem, RecordState::Released).await, 2);
            }
        });
    }
}
