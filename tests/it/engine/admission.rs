//! Calls above the capacity of the store: they wait in the process, for as long as their callers do.

use std::time::Duration;

use futures_util::future::join_all;
use futures_util::{FutureExt as _, poll};
use idem_runtime::conformance::faults::{Fault, FaultStore, Gate, Op};
use idem_runtime::{Cached, Error, Idem, MemoryStore, Store as _};
use idem_tests::until;
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, advance, sleep};

use super::plain::Plain;
use super::{Effects, Failure, call, refusal};

/// A handle on a store that answers no claim before its gate opens.
struct Busy {
    idem: Idem<FaultStore<MemoryStore>>,
    effects: Effects,
    gate: Gate,
    calls: JoinSet<Result<u32, Failure>>,
}

impl Busy {
    /// A store that works on as many claims as it can.
    async fn new() -> Self {
        let mut busy = Self {
            idem: Idem::new(FaultStore::new(MemoryStore::new())),
            effects: Effects::default(),
            gate: Gate::new(),
            calls: JoinSet::new(),
        };
        let held = Fault::HoldBefore(busy.gate.clone());
        busy.idem.store().always(Op::Claim, held);
        let capacity = busy.capacity();
        busy.begin("busy", capacity);
        busy.until_claims(capacity).await;
        busy
    }

    fn capacity(&self) -> usize {
        self.idem.store().claim_concurrency()
    }

    /// Begins this number of calls.
    fn begin(&mut self, name: &str, calls: usize) {
        for number in 0..calls {
            let (idem, effects) = (self.idem.clone(), self.effects.clone());
            let key = format!("{name}-{number}");
            self.calls
                .spawn(async move { effects.run(&idem, call(&key, 1)).await });
        }
    }

    fn claims(&self) -> usize {
        usize::try_from(self.idem.store().count(Op::Claim)).unwrap()
    }

    async fn until_claims(&self, claims: usize) {
        while self.claims() < claims {
            yield_now().await;
        }
    }

    /// Opens the gate, and returns the number of effects when all calls have ended.
    async fn end(self) -> u32 {
        self.gate.open();
        for answer in self.calls.join_all().await {
            answer.unwrap();
        }
        self.effects.count()
    }
}

#[tokio::test(start_paused = true)]
async fn all_of_many_calls_are_served() {
    let mut busy = Busy::new().await;
    busy.begin("more", 5_000);
    for _ in 0..100 {
        yield_now().await;
    }
    assert_eq!(busy.claims(), busy.capacity(), "the others wait");
    let expected = u32::try_from(busy.capacity() + 5_000).unwrap();
    assert_eq!(busy.end().await, expected);
}

#[tokio::test(start_paused = true)]
async fn callers_that_leave_the_queue_send_nothing() {
    let busy = Busy::new().await;
    {
        let calls = (0..100).map(|number| {
            let (idem, effects) = (&busy.idem, &busy.effects);
            async move { effects.run(idem, call(&number.to_string(), 1)).await }
        });
        let mut leave = Box::pin(join_all(calls));
        assert!(poll!(&mut leave).is_pending());
    }
    let (idem, sent) = (busy.idem.clone(), busy.capacity());
    assert_eq!(busy.end().await, u32::try_from(sent).unwrap());
    assert_eq!(idem.store().count(Op::Claim), sent as u64);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_cannot_be_sent_before_its_deadline_is_refused_and_may_be_repeated() {
    let busy = Busy::new().await;
    let deadline = Instant::now() + Duration::from_secs(2);
    let refused = busy
        .effects
        .run(&busy.idem, call("k", 1).deadline(deadline));
    let error = refusal(refused.await);
    assert!(matches!(error, Error::Overloaded { .. }), "{error:?}");
    assert!(error.is_retryable());
    assert_eq!(Instant::now(), deadline);
    assert_eq!(busy.claims(), busy.capacity(), "nothing was sent");
    busy.gate.open();
    let (idem, effects) = (busy.idem.clone(), busy.effects.clone());
    let before = busy.end().await;
    assert_eq!(effects.run(&idem, call("k", 1)).await.unwrap(), before + 1);
}

#[tokio::test(start_paused = true)]
async fn nothing_begins_after_its_deadline() {
    let idem = Idem::new(FaultStore::new(MemoryStore::new()));
    let effects = Effects::default();
    let deadline = Instant::now() + Duration::from_secs(1);
    let gate = idem.store().hold_after(Op::Claim);
    let mut late = Box::pin(effects.run(&idem, call("k", 1).deadline(deadline)));
    assert!(poll!(&mut late).is_pending());
    advance(Duration::from_secs(2)).await;
    gate.open();
    let error = refusal(late.await);
    assert!(matches!(error, Error::Overloaded { .. }), "{error:?}");
    assert_eq!(effects.count(), 0);
    // The claim is given back in the background, and the store is not asked after the deadline.
    until(async || effects.run(&idem, call("k", 1)).await.is_ok()).await;
    assert_eq!(effects.count(), 1);
    let claims = idem.store().count(Op::Claim);
    let late = effects.run(&idem, call("other", 1).deadline(deadline));
    assert!(matches!(refusal(late.await), Error::Overloaded { .. }));
    assert_eq!(idem.store().count(Op::Claim), claims);
}

#[tokio::test(start_paused = true)]
async fn a_duplicate_waits_no_longer_than_its_deadline() {
    let (idem, effects) = (Idem::new(MemoryStore::new()), Effects::default());
    let running = idem.run(call("k", 1), async || {
        sleep(Duration::from_secs(20)).await;
        Ok::<_, Failure>(effects.happen())
    });
    let mut running = Box::pin(running);
    assert!(poll!(&mut running).is_pending());
    let begun = Instant::now();
    let deadline = begun + Duration::from_secs(2);
    let duplicate = call("k", 1)
        .wait(Duration::from_secs(10))
        .deadline(deadline);
    let duplicate = effects.run(&idem, duplicate);
    let (_, error) = tokio::join!(running, duplicate.map(refusal));
    assert!(matches!(error, Error::InFlight { .. }), "{error:?}");
}

/// A call waits in the queue for longer than a store call may take, because later ones come first. Its duplicates wait
/// behind it, and when it leaves, one of them takes its place.
#[tokio::test(start_paused = true)]
async fn duplicates_of_a_call_in_the_queue_do_not_queue() {
    const ROUNDS: u32 = 8;
    let store = Plain::working_on(1, MemoryStore::new());
    let idem = Idem::new(FaultStore::new(store));
    let effects = Effects::default();
    let begin = |key: String| {
        let (idem, effects) = (idem.clone(), effects.clone());
        let call = call(&key, 1).wait(Duration::from_secs(60));
        tokio::spawn(async move { effects.run(&idem, call).await })
    };
    let settle = async || {
        for _ in 0..50 {
            yield_now().await;
        }
    };
    let mut held = idem.store().hold_before(Op::Claim);
    let mut calls = vec![begin("busy".to_owned())];
    held.reached().await;
    let leaves = begin("same".to_owned());
    settle().await;
    calls.extend((0..6).map(|_| begin("same".to_owned())));
    for round in 0..ROUNDS {
        sleep(Duration::from_secs(1)).await;
        if round == ROUNDS / 2 {
            leaves.abort();
        }
        let next = idem.store().hold_before(Op::Claim);
        calls.push(begin(format!("later-{round}")));
        settle().await;
        held.open();
        next.reached().await;
        held = next;
    }
    held.open();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!(effects.count(), ROUNDS + 2);
    assert_eq!(idem.store().count(Op::Claim), u64::from(ROUNDS) + 2);
}

#[tokio::test(start_paused = true)]
async fn a_replay_from_a_cache_waits_for_nobody() {
    let store = Plain::working_on(1, MemoryStore::new());
    let idem = Idem::new(Cached::new(FaultStore::new(store)));
    let effects = Effects::default();
    for _ in 0..2 {
        assert_eq!(effects.run(&idem, call("k", 1)).await.unwrap(), 1);
    }
    let hits = idem.store().stats().hits;
    let gate = idem.store().inner().hold_before(Op::Claim);
    let mut busy = Box::pin(effects.run(&idem, call("busy", 1)));
    assert!(poll!(&mut busy).is_pending());
    let replayed = effects.run(&idem, call("k", 1)).now_or_never();
    assert_eq!(replayed.unwrap().unwrap(), 1);
    assert_eq!(idem.store().stats().hits, hits + 1);
    gate.open();
    assert_eq!(busy.await.unwrap(), 2);
}

/// The bodies of as many calls as the store works on at once make a call each.
#[tokio::test(start_paused = true)]
async fn bodies_that_make_further_calls_do_not_wait_for_themselves() {
    let (idem, effects) = (
        Idem::new(FaultStore::new(MemoryStore::new())),
        Effects::default(),
    );
    let calls = (0..2 * idem.store().claim_concurrency()).map(|number| {
        let (idem, effects) = (&idem, &effects);
        async move {
            let outer = call(&format!("outer-{number}"), 1);
            let body = async || {
                // All bodies run at the same time.
                sleep(Duration::from_secs(1)).await;
                let inner = call(&format!("inner-{number}"), 1);
                effects.run(idem, inner).await
            };
            idem.run(outer, body).await.unwrap();
        }
    });
    let begun = Instant::now();
    join_all(calls).await;
    assert!(
        begun.elapsed() < Duration::from_secs(2),
        "{:?}",
        begun.elapsed()
    );
}

/// Neither the outcome nor the lease of a call that runs waits for claims.
#[tokio::test(start_paused = true)]
async fn work_that_has_begun_does_not_queue() {
    let idem = Idem::new(FaultStore::new(MemoryStore::new()));
    let effects = Effects::default();
    let (begun, ends) = (tokio::sync::Notify::new(), tokio::sync::Notify::new());
    let mut running = Box::pin(idem.run(call("k", 1), async || {
        begun.notify_one();
        ends.notified().await;
        Ok::<_, Failure>(effects.happen())
    }));
    assert!(poll!(&mut running).is_pending());
    begun.notified().await;
    let gate = Gate::new();
    idem.store()
        .always(Op::Claim, Fault::HoldBefore(gate.clone()));
    let waiting = (0..100).map(|number| {
        let (idem, effects) = (&idem, &effects);
        async move { effects.run(idem, call(&number.to_string(), 1)).await }
    });
    let mut waiting = Box::pin(join_all(waiting));
    assert!(poll!(&mut waiting).is_pending());
    ends.notify_one();
    assert_eq!(running.await.unwrap(), 1);
    gate.open();
    assert_eq!(waiting.await.len(), 100);
}
