//! `tx = tx`: record, effect and result are committed together. One set of cases for every store with transactions.

mod cases;
mod costs;
mod deadlocks;
mod duplicates;
mod faults;
mod joining;
mod losses;
mod places;
mod refusals;
mod shapes;
mod steps;

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use idem_runtime::{Attempt, Error, Idem, Record, Scope, State, idempotent};
use tokio::sync::Semaphore;

use self::places::{Connection, Migrate as _, Place};

/// Generates a test of each case for every store with transactions.
macro_rules! on_every_store {
    ($($case:ident),* $(,)?) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                let shop = crate::transaction::Shop::<crate::transaction::places::Sqlite>::open();
                super::$case(shop.await).await;
            })*
        }

        crate::transaction::on_every_server!($($case),*);
    };
}
use on_every_store;

/// Generates a test of each case for every store on a database server.
macro_rules! on_every_server {
    ($($case:ident),* $(,)?) => {
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread")]
            #[ignore = "needs PostgreSQL: cargo xtask test runs it"]
            async fn $case() {
                let shop = crate::transaction::Shop::<crate::transaction::places::Postgres>::open();
                super::$case(shop.await).await;
            })*
        }

        mod postgres_portable {
            $(#[tokio::test(flavor = "multi_thread")]
            #[ignore = "needs PostgreSQL: cargo xtask test runs it"]
            async fn $case() {
                use crate::transaction::places::PortablePostgres;
                let shop = crate::transaction::Shop::<PortablePostgres>::open();
                super::$case(shop.await).await;
            })*
        }

        mod mysql {
            $(#[tokio::test(flavor = "multi_thread")]
            #[ignore = "needs MySQL or MariaDB: cargo xtask test runs it"]
            async fn $case() {
                let shop = crate::transaction::Shop::<crate::transaction::places::MySql>::open();
                super::$case(shop.await).await;
            })*
        }
    };
}
use on_every_server;

const OPERATION: &str = "shop.order";

/// A service with orders in the database of its records.
struct Shop<P: Place> {
    idem: Idem<P::Store>,
    place: P,
}

impl<P: Place> Shop<P> {
    async fn open() -> Arc<Self> {
        let place = P::open().await;
        let idem = Idem::new(place.store());
        idem.store().migrate_for_tests().await;
        Arc::new(Self { idem, place })
    }

    /// Handle of another process on the same database.
    fn elsewhere(&self) -> Arc<Self> {
        let idem = Idem::new(self.place.store());
        Arc::new(Self {
            idem,
            place: self.place.clone(),
        })
    }

    /// Number of committed orders for a key.
    async fn orders(&self, key: &str) -> i64 {
        self.place.orders(key).await
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
        assert_eq!(self.record(key).await.unwrap().state, State::Completed);
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
enum Failure {
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
async fn order_waiting<P: Place>(
    shop: &Shop<P>,
    key: &str,
    amount: i64,
    then: Then,
    wait: Duration,
) -> Result<(u32, i64, String), Failure> {
    assert!(attempt.is_live());
    P::order(tx, key, amount).await?;
    behave::<P>(tx, &attempt, amount, then).await
}

async fn behave<P: Place>(
    tx: &mut Connection<P>,
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
        Then::CutOff => P::cut_off(tx).await,
        Then::Swallow => assert!(P::order_nothing(tx).await.is_err()),
        Then::Boast => text = "x".repeat(2 << 20),
    }
    Ok((attempt.number(), amount, text))
}

async fn order<P: Place>(
    shop: &Shop<P>,
    key: &str,
    amount: i64,
    then: Then,
) -> Result<(u32, i64), Failure> {
    let answer = order_waiting(shop, key, amount, then, Duration::ZERO).await;
    answer.map(|(attempt, amount, _)| (attempt, amount))
}

/// Retries until the key is free: the effects of a dropped call are rolled back when its connection is next used.
async fn order_at_last<P: Place>(shop: &Shop<P>, key: &str, amount: i64) -> (u32, i64) {
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
async fn drop_half_way<P: Place>(shop: &Shop<P>, key: &str, amount: i64) {
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
