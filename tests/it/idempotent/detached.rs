//! `detached`: the body runs in a task of its own, whatever becomes of its caller.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use futures_util::poll;
use idem_runtime::advanced::{ResultSource, RunOptions, with_provenance};
use idem_runtime::fingerprint::Encoder;
use idem_runtime::record::RecordState;
use idem_runtime::{Attempt, Call, Fingerprint, Reconciled, SqliteStore, idempotent};
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::sleep;

use super::*;

/// A service that a body in another task can own.
#[derive(Debug, Clone)]
struct Shop {
    bank: Arc<Bank>,
    /// Lets bodies go on.
    go: Arc<Notify>,
}

impl Shop {
    fn new() -> Self {
        Self {
            bank: Arc::new(Bank::new()),
            go: Arc::default(),
        }
    }

    /// Polls a call until its body has begun, and drops it.
    async fn leave<F: Future>(&self, call: F) {
        let before = self.bank.payments();
        let mut call = Box::pin(call);
        while self.bank.payments() == before {
            assert!(poll!(call.as_mut()).is_pending(), "its body waits");
            yield_now().await;
        }
        drop(call);
    }

    /// Lets the bodies go on, and waits for their ends.
    async fn end(&self) {
        self.go.notify_waiters();
        self.bank.idem.drain().await;
    }

    async fn work(&self) -> u32 {
        let number = self.bank.pay();
        self.go.notified().await;
        number
    }

    #[idempotent(key = key, ttl = "1h", name = "shop.order", store = self.bank, detached)]
    async fn order(self, key: String) -> Result<u32, Error> {
        Ok(self.work().await)
    }

    #[idempotent(key = key, ttl = "1h", name = "shop.once", store = self.bank, on_crash = refuse, detached)]
    async fn once(self, key: String, fate: Fate) -> Result<u32, Error> {
        let number = self.work().await;
        assert_ne!(fate, Fate::Panics, "the body panics");
        Ok(number)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Fingerprint)]
enum Fate {
    Ends,
    Panics,
}

#[idempotent(key = key, ttl = "1h", store = bank, detached)]
async fn yields(bank: &Bank, key: &str, ledger: Ledger) -> Result<u32, Error> {
    for _ in 0..3 {
        yield_now().await;
    }
    Ok(ledger.pay())
}

/// Effects of bodies that cannot borrow the bank.
#[derive(Debug, Clone, Default)]
struct Ledger(Arc<AtomicU32>);

impl Ledger {
    fn pay(&self) -> u32 {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn payments(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }
}

impl Fingerprint for Ledger {
    fn fingerprint(&self, encoder: &mut Encoder) {
        encoder.null();
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_is_dropped_at_any_poll_leaves_the_body_running() {
    let bank = Bank::new();
    let mut runs = 0;
    for polls in 0.. {
        let (key, ledger) = (polls.to_string(), Ledger::default());
        let mut call = Box::pin(yields(&bank, &key, ledger.clone()));
        let mut answer = None;
        for _ in 0..polls {
            if let std::task::Poll::Ready(result) = poll!(call.as_mut()) {
                answer = Some(result.unwrap());
                break;
            }
            yield_now().await;
        }
        drop(call);
        let has_begun = bank.idem.detached_tasks() > 0 || ledger.payments() > 0;
        bank.idem.drain().await;
        if has_begun {
            runs += 1;
            assert_eq!(ledger.payments(), 1, "dropped after {polls} polls");
            let records = bank.all().await;
            let ended = records
                .iter()
                .filter(|it| it.state == RecordState::Completed);
            assert_eq!(ended.count(), records.len(), "{records:?}");
        }
        assert_eq!(yields(&bank, &key, ledger.clone()).await.unwrap(), 1);
        assert_eq!(ledger.payments(), 1, "dropped after {polls} polls");
        if answer.is_some() {
            break;
        }
    }
    assert!(runs > 3, "dropped while a body ran {runs} times");
}

#[tokio::test(start_paused = true)]
async fn a_duplicate_gets_the_outcome_of_a_caller_that_left() {
    let shop = Shop::new();
    shop.leave(shop.clone().order("k".into())).await;
    let duplicate = shop.clone().order("k".into()).await;
    assert!(
        matches!(duplicate, Err(Error::InFlight { .. })),
        "{duplicate:?}"
    );
    shop.end().await;
    assert_eq!(shop.clone().order("k".into()).await.unwrap(), 1);
    assert_eq!(shop.bank.payments(), 1);
}

#[tokio::test(start_paused = true)]
async fn waiters_get_the_outcome_of_a_caller_that_left() {
    #[idempotent(key = key, ttl = "1h", name = "waited", store = shop.bank, wait = "1m", skip(shop), detached)]
    async fn waited(shop: Shop, key: String) -> Result<u32, Error> {
        Ok(shop.work().await)
    }

    let shop = Shop::new();
    shop.leave(waited(shop.clone(), "k".into())).await;
    let mut waiting = pin!(waited(shop.clone(), "k".into()));
    assert!(poll!(waiting.as_mut()).is_pending());
    shop.go.notify_waiters();
    assert_eq!(waiting.await.unwrap(), 1);
    assert_eq!(shop.bank.payments(), 1);
    // A caller that waits has no body, so nothing outlives it.
    let mut waiting = Box::pin(waited(shop.clone(), "l".into()));
    assert!(poll!(waiting.as_mut()).is_pending());
    let mut second = Box::pin(waited(shop.clone(), "l".into()));
    assert!(poll!(second.as_mut()).is_pending());
    assert_eq!(shop.bank.idem.detached_tasks(), 1);
    while shop.bank.payments() == 1 {
        yield_now().await;
    }
    drop((waiting, second));
    shop.end().await;
    assert_eq!(shop.bank.payments(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_lease_is_renewed_without_a_caller() {
    let shop = Shop::new();
    shop.leave(shop.clone().order("k".into())).await;
    for _ in 0..10 {
        sleep(LEASE).await;
        let duplicate = shop.clone().order("k".into()).await;
        assert!(
            matches!(duplicate, Err(Error::InFlight { .. })),
            "{duplicate:?}"
        );
    }
    shop.end().await;
    assert_eq!(shop.clone().order("k".into()).await.unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_panic_reaches_the_caller_and_counts_as_a_crash() {
    let shop = Shop::new();
    let caller = tokio::spawn(shop.clone().once("k".into(), Fate::Panics));
    while shop.bank.payments() == 0 {
        yield_now().await;
    }
    shop.end().await;
    let panic = caller.await.unwrap_err().into_panic();
    let text = panic.downcast_ref::<String>().unwrap();
    assert!(text.contains("the body panics"), "{text}");
    let again = shop.clone().once("k".into(), Fate::Panics).await;
    assert!(matches!(again, Err(Error::Interrupted)), "{again:?}");
}

#[tokio::test(start_paused = true)]
async fn a_panic_without_a_caller_counts_as_a_crash() {
    let shop = Shop::new();
    shop.leave(shop.clone().once("k".into(), Fate::Panics))
        .await;
    shop.end().await;
    yield_now().await;
    let record = shop.bank.record("shop.once", "k").await;
    assert_eq!(record.state, RecordState::Interrupted);
    shop.leave(shop.clone().once("l".into(), Fate::Ends)).await;
    shop.end().await;
    assert_eq!(shop.clone().once("l".into(), Fate::Ends).await.unwrap(), 2);
}

/// At the shutdown, the task is dropped at its await, as everything else of the runtime.
#[test]
fn a_shutdown_counts_as_a_crash() {
    let shop = Shop::new();
    let old = Runtime::new().unwrap();
    let new = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let mut call = Box::pin(shop.clone().order("k".into()));
    {
        let _entered = old.enter();
        assert!(call.as_mut().now_or_never().is_none(), "its body waits");
    }
    old.block_on(async {
        while shop.bank.payments() == 0 {
            yield_now().await;
        }
    });
    assert_eq!(shop.bank.idem.detached_tasks(), 1);
    old.shutdown_background();
    new.block_on(async {
        let answer = call.await;
        assert!(matches!(answer, Err(Error::LeaseLost)), "{answer:?}");
        shop.bank.idem.drain().await;
        let record = shop.bank.record("shop.order", "k").await;
        assert_eq!(record.state, RecordState::Running);
    });
}

#[tokio::test(start_paused = true)]
async fn drain_waits_for_the_bodies_whose_callers_left() {
    let shop = Shop::new();
    shop.bank.idem.drain().await;
    shop.leave(shop.clone().order("k".into())).await;
    shop.leave(shop.clone().order("l".into())).await;
    let mut drained = Box::pin(shop.bank.idem.drain());
    assert!(poll!(drained.as_mut()).is_pending());
    assert_eq!(shop.bank.idem.clone().erased().detached_tasks(), 2);
    shop.go.notify_waiters();
    drained.await;
    assert_eq!(shop.bank.idem.detached_tasks(), 0);
    for record in shop.bank.all().await {
        assert_eq!(record.state, RecordState::Completed);
    }
    // A replay has no body, and needs no task.
    let mut replay = Box::pin(shop.clone().order("k".into()));
    assert!(poll!(replay.as_mut()).is_ready());
}

/// Guards, stored errors and the attempt in the body, in the question and in a guard.
#[idempotent(
    key = key, ttl = "1h", store = bank, attempt = attempt, detached,
    on_crash = reconcile(asked(&attempt)),
    replay_err = Failure::Declined(_),
    release_err = Failure::Status(status) if u32::from(*status) == attempt.number(),
)]
async fn fails(
    bank: &Bank,
    key: String,
    ledger: Ledger,
    status: Option<u16>,
) -> Result<u32, Failure> {
    let number = ledger.pay();
    assert_eq!(attempt.number(), number);
    match status {
        Some(status) => Err(Failure::Status(status)),
        None => Err(Failure::Declined(key)),
    }
}

async fn asked(crashed: &Attempt) -> Result<Reconciled<u32>, Failure> {
    Ok(Reconciled::Done(100 + crashed.number()))
}

#[tokio::test(start_paused = true)]
async fn errors_are_classified_in_the_task() {
    let bank = Bank::new();
    let ledger = Ledger::default();
    for _ in 0..2 {
        let failed = fails(&bank, "k".into(), ledger.clone(), None).await;
        assert!(matches!(failed, Err(Failure::Declined(key)) if key == "k"));
    }
    assert_eq!(ledger.payments(), 1, "the error is stored");
    let ledger = Ledger::default();
    let call = || fails(&bank, "l".into(), ledger.clone(), Some(1));
    // The first attempt releases the key, by its number. The second one is unknown.
    for _ in 0..2 {
        assert!(matches!(call().await, Err(Failure::Status(1))));
    }
    assert_eq!(call().await.unwrap(), 102);
    assert_eq!(ledger.payments(), 2);
}

#[idempotent(key = key, ttl = "1h")]
async fn inner(key: &str, ledger: &Ledger) -> Result<u32, Error> {
    Ok(ledger.pay())
}

#[idempotent(key = key, ttl = "1h", detached)]
async fn outer(key: String, ledger: Ledger) -> Result<u32, Error> {
    inner(&key, &ledger).await
}

#[tokio::test(start_paused = true)]
async fn a_body_has_the_default_handle_of_its_caller() {
    let (bank, ledger) = (Bank::new(), Ledger::default());
    let idem = bank.idem.clone().erased();
    for _ in 0..2 {
        let paid = idem.with_default(outer("k".into(), ledger.clone())).await;
        assert_eq!(paid.unwrap(), 1);
    }
    assert_eq!(bank.all().await.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_source_of_a_detached_result_is_observed() {
    let (bank, ledger) = (Bank::new(), Ledger::default());
    for source in [ResultSource::Executed, ResultSource::Replayed] {
        let (paid, provenance) = with_provenance(yields(&bank, "k", ledger.clone())).await;
        assert_eq!((paid.unwrap(), provenance.unwrap().source), (1, source));
        let future = {
            let (bank, ledger) = (Bank::new(), ledger.clone());
            let first = bank.idem.clone();
            async move { first.with_default(inner("k", &ledger)).await }
        };
        let (_, provenance) = with_provenance(bank.idem.detach(future)).await;
        assert_eq!(provenance.unwrap().source, ResultSource::Executed);
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_without_the_macro_can_be_detached() {
    let shop = Shop::new();
    let run = || {
        let (shop, idem) = (shop.clone(), shop.bank.idem.clone());
        let call = Call::new("shop.run", "k", "request", Duration::from_secs(3600));
        let options = RunOptions::new().replay_err(|error| matches!(error, Failure::TimedOut));
        async move {
            let body = async move |attempt: Attempt| {
                assert_eq!(attempt.number(), 1);
                shop.work().await;
                Err::<u32, _>(Failure::TimedOut)
            };
            idem.run_detached(call, options, body).await
        }
    };
    shop.leave(run()).await;
    shop.end().await;
    assert!(matches!(run().await, Err(Failure::TimedOut)));
    assert_eq!(shop.bank.payments(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_detached_future_outlives_its_caller() {
    let shop = Shop::new();
    let future = {
        let shop = shop.clone();
        async move { Ok::<_, Error>(shop.work().await) }
    };
    // A caller that was never polled has started nothing.
    drop(shop.bank.idem.detach(async { Ok::<_, Error>(()) }));
    assert_eq!(shop.bank.idem.detached_tasks(), 0);
    shop.leave(shop.bank.idem.detach(future)).await;
    assert_eq!(shop.bank.idem.detached_tasks(), 1);
    shop.end().await;
    let failed = shop
        .bank
        .idem
        .detach(async { Err::<(), _>(Error::KeyReused) })
        .await;
    assert!(matches!(failed, Err(Error::KeyReused)), "{failed:?}");
    let outside = std::thread::spawn(move || {
        let call = shop.bank.idem.detach(async { Ok::<_, Error>(()) });
        call.now_or_never()
    });
    let outside = outside.join().unwrap();
    assert!(
        matches!(outside, Some(Err(Error::NoRuntime))),
        "{outside:?}"
    );
}

/// `detached` is refused with `tx`. Whoever wants the commit without its caller says so at the call.
#[tokio::test]
async fn a_transactional_call_in_a_detached_future_commits_without_its_caller() {
    #[idempotent(key = key, ttl = "1h", name = "tx", store = idem, tx = tx, skip(go, begun))]
    async fn pay(
        idem: &Idem<SqliteStore>,
        key: &str,
        go: &Notify,
        begun: &AtomicBool,
    ) -> Result<u32, Error> {
        let _ = tx;
        begun.store(true, Ordering::SeqCst);
        go.notified().await;
        Ok(1)
    }

    let directory = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(directory.path().join("idem.sqlite"))
        .await
        .unwrap();
    let idem = Idem::new(store);
    let (go, begun) = (Arc::new(Notify::new()), Arc::new(AtomicBool::new(false)));
    let future = {
        let (idem, go, begun) = (idem.clone(), Arc::clone(&go), Arc::clone(&begun));
        async move { pay(&idem, "k", &go, &begun).await }
    };
    let mut call = Box::pin(idem.detach(future));
    while !begun.load(Ordering::SeqCst) {
        assert!(poll!(call.as_mut()).is_pending());
        yield_now().await;
    }
    drop(call);
    go.notify_one();
    idem.drain().await;
    let record = idem.records().find("tx", "k").await.unwrap();
    assert_eq!(record.unwrap().state, RecordState::Completed);
}
