//! `tx = tx`: record, effect and result are committed together. One set of cases for every store with transactions.

pub(crate) mod bank;
mod cases;
mod costs;
mod deadlocks;
mod duplicates;
mod faults;
mod foreign;
mod joining;
mod losses;
mod places;
mod refusals;
mod rules;
mod shapes;
mod steps;
mod wide;

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use idem_runtime::record::{Record, RecordState};
use idem_runtime::{Attempt, Error, Idem, Scope, idempotent};
use idem_tests::places::Place;
use tokio::sync::Semaphore;

use self::places::{Database, Orders};

const OPERATION: &str = "shop.order";

/// A service with orders in the database of its records.
struct Shop<S: Orders> {
    idem: Idem<S>,
    database: Database<S>,
}

impl<S: Orders> Shop<S> {
    async fn open(place: Place<S>) -> Arc<Self> {
        let database = Database::open(place).await;
        let idem = Idem::new(database.store());
        idem.store().create_tables().await.unwrap();
        Arc::new(Self { idem, database })
    }

    /// Handle of another process on the same database.
    fn elsewhere(&self) -> Arc<Self> {
        let idem = Idem::new(self.database.store());
        Arc::new(Self {
            idem,
            database: self.database.clone(),
        })
    }

    /// Number of committed orders for a key.
    async fn orders(&self, key: &str) -> i64 {
        self.database.orders(key).await
    }

    async fn record(&self, key: &str) -> Option<Record> {
        let scope = Scope::none();
        let found = self
            .idem
            .records()
            .find_scoped(OPERATION, key, &scope)
            .await;
        found.unwrap()
    }

    /// Asserts that a call that was rolled back left nothing.
    async fn assert_untouched(&self, key: &str) {
        assert_eq!(self.orders(key).await, 0);
        assert!(self.record(key).await.is_none());
    }

    /// Asserts that there is one order, with its record.
    async fn assert_ordered_once(&self, key: &str) {
        assert_eq!(self.orders(key).await, 1);
        assert_eq!(
            self.record(key).await.unwrap().state,
            RecordState::Completed
        );
    }
}

/// Behaviour of a body after its order.
#[derive(Debug, Clone, Default)]
enum Then {
    #[default]
    Succeed,
    Fail,
    Decline,
    Panic,
    /// Reports that it has arrived, and waits for the gate to open.
    Meet(Arc<Gate>),
    MeetAndFail(Arc<Gate>),
    /// Loses its connection.
    CutOff,
    /// Causes a database error, and ignores it.
    Swallow,
    /// Returns a result above the size limit.
    Boast,
}

/// Gate at which a test can hold a body.
#[derive(Debug)]
struct Gate {
    entered: Semaphore,
    open: Semaphore,
}

impl Gate {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            entered: Semaphore::new(0),
            open: Semaphore::new(0),
        })
    }

    fn held() -> (Arc<Self>, Then) {
        let gate = Self::new();
        (Arc::clone(&gate), Then::Meet(gate))
    }

    async fn entered(&self) {
        self.entered.acquire().await.unwrap().forget();
    }

    fn open(&self) {
        self.open.add_permits(1);
    }

    async fn pass(&self) {
        self.entered.add_permits(1);
        self.open.acquire().await.unwrap().forget();
    }
}

/// Error type of the service.
#[derive(Debug, thiserror::Error, serde::Serialize, serde::Deserialize)]
pub(crate) enum Failure {
    #[error("declined: {0}")]
    Declined(String),
    #[error("out of stock")]
    OutOfStock,
    #[error(transparent)]
    #[serde(skip)]
    Idempotency(#[from] Error),
    #[error(transparent)]
    #[serde(skip)]
    Database(#[from] sqlx::Error),
}

/// Makes an order, and then does what `then` says. Returns the number of the attempt, and the amount.
#[idempotent(key = key, ttl = "1h", name = OPERATION, store = shop.idem, tx = tx, attempt = attempt,
             skip(shop, then, wait), wait = wait, replay_err = Failure::Declined(_))]
async fn order_waiting<S: Orders>(
    shop: &Shop<S>,
    key: &str,
    amount: i64,
    then: Then,
    wait: Duration,
) -> Result<(u32, i64, String), Failure> {
    assert!(attempt.is_live());
    S::order(tx, key, amount).await?;
    behave::<S>(tx, &attempt, amount, then).await
}

async fn behave<S: Orders>(
    tx: &mut S::Connection,
    attempt: &Attempt,
    amount: i64,
    then: Then,
) -> Result<(u32, i64, String), Failure> {
    let mut text = String::new();
    match then {
        Then::Succeed => {}
        Then::Fail => return Err(Failure::OutOfStock),
        Then::Decline => return Err(Failure::Declined("no money".into())),
        Then::Panic => panic!("as asked"),
        Then::Meet(gate) => gate.pass().await,
        Then::MeetAndFail(gate) => {
            gate.pass().await;
            return Err(Failure::OutOfStock);
        }
        Then::CutOff => S::cut_off(tx).await,
        Then::Swallow => assert!(S::order_nothing(tx).await.is_err()),
        Then::Boast => text = "x".repeat(2 << 20),
    }
    Ok((attempt.number(), amount, text))
}

async fn order<S: Orders>(
    shop: &Shop<S>,
    key: &str,
    amount: i64,
    then: Then,
) -> Result<(u32, i64), Failure> {
    let answer = order_waiting(shop, key, amount, then, Duration::ZERO).await;
    answer.map(|(attempt, amount, _)| (attempt, amount))
}

/// Retries until the key is free: the effects of a dropped call are rolled back when its connection is next used.
async fn order_at_last<S: Orders>(shop: &Shop<S>, key: &str, amount: i64) -> (u32, i64) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    loop {
        match order(shop, key, amount, Then::Succeed).await {
            Err(Failure::Idempotency(error)) if error.is_retryable() => {
                assert!(tokio::time::Instant::now() < deadline, "{error:?}");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            answer => return answer.unwrap(),
        }
    }
}

/// Starts a call whose body hangs, and drops it there.
async fn drop_half_way<S: Orders>(shop: &Shop<S>, key: &str, amount: i64) {
    let (gate, then) = Gate::held();
    let mut call = Box::pin(order(shop, key, amount, then));
    tokio::select! {
        answer = &mut call => panic!("its body hangs: {answer:?}"),
        () = gate.entered() => {}
    }
    assert!(call.as_mut().now_or_never().is_none());
}

#[track_caller]
fn idempotency<T: std::fmt::Debug>(answer: Result<T, Failure>) -> Error {
    match answer {
        Err(Failure::Idempotency(error)) => error,
        answer => panic!("not an answer of the toolkit: {answer:?}"),
    }
}
