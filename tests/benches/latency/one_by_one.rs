//! Calls that are made one after the other: by the size of the pool and of the result, over a slow network, and with new
//! handles.

use std::collections::BTreeMap;
use std::sync::Arc;

use idem_runtime::{Idem, MySqlStore, PostgresStore, RedisStore, SqliteStore, idempotent};
use idem_tests::ledger::{ChargeError, Database};
use idem_tests::private::{Kind, Private};
use idem_tests::ratio::Effort;
use idem_tests::steady::{self, Contestant};

use crate::CONNECTIONS;
use crate::contestants::{COMPLETE, INSERT, Make, Pair, READ, Work, call, command, on_redis};
use crate::contestants::{on_sql, statements, tables};
use crate::network::Network;

/// Tasks that share a pool.
const TASKS: usize = 64;

#[idempotent(key = key, ttl = "24h", name = "bench.large", store = idem)]
async fn call_of_size(idem: &Idem, key: &str, size: usize) -> Result<String, ChargeError> {
    Ok("x".repeat(size))
}

pub(crate) async fn measure(kind: Kind, private: &Private, effort: Effort) {
    match kind {
        Kind::Sqlite => of_sql::<SqliteStore>(kind, private, effort).await,
        Kind::Postgres => of_sql::<PostgresStore>(kind, private, effort).await,
        Kind::MariaDb | Kind::MySql => of_sql::<MySqlStore>(kind, private, effort).await,
        _ => of_redis(kind, private, effort).await,
    }
}

async fn of_sql<S: Database>(kind: Kind, private: &Private, effort: Effort) {
    let address = &*private.address;
    if kind.has_server() {
        let mut contestants = Vec::new();
        for (name, connections) in [
            ("a pool of 16 connections", 16),
            ("a pool of 1 connection", 1),
            ("a pool of 4 connections", 4),
            ("a pool of 64 connections", 64),
        ] {
            let (store, _) = tables::<S>(address, connections).await;
            let idem = Idem::new(store).erased();
            contestants.push(contestant(name, first_calls(idem)));
        }
        table(kind, "first calls by pool", &contestants, TASKS, effort).await;

        let network = Network::before(private.servers()[0].port()).unwrap();
        let far = network.instead_of(address, private.servers()[0].port());
        for pair in on_sql::<S>(&far, CONNECTIONS, "far").await {
            over_network(kind, pair, effort).await;
        }
    }

    let (store, pool) = tables::<S>(address, CONNECTIONS).await;
    let idem = Idem::new(store).erased();
    for (title, size) in [
        ("results of 100 KB", 100_000),
        ("results of 1 MB", 1_000_000),
    ] {
        let result: Arc<str> = "x".repeat(size).into();
        let done = format!("size-{size}");
        large_by_hand::<S>(&pool, &done, &result).await;
        call_of_size(&idem, &done, size).await.unwrap();
        let (to_write, to_read) = (pool.clone(), pool.clone());
        let by_hand: Make = Arc::new(move |number| -> Work {
            let (pool, result) = (to_write.clone(), result.clone());
            let key = format!("hand-{size}-{number}");
            Box::pin(async move { large_by_hand::<S>(&pool, &key, &result).await })
        });
        let key = done.clone();
        let read: Make = Arc::new(move |_| -> Work {
            let (pool, key) = (to_read.clone(), key.clone());
            Box::pin(async move {
                S::texts(&pool, READ, &[(&*key).into()]).await.unwrap();
            })
        });
        large(kind, title, [by_hand, read], &idem, (done, size), effort).await;
    }

    let of_hand = address.to_owned();
    let by_hand: Make = Arc::new(move |number| -> Work {
        let address = of_hand.clone();
        Box::pin(async move {
            let pool = S::pool(&S::options_at(&address).unwrap(), CONNECTIONS, true);
            let key = format!("cold-{number}");
            statements::<S>(&pool, &key, &[INSERT, COMPLETE]).await;
            S::close(pool).await;
        })
    });
    let of_ours = address.to_owned();
    let ours: Make = Arc::new(move |number| -> Work {
        let address = of_ours.clone();
        Box::pin(async move {
            let pool = S::pool(&S::options_at(&address).unwrap(), CONNECTIONS, true);
            let idem = Idem::new(S::over(&pool)).erased();
            call(&idem, &format!("cold-{number}")).await.unwrap();
            S::close(pool).await;
        })
    });
    cold(kind, by_hand, ours, effort).await;
}

async fn of_redis(kind: Kind, private: &Private, effort: Effort) {
    let address = &*private.address;
    let port = private.servers()[0].port();
    let network = Network::before(port).unwrap();
    for pair in on_redis(&network.instead_of(address, port), "far").await {
        over_network(kind, pair, effort).await;
    }
    let client = redis::Client::open(address).unwrap();
    let hand = client.get_connection_manager().await.unwrap();
    let idem = Idem::new(RedisStore::connect(address).await.unwrap()).erased();
    for (title, size) in [
        ("results of 100 KB", 100_000),
        ("results of 1 MB", 1_000_000),
    ] {
        let result: Arc<str> = "x".repeat(size).into();
        let done = format!("size-{size}");
        command(&hand, &["SET", &format!("hand-{done}"), &result]).await;
        call_of_size(&idem, &done, size).await.unwrap();
        let (to_write, to_read) = (hand.clone(), hand.clone());
        let by_hand: Make = Arc::new(move |number| -> Work {
            let (hand, result) = (to_write.clone(), result.clone());
            Box::pin(async move {
                let key = format!("hand-{number}");
                command(&hand, &["SET", &key, "", "EX", "60", "NX"]).await;
                command(&hand, &["SET", &key, &result, "EX", "60", "XX"]).await;
            })
        });
        let key = format!("hand-{done}");
        let read: Make = Arc::new(move |_| -> Work {
            let (hand, key) = (to_read.clone(), key.clone());
            Box::pin(async move { command(&hand, &["GET", &key]).await })
        });
        large(kind, title, [by_hand, read], &idem, (done, size), effort).await;
    }
    let of_ours = address.to_owned();
    let by_hand: Make = Arc::new(move |number| -> Work {
        let client = client.clone();
        Box::pin(async move {
            let hand = client.get_connection_manager().await.unwrap();
            let key = format!("cold-{number}");
            command(&hand, &["SET", &key, "", "EX", "60", "NX"]).await;
            command(&hand, &["SET", &key, "34", "EX", "60", "XX"]).await;
        })
    });
    let ours: Make = Arc::new(move |number| -> Work {
        let address = of_ours.clone();
        Box::pin(async move {
            let idem = Idem::new(RedisStore::connect(&address).await.unwrap()).erased();
            call(&idem, &format!("cold-{number}")).await.unwrap();
        })
    });
    cold(kind, by_hand, ours, effort).await;
}

async fn large_by_hand<S: Database>(pool: &S::Pool, key: &str, result: &str) {
    statements::<S>(pool, key, &[INSERT]).await;
    let mut lent = S::acquire(pool).await.unwrap();
    let values = [result.into(), key.into()];
    S::run(S::lent(&mut lent), COMPLETE, &values).await.unwrap();
}

fn contestant(name: &'static str, make: Make) -> Contestant {
    Contestant::new(name, move |number| make(number))
}

fn first_calls(idem: Idem) -> Make {
    Arc::new(move |number| -> Work {
        let idem = idem.clone();
        Box::pin(async move {
            call(&idem, &format!("one-{number}")).await.unwrap();
        })
    })
}

async fn table(kind: Kind, what: &str, of: &[Contestant], tasks: usize, effort: Effort) {
    let title = format!("{kind}, {what}");
    steady::measure(&title, of, async || BTreeMap::new(), tasks, effort).await;
}

async fn over_network(kind: Kind, pair: Pair, effort: Effort) {
    let contestants = [
        contestant("by hand", pair.by_hand),
        contestant("annotated", pair.ours),
    ];
    let what = format!("{}, one at a time, round trips of 0.4 ms", pair.name);
    table(kind, &what, &contestants, 1, effort).await;
}

/// Compares first calls and replays with large results.
async fn large(
    kind: Kind,
    title: &str,
    [by_hand, read]: [Make; 2],
    idem: &Idem,
    (done, size): (String, usize),
    effort: Effort,
) {
    let (to_call, to_replay) = (idem.clone(), idem.clone());
    let ours: Make = Arc::new(move |number| -> Work {
        let idem = to_call.clone();
        Box::pin(async move {
            let key = format!("large-{size}-{number}");
            call_of_size(&idem, &key, size).await.unwrap();
        })
    });
    let replay: Make = Arc::new(move |_| -> Work {
        let (idem, done) = (to_replay.clone(), done.clone());
        Box::pin(async move {
            call_of_size(&idem, &done, size).await.unwrap();
        })
    });
    for (what, by_hand, ours) in [("first calls", by_hand, ours), ("replays", read, replay)] {
        let contestants = [
            contestant("by hand", by_hand),
            contestant("annotated", ours),
        ];
        let what = format!("{what}, one at a time, {title}");
        table(kind, &what, &contestants, 1, effort).await;
    }
}

async fn cold(kind: Kind, by_hand: Make, ours: Make, effort: Effort) {
    let contestants = [
        contestant("by hand", by_hand),
        contestant("annotated", ours),
    ];
    let what = "first calls, each with a new connection and handle";
    table(kind, what, &contestants, 1, effort).await;
}
