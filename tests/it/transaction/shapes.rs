//! Places where an annotated function with a transaction may be defined and called.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use idem_runtime::advanced::RunOptions;
use idem_runtime::{Call, Error, Idem, SqliteStore, idempotent};
use idem_tests::places;
use sqlx::{Connection as _, SqliteConnection};
use tokio::time::Instant;

use super::places::Orders as _;
use super::{Failure, Shop};

#[async_trait]
trait Orders: Send + Sync {
    async fn place(&self, key: &str, amount: i64) -> Result<i64, Failure>;
    async fn add(&self, tx: &mut SqliteConnection, key: &str) -> Result<i64, Failure>;
}

/// A service that its handlers share.
struct Service {
    idem: Arc<Idem<SqliteStore>>,
}

#[async_trait]
impl Orders for Service {
    #[idempotent(key = key, ttl = "1h", name = "orders.place", store = self.idem, tx = connection)]
    async fn place(&self, key: &str, amount: i64) -> Result<i64, Failure> {
        SqliteStore::order(connection, key, amount).await?;
        self.add(connection, key).await
    }

    #[idempotent(key = key, ttl = "1h", name = "orders.add", store = self.idem, tx = tx)]
    async fn add(&self, tx: &mut SqliteConnection, key: &str) -> Result<i64, Failure> {
        SqliteStore::order(tx, key, 1).await?;
        let nested = sqlx::Connection::begin(&mut *tx).await?;
        nested.rollback().await?;
        Ok(2)
    }
}

/// Joins a transaction of the caller, passed as sqlx's transaction type.
#[idempotent(key = key, ttl = "1h", store = idem, tx = tx)]
async fn on_a_transaction(
    idem: &Idem<SqliteStore>,
    tx: &mut sqlx::Transaction<'_, sqlx::Sqlite>,
    key: &str,
) -> Result<(), Failure> {
    Ok(SqliteStore::order(&mut *tx, key, 1).await?)
}

#[idempotent(key = key, ttl = "1h", store = idem, tx = tx)]
async fn on_a_connection(
    idem: &Idem<SqliteStore>,
    tx: &mut SqliteConnection,
    key: &str,
) -> Result<(), Failure> {
    Ok(SqliteStore::order(&mut *tx, key, 1).await?)
}

fn is_handler<F: Future + Send + 'static>(_: &impl Fn(Arc<Service>, String) -> F) {}

#[tokio::test(flavor = "multi_thread")]
async fn methods_of_async_traits_and_handlers_may_use_tx() {
    // Given a handler as web frameworks require it: its future is `Send` and borrows nothing.
    let handler = |service: Arc<Service>, key: String| async move { service.place(&key, 5).await };
    is_handler(&handler);
    let shop = Shop::open(places::sqlite()).await;
    let service = Arc::new(Service {
        idem: Arc::new(shop.idem.clone()),
    });

    // When it is called twice, inside a spawned task or outside, then it has happened once.
    for _ in 0..2 {
        let call = tokio::spawn(handler(Arc::clone(&service), "a".to_owned()));
        assert_eq!(call.await.unwrap().unwrap(), 2);
    }
    assert_eq!(shop.orders("a").await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_and_a_connection_can_be_joined() {
    let shop = Shop::open(places::sqlite()).await;
    let mut outer = shop.database.begin().await;
    on_a_transaction(&shop.idem, &mut outer, "a").await.unwrap();
    on_a_connection(&shop.idem, &mut outer, "b").await.unwrap();
    outer.commit().await.unwrap();
    assert_eq!((shop.orders("a").await, shop.orders("b").await), (1, 1));
}

/// Another transaction has the turn to write.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_cannot_begin_before_its_deadline_is_refused() {
    let shop = Shop::open(places::sqlite()).await;
    let mut outer = shop.database.begin().await;
    SqliteStore::order(&mut outer, "other", 1).await.unwrap();
    let late = || {
        let call = Call::new("orders.place", "a", &5, Duration::from_secs(60));
        call.deadline(Instant::now() + Duration::from_millis(300))
    };
    let refused: Result<(), Error> = shop
        .idem
        .run_in_transaction(late(), RunOptions::new(), async |_, _| {
            panic!("the body runs after its deadline")
        })
        .await;
    assert!(
        matches!(refused, Err(Error::Overloaded { .. })),
        "{refused:?}"
    );
    outer.commit().await.unwrap();
    assert_eq!(shop.orders("a").await, 0);
}

/// SQLite rolls it back on a thread of its own, perhaps after the body has returned.
#[tokio::test(flavor = "multi_thread")]
async fn a_nested_transaction_that_the_body_drops_ends_only_itself() {
    let shop = Shop::open(places::sqlite()).await;
    for number in 0..50 {
        let key = number.to_string();
        let call = Call::new("orders.place", &key, &5, Duration::from_secs(60));
        let body = async |tx: &mut SqliteConnection, _| {
            SqliteStore::order(tx, &key, 5).await?;
            let mut nested = tx.begin().await?;
            SqliteStore::order(&mut nested, &key, 7).await?;
            drop(nested);
            Ok(5)
        };
        let answer: Result<u32, Failure> = shop
            .idem
            .run_in_transaction(call, RunOptions::new(), body)
            .await;
        assert_eq!(answer.unwrap(), 5);
        assert_eq!(shop.orders(&key).await, 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn transactions_without_the_macro() {
    let shop = Shop::open(places::sqlite()).await;
    let call = |key: &str| Call::new("orders.place", key, &5, Duration::from_secs(60));
    for _ in 0..2 {
        let answer: Result<u32, Failure> = shop
            .idem
            .run_in_transaction(call("a"), RunOptions::new(), async |tx, attempt| {
                SqliteStore::order(tx, "a", 5).await?;
                attempt.renew().await?;
                Ok(attempt.number())
            })
            .await;
        assert_eq!(answer.unwrap(), 1);
    }
    assert_eq!(shop.orders("a").await, 1);

    let mut outer = shop.database.begin().await;
    let answer: Result<(), Error> = shop
        .idem
        .join_transaction(&mut outer, call("b"), RunOptions::new(), async |tx, _| {
            SqliteStore::order(tx, "b", 5).await.unwrap();
            Ok(())
        })
        .await;
    answer.unwrap();
    outer.rollback().await.unwrap();
    assert_eq!(shop.orders("b").await, 0);
}

/// An attempt that outlives its transaction no longer owns the record.
#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_ends_with_its_transaction() {
    let shop = Shop::open(places::sqlite()).await;
    for fails in [true, false] {
        let call = Call::new("orders.place", "a", &5, Duration::from_secs(60));
        let mut ended = None;
        let _: Result<(), Failure> = shop
            .idem
            .run_in_transaction(call, RunOptions::new(), async |_, attempt| {
                assert!(attempt.is_live() && attempt.fencing_token().is_some());
                ended = Some(attempt);
                if fails {
                    Err(Failure::OutOfStock)
                } else {
                    Ok(())
                }
            })
            .await;
        let ended = ended.unwrap();
        assert!(!ended.is_live());
        assert!(matches!(ended.renew().await, Err(Error::LeaseLost)));
    }
}

/// The purge examines a record when it expires, not an hour later.
#[tokio::test(flavor = "multi_thread")]
async fn the_record_of_a_transaction_is_purged_soon_after_its_retention() {
    let shop = Shop::open(places::sqlite()).await;
    let call = Call::new("orders.place", "a", &5, Duration::from_secs(60));
    let answer: Result<(), Error> = shop
        .idem
        .run_in_transaction(call, RunOptions::new(), async |_, _| Ok(()))
        .await;
    answer.unwrap();
    let late: i64 =
        sqlx::query_scalar("SELECT purge_after - ended_at - retention FROM idem_records")
            .fetch_one(&shop.database.pool)
            .await
            .unwrap();
    assert!((0..=60_000_000).contains(&late), "{late} µs");
}
