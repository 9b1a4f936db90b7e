//! Issued keys that the service issues: their audience, their expiry, and the replay when a used key is retried.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use idem_runtime::advanced::RunOptions;
use idem_runtime::conformance::faults::{FaultStore, Op};
use idem_runtime::error::{InvalidCall, InvalidKey};
use idem_runtime::fingerprint::Secret;
use idem_runtime::policy::OnStoreError;
use idem_runtime::record::Timestamp;
use idem_runtime::store::{Filter, PageRequest};
use idem_runtime::{
    Call, Error, Idem, Key, MemoryStore, OnCrash, Scope, SqliteStore, Store, idempotent,
};
use idem_tests::on_stores;
use idem_tests::places::shared;
use tokio::sync::Barrier;
use tokio::time::sleep;

on_stores! { [] shared: fifty_calls_with_one_issued_key_run_once }

const OPERATION: &str = "charges.create";
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

type Faults = FaultStore<MemoryStore>;

/// A service with one countable effect.
struct Service<S: Store = Faults> {
    idem: Idem<S>,
    effects: AtomicU32,
}

impl Service {
    fn new() -> Self {
        Self::on(FaultStore::new(MemoryStore::new()))
    }

    /// Another process on the same records.
    fn beside(&self) -> Self {
        Self::on(self.idem.store().clone())
    }

    async fn records(&self) -> usize {
        let page = PageRequest {
            limit: 100,
            after: None,
        };
        let listed = self.idem.records().list(&Filter::default(), &page).await;
        listed.unwrap().records.len()
    }
}

impl<S: Store> Service<S> {
    fn on(store: S) -> Self {
        let idem = Idem::builder(store)
            .fingerprint_secret(secret(1))
            // A store operation that these tests hold back does not time out.
            .store_timeout(24 * HOUR)
            .build();
        let effects = AtomicU32::new(0);
        Self { idem, effects }
    }

    async fn issue(&self, ttl: Duration) -> Key {
        self.idem.issue(OPERATION, "ann", ttl).await.unwrap()
    }

    async fn pay(&self, key: &Key, cents: u64) -> Result<u32, Error> {
        self.run(call(key, cents)).await
    }

    async fn run(&self, call: Call) -> Result<u32, Error> {
        let body = async || Ok(self.effects.fetch_add(1, Ordering::SeqCst) + 1);
        self.idem.run(call, body).await
    }

    fn effects(&self) -> u32 {
        self.effects.load(Ordering::SeqCst)
    }
}

fn secret(byte: u8) -> Secret {
    Secret::new([byte; 32]).unwrap()
}

/// Call that keeps its record for an hour, or for longer if the key is valid for longer.
fn unguarded(key: &Key, cents: u64) -> Call {
    Call::new(OPERATION, key, &cents, HOUR).scope("ann")
}

fn call(key: &Key, cents: u64) -> Call {
    unguarded(key, cents).issued()
}

#[track_caller]
fn assert_refused<T: std::fmt::Debug>(answer: Result<T, Error>, why: InvalidKey) {
    match answer {
        Err(Error::InvalidKey(found)) if found == why => {}
        other => panic!("{why:?} was expected: {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn an_issued_key_runs_once_and_replays() {
    let service = Service::new();
    let key = service.issue(MINUTE).await;
    assert_eq!(key.as_str().len(), 129);
    assert!(key.scope().is_none());

    assert_eq!(service.pay(&key, 500).await.unwrap(), 1);
    assert_eq!(service.pay(&key, 500).await.unwrap(), 1);
    assert!(matches!(
        service.pay(&key, 900).await,
        Err(Error::KeyReused)
    ));
    // The key went to the client and came back, to another process, after its expiry.
    sleep(2 * MINUTE).await;
    let text = Key::new(key.as_str().to_owned()).unwrap();
    assert_eq!(service.beside().pay(&text, 500).await.unwrap(), 1);
    assert_eq!(service.effects(), 1);

    let other = service.issue(MINUTE).await;
    assert_eq!(
        service.pay(&other, 500).await.unwrap(),
        2,
        "another key, another charge"
    );
}

#[tokio::test(start_paused = true)]
async fn a_key_that_was_not_issued_is_refused_before_the_store_is_called() {
    let service = Service::new();
    let key = service.issue(MINUTE).await;
    let asked = service.idem.store().total();

    let text = key.as_str();
    let mut forged: Vec<String> = (0..text.len())
        .map(|at| {
            let mut bytes = text.as_bytes().to_vec();
            bytes[at] = if bytes[at] == b'0' { b'1' } else { b'0' };
            String::from_utf8(bytes).unwrap()
        })
        .collect();
    forged.extend([
        // Upper-case text would be a different key and would claim a second time.
        text.to_uppercase(),
        format!("t{}", text[1..].to_uppercase()),
        text[..text.len() - 1].to_owned(),
        format!("{text}0"),
        format!("{text} "),
        text[1..].to_owned(),
        "t".to_owned(),
        "order-1".to_owned(),
        Key::generate().as_str().to_owned(),
    ]);
    for forged in forged {
        let key = Key::new(forged).unwrap();
        assert_refused(service.pay(&key, 500).await, InvalidKey::NotIssued);
    }
    // A key for another operation or scope, in both directions.
    let elsewhere = Call::new("charges.refund", &key, &500_u64, HOUR).scope("ann");
    assert_refused(service.run(elsewhere.issued()).await, InvalidKey::NotIssued);
    for scope in ["bob", "ann/", "an", "ann2"] {
        let scoped = Call::new(OPERATION, &key, &500_u64, HOUR).scope(scope);
        assert_refused(service.run(scoped.issued()).await, InvalidKey::NotIssued);
    }
    let bare = Call::new(OPERATION, &key, &500_u64, HOUR);
    assert_refused(service.run(bare.issued()).await, InvalidKey::NotIssued);
    let derived = Call::by_fingerprint(OPERATION, &500_u64, HOUR).scope("ann");
    assert_refused(service.run(derived.issued()).await, InvalidKey::NotIssued);

    assert_eq!(service.idem.store().total(), asked);
    assert_eq!(service.effects(), 0);
    assert_eq!(
        service.pay(&key, 500).await.unwrap(),
        1,
        "and the real one is good"
    );
}

#[tokio::test(start_paused = true)]
async fn operation_and_scope_are_separated_in_the_signature() {
    let service = Service::new();
    let key = service.idem.issue("b", "a", MINUTE).await.unwrap();
    let other = Call::new("", &key, &1_u64, HOUR);
    assert!(matches!(
        service.run(other.issued()).await,
        Err(Error::InvalidCall(_))
    ));
    for (operation, scope) in [("a", "b"), ("ab", ""), ("bb", "a"), ("b", "aa")] {
        let mut call = Call::new(operation, &key, &1_u64, HOUR);
        if !scope.is_empty() {
            call = call.scope(scope);
        }
        assert_refused(service.run(call.issued()).await, InvalidKey::NotIssued);
    }
}

#[tokio::test(start_paused = true)]
async fn the_signed_scope_is_the_whole_scope_of_the_call() {
    let service = Service::new();
    let scope = Scope::new("shop")
        .unwrap()
        .join(&Scope::new("ann").unwrap());
    let key = service.idem.issue(OPERATION, &scope, MINUTE).await.unwrap();
    let scoped = key.scoped(&Scope::new("shop").unwrap());
    assert_eq!(service.pay(&scoped, 500).await.unwrap(), 1);

    let nobodys = service
        .idem
        .issue(OPERATION, &Scope::none(), MINUTE)
        .await
        .unwrap();
    let bare = Call::new(OPERATION, &nobodys, &500_u64, HOUR);
    assert_eq!(service.run(bare.issued()).await.unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_unused_issued_key_is_refused_after_its_expiry() {
    let service = Service::new();
    let in_time = service.issue(MINUTE).await;
    let late = service.issue(MINUTE).await;
    sleep(MINUTE - Duration::from_millis(1)).await;
    assert_eq!(service.pay(&in_time, 500).await.unwrap(), 1);
    sleep(Duration::from_millis(2)).await;
    for _ in 0..3 {
        assert_refused(service.pay(&late, 500).await, InvalidKey::Expired);
        assert_refused(service.beside().pay(&late, 500).await, InvalidKey::Expired);
        sleep(HOUR).await;
    }
    assert_eq!(service.effects(), 1);
}

#[tokio::test(start_paused = true)]
async fn issuing_a_key_only_reads_the_clock_of_the_store() {
    let service = Service::new();
    let store = service.idem.store();
    for _ in 0..10 {
        service.issue(24 * HOUR).await;
    }
    for op in Op::ALL {
        let expected = if op == Op::Now { 10 } else { 0 };
        assert_eq!(store.count(op), expected, "{op:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_used_key_is_replayed_until_it_expires_even_after_the_ttl() {
    let service = Service::new();
    // Given a key that is valid for a day, with records that are kept for an hour,
    let key = service.issue(24 * HOUR).await;
    assert_eq!(service.pay(&key, 500).await.unwrap(), 1);
    // when the key is sent again during that day,
    for _ in 0..12 {
        sleep(2 * HOUR).await;
        service
            .idem
            .store()
            .purge(100, Timestamp::MAX)
            .await
            .unwrap();
        // then its outcome is replayed,
        assert_eq!(service.pay(&key, 500).await.unwrap(), 1);
    }
    // and when its record is purged, the key has expired long before.
    sleep(HOUR).await;
    service
        .idem
        .store()
        .purge(100, Timestamp::MAX)
        .await
        .unwrap();
    assert_eq!(service.records().await, 0);
    assert_refused(service.pay(&key, 500).await, InvalidKey::Expired);
    assert_eq!(service.effects(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_failed_before_the_expiry_may_be_retried_later() {
    let service = Service::new();
    let key = service.issue(MINUTE).await;
    let failed: Result<u32, Error> = service
        .idem
        .run(call(&key, 500), async || Err(Error::NotInstalled))
        .await;
    assert!(matches!(failed, Err(Error::NotInstalled)));
    sleep(2 * MINUTE).await;
    assert!(matches!(
        service.pay(&key, 900).await,
        Err(Error::KeyReused)
    ));
    assert_eq!(service.pay(&key, 500).await.unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_crashed_before_the_expiry_is_taken_over_later() {
    let service = Service::new();
    let key = service.issue(MINUTE).await;
    let hangs = service
        .idem
        .run(call(&key, 500), async || std::future::pending().await);
    let hanging: Option<Result<u32, Error>> = Box::pin(hangs).now_or_never();
    assert!(hanging.is_none());
    sleep(2 * MINUTE).await;
    assert_eq!(service.beside().pay(&key, 500).await.unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_reaches_the_store_after_the_expiry_is_refused() {
    let service = Service::new();
    let key = service.issue(MINUTE).await;
    // Given a call that starts before the key expires,
    let held = service.idem.store().hold_before(Op::Claim);
    let paying = service.pay(&key, 500);
    let arriving = async {
        held.reached().await;
        // when the claim reaches the store after that,
        sleep(2 * MINUTE).await;
        held.open();
    };
    let (answer, ()) = tokio::join!(paying, arriving);
    // then the store's time decides,
    assert_refused(answer, InvalidKey::Expired);
    // also for a call that finds the late claim.
    assert_refused(service.beside().pay(&key, 500).await, InvalidKey::Expired);
    sleep(MINUTE).await;
    assert_refused(service.beside().pay(&key, 500).await, InvalidKey::Expired);
    assert_eq!(service.effects(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_record_claimed_after_the_expiry_is_refused_in_any_state() {
    for on_crash in [OnCrash::Rerun, OnCrash::Refuse, OnCrash::Reconcile] {
        let service = Service::new();
        let key = service.issue(MINUTE).await;
        sleep(2 * MINUTE).await;
        // Given a record from a claim that came too late and was not released,
        let claimed = unguarded(&key, 500).on_crash(on_crash);
        let hangs = service
            .idem
            .run(claimed, async || std::future::pending().await);
        let mut hangs = Box::pin(hangs);
        let polled: Option<Result<u32, Error>> = hangs.as_mut().now_or_never();
        assert!(polled.is_none());
        // then no call runs it, neither during its lease nor afterwards.
        let beside = service.beside();
        assert_refused(beside.pay(&key, 500).await, InvalidKey::Expired);
        assert!(matches!(beside.pay(&key, 900).await, Err(Error::KeyReused)));
        drop(hangs);
        sleep(MINUTE).await;
        assert_refused(beside.pay(&key, 500).await, InvalidKey::Expired);
        assert_eq!(beside.effects(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_secret_no_key_is_issued_or_accepted() {
    let service = Service::new();
    let key = service.issue(MINUTE).await;
    let plain = Idem::new(MemoryStore::new());
    let issued = plain.issue(OPERATION, "ann", MINUTE).await;
    assert!(matches!(
        issued,
        Err(Error::InvalidCall(InvalidCall::NoSecret))
    ));
    let ran: Result<u32, Error> = plain.run(call(&key, 500), async || Ok(1)).await;
    assert!(matches!(
        ran,
        Err(Error::InvalidCall(InvalidCall::NoSecret))
    ));
}

#[tokio::test(start_paused = true)]
async fn an_issued_key_is_valid_after_its_secret_was_rotated() {
    let store = FaultStore::new(MemoryStore::new());
    let handle = |secrets: &[u8]| {
        let builder = Idem::builder(store.clone());
        secrets
            .iter()
            .fold(builder, |it, byte| it.fingerprint_secret(secret(*byte)))
            .build()
    };
    let key = handle(&[1]).issue(OPERATION, "ann", MINUTE).await.unwrap();
    let strange: Result<u32, Error> = handle(&[2]).run(call(&key, 500), async || Ok(1)).await;
    assert_refused(strange, InvalidKey::NotIssued);
    let rotated: Result<u32, Error> = handle(&[2, 1]).run(call(&key, 500), async || Ok(1)).await;
    assert_eq!(rotated.unwrap(), 1);
    let replayed: Result<u32, Error> = handle(&[1]).run(call(&key, 500), async || Ok(2)).await;
    assert!(
        matches!(replayed, Err(Error::Decode(_))),
        "the digest is signed with the new one: {replayed:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn invalid_arguments_of_issue_are_errors() {
    let service = Service::new();
    let idem = &service.idem;
    let zero = idem
        .issue(OPERATION, "ann", Duration::from_nanos(999))
        .await;
    assert!(matches!(
        zero,
        Err(Error::InvalidCall(InvalidCall::ZeroTtl))
    ));
    let unnamed = idem.issue("", "ann", MINUTE).await;
    assert!(matches!(
        unnamed,
        Err(Error::InvalidCall(InvalidCall::Name))
    ));
    assert_refused(
        idem.issue(OPERATION, "", MINUTE).await,
        InvalidKey::EmptyScope,
    );
    idem.store().outage();
    let failing = Idem::builder(idem.store().clone())
        .fingerprint_secret(secret(1))
        .build();
    let unread = failing.issue(OPERATION, "ann", MINUTE).await;
    assert!(matches!(unread, Err(Error::Store(_))));
}

#[test]
fn issuing_needs_a_runtime() {
    let service = Service::new();
    let issued = service.idem.issue(OPERATION, "ann", MINUTE).now_or_never();
    assert!(matches!(issued, Some(Err(Error::NoRuntime))));
}

#[tokio::test(start_paused = true)]
async fn a_lost_acknowledgement_does_not_issue_twice() {
    let service = Service::new();
    service.idem.store().fail_after(Op::Claim, 1);
    let key = service.issue(MINUTE).await;
    assert_eq!(service.pay(&key, 500).await.unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_issued_key_never_runs_without_the_store() {
    let store = FaultStore::new(MemoryStore::new());
    let idem = Idem::builder(store.clone())
        .fingerprint_secret(secret(1))
        .on_store_error(OnStoreError::Run)
        .build();
    let key = idem.issue(OPERATION, "ann", MINUTE).await.unwrap();
    store.outage();
    for asked in [call(&key, 500), call(&key, 500).run_on_store_error()] {
        let ran: Result<u32, Error> = idem.run(asked, async || Ok(1)).await;
        assert!(matches!(ran, Err(Error::Store(_))), "{ran:?}");
    }
    let unguarded: Result<u32, Error> = idem.run(unguarded(&key, 500), async || Ok(1)).await;
    assert_eq!(
        unguarded.unwrap(),
        1,
        "as the handle says for any other key"
    );
}

#[idempotent(key = key, ttl = "24h", name = "charges.create", scope = user, store = service.idem, skip(service), issued)]
async fn charge(service: &Service, user: &str, key: &Key, cents: u64) -> Result<u64, Error> {
    service.effects.fetch_add(1, Ordering::SeqCst);
    Ok(cents)
}

#[tokio::test(start_paused = true)]
async fn an_annotated_function_may_require_issued_keys() {
    let service = Service::new();
    let key = service.issue(MINUTE).await;
    for _ in 0..2 {
        assert_eq!(charge(&service, "ann", &key, 500).await.unwrap(), 500);
    }
    assert!(matches!(
        charge(&service, "ann", &key, 9).await,
        Err(Error::KeyReused)
    ));
    assert_refused(
        charge(&service, "bob", &key, 500).await,
        InvalidKey::NotIssued,
    );
    let made_up = Key::generate();
    assert_refused(
        charge(&service, "ann", &made_up, 500).await,
        InvalidKey::NotIssued,
    );
    assert_eq!(service.effects(), 1);
}

/// Fifty callers send one key concurrently, in two processes, and an expired key gets an error, in real time.
async fn fifty_calls_with_one_issued_key_run_once(store: Arc<dyn Store>) {
    let services = [
        Arc::new(Service::on(store.clone())),
        Arc::new(Service::on(store)),
    ];
    let key = services[0].issue(HOUR).await;
    let barrier = Arc::new(Barrier::new(50));
    let tasks = (0..50).map(|number| {
        let service = Arc::clone(&services[number % 2]);
        let (key, barrier) = (key.clone(), Arc::clone(&barrier));
        tokio::spawn(async move {
            barrier.wait().await;
            service.run(call(&key, 500).wait(MINUTE)).await
        })
    });
    for result in join_all(tasks).await {
        assert_eq!(result.unwrap().unwrap(), 1);
    }
    let effects: u32 = services.iter().map(|it| it.effects()).sum();
    assert_eq!(effects, 1);
    assert!(matches!(
        services[0].pay(&key, 900).await,
        Err(Error::KeyReused)
    ));

    let short = services[0].issue(Duration::from_millis(1)).await;
    sleep(Duration::from_millis(30)).await;
    for service in &services {
        assert_refused(service.pay(&short, 500).await, InvalidKey::Expired);
    }
    let effects: u32 = services.iter().map(|it| it.effects()).sum();
    assert_eq!(effects, 1);
}

/// In a transaction, too, the store's clock decides whether a key has expired, and an expired one leaves no record.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_requires_an_issued_key_before_its_expiry() {
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(directory.path().join("tokens.db"))
        .await
        .unwrap();
    store.migrate().await.unwrap();
    let service = Service::on(store);
    let pay = async |key: &Key, cents: u64| -> Result<u32, Error> {
        let body = async |_: &mut _, _| Ok(service.effects.fetch_add(1, Ordering::SeqCst) + 1);
        let call = call(key, cents);
        service
            .idem
            .run_in_transaction(call, RunOptions::new(), body)
            .await
    };
    let good = service.issue(HOUR).await;
    let late = service.issue(Duration::from_millis(1)).await;
    sleep(Duration::from_millis(10)).await;
    for _ in 0..2 {
        assert_refused(pay(&late, 500).await, InvalidKey::Expired);
        assert_refused(pay(&Key::generate(), 500).await, InvalidKey::NotIssued);
    }
    assert_eq!(service.effects(), 0);
    for _ in 0..2 {
        assert_eq!(pay(&good, 500).await.unwrap(), 1);
    }
    assert!(matches!(pay(&good, 501).await, Err(Error::KeyReused)));
    assert_refused(pay(&late, 500).await, InvalidKey::Expired);
}
