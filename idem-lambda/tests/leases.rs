//! Calls of processes that end at a known time: no lease lasts longer than its process.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::future::pending;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use idem_runtime::advanced::{Deadline, RunOptions};
use idem_runtime::conformance::faults::{FaultStore, Op};
use idem_runtime::{Attempt, Call, Error, Idem, MemoryStore, Store};
use tokio::time::{Instant, advance, sleep};

const SECOND: Duration = Duration::from_secs(1);
/// Default lease of a handle.
const LEASE: Duration = Duration::from_secs(30);

/// Counts the runs of bodies.
#[derive(Debug, Default)]
struct Effects(AtomicU32);

impl Effects {
    fn happen(&self) -> u32 {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Makes a call whose body returns the number of its run.
    async fn run<S: Store>(&self, idem: &Idem<S>, call: Call) -> Result<u32, Error> {
        idem.run(call, async || Ok(self.happen())).await
    }
}

fn idem() -> Idem<FaultStore<MemoryStore>> {
    Idem::new(FaultStore::new(MemoryStore::new()))
}

fn call() -> Call {
    Call::new("test.operation", "k", &1_u64, Duration::from_secs(3600))
}

/// A call that returns at once if another one is in flight, of a process that ends after this time.
fn ending_in(left: Duration) -> Call {
    let end = Instant::now() + left;
    let deadline = Deadline::new(end - SECOND).process_ends(end);
    call().wait(Duration::ZERO).deadline(deadline)
}

/// Begins a body that hangs in a process of its own, and returns when it runs. Nothing tells the store that it ended.
async fn hang(idem: &Idem<FaultStore<MemoryStore>>, call: Call) -> Attempt {
    let idem = idem.clone();
    let (started, attempt) = tokio::sync::oneshot::channel();
    tokio::spawn(async move {
        let body = async |attempt| -> Result<u32, Error> {
            let _ = started.send(attempt);
            pending().await
        };
        idem.run_with(call, RunOptions::new(), body).await
    });
    attempt.await.unwrap()
}

/// Another process on the same store.
fn elsewhere(idem: &Idem<FaultStore<MemoryStore>>) -> Idem<FaultStore<MemoryStore>> {
    Idem::new(idem.store().clone())
}

#[tokio::test(start_paused = true)]
async fn a_lease_ends_with_its_process_and_is_not_renewed_beyond_it() {
    for left in [5, 29, 31, 50, 100] {
        let (idem, effects) = (idem(), Effects::default());
        let left = left * SECOND;
        let attempt = hang(&idem, ending_in(left)).await;
        sleep(left - SECOND / 10).await;
        assert!(attempt.is_live());
        let next = elsewhere(&idem);
        let early = effects.run(&next, ending_in(left)).await;
        assert!(matches!(early, Err(Error::InFlight { .. })), "{early:?}");

        sleep(SECOND / 10).await;
        assert!(!attempt.is_live());
        assert_eq!(effects.run(&next, ending_in(left)).await.unwrap(), 1);
    }
}

/// A lease that lasts until the end needs no renewal, and a longer call needs no more than without the end.
#[tokio::test(start_paused = true)]
async fn a_lease_that_lasts_until_the_end_is_not_renewed() {
    for (left, renewals) in [(LEASE, 0), (2 * LEASE, 3)] {
        let idem = idem();
        hang(&idem, ending_in(left)).await;
        sleep(2 * left).await;
        assert_eq!(idem.store().count(Op::Renew), renewals, "{left:?}");
    }
}

/// A process that lives on keeps what it has until another call takes over.
#[tokio::test(start_paused = true)]
async fn a_body_beyond_the_end_completes_if_nobody_took_over() {
    let (idem, effects) = (idem(), Effects::default());
    let body = async || {
        sleep(LEASE).await;
        Ok::<_, Error>(effects.happen())
    };
    let late = idem.run(ending_in(5 * SECOND), body).await;
    assert_eq!(late.unwrap(), 1);
    assert_eq!(effects.run(&idem, ending_in(LEASE)).await.unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_owner_can_renew_by_hand_and_gains_nothing() {
    let idem = idem();
    let attempt = hang(&idem, ending_in(5 * SECOND)).await;
    advance(4 * SECOND).await;
    attempt.renew().await.unwrap();
    sleep(SECOND - Duration::from_millis(1)).await;
    assert!(attempt.is_live());
    sleep(Duration::from_millis(1)).await;
    assert!(!attempt.is_live());
    assert_eq!(
        Effects::default()
            .run(&elsewhere(&idem), ending_in(LEASE))
            .await
            .unwrap(),
        1
    );
}

#[tokio::test(start_paused = true)]
async fn nothing_begins_after_the_end() {
    let (idem, effects) = (idem(), Effects::default());
    let now = Instant::now();
    let ended = call().deadline(Deadline::new(now + LEASE).process_ends(now));
    let late = effects.run(&idem, ended).now_or_never().unwrap();
    assert!(matches!(late, Err(Error::Overloaded { .. })));
    assert_eq!(idem.store().count(Op::Claim), 0);
}
