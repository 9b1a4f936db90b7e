//! Claims and commits that fail in a store on a real database. No server can be made to fail at exactly these moments.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{join, join_all};
use idem_runtime::advanced::RunOptions;
use idem_runtime::error::{StoreError, StoreErrorKind};
use idem_runtime::fingerprint::Secret;
use idem_runtime::record::{Observation, Outcome, Owner, Payload};
use idem_runtime::store::{
    ClaimInTransaction, ClaimRequest, Connects, FencedWrite, OpenTransaction, Resolution, Resolved,
    Savepoint, TransactionalStore,
};
use idem_runtime::{Attempt, Call, Error, Idem, SqliteStore, Store as _};
use idem_tests::{places, until};
use sqlx::{Sqlite, SqliteConnection};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::Failure;
use super::places::{Database, Orders as _};
use crate::engine::plain::{Beside, Plain};

/// Faults of the next requests, once each, and numbers of requests.
#[derive(Debug, Default)]
struct Faults {
    prechecks: AtomicU32,
    begins: AtomicU32,
    /// Transactions that wait for a connection or a turn, and the most of them at the same time.
    beginning: [AtomicU32; 2],
    rollbacks: AtomicU32,
    /// Another transaction holds the record.
    lock: AtomicBool,
    /// A claim fails before it is sent.
    claim: AtomicBool,
    /// A commit fails before it is sent.
    commit: AtomicBool,
    /// A commit succeeds, and its acknowledgement is lost.
    acknowledgement: AtomicBool,
    /// A commit succeeds, and its acknowledgement waits until [`go_on`](Self::go_on).
    hold: AtomicBool,
    committed: Notify,
    go_on: Notify,
}

impl Beside for Faults {}

/// A store whose transactions fail on demand.
type Faulty = Plain<SqliteStore, Faults>;

fn fail_if(fault: &AtomicBool) -> Result<(), StoreError> {
    match fault.swap(false, Ordering::SeqCst) {
        true => Err(StoreError::new(StoreErrorKind::Unavailable, "a fault")),
        false => Ok(()),
    }
}

impl Connects<Faulty> for SqliteConnection {
    fn connection(&mut self) -> &mut Self {
        self
    }
}

impl TransactionalStore for Faulty {
    type Connection = SqliteConnection;
    type Transaction<'c> = OpenTransaction<'c, Sqlite>;
    type Savepoint = Savepoint;

    async fn begin(&self) -> Result<Self::Transaction<'static>, StoreError> {
        self.beside.begins.fetch_add(1, Ordering::SeqCst);
        let [now, most] = &self.beside.beginning;
        most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        let begun = self.store.begin().await;
        now.fetch_sub(1, Ordering::SeqCst);
        begun
    }

    async fn join<'c>(
        &self,
        connection: &'c mut SqliteConnection,
    ) -> Result<Self::Transaction<'c>, StoreError> {
        self.store.join(connection).await
    }

    fn begin_concurrency(&self) -> usize {
        self.store.begin_concurrency()
    }

    fn is_in_transaction(connection: &SqliteConnection) -> bool {
        SqliteStore::is_in_transaction(connection)
    }

    async fn precheck(
        &self,
        claim: &ClaimRequest,
    ) -> Result<Option<ClaimInTransaction>, StoreError> {
        self.beside.prechecks.fetch_add(1, Ordering::SeqCst);
        self.store.precheck(claim).await
    }

    async fn claim_in(
        &self,
        transaction: &mut Self::Transaction<'_>,
        observed: Option<&Observation>,
        claim: &ClaimRequest,
    ) -> Result<ClaimInTransaction, StoreError> {
        fail_if(&self.beside.claim)?;
        if self.beside.lock.swap(false, Ordering::SeqCst) {
            return Ok(ClaimInTransaction::Locked { fingerprint: None });
        }
        self.store.claim_in(transaction, observed, claim).await
    }

    async fn complete_in(
        &self,
        transaction: &mut Self::Transaction<'_>,
        owner: &Owner,
        outcome: &Outcome,
    ) -> Result<FencedWrite, StoreError> {
        self.store.complete_in(transaction, owner, outcome).await
    }

    async fn save_step_in(
        &self,
        transaction: &mut Self::Transaction<'_>,
        owner: &Owner,
        name: &str,
        payload: &Payload,
    ) -> Result<FencedWrite, StoreError> {
        let saved = self.store.save_step_in(transaction, owner, name, payload);
        saved.await
    }

    async fn savepoint(&self, connection: &mut SqliteConnection) -> Result<Savepoint, StoreError> {
        self.store.savepoint(connection).await
    }

    async fn rollback_to(
        &self,
        connection: &mut SqliteConnection,
        savepoint: &Savepoint,
    ) -> Result<(), StoreError> {
        self.store.rollback_to(connection, savepoint).await
    }

    async fn commit(&self, transaction: Self::Transaction<'_>) -> Result<(), StoreError> {
        fail_if(&self.beside.commit)?;
        self.store.commit(transaction).await?;
        if self.beside.hold.swap(false, Ordering::SeqCst) {
            self.beside.committed.notify_one();
            self.beside.go_on.notified().await;
        }
        fail_if(&self.beside.acknowledgement)
    }

    async fn rollback(&self, transaction: Self::Transaction<'_>) -> Result<(), StoreError> {
        self.beside.rollbacks.fetch_add(1, Ordering::SeqCst);
        self.store.rollback(transaction).await
    }
}

/// Orders beside the records of a store that fails.
struct Shop {
    orders: Database<SqliteStore>,
    idem: Idem<Faulty>,
}

fn call(key: &str) -> Call {
    Call::new("shop.order", key, &5, Duration::from_secs(600))
}

impl Shop {
    async fn open() -> Self {
        let orders = Database::open(places::sqlite()).await;
        let store = orders.store();
        store.migrate().await.unwrap();
        let idem = Idem::new(Faulty::with(store, Faults::default()));
        Self { orders, idem }
    }

    fn faults(&self) -> &Faults {
        &self.idem.store().beside
    }

    /// Numbers of prechecks, of transactions of the calls' own, and of those that were rolled back, since the last call.
    fn requests(&self) -> [u32; 3] {
        let faults = self.faults();
        let counts = [&faults.prechecks, &faults.begins, &faults.rollbacks];
        counts.map(|count| count.swap(0, Ordering::SeqCst))
    }

    async fn order(&self, key: &str) -> Result<u64, Failure> {
        self.order_as(key, call(key)).await
    }

    async fn order_as(&self, key: &str, call: Call) -> Result<u64, Failure> {
        let body = async |tx: &mut SqliteConnection, _| order(tx, key).await;
        self.idem
            .run_in_transaction(call, RunOptions::new(), body)
            .await
    }

    /// Makes this number of orders at once.
    async fn order_all(&self, number: u32) -> Vec<Result<u64, Failure>> {
        let keys: Vec<_> = (0..number).map(|number| number.to_string()).collect();
        join_all(keys.iter().map(|key| self.order(key))).await
    }

    fn begins_at_once(&self) -> u32 {
        u32::try_from(self.idem.store().begin_concurrency()).unwrap()
    }

    /// Makes an order in a transaction of the caller.
    async fn order_in(&self, tx: &mut SqliteConnection, key: &str) -> Result<u64, Failure> {
        let body = async |tx: &mut SqliteConnection, _| order(tx, key).await;
        self.idem
            .join_transaction(tx, call(key), RunOptions::new(), body)
            .await
    }
}

/// The body of a call.
async fn order(tx: &mut SqliteConnection, key: &str) -> Result<u64, Failure> {
    SqliteStore::order(tx, key, 5).await?;
    Ok(5)
}

#[track_caller]
fn assert_unavailable(answer: Result<u64, Failure>) {
    match answer {
        Err(Failure::Idempotency(Error::Store(error))) => {
            assert_eq!(error.kind(), StoreErrorKind::Unavailable);
        }
        other => panic!("expected an error of the store, got {other:?}"),
    }
}

#[tokio::test]
async fn a_claim_that_fails_is_repeated_in_a_transaction_of_its_own() {
    let shop = Shop::open().await;
    shop.faults().claim.store(true, Ordering::SeqCst);
    assert_eq!(shop.order("a").await.unwrap(), 5);
    assert_eq!(shop.orders.orders("a").await, 1);
    assert_eq!(shop.requests(), [2, 2, 1]);
}

/// Further calls wait in the process, and not in the pool, before the writes of calls that run.
#[tokio::test(flavor = "multi_thread")]
async fn no_more_transactions_begin_at_once_than_the_store_works_on() {
    let shop = Shop::open().await;
    let at_once = shop.begins_at_once();
    for answer in shop.order_all(3 * at_once).await {
        assert_eq!(answer.unwrap(), 5);
    }
    let [now, most] = &shop.faults().beginning;
    assert_eq!(now.load(Ordering::SeqCst), 0);
    assert_eq!(most.load(Ordering::SeqCst), at_once);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_not_admitted_before_its_deadline_begins_no_transaction() {
    let shop = Shop::open().await;
    let mut outer = shop.orders.begin().await;
    SqliteStore::order(&mut outer, "other", 1).await.unwrap();
    let at_once = shop.begins_at_once();
    let begins = || shop.faults().begins.load(Ordering::SeqCst);
    let late = async {
        until(async || begins() == at_once).await;
        let deadline = Instant::now() + Duration::from_millis(300);
        let refused = shop.order_as("late", call("late").deadline(deadline)).await;
        assert!(
            matches!(refused, Err(Failure::Idempotency(Error::Overloaded { .. }))),
            "{refused:?}"
        );
        assert_eq!(begins(), at_once);
        outer.commit().await.unwrap();
    };
    let (patient, ()) = join(shop.order_all(at_once), late).await;
    assert!(patient.iter().all(Result::is_ok), "{patient:?}");
    assert_eq!(shop.orders.orders("late").await, 0);
}

/// A precheck on another connection could wait for the caller's transaction.
#[tokio::test]
async fn a_call_in_the_callers_transaction_has_no_precheck() {
    let shop = Shop::open().await;
    let mut outer = shop.orders.begin().await;
    assert_eq!(shop.order_in(&mut outer, "a").await.unwrap(), 5);
    outer.commit().await.unwrap();
    assert_eq!(shop.requests(), [0, 0, 0]);
    // One precheck finds the outcome.
    assert_eq!(shop.order("a").await.unwrap(), 5);
    assert_eq!(shop.requests(), [1, 0, 0]);
}

#[tokio::test]
async fn a_record_that_another_transaction_holds_is_in_flight() {
    let shop = Shop::open().await;
    shop.faults().lock.store(true, Ordering::SeqCst);
    match shop.order("a").await {
        Err(Failure::Idempotency(Error::InFlight { .. })) => {}
        other => panic!("expected a key in flight, got {other:?}"),
    }
    assert_eq!(shop.requests(), [1, 1, 1]);
    assert_eq!(shop.order("a").await.unwrap(), 5);
}

/// The error may have undone the caller's whole transaction.
#[tokio::test]
async fn a_claim_that_fails_is_not_repeated_in_the_callers_transaction() {
    let shop = Shop::open().await;
    shop.faults().claim.store(true, Ordering::SeqCst);
    let mut outer = shop.orders.begin().await;
    assert_unavailable(shop.order_in(&mut outer, "a").await);
    outer.rollback().await.unwrap();
    assert_eq!(shop.orders.orders("a").await, 0);
}

#[tokio::test]
async fn a_commit_without_an_acknowledgement_is_looked_up() {
    let shop = Shop::open().await;
    shop.faults().acknowledgement.store(true, Ordering::SeqCst);
    assert_eq!(shop.order("a").await.unwrap(), 5);
    shop.faults().commit.store(true, Ordering::SeqCst);
    assert_unavailable(shop.order("b").await);
    assert_eq!(shop.orders.orders("a").await, 1);
    assert_eq!(shop.orders.orders("b").await, 0);
}

/// The process stands still before it knows of a commit. The record is erased meanwhile, and another call joins.
#[tokio::test]
async fn an_outcome_that_was_committed_long_ago_is_not_shared_with_a_later_call() {
    let shop = Shop::open().await;
    shop.faults().hold.store(true, Ordering::SeqCst);
    let mut first = Box::pin(shop.order("a"));
    tokio::select! {
        ended = &mut first => panic!("it is held: {ended:?}"),
        () = shop.faults().committed.notified() => {}
    }
    let record = shop.idem.records().find("shop.order", "a").await;
    let seen = record.unwrap().unwrap().observation();
    let erased = shop.idem.store().resolve(&seen, &Resolution::Erase);
    assert_eq!(erased.await.unwrap(), Resolved::Done);
    tokio::time::pause();
    tokio::time::advance(shop.idem.policy().store_timeout * 2).await;
    tokio::time::resume();
    let body = async |tx: &mut SqliteConnection, _| order(tx, "a").await;
    let patient = call("a").wait(Duration::from_secs(60));
    let later = shop
        .idem
        .run_in_transaction(patient, RunOptions::new(), body);
    let mut later = Box::pin(later);
    assert!(later.as_mut().now_or_never().is_none());
    shop.faults().go_on.notify_one();
    assert_eq!(first.await.unwrap(), 5);
    assert_eq!(later.await.unwrap(), 5);
    assert_eq!(shop.orders.orders("a").await, 2, "the key was free");
}

#[tokio::test]
async fn a_commit_of_a_step_without_an_acknowledgement_is_looked_up() {
    let shop = Shop::open().await;
    let step = async |attempt: &Attempt, key| {
        let step = attempt.step_tx(&shop.idem, key, async |tx| order(tx, key).await);
        step.await
    };
    let body = async |attempt: Attempt| {
        shop.faults().acknowledgement.store(true, Ordering::SeqCst);
        assert_eq!(step(&attempt, "a").await.unwrap(), 5);
        shop.faults().commit.store(true, Ordering::SeqCst);
        assert_unavailable(step(&attempt, "b").await);
        assert_eq!(shop.orders.orders("b").await, 0);
        // The step did nothing, so it may run again.
        step(&attempt, "b").await
    };
    let ended = shop.idem.run_with(call("k"), RunOptions::new(), body).await;
    assert_eq!(ended.unwrap(), 5);
    assert_eq!(shop.orders.orders("a").await, 1);
    assert_eq!(shop.orders.orders("b").await, 1);
}

#[tokio::test]
async fn a_body_that_fails_is_rolled_back_before_its_caller_knows() {
    let shop = Shop::open().await;
    let body = async |tx: &mut SqliteConnection, _| {
        order(tx, "a").await?;
        Err::<u64, _>(Failure::OutOfStock)
    };
    let failed = shop
        .idem
        .run_in_transaction(call("a"), RunOptions::new(), body);
    assert!(matches!(failed.await, Err(Failure::OutOfStock)));
    assert_eq!(shop.requests(), [1, 1, 1]);
    assert_eq!(shop.orders.orders("a").await, 0);
}

/// Only the caller's commit decides, and it has not come yet.
#[tokio::test]
async fn a_savepoint_whose_release_fails_is_not_looked_up() {
    let shop = Shop::open().await;
    shop.faults().acknowledgement.store(true, Ordering::SeqCst);
    let mut outer = shop.orders.begin().await;
    assert_unavailable(shop.order_in(&mut outer, "a").await);
    outer.rollback().await.unwrap();
    assert_eq!(shop.orders.orders("a").await, 0);
}

#[tokio::test]
async fn a_transaction_claims_a_key_that_was_released_under_an_old_secret() {
    let orders = Database::open(places::sqlite()).await;
    let store = orders.store();
    store.migrate().await.unwrap();
    let [old, new] = [
        "the old secret, of thirty-two bytes",
        "the new secret, of thirty-two bytes",
    ]
    .map(|secret| Secret::new(secret).unwrap());
    let before = Idem::builder(store.clone())
        .fingerprint_secret(old.clone())
        .build();
    let failed = before.run(call("a"), async || Err::<u64, _>(Failure::OutOfStock));
    failed.await.unwrap_err();
    let after = Idem::builder(Faulty::with(store, Faults::default()))
        .fingerprint_secret(new)
        .fingerprint_secret(old)
        .build();
    let shop = Shop {
        orders,
        idem: after,
    };
    assert_eq!(shop.order("a").await.unwrap(), 5);
    assert_eq!(shop.orders.orders("a").await, 1);
}
