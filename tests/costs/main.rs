//! Memory of a call, and its number of allocations. They are counted for each thread, so tests may run concurrently.

#![expect(
    clippy::unwrap_used,
    reason = "a panic fails the test that it happens in"
)]

mod http;

use std::future::{Future, pending};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime};

use allocation_counter::measure;
use async_trait::async_trait;
use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use idem_runtime::error::StoreError;
use idem_runtime::fingerprint::digest;
use idem_runtime::key::RecordId;
use idem_runtime::record::{FencingToken, Observation, Outcome, Owner, Record, Timestamp};
use idem_runtime::store::{
    ClaimOutcome, ClaimRequest, FencedWrite, Filter, Granted, Page, PageRequest, Purged,
    Resolution, Resolved,
};
use idem_runtime::{Error, Fingerprint, Idem, MemoryStore, Store, idempotent};
use metrics::{Counter, Gauge, Histogram, KeyName, Metadata, Recorder, SharedString, Unit};

#[derive(Clone, Fingerprint)]
struct Payment {
    amount: u64,
    currency: String,
    customer: String,
    description: Option<String>,
}

fn payment() -> Payment {
    Payment {
        amount: 129_900,
        currency: "EUR".into(),
        customer: "cus_NffrFeUfNV2Hib".into(),
        description: Some("Order 4711, two pairs of shoes".into()),
    }
}

/// Number of allocations in a call with a fresh key. They are: its key, the state shared with its followers, the guard
/// of the running body, the encoded result, and the record in the store.
const FIRST_CALL: u64 = 5;
/// Number of allocations in a replay: its key, the shared state, and the copy of the record.
const REPLAY: u64 = 3;

/// Bytes that a running call may use in addition to the function's own future: one kibibyte.
const RUNNING: i64 = 1024;

/// Bytes that a caller may use that waits for a call of its process, its future included.
const WAITING: i64 = 3 * 1024;
/// Bytes that a key in flight may use, with the future of its call.
const IN_FLIGHT: i64 = 1536;

#[test]
fn a_small_request_is_fingerprinted_without_an_allocation() {
    let payment = payment();
    digest(&payment).unwrap();

    let second = measure(|| {
        digest(&payment).unwrap();
    });

    assert_eq!(second.count_total, 0);
}

#[idempotent(key = key, ttl = "24h", name = "costs.charge", store = idem)]
async fn charge(idem: &Idem<MemoryStore>, key: &str, payment: &Payment) -> Result<u64, Error> {
    Ok(payment.amount)
}

#[test]
fn a_first_call_and_a_replay_allocate_a_few_times() {
    let runtime = runtime();
    let _entered = runtime.enter();
    let idem = Idem::new(MemoryStore::new());
    let payment = payment();
    let count = |key: &str| {
        let allocations = measure(|| {
            let charged = charge(&idem, key, &payment).now_or_never();
            assert_eq!(charged.unwrap().unwrap(), 129_900);
        });
        allocations.count_total
    };

    let keys: Vec<String> = (0..2000).map(|number| format!("key-{number}")).collect();
    let first: Vec<u64> = keys.iter().map(|key| count(key)).collect();
    let replay: Vec<u64> = keys.iter().map(|key| count(key)).collect();

    // The table grows at times, which is not part of the cost of a call: the median leaves that out.
    assert!(median(first.clone()) <= FIRST_CALL, "{:?}", median(first));
    assert!(replay.iter().all(|it| *it <= REPLAY), "{replay:?}");
}

/// A recorder that counts what it is asked for, and records nothing.
#[derive(Default)]
struct CountsOnly(AtomicU64);

impl CountsOnly {
    fn count(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Recorder for CountsOnly {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, _: &metrics::Key, _: &Metadata<'_>) -> Counter {
        self.count();
        Counter::noop()
    }

    fn register_gauge(&self, _: &metrics::Key, _: &Metadata<'_>) -> Gauge {
        self.count();
        Gauge::noop()
    }

    fn register_histogram(&self, _: &metrics::Key, _: &Metadata<'_>) -> Histogram {
        self.count();
        Histogram::noop()
    }
}

/// The other tests here run with the feature `metrics` and without a recorder. This one has a recorder: its own
/// allocations are its own affair, and idem makes none for it.
#[test]
fn metrics_allocate_nothing() {
    let runtime = runtime();
    let _entered = runtime.enter();
    let idem = Idem::new(MemoryStore::new());
    let payment = payment();
    let count = |key: &str| {
        let call = || charge(&idem, key, &payment).now_or_never();
        measure(|| assert_eq!(call().unwrap().unwrap(), 129_900)).count_total
    };
    // The keys of the operation's metrics are made once.
    count("warm");
    let recorder = CountsOnly::default();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let keys: Vec<String> = (0..2000).map(|number| format!("key-{number}")).collect();
    let first: Vec<u64> = keys.iter().map(|key| count(key)).collect();
    let asked = recorder.0.swap(0, Ordering::Relaxed);
    let replay: Vec<u64> = keys.iter().map(|key| count(key)).collect();

    // Five of a first call: its outcome, its claim, its body, its completion and its lease. Two of a replay.
    assert_eq!((asked, recorder.0.load(Ordering::Relaxed)), (10_000, 4_000));
    assert!(median(first.clone()) <= FIRST_CALL, "{:?}", median(first));
    assert!(replay.iter().all(|it| *it <= REPLAY), "{replay:?}");
}

#[idempotent(key = key, ttl = "24h", name = "costs.hang", store = idem)]
async fn hang(idem: &Idem<Grants>, key: &str, payment: Payment) -> Result<u64, Error> {
    pending::<()>().await;
    Ok(payment.amount)
}

/// Function without the attribute.
async fn hang_alone(_idem: &Idem<Grants>, _key: &str, payment: Payment) -> Result<u64, Error> {
    pending::<()>().await;
    Ok(payment.amount)
}

/// A running call uses two kinds of memory. Its future is larger than the function's own, and while the body waits it
/// holds the key, the call, and the timer of the first lease renewal on the heap. The request belongs to the caller,
/// the tables of the handle already exist, and the record belongs to the store.
#[test]
fn a_running_call_uses_less_than_a_kibibyte_beside_the_users_future() {
    let runtime = runtime();
    let _entered = runtime.enter();
    let idem = Idem::new(Grants);
    let key = "0190f3c2-8f6a-7000-8000-000000000000";
    poll_once(pin!(hang(&idem, key, payment())));

    let future = hang(&idem, key, payment());
    let future_bytes = size_of_val(&future) - size_of_val(&hang_alone(&idem, key, payment()));
    let mut future = pin!(future);
    let on_the_heap = measure(|| poll_once(future.as_mut()));
    let heap_bytes = on_the_heap.bytes_current;

    assert!(heap_bytes > 0, "it is counted");
    let all = future_bytes as i64 + heap_bytes;
    assert!(
        all <= RUNNING,
        "{all} bytes: {future_bytes} in the future, {heap_bytes} on the heap"
    );
}

#[idempotent(key = key, ttl = "24h", name = "costs.wait", store = idem, wait = "1h")]
async fn hang_or_wait(idem: &Idem<Grants>, key: &str) -> Result<(), Error> {
    pending().await
}

/// Bytes on the heap for each of a number of calls that have begun, their futures included.
fn bytes_for_each(calls: usize, key: impl Fn(usize) -> String) -> i64 {
    let idem = Idem::new(Grants);
    let keys: Vec<_> = (0..calls).map(key).collect();
    let mut begun: Vec<LocalBoxFuture<'_, Result<(), Error>>> = Vec::with_capacity(calls);
    let held = measure(|| {
        for key in &keys {
            begun.push(hang_or_wait(&idem, key).boxed_local());
            let call = begun.last_mut().unwrap();
            poll_once(call.as_mut());
        }
    });
    held.bytes_current / calls as i64
}

/// Thousands of callers may wait for one key, and thousands of keys may be in flight. What one of them uses does not grow
/// with their number, apart from the room for growth in the table of keys.
#[test]
fn callers_that_wait_and_keys_in_flight_use_a_bounded_number_of_bytes() {
    let runtime = runtime();
    let _entered = runtime.enter();
    for (what, key, bound) in [
        (
            "waiting",
            (|_| "one".to_owned()) as fn(usize) -> String,
            WAITING,
        ),
        ("in flight", |number| format!("key-{number:05}"), IN_FLIGHT),
    ] {
        let [few, many] = [1_000, 10_000].map(|calls| bytes_for_each(calls, key));
        println!("{what}: {few} bytes of 1,000 calls, {many} of 10,000");
        assert!(few > 0, "it is counted");
        assert!(few.max(many) <= bound, "{what}: {few} and {many} bytes");
        assert!(many <= few + few / 10, "{what}: {few} and {many} bytes");
    }
}

fn poll_once<F: Future<Output: std::fmt::Debug> + ?Sized>(future: Pin<&mut F>) {
    let mut context = Context::from_waker(Waker::noop());
    assert!(matches!(future.poll(&mut context), Poll::Pending));
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap()
}

fn median(mut counts: Vec<u64>) -> u64 {
    counts.sort_unstable();
    counts[counts.len() / 2]
}

/// A store that grants every claim and stores nothing, so that all memory in use belongs to the call.
#[derive(Debug)]
struct Grants;

#[async_trait]
impl Store for Grants {
    async fn claim(&self, claim: &ClaimRequest) -> Result<ClaimOutcome, StoreError> {
        Ok(ClaimOutcome::Granted(Granted {
            fencing_token: FencingToken::from_number(1),
            attempt: 1,
            first_claimed_at: Timestamp::from_micros(0),
            on_crash: claim.on_crash,
        }))
    }

    async fn take_over(
        &self,
        _: &Observation,
        claim: &ClaimRequest,
    ) -> Result<ClaimOutcome, StoreError> {
        self.claim(claim).await
    }

    async fn renew(&self, _: &Owner, _: Duration) -> Result<FencedWrite, StoreError> {
        Ok(FencedWrite::Applied)
    }

    async fn complete(&self, _: &Owner, _: &Outcome) -> Result<FencedWrite, StoreError> {
        Ok(FencedWrite::Applied)
    }

    async fn release(&self, _: &Owner) -> Result<FencedWrite, StoreError> {
        Ok(FencedWrite::Applied)
    }

    async fn interrupt(&self, _: &Owner) -> Result<FencedWrite, StoreError> {
        Ok(FencedWrite::Applied)
    }

    async fn resolve(&self, _: &Observation, _: &Resolution) -> Result<Resolved, StoreError> {
        Ok(Resolved::Done)
    }

    async fn get(&self, _: &RecordId) -> Result<Option<Record>, StoreError> {
        Ok(None)
    }

    async fn list(&self, _: &Filter, _: &PageRequest) -> Result<Page, StoreError> {
        Ok(Page {
            records: Vec::new(),
            unreadable: Vec::new(),
            next: None,
        })
    }

    async fn now(&self) -> Result<Timestamp, StoreError> {
        Ok(SystemTime::now().into())
    }

    async fn purge(&self, _: u32, _: Timestamp) -> Result<Purged, StoreError> {
        Ok(Purged::default())
    }
}
