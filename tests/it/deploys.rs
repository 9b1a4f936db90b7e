//! Deploys that change the type of a result: builds of several versions on one store, with retries in flight. Each build
//! reads what the others have stored, and nothing runs twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use idem_runtime::advanced::{ResultSource, RunOptions, StoredResult, Versioned, with_provenance};
use idem_runtime::error::DecodeError;
use idem_runtime::operator::Verification;
use idem_runtime::{
    Call, Error, Idem, KeyStatus, MemoryStore, OnCrash, SqliteStore, Store, TypedOperation,
    idempotent,
};
use idem_tests::on_stores;
use idem_tests::places::shared;
use serde::{Deserialize, Serialize};

use crate::records::manually;

on_stores! { [] shared:
    each_build_reads_what_the_others_stored,
    a_rolling_deploy_refuses_nothing_and_repeats_nothing,
    a_build_without_the_function_is_refused_and_runs_nothing,
}

const DAY: Duration = Duration::from_secs(86_400);

type Handle = Idem<Arc<dyn Store>>;

/// Number of bodies that have run, by any build.
#[derive(Default)]
struct Effects(AtomicU32);

impl Effects {
    /// Number of the order that is placed.
    fn place(&self) -> u32 {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn count(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Second {
    number: u32,
    currency: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Third {
    id: String,
    currency: Option<String>,
}

fn first_to_second(number: u32) -> Second {
    Second {
        number,
        currency: None,
    }
}

fn second_to_first(Second { number, .. }: Second) -> u32 {
    number
}

fn second_to_third(Second { number, currency }: Second) -> Third {
    Third {
        id: number.to_string(),
        currency,
    }
}

/// The builds of one function, in the order of their deploys.
mod builds {
    use super::*;

    #[idempotent(key = key, ttl = "1d", name = "orders.place", store = idem, wait = "60s", skip(effects))]
    pub(super) async fn first(idem: &Handle, key: &str, effects: &Effects) -> Result<u32, Error> {
        Ok(effects.place())
    }

    #[idempotent(key = key, ttl = "1d", name = "orders.place", store = idem, wait = "60s", skip(effects),
                 downgrade = second_to_first)]
    pub(super) async fn first_with_reader(
        idem: &Handle,
        key: &str,
        effects: &Effects,
    ) -> Result<u32, Error> {
        tokio::task::yield_now().await;
        Ok(effects.place())
    }

    #[idempotent(key = key, ttl = "1d", name = "orders.place", store = idem, wait = "60s", skip(effects),
                 version = 2, upgrade = first_to_second)]
    pub(super) async fn second(
        idem: &Handle,
        key: &str,
        effects: &Effects,
    ) -> Result<Second, Error> {
        tokio::task::yield_now().await;
        Ok(Second {
            number: effects.place(),
            currency: Some("EUR".to_owned()),
        })
    }

    #[idempotent(key = key, ttl = "1d", name = "orders.place", store = idem, wait = "60s", skip(effects),
                 version = 3, upgrade = [first_to_second, second_to_third])]
    pub(super) async fn third(idem: &Handle, key: &str, effects: &Effects) -> Result<Third, Error> {
        Ok(Third {
            id: effects.place().to_string(),
            currency: Some("EUR".to_owned()),
        })
    }

    /// No result of version 1 is left.
    #[idempotent(key = key, ttl = "1d", name = "orders.place", store = idem, skip(effects),
                 version = 3, upgrade = [_, second_to_third])]
    pub(super) async fn third_alone(
        idem: &Handle,
        key: &str,
        effects: &Effects,
    ) -> Result<Third, Error> {
        Ok(Third {
            id: effects.place().to_string(),
            currency: None,
        })
    }
}

/// Tag of the codec, and bytes, of the stored result.
async fn stored(idem: &Handle, key: &str) -> (String, String) {
    let record = idem.records().find("orders.place", key).await.unwrap();
    let payload = record.unwrap().payload.unwrap();
    let bytes = String::from_utf8(payload.bytes.to_vec()).unwrap();
    (payload.codec.into_owned(), bytes)
}

fn euros(number: u32) -> Second {
    Second {
        number,
        currency: Some("EUR".to_owned()),
    }
}

async fn each_build_reads_what_the_others_stored(store: Arc<dyn Store>) {
    use builds::{first, first_with_reader, second, third, third_alone};
    let idem = &Idem::new(store);
    let effects = &Effects::default();

    // What was stored before there were versions, and what a build of version 1 stores, has no mark.
    assert_eq!(first(idem, "before", effects).await.unwrap(), 1);
    let plain = ("json/1".to_owned(), "1".to_owned());
    assert_eq!(stored(idem, "before").await, plain);
    let (answer, provenance) = with_provenance(second(idem, "before", effects)).await;
    assert_eq!(answer.unwrap(), first_to_second(1));
    assert_eq!(provenance.unwrap().source, ResultSource::Replayed);
    let upgraded = third(idem, "before", effects).await.unwrap();
    assert_eq!(upgraded, second_to_third(first_to_second(1)));
    assert_eq!(
        stored(idem, "before").await,
        plain,
        "a replay writes nothing"
    );

    // Both builds of a rolling deploy read what the other one has stored.
    assert_eq!(second(idem, "after", effects).await.unwrap(), euros(2));
    let marked = (
        "json/1;v2".to_owned(),
        r#"{"number":2,"currency":"EUR"}"#.to_owned(),
    );
    assert_eq!(stored(idem, "after").await, marked);
    assert_eq!(first_with_reader(idem, "after", effects).await.unwrap(), 2);
    assert_eq!(second(idem, "after", effects).await.unwrap(), euros(2));
    let upgraded = second_to_third(euros(2));
    assert_eq!(third(idem, "after", effects).await.unwrap(), upgraded);
    assert_eq!(third_alone(idem, "after", effects).await.unwrap(), upgraded);
    assert_eq!(first_with_reader(idem, "own", effects).await.unwrap(), 3);
    assert_eq!(stored(idem, "own").await.0, "json/1");

    // A version whose function was removed is an error, which a retry does not heal.
    let answer = third_alone(idem, "before", effects).await;
    let Err(Error::Decode(error)) = &answer else {
        panic!("{answer:?}");
    };
    assert!(!error.is_of_newer_version());
    assert!(error.to_string().contains("version 1"), "{error}");
    assert_eq!(effects.count(), 3);
}

/// Two processes, of which one runs the old build and the other one the new build. Each key is sent six times, to both.
async fn a_rolling_deploy_refuses_nothing_and_repeats_nothing(store: Arc<dyn Store>) {
    const KEYS: u32 = 20;
    let (old, new) = (&Idem::new(Arc::clone(&store)), &Idem::new(store));
    let effects = &Effects::default();
    let calls = (0..KEYS).map(|key| async move {
        let key = &format!("order-{key}");
        let retries = (0..3).map(|_| async {
            tokio::join!(
                builds::first_with_reader(old, key, effects),
                builds::second(new, key, effects),
            )
        });
        let answers = join_all(retries).await;
        // The build that ran the body decides about the form that is stored.
        let kept = builds::second(new, key, effects).await.unwrap();
        for (old, new) in answers {
            assert_eq!(new.unwrap(), kept);
            assert_eq!(old.unwrap(), kept.number);
        }
        kept.number
    });
    let mut numbers = join_all(calls).await;
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=KEYS).collect::<Vec<_>>());
    assert_eq!(effects.count(), KEYS);
}

/// The deploy without its first step: the old build cannot read the new form.
async fn a_build_without_the_function_is_refused_and_runs_nothing(store: Arc<dyn Store>) {
    let (old, new) = (&Idem::new(Arc::clone(&store)), &Idem::new(store));
    let effects = &Effects::default();
    let first = builds::second(new, "order", effects).await.unwrap();
    for _ in 0..2 {
        let answer = builds::first(old, "order", effects).await;
        let Err(error) = &answer else {
            panic!("{answer:?}");
        };
        assert!(error.is_retryable(), "{error}");
        assert!(matches!(error, Error::Decode(error) if error.is_of_newer_version()));
        assert!(error.to_string().contains("version 2"), "{error}");
    }
    assert_eq!(builds::second(new, "order", effects).await.unwrap(), first);
    assert_eq!(effects.count(), 1);
}

impl Versioned for Second {
    const VERSION: u32 = 2;

    fn read_other(stored: StoredResult<'_>) -> Result<Self, DecodeError> {
        match stored.version() {
            1 => stored.read().map(first_to_second),
            _ => Err(stored.unknown::<Self>()),
        }
    }
}

const FIRST: TypedOperation<u32> = TypedOperation::new("orders.place");
const PLACE: TypedOperation<Second> = TypedOperation::new("orders.place").versioned();
const THIRD: TypedOperation<Third> = TypedOperation::new("orders.place");

#[idempotent(key = key, ttl = "1d", name = PLACE, store = idem, on_crash = refuse, skip(effects))]
async fn place(idem: &Idem<MemoryStore>, key: &str, effects: &Effects) -> Result<Second, Error> {
    match key {
        "crashed" => Err(Error::LeaseLost),
        _ => Ok(euros(effects.place())),
    }
}

/// Stores a result of version 1.
async fn placed_before(idem: &Idem<MemoryStore>, key: &str) {
    let call = Call::new(FIRST, key, &(), DAY).on_crash(OnCrash::Refuse);
    assert_eq!(idem.run(call, async || Ok::<_, Error>(7)).await.unwrap(), 7);
}

#[tokio::test]
async fn the_constant_of_an_operation_has_its_versions() {
    let idem = &Idem::new(MemoryStore::new());
    let effects = &Effects::default();
    placed_before(idem, "before").await;
    let read = idem.outcome(PLACE, "before").await.unwrap();
    assert_eq!(read.result(), Some(Ok(first_to_second(7))));

    assert_eq!(place(idem, "after", effects).await.unwrap(), euros(1));
    assert_eq!(place(idem, "after", effects).await.unwrap(), euros(1));
    let read = idem.outcome(PLACE, "after").await.unwrap();
    assert_eq!(read.result(), Some(Ok(euros(1))));
    let read = idem.outcome(FIRST, "after").await;
    assert!(matches!(read, Err(Error::Decode(error)) if error.is_of_newer_version()));

    // A result that an operator stores has the version, too.
    assert!(place(idem, "crashed", effects).await.is_err());
    assert_eq!(
        idem.outcome(PLACE, "crashed").await.unwrap(),
        KeyStatus::Interrupted
    );
    let record = idem.records().find(PLACE.name(), "crashed").await.unwrap();
    let observed = record.unwrap().observation();
    manually(idem)
        .complete(PLACE, &observed, &euros(9))
        .await
        .unwrap();
    assert_eq!(place(idem, "crashed", effects).await.unwrap(), euros(9));
    let record = idem.records().find(PLACE.name(), "crashed").await.unwrap();
    assert_eq!(record.unwrap().payload.unwrap().codec, "json/1;v2");
    assert_eq!(effects.count(), 1);
}

#[tokio::test]
async fn the_check_before_a_deploy_knows_the_versions() {
    let idem = &Idem::new(MemoryStore::new());
    placed_before(idem, "before").await;
    place(idem, "after", &Effects::default()).await.unwrap();
    let store = idem.store();

    let report = Verification::new().operation(PLACE);
    let report = report.run_without_steps(store).await.unwrap();
    assert!(report.is_passed(), "{report}");
    assert_eq!(report.checked, 2);

    // A build without versions reads the first one only, and a later type neither.
    for (check, failed) in [
        (Verification::new().operation(FIRST), 1),
        (Verification::new().operation(THIRD), 2),
    ] {
        let report = check.run_without_steps(store).await.unwrap();
        assert_eq!(report.failed, failed, "{report}");
    }
}

#[tokio::test]
async fn calls_without_the_macro_have_versions_in_both_modes() {
    let idem = Idem::new(SqliteStore::in_memory().await.unwrap());
    let call = |key: &str| Call::new("orders.place", key, "request", DAY);
    let before = idem.run(call("leased"), async || Ok::<_, Error>(7));
    assert_eq!(before.await.unwrap(), 7_u32);
    let before = idem.run_in_transaction(call("tx"), RunOptions::new(), async |_, _| {
        Ok::<_, Error>(8)
    });
    assert_eq!(before.await.unwrap(), 8_u32);

    let options = || RunOptions::new().versioned();
    let never = async || -> Result<Second, Error> { panic!("it has run") };
    let after = idem.run_with(call("leased"), options(), async |_| never().await);
    assert_eq!(after.await.unwrap(), first_to_second(7));
    let after = idem.run_in_transaction(call("tx"), options(), async |_, _| never().await);
    assert_eq!(after.await.unwrap(), first_to_second(8));

    let made = idem.run_in_transaction(call("new"), options(), async |_, _| {
        Ok::<_, Error>(euros(9))
    });
    assert_eq!(made.await.unwrap(), euros(9));
    let old = idem.run(call("new"), async || -> Result<u32, Error> {
        panic!("it has run")
    });
    assert!(matches!(old.await, Err(Error::Decode(error)) if error.is_of_newer_version()));
}

/// Errors have no versions: every build reads those of every other one.
#[tokio::test]
async fn a_stored_error_has_no_version() {
    #[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
    enum Refused {
        SoldOut,
        #[serde(skip)]
        Idempotency(String),
    }
    impl From<Error> for Refused {
        fn from(error: Error) -> Self {
            Self::Idempotency(error.to_string())
        }
    }
    let idem = Idem::new(MemoryStore::new());
    let call = || Call::new("orders.place", "order", "request", DAY);
    let new = RunOptions::new()
        .versioned()
        .replay_err(|error| *error == Refused::SoldOut);
    let sold_out = async |_| -> Result<Second, _> { Err(Refused::SoldOut) };
    assert_eq!(
        idem.run_with(call(), new, sold_out).await,
        Err(Refused::SoldOut)
    );
    let old = RunOptions::new().replay_err(|error| *error == Refused::SoldOut);
    let never = async |_| -> Result<u32, Refused> { panic!("it has run") };
    assert_eq!(
        idem.run_with(call(), old, never).await,
        Err(Refused::SoldOut)
    );
}
