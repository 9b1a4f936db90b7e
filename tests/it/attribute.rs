//! What annotated functions do: the promises that the engine's tests make by the macro-free way in, as the attribute
//! spells them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use idem_runtime::store::{Filter, PageRequest};
use idem_runtime::{
    Attempt, Call, Error, Fingerprint, Idem, InvalidCall, Key, MemoryStore, Reconciled, Source,
    State, idempotent, with_provenance,
};
use serde::{Deserialize, Serialize};

/// Counts effects: the witness of how often a body ran.
#[derive(Debug, Default)]
struct Bank(AtomicU64);

impl Bank {
    fn pay(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn payments(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Receipt {
    payment: u64,
    amount: u64,
}

#[derive(Debug, Serialize, Deserialize)]
enum ChargeError {
    Declined,
    Timeout,
    #[serde(skip)]
    Idempotency(Error),
}

impl From<Error> for ChargeError {
    fn from(error: Error) -> Self {
        Self::Idempotency(error)
    }
}

struct Service {
    idem: Idem<MemoryStore>,
    bank: Bank,
}

impl Service {
    fn new() -> Self {
        Self {
            idem: Idem::new(MemoryStore::new()),
            bank: Bank::default(),
        }
    }

    #[idempotent(key = key, ttl = "24h", name = "charges.create", scope = tenant, store = self.idem,
                 replay_err = ChargeError::Declined)]
    async fn charge(&self, tenant: &str, key: &str, amount: u64) -> Result<Receipt, ChargeError> {
        let payment = self.bank.pay();
        match amount {
            0 => Err(ChargeError::Declined),
            1 if payment == 1 => Err(ChargeError::Timeout),
            _ => Ok(Receipt { payment, amount }),
        }
    }

    #[idempotent(key = key, ttl = "24h", name = "charges.careful", store = self.idem, on_crash = refuse,
                 retry_err = ChargeError::Timeout if *nothing_was_done)]
    async fn careful(&self, key: &str, nothing_was_done: &bool) -> Result<Receipt, ChargeError> {
        match self.bank.pay() {
            1 => Err(ChargeError::Timeout),
            payment => Ok(Receipt { payment, amount: 0 }),
        }
    }

    async fn lookup(
        &self,
        key: &str,
        attempt: &Attempt,
    ) -> Result<Reconciled<Receipt>, ChargeError> {
        assert_eq!(attempt.number(), 1, "the attempt that died");
        match key {
            "done" => Ok(Reconciled::Done(Receipt {
                payment: 1,
                amount: 7,
            })),
            "not done" => Ok(Reconciled::NotDone),
            "unknown" => Ok(Reconciled::Unknown),
            _ => Err(ChargeError::Declined),
        }
    }

    #[idempotent(key = key, ttl = "24h", name = "charges.asked", store = self.idem, attempt = attempt,
                 on_crash = reconcile(self.lookup(&key, &attempt)))]
    async fn asked(&self, key: String) -> Result<Receipt, ChargeError> {
        drop(key);
        let payment = self.bank.pay();
        if attempt.number() == 1 {
            return Err(ChargeError::Timeout);
        }
        let amount = attempt.number().into();
        Ok(Receipt { payment, amount })
    }
}

#[tokio::test]
async fn a_retry_gets_the_stored_result() {
    let service = Service::new();
    let first = service.charge("acme", "k", 30).await.unwrap();

    let (again, provenance) = with_provenance(service.charge("acme", "k", 30)).await;

    assert_eq!(again.unwrap(), first);
    assert_eq!(provenance.unwrap().source, Source::Replayed);
    assert_eq!(service.bank.payments(), 1);
}

#[tokio::test]
async fn another_scope_is_another_key_and_another_argument_another_request() {
    let service = Service::new();
    service.charge("acme", "k", 30).await.unwrap();

    assert_eq!(service.charge("globex", "k", 30).await.unwrap().payment, 2);
    let reused = service.charge("acme", "k", 31).await.unwrap_err();

    assert!(matches!(reused, ChargeError::Idempotency(Error::KeyReused)));
    assert_eq!(service.bank.payments(), 2);
}

#[tokio::test]
async fn named_errors_are_replayed_and_others_retried() {
    let service = Service::new();
    let timeout = service.charge("a", "timeout", 1).await.unwrap_err();
    assert!(matches!(timeout, ChargeError::Timeout));
    assert_eq!(service.charge("a", "timeout", 1).await.unwrap().payment, 2);

    for _ in 0..3 {
        let declined = service.charge("a", "declined", 0).await.unwrap_err();
        assert!(matches!(declined, ChargeError::Declined));
    }
    assert_eq!(service.bank.payments(), 3);
}

#[tokio::test]
async fn under_refuse_only_errors_that_match_pattern_and_guard_are_retried() {
    let service = Service::new();
    let timeout = service.careful("k", &true).await.unwrap_err();
    assert!(matches!(timeout, ChargeError::Timeout));
    assert_eq!(service.careful("k", &true).await.unwrap().payment, 2);

    let service = Service::new();
    let timeout = service.careful("k", &false).await.unwrap_err();
    assert!(matches!(timeout, ChargeError::Timeout));
    let interrupted = service.careful("k", &false).await.unwrap_err();
    assert!(matches!(
        interrupted,
        ChargeError::Idempotency(Error::Interrupted)
    ));
    assert_eq!(service.bank.payments(), 1);
}

#[tokio::test]
async fn reconcile_is_asked_what_became_of_an_attempt_that_died() {
    for (key, payment, payments) in [("done", 1, 1), ("not done", 2, 2)] {
        let service = Service::new();
        let timeout = service.asked(key.to_owned()).await.unwrap_err();
        assert!(matches!(timeout, ChargeError::Timeout));
        for _ in 0..2 {
            let receipt = service.asked(key.to_owned()).await.unwrap();
            assert_eq!(receipt.payment, payment);
        }
        assert_eq!(service.bank.payments(), payments);
    }
}

#[tokio::test]
async fn reconcile_that_does_not_know_leaves_the_record_as_it_is() {
    let service = Service::new();
    for key in ["unknown", "broken"] {
        let timeout = service.asked(key.to_owned()).await.unwrap_err();
        assert!(matches!(timeout, ChargeError::Timeout));
    }
    for _ in 0..2 {
        let unknown = service.asked("unknown".to_owned()).await.unwrap_err();
        assert!(matches!(
            unknown,
            ChargeError::Idempotency(Error::Interrupted)
        ));
        let broken = service.asked("broken".to_owned()).await.unwrap_err();
        assert!(matches!(broken, ChargeError::Declined));
    }
    assert_eq!(service.bank.payments(), 2);
}

#[idempotent(key = key, ttl = "1h", store = idem, skip(trace))]
async fn free(
    idem: &Idem<MemoryStore>,
    key: &Key,
    amount: u64,
    trace: f64,
) -> Result<String, Error> {
    Ok(format!("{amount} {trace}"))
}

#[tokio::test]
async fn a_free_function_is_named_by_its_path_and_compared_by_what_is_not_skipped() {
    let idem = Idem::new(MemoryStore::new());
    let key = Key::new("k").unwrap();
    assert_eq!(free(&idem, &key, 1, 0.5).await.unwrap(), "1 0.5");
    assert_eq!(free(&idem, &key, 1, 0.7).await.unwrap(), "1 0.5");
    let reused = free(&idem, &key, 2, 0.5).await;
    assert!(matches!(reused, Err(Error::KeyReused)));

    // The same call by hand finds the same record.
    let name = concat!(module_path!(), "::free");
    let request = BTreeMap::from([("amount", 1_u64)]);
    let call = Call::new(name, &key, &request, Duration::from_secs(3600));
    let replayed: Result<String, Error> = idem.run(call, async || Err(Error::Interrupted)).await;
    assert_eq!(replayed.unwrap(), "1 0.5");
}

struct Unnamed;

impl Unnamed {
    #[idempotent(key = key, ttl = "1h", store = idem)]
    async fn create(idem: &Idem<MemoryStore>, key: &str) -> Result<usize, Error> {
        Ok(key.len())
    }
}

#[tokio::test]
async fn a_default_name_that_is_not_the_functions_own_is_refused() {
    let idem = Idem::new(MemoryStore::new());
    let Err(Error::InvalidCall(InvalidCall::AmbiguousName(name))) =
        Unnamed::create(&idem, "k").await
    else {
        panic!("the name may belong to another type's function as well");
    };
    assert_eq!(name, concat!(module_path!(), "::create"));
}

#[derive(Clone, Copy, Fingerprint)]
struct Point {
    x: u64,
    y: u64,
}

#[idempotent(key = id, ttl = "1h", name = "patterns", store = idem)]
async fn patterns(
    idem: Idem<MemoryStore>,
    (id, mut sum): (String, u64),
    Point { x, .. }: Point,
    _: u8,
) -> Result<u64, Error> {
    drop(idem);
    sum += x + id.len() as u64;
    Ok(sum)
}

#[async_trait]
trait Patterns {
    async fn rewritten(&self, pair: (String, u64), point: Point, byte: u8) -> Result<u64, Error>;
}

#[async_trait]
impl Patterns for Service {
    #[idempotent(key = id, ttl = "1h", name = "rewritten", store = self.idem)]
    async fn rewritten(
        &self,
        (id, mut sum): (String, u64),
        Point { x, .. }: Point,
        _: u8,
    ) -> Result<u64, Error> {
        sum += x + id.len() as u64;
        Ok(sum)
    }
}

#[tokio::test]
async fn patterns_are_compared_whole_under_async_trait_too() {
    let service = Service::new();
    let pair = || ("id".to_owned(), 3);
    let point = Point { x: 1, y: 2 };
    for _ in 0..2 {
        let idem = service.idem.clone();
        assert_eq!(patterns(idem, pair(), point, 0).await.unwrap(), 6);
        assert_eq!(service.rewritten(pair(), point, 0).await.unwrap(), 6);
    }
    for (point, byte) in [(Point { y: 3, ..point }, 0), (point, 1)] {
        let reused = patterns(service.idem.clone(), pair(), point, byte).await;
        assert!(matches!(reused, Err(Error::KeyReused)));
        let reused = service.rewritten(pair(), point, byte).await;
        assert!(matches!(reused, Err(Error::KeyReused)));
    }

    // Positions count without `self`, however the method arrives.
    for (name, key) in [("rewritten", "id"), ("patterns", "id")] {
        let first = u64::from(name == "patterns");
        let request = [
            (first.to_string(), Part::Pair(pair())),
            ((first + 1).to_string(), Part::Point(point)),
            ((first + 2).to_string(), Part::Byte(0)),
        ];
        let request = BTreeMap::from(request);
        let call = Call::new(name, key, &request, Duration::from_secs(3600));
        let replayed: Result<u64, Error> = service
            .idem
            .run(call, async || Err(Error::Interrupted))
            .await;
        assert_eq!(replayed.unwrap(), 6);
    }
}

/// One of the arguments above, in the form of its own.
enum Part {
    Pair((String, u64)),
    Point(Point),
    Byte(u8),
}

impl Fingerprint for Part {
    fn fingerprint(&self, encoder: &mut idem_runtime::fingerprint::Encoder) {
        match self {
            Self::Pair(pair) => pair.fingerprint(encoder),
            Self::Point(point) => point.fingerprint(encoder),
            Self::Byte(byte) => byte.fingerprint(encoder),
        }
    }
}

#[async_trait]
trait Exclusive {
    async fn exclusive(&mut self, key: String, amount: u64) -> Result<u64, Error>;
}

#[async_trait]
impl Exclusive for Service {
    #[idempotent(key = key, ttl = "1h", name = "exclusive", store = self.idem)]
    async fn exclusive(&mut self, key: String, mut amount: u64) -> Result<u64, Error> {
        drop(key);
        amount += self.bank.pay();
        Ok(amount)
    }
}

#[tokio::test]
async fn a_method_may_hold_what_it_is_called_on_exclusively() {
    let mut service = Service::new();
    for _ in 0..2 {
        assert_eq!(service.exclusive("k".to_owned(), 3).await.unwrap(), 4);
    }
    let reused = service.exclusive("k".to_owned(), 4).await;
    assert!(matches!(reused, Err(Error::KeyReused)));
}

#[idempotent(key = fingerprint, ttl = "1h")]
async fn countdown(from: u64) -> Result<Vec<u64>, Error> {
    let mut list = vec![from];
    if from > 0 {
        list.extend(Box::pin(countdown(from - 1)).await?);
    }
    Ok(list)
}

#[tokio::test]
async fn calls_nest_each_with_its_own_record_in_the_default_store() {
    assert!(matches!(countdown(3).await, Err(Error::NotInstalled)));

    let idem = Idem::new(MemoryStore::new());
    for _ in 0..2 {
        let list = idem.with_default(countdown(3)).await.unwrap();
        assert_eq!(list, [3, 2, 1, 0]);
    }

    let page = PageRequest {
        limit: 9,
        after: None,
    };
    let page = idem
        .records()
        .list(&Filter::default(), &page)
        .await
        .unwrap();
    assert_eq!(page.records.len(), 4);
    for record in page.records {
        assert_eq!(record.state, State::Completed);
        assert_eq!(
            record.identity.operation.as_str(),
            concat!(module_path!(), "::countdown")
        );
    }
}

fn is_send<T: Send>(value: T) -> T {
    value
}

#[tokio::test]
async fn what_the_attribute_adds_to_a_future_is_small_and_send() {
    async fn plain(key: &str) -> Result<u8, Error> {
        let buffer = [key.len() as u8; 4096];
        tokio::task::yield_now().await;
        Ok(buffer[key.len()])
    }

    #[idempotent(key = key, ttl = "1h", name = "annotated")]
    async fn annotated(key: &str) -> Result<u8, Error> {
        let buffer = [key.len() as u8; 4096];
        tokio::task::yield_now().await;
        Ok(buffer[key.len()])
    }

    let added = size_of_val(&is_send(annotated("k"))) - size_of_val(&plain("k"));
    assert!(added <= 1024, "{added} bytes");
}
