//! Calls, and the statements by hand that they are compared with.

use std::pin::Pin;
use std::sync::Arc;

use idem_runtime::{Idem, RedisStore, idempotent};
use idem_tests::ledger::{ChargeError, Database};
use idem_tests::sql::{AnyPool, Sql};
use redis::aio::ConnectionManager;

pub(crate) type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Makes the call with a number. Numbers are not repeated.
pub(crate) type Make = Arc<dyn Fn(u64) -> Work + Send + Sync>;

/// The same work by hand and through the library.
pub(crate) struct Pair {
    pub(crate) name: &'static str,
    pub(crate) by_hand: Make,
    pub(crate) ours: Make,
}

/// Number of completed keys: more than tasks, because concurrent replays of one key share a read.
const COMPLETED: u64 = 1000;
/// Stored form of the result.
const RESULT: &str = "34";

#[idempotent(key = key, ttl = "24h", name = "bench.call", store = idem)]
pub(crate) async fn call(idem: &Idem, key: &str) -> Result<u64, ChargeError> {
    Ok(34)
}

#[idempotent(key = key, ttl = "24h", name = "bench.step", store = idem, attempt = attempt)]
async fn call_with_step(idem: &Idem, key: &str) -> Result<u64, ChargeError> {
    attempt
        .step("step", async || Ok::<_, ChargeError>(34))
        .await
}

#[idempotent(key = key, ttl = "24h", name = "bench.charge", store = idem, tx = tx)]
async fn charge<S: Database>(idem: &Idem<S>, key: &str) -> Result<u64, ChargeError> {
    S::charge(tx, key, "a receipt").await?;
    Ok(34)
}

/// Clones what a call needs, and makes it.
macro_rules! make {
    ($number:ident, [$($with:ident),+], $work:expr) => {{
        $(let $with = $with.clone();)+
        Arc::new(move |$number| -> Work {
            $(let $with = $with.clone();)+
            Box::pin(async move { $work })
        })
    }};
}

pub(crate) const INSERT: &str = "INSERT INTO small (id, token, state) VALUES (?, 7, 'running')";
const SAVE: &str = "UPDATE small SET step = ? WHERE id = ? AND token = 7";
pub(crate) const COMPLETE: &str =
    "UPDATE small SET state = 'completed', payload = ? WHERE id = ? AND token = 7";
pub(crate) const READ: &str = "SELECT payload FROM small WHERE id = ?";

/// Runs statements, one after the other, on a connection of the pool.
pub(crate) async fn statements<S: Sql>(pool: &S::Pool, key: &str, of_key: &[&str]) {
    for statement in of_key {
        let mut lent = S::acquire(pool).await.unwrap();
        let connection = S::lent(&mut lent);
        match *statement {
            INSERT => S::run(connection, INSERT, &[key.into()]).await,
            other => S::run(connection, other, &[RESULT.into(), key.into()]).await,
        }
        .unwrap();
    }
}

/// The table of the statements by hand, and a store with a ledger.
pub(crate) async fn tables<S: Database>(address: &str, connections: u32) -> (S, S::Pool) {
    let options = S::options_at(address).unwrap();
    let pool = S::pool(&options, connections, true);
    let store = S::over(&pool);
    let ledger = S::any(&pool).number("SELECT COUNT(*) FROM ledger").await;
    if ledger.is_err() {
        store.make_ledger(&pool).await.unwrap();
    }
    let payload = match S::any(&pool) {
        AnyPool::MySql(_) => "LONGTEXT",
        AnyPool::Sqlite(_) | AnyPool::Postgres(_) => "TEXT",
    };
    let create = format!(
        "CREATE TABLE IF NOT EXISTS small (id VARCHAR(40) PRIMARY KEY, token BIGINT, state VARCHAR(16), step VARCHAR(40), \
         payload {payload})"
    );
    S::any(&pool).execute(&create).await.unwrap();
    (store, pool)
}

/// The keys begin with `prefix`, so that no other contestants have used them.
pub(crate) async fn on_sql<S: Database>(
    address: &str,
    connections: u32,
    prefix: &'static str,
) -> Vec<Pair> {
    let (store, pool) = tables::<S>(address, connections).await;
    let (idem, in_transaction) = (Idem::new(store.clone()).erased(), Idem::new(store));
    for number in 0..COMPLETED {
        let key = format!("{prefix}-done-{number}");
        statements::<S>(&pool, &key, &[INSERT, COMPLETE]).await;
        call(&idem, &key).await.unwrap();
    }
    vec![
        Pair {
            name: "first calls",
            by_hand: make!(number, [pool], {
                statements::<S>(
                    &pool,
                    &format!("{prefix}-first-{number}"),
                    &[INSERT, COMPLETE],
                )
                .await;
            }),
            ours: make!(number, [idem], {
                call(&idem, &format!("{prefix}-first-{number}"))
                    .await
                    .unwrap();
            }),
        },
        Pair {
            name: "replays",
            by_hand: make!(number, [pool], {
                let key = format!("{prefix}-done-{}", number % COMPLETED);
                S::texts(&pool, READ, &[(&*key).into()]).await.unwrap();
            }),
            ours: make!(number, [idem], {
                let key = format!("{prefix}-done-{}", number % COMPLETED);
                call(&idem, &key).await.unwrap();
            }),
        },
        Pair {
            name: "calls with a step",
            by_hand: make!(number, [pool], {
                let key = format!("{prefix}-step-{number}");
                statements::<S>(&pool, &key, &[INSERT, SAVE, COMPLETE]).await;
            }),
            ours: make!(number, [idem], {
                let key = format!("{prefix}-step-{number}");
                call_with_step(&idem, &key).await.unwrap();
            }),
        },
        Pair {
            name: "tx, and its insert alone",
            by_hand: make!(number, [pool], {
                let mut outer = S::begin_outer(&pool).await.unwrap();
                let key = format!("{prefix}-alone-{number}");
                S::charge(S::connection(&mut outer), &key, "a receipt")
                    .await
                    .unwrap();
                S::commit_outer(outer).await.unwrap();
            }),
            ours: make!(number, [in_transaction], {
                charge(&in_transaction, &format!("{prefix}-tx-{number}"))
                    .await
                    .unwrap();
            }),
        },
    ]
}

/// Sends one command.
pub(crate) async fn command(connection: &ConnectionManager, words: &[&str]) {
    let mut connection = connection.clone();
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    let _: redis::Value = command.query_async(&mut connection).await.unwrap();
}

pub(crate) async fn on_redis(address: &str, prefix: &'static str) -> Vec<Pair> {
    const DAY: &str = "86400";
    let client = redis::Client::open(address).unwrap();
    let hand = client.get_connection_manager().await.unwrap();
    let idem = Idem::new(RedisStore::connect(address).await.unwrap()).erased();
    for number in 0..COMPLETED {
        let key = format!("{prefix}-done-{number}");
        command(&hand, &["SET", &key, RESULT, "EX", DAY]).await;
        call(&idem, &key).await.unwrap();
    }
    vec![
        Pair {
            name: "first calls",
            by_hand: make!(number, [hand], {
                let key = format!("{prefix}-first-{number}");
                command(&hand, &["SET", &key, RESULT, "EX", DAY, "NX"]).await;
                command(&hand, &["SET", &key, RESULT, "EX", DAY, "XX"]).await;
            }),
            ours: make!(number, [idem], {
                call(&idem, &format!("{prefix}-first-{number}"))
                    .await
                    .unwrap();
            }),
        },
        Pair {
            name: "replays",
            by_hand: make!(number, [hand], {
                let key = format!("{prefix}-done-{}", number % COMPLETED);
                command(&hand, &["GET", &key]).await;
            }),
            ours: make!(number, [idem], {
                let key = format!("{prefix}-done-{}", number % COMPLETED);
                call(&idem, &key).await.unwrap();
            }),
        },
        Pair {
            name: "calls with a step",
            by_hand: make!(number, [hand], {
                let key = format!("{prefix}-step-{number}");
                command(&hand, &["SET", &key, RESULT, "EX", DAY, "NX"]).await;
                command(&hand, &["HSET", &format!("{key}-steps"), "step", RESULT]).await;
                command(&hand, &["SET", &key, RESULT, "EX", DAY, "XX"]).await;
            }),
            ours: make!(number, [idem], {
                let key = format!("{prefix}-step-{number}");
                call_with_step(&idem, &key).await.unwrap();
            }),
        },
    ]
}
