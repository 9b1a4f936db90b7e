//! A replay returns exactly the first caller's value, bit for bit. A value that cannot be exact is not stored.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use idem_runtime::advanced::RunOptions;
use idem_runtime::error::InvalidCall;
use idem_runtime::operator::OperatorStore;
use idem_runtime::{Call, Codec, Error, Idem, MemoryStore, Recovery, Store};
use idem_tests::on_stores;
use idem_tests::places::{Backend, Place, shared};
use idem_tests::sql::Sql;
use proptest::test_runner::{Config, RngSeed, TestRunner};
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tokio::sync::Notify;

pub(crate) mod values;

use crate::steps::Tables;

use values::{
    Adjacent, Amount, Any, Bytes, F32, F64, Internal, Lookalikes, New, ROUNDED_TWICE, StrictBytes,
    Two, Value, values,
};

on_stores! { [] Values::open: values_of_everything }

mod inputs {
    use super::*;

    on_stores! { [recovery] Inputs::open: the_recovery_input_is_the_given_value }
}

const HOUR: Duration = Duration::from_secs(3600);

/// Error that is stored with its value.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Failure<T> {
    Final(T),
    /// Ends the attempt after the step was saved, so that the body runs again.
    Again,
    #[serde(skip)]
    Idem(String),
}

impl<T> From<Error> for Failure<T> {
    fn from(error: Error) -> Self {
        match error {
            Error::Unrecorded => Self::Idem("unrecorded".to_owned()),
            error => Self::Idem(format!("{error:?}")),
        }
    }
}

/// Outcome of a test of one value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Became {
    Replayed,
    Unrecorded,
}

fn idem(store: Arc<dyn Store>, codec: Codec) -> Idem {
    Idem::builder(store).codec(codec).build().erased()
}

const OPERATION: &str = "replays.value";

/// Two equal calls with an unused key.
fn calls() -> (Call, Call) {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let key = format!("key-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    let call = || Call::new(OPERATION, &key, "request", HOUR);
    (call(), call())
}

/// Calls twice. The second call replays the first result, or its result is unrecorded.
async fn result<T: Value>(idem: &Idem, value: &T) -> Became {
    let (call, retry) = calls();
    let first = idem.run(call, async || Ok::<_, Failure<T>>(value.clone()));
    assert_eq!(first.await, Ok(value.clone()));
    let again = idem.run(retry, async || -> Result<T, Failure<T>> {
        panic!("a finished effect is repeated: {value:?}")
    });
    match again.await {
        Err(Failure::Idem(error)) if error == "unrecorded" => Became::Unrecorded,
        replayed => {
            assert_eq!(replayed, Ok(value.clone()));
            Became::Replayed
        }
    }
}

async fn error<T: Value>(idem: &Idem, value: &T) -> Became {
    let handling = || RunOptions::new().replay_err(|error| matches!(error, Failure::Final(_)));
    let (call, retry) = calls();
    let first = idem.run_with(call, handling(), async |_| {
        Err::<(), _>(Failure::Final(value.clone()))
    });
    assert_eq!(first.await, Err(Failure::Final(value.clone())));
    let again = idem.run_with(retry, handling(), async |_| -> Result<(), Failure<T>> {
        panic!("a finished effect is repeated: {value:?}")
    });
    match again.await {
        Err(Failure::Idem(error)) if error == "unrecorded" => Became::Unrecorded,
        replayed => {
            assert_eq!(replayed, Err(Failure::Final(value.clone())));
            Became::Replayed
        }
    }
}

async fn step<T: Value>(idem: &Idem, value: &T) -> Became {
    let (call, retry) = calls();
    let first = idem.run_with(call, RunOptions::new(), async |attempt| {
        let done = attempt.step("step", async || Ok::<_, Failure<T>>(value.clone()));
        assert_eq!(&done.await?, value);
        Err::<(), _>(Failure::Again)
    });
    match first.await {
        Err(Failure::Idem(error)) if error == "unrecorded" => return Became::Unrecorded,
        failed => assert_eq!(failed, Err(Failure::Again)),
    }
    let again = idem.run_with(retry, RunOptions::new(), async |attempt| {
        let done = attempt.step("step", async || -> Result<T, Failure<T>> {
            panic!("a finished step is repeated: {value:?}")
        });
        assert_eq!(&done.await?, value);
        Ok(())
    });
    let again: Result<(), Failure<T>> = again.await;
    assert_eq!(again, Ok(()));
    Became::Replayed
}

async fn every_way<T: Value>(idem: &Idem, value: &T) -> Became {
    let became = result(idem, value).await;
    assert_eq!(error(idem, value).await, became, "{value:?}");
    assert_eq!(step(idem, value).await, became, "{value:?}");
    became
}

fn runner(cases: u32) -> TestRunner {
    TestRunner::new(Config {
        cases,
        failure_persistence: None,
        rng_seed: RngSeed::Random,
        ..Config::default()
    })
}

/// A store, and the number of values that are tested on it.
struct Values {
    store: Arc<dyn Store>,
    cases: u32,
}

impl Values {
    async fn open<S: Backend>(place: Place<S>) -> Self {
        let cases = cases(&place);
        let store = shared(place).await;
        Self { store, cases }
    }
}

/// A store with recovery inputs and its tables, and the number of values that are tested on it.
struct Inputs {
    tables: Tables,
    cases: u32,
}

impl Inputs {
    async fn open<S: Sql + OperatorStore>(place: Place<S>) -> Self {
        Self {
            cases: cases(&place),
            tables: Tables::open(place).await,
        }
    }
}

fn cases<S: Backend>(place: &Place<S>) -> u32 {
    match (place.needs().is_empty(), place.can("recovery")) {
        (true, false) => 1_500,
        (true, true) => 200,
        (false, _) => 60,
    }
}

/// Tests random values with each codec and in each way. Most of them are replayed.
async fn values_of_everything(Values { store, cases }: Values) {
    let runtime = Handle::current();
    tokio::task::block_in_place(|| {
        for codec in [Codec::Json, Codec::Cbor] {
            let idem = idem(Arc::clone(&store), codec);
            let replayed = AtomicU64::new(0);
            let checked = runner(cases).run(&values(Lookalikes::Included), |value| {
                if runtime.block_on(every_way(&idem, &value)) == Became::Replayed {
                    replayed.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            });
            checked.unwrap();
            let replayed = replayed.into_inner();
            assert!(
                replayed > u64::from(cases) / 3,
                "{codec:?}: {replayed} of {cases} were replayed"
            );
        }
    });
}

#[tokio::test]
async fn floats_replay_bit_for_bit() {
    let json = idem(Arc::new(MemoryStore::new()), Codec::Json);
    let cbor = idem(Arc::new(MemoryStore::new()), Codec::Cbor);
    let plain = [
        0.386_386_627_700_452_84,
        -0.0,
        f64::MIN_POSITIVE,
        f64::MAX,
        5e-324,
        1e16,
    ];
    for value in plain.map(F64) {
        assert_eq!(every_way(&json, &value).await, Became::Replayed);
        assert_eq!(every_way(&cbor, &value).await, Became::Replayed);
    }
    let no_numbers = [
        f64::NAN,
        f64::from_bits(0x7ff0_0000_0000_0001),
        f64::INFINITY,
    ];
    for value in no_numbers.map(F64) {
        assert_eq!(every_way(&json, &value).await, Became::Unrecorded);
        assert_eq!(every_way(&json, &Some(value)).await, Became::Unrecorded);
        assert_eq!(every_way(&cbor, &value).await, Became::Replayed);
        assert_eq!(every_way(&cbor, &Some(value)).await, Became::Replayed);
    }
    for value in [ROUNDED_TWICE, 0.1, -0.0, f32::MAX].map(F32) {
        assert_eq!(every_way(&json, &value).await, Became::Replayed);
        assert_eq!(every_way(&cbor, &value).await, Became::Replayed);
    }
    // A type that buffers reads every float of JSON as an `f64` first.
    let buffered = Internal::Fields {
        value: F32(ROUNDED_TWICE),
    };
    assert_eq!(every_way(&json, &buffered).await, Became::Unrecorded);
    assert_eq!(every_way(&cbor, &buffered).await, Became::Replayed);
}

#[tokio::test]
async fn values_that_look_like_none_are_unrecorded() {
    for codec in [Codec::Json, Codec::Cbor] {
        let idem = idem(Arc::new(MemoryStore::new()), codec);
        assert_eq!(every_way(&idem, &Some(())).await, Became::Unrecorded);
        assert_eq!(
            every_way(&idem, &Some(None::<u8>)).await,
            Became::Unrecorded
        );
        assert_eq!(
            every_way(&idem, &Some(New(None::<u8>))).await,
            Became::Unrecorded
        );
        assert_eq!(every_way(&idem, &Some(Some(1))).await, Became::Replayed);
        assert_eq!(
            every_way(&idem, &None::<Option<u8>>).await,
            Became::Replayed
        );
        assert_eq!(every_way(&idem, &()).await, Became::Replayed);
        assert_eq!(
            every_way(&idem, &vec![None, Some(1)]).await,
            Became::Replayed
        );
        let null = Some(serde_json::Value::Null);
        assert_eq!(every_way(&idem, &null).await, Became::Unrecorded);
    }
}

#[tokio::test]
async fn values_are_stored_if_their_type_reads_them_exactly() {
    let wide = u128::MAX - 1;
    let numbers: BTreeMap<u64, u8> = BTreeMap::from([(1, 2)]);
    for codec in [Codec::Json, Codec::Cbor] {
        let idem = idem(Arc::new(MemoryStore::new()), codec);
        assert_eq!(every_way(&idem, &wide).await, Became::Replayed);
        assert_eq!(
            every_way(&idem, &Adjacent::New(wide)).await,
            Became::Replayed
        );
        let value = Internal::Fields { value: wide };
        assert_eq!(every_way(&idem, &value).await, Became::Unrecorded);
        assert_eq!(
            every_way(&idem, &Amount::Whole(wide)).await,
            Became::Unrecorded
        );
        assert_eq!(
            every_way(&idem, &Amount::Part(F64(0.1))).await,
            Became::Replayed
        );
        assert_eq!(every_way(&idem, &numbers).await, Became::Replayed);
        // A key that is equal to the tag.
        let map = BTreeMap::from([("tag".to_owned(), "Nothing".to_owned())]);
        assert_eq!(every_way(&idem, &map).await, Became::Replayed);
        assert_eq!(
            every_way(&idem, &Internal::Map(map)).await,
            Became::Unrecorded
        );
        // The order of a set changes each time.
        let set: std::collections::HashSet<u128> = (0..100).collect();
        assert_eq!(every_way(&idem, &set).await, Became::Replayed);
        let map: HashMap<u128, Vec<u128>> = (0..50).map(|at| (at, vec![at, 1])).collect();
        assert_eq!(every_way(&idem, &map).await, Became::Replayed);
        assert_eq!(
            every_way(&idem, &Bytes(vec![0, 255])).await,
            Became::Replayed
        );
    }
    let strict = StrictBytes(vec![1]);
    let json = idem(Arc::new(MemoryStore::new()), Codec::Json);
    assert_eq!(every_way(&json, &strict).await, Became::Unrecorded);
    let cbor = idem(Arc::new(MemoryStore::new()), Codec::Cbor);
    assert_eq!(every_way(&cbor, &strict).await, Became::Replayed);
}

/// List of nested lists.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Nested(Vec<Self>);

#[tokio::test]
async fn values_nested_too_deeply_are_unrecorded() {
    let nested = |depth| (0..depth).fold(Nested(vec![]), |inner, _| Nested(vec![inner]));
    for codec in [Codec::Json, Codec::Cbor] {
        let idem = idem(Arc::new(MemoryStore::new()), codec);
        assert_eq!(every_way(&idem, &nested(50)).await, Became::Replayed);
        assert_eq!(every_way(&idem, &nested(100)).await, Became::Replayed);
        assert_eq!(every_way(&idem, &nested(300)).await, Became::Unrecorded);
    }
}

/// Passes random values to readers other than their writers. A reader gets exactly the value, or the value was refused
/// before it was stored. Types that buffer fail to read some values, with an error.
pub(crate) fn handed_on(cases: u32) -> Vec<Any> {
    let all = Mutex::new(Vec::new());
    let drawn = runner(cases).run(&values(Lookalikes::Excluded), |value| {
        all.lock().unwrap().push(value);
        Ok(())
    });
    drawn.unwrap();
    let mut values = all.into_inner().unwrap();
    values.extend([
        Any::F64(F64(0.386_386_627_700_452_84)),
        Any::F64(F64(f64::INFINITY)),
        Any::SomeFloat(Some(F64(f64::NAN))),
        Any::SomeSome(Some(None)),
        Any::U128(u128::MAX),
        Any::Pair(Two(F64(-0.0), i64::MIN)),
    ]);
    values
}

/// Returns true if a reader of the type can read the value. A value that cannot be encoded is refused.
pub(crate) fn is_readable(value: &Any) -> bool {
    serde_json::to_string(value).is_ok_and(|text| serde_json::from_str::<Any>(&text).is_ok())
}

/// Recovered calls get exactly the value that the crashed calls gave as recovery input.
async fn the_recovery_input_is_the_given_value(Inputs { tables, cases }: Inputs) {
    let idem = Idem::builder(Arc::clone(&tables.store))
        .lease(HOUR)
        .build()
        .erased();
    let values = handed_on(cases);
    let mut expected = Vec::new();
    for (number, value) in values.iter().enumerate() {
        let begun = Notify::new();
        let (call, _) = calls();
        let call = call.recover_with(&(number, value));
        let run = idem.run(call, async || {
            begun.notify_one();
            std::future::pending::<Result<(), Error>>().await
        });
        tokio::select! {
            biased;
            refused = run => {
                let refused = refused.unwrap_err();
                let is_refused = matches!(refused, Error::InvalidCall(InvalidCall::RecoveryInput(_)));
                assert!(is_refused, "{refused:?}: {value:?}");
            }
            // Dropped, as in a crash.
            () = begun.notified() => if is_readable(value) {
                expected.push(number);
            },
        }
    }
    assert!(expected.len() > values.len() / 3, "{}", expected.len());
    tables.pool.end_leases().await.unwrap();
    let (read, mut reads) = tokio::sync::mpsc::unbounded_channel();
    let recovery = Recovery::new(&idem)
        .on(OPERATION, move |input: (usize, Any)| {
            read.send(input).unwrap();
            async { Ok::<_, Error>(()) }
        })
        .poll_interval(Duration::from_millis(50))
        .concurrency(32)
        .start()
        .unwrap();
    let deadline = Duration::from_secs(60);
    while !expected.is_empty() {
        let (number, value) = tokio::time::timeout(deadline, reads.recv())
            .await
            .unwrap()
            .unwrap();
        assert_eq!(value, values[number]);
        expected.retain(|it| *it != number);
    }
    recovery.stop().await;
}
