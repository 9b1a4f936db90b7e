//! Dropping a future of the store in the middle of a command does not desynchronise the shared connection: each later
//! command gets its own reply.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use idem_runtime::record::{ClaimId, Outcome, Payload};
use idem_runtime::store::{ClaimOutcome, ClaimRequest, FencedWrite};
use idem_runtime::{RedisStore, Store};
use idem_tests::backends;
use tokio::task::{JoinSet, yield_now};
use tokio::time::{sleep, timeout};

use crate::records::{claim, own};

const DROPS: usize = 300;
const COMMANDS: usize = 100;
const PATIENCE: Duration = Duration::from_secs(60);

/// Polls a future up to `polls` times, between other tasks, and drops it. Returns true if the future was ready by then.
async fn dropped_after<T>(polls: u32, future: impl Future<Output = T>) -> bool {
    let mut future = pin!(future);
    for poll in 0..polls {
        let ended = poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_ready())).await;
        if ended {
            return true;
        }
        // Lets the reply arrive at a random moment between two polls.
        match poll % 3 {
            0 => yield_now().await,
            _ => sleep(Duration::from_micros(rand::random_range(0..300))).await,
        }
    }
    false
}

fn named(name: &str) -> Outcome {
    Outcome::Completed(Payload {
        codec: "json/1".into(),
        bytes: name.as_bytes().into(),
    })
}

/// Drops claims, completions and reads at random polls, concurrently with others.
async fn drops(store: &RedisStore) {
    let run: u64 = rand::random();
    let mut dropping = JoinSet::new();
    for number in 0..DROPS {
        let store = store.clone();
        dropping.spawn(async move {
            let name = format!("dropped-{run}-{number}");
            let claim = claim(&name);
            let polls = rand::random_range(0..6);
            let ended = match number % 3 {
                0 => dropped_after(polls, store.claim(&claim)).await,
                1 => {
                    let owner = own(&store, &claim).await;
                    dropped_after(polls, store.complete(&owner, &named(&name))).await
                }
                _ => dropped_after(polls, store.get(&claim.id)).await,
            };
            u32::from(!ended)
        });
        if number % 20 == 0 {
            yield_now().await;
        }
    }
    let dropped: u32 = dropping.join_all().await.into_iter().sum();
    assert!(dropped > 30, "only {dropped} were in flight");
}

/// Checks that each of many concurrent commands gets its own reply.
async fn answers_are_in_step(store: &RedisStore) {
    let run: u64 = rand::random();
    let mut calling = JoinSet::new();
    for number in 0..COMMANDS {
        let store = store.clone();
        calling.spawn(async move {
            let name = format!("own-{run}-{number}");
            let claim = claim(&name);
            let owner = own(&store, &claim).await;
            let done = store.complete(&owner, &named(&name)).await.unwrap();
            assert_eq!(done, FencedWrite::Applied);
            let again = ClaimRequest {
                claim_id: ClaimId::random(),
                ..claim.clone()
            };
            let ClaimOutcome::Existing(replayed) = store.claim(&again).await.unwrap() else {
                panic!("{name} was completed");
            };
            let read = store.get(&claim.id).await.unwrap().unwrap();
            for record in [*replayed, read] {
                assert_eq!(record.identity, claim.identity);
                assert_eq!(record.outcome(), Some(named(&name)));
            }
        });
    }
    calling.join_all().await;
}

async fn stays_in_step(store: RedisStore) {
    let rounds = async {
        for _ in 0..3 {
            drops(&store).await;
            answers_are_in_step(&store).await;
        }
    };
    timeout(PATIENCE, rounds).await.expect("a command hangs");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn one_connection_stays_in_step() {
    let store = super::store().await.0.with_timeout(PATIENCE);
    stays_in_step(store).await;
}

/// With `wait_for_replicas`, each write is followed by a `WAIT` on the same connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn a_connection_that_waits_for_replicas_stays_in_step() {
    let client = ::redis::Client::open(super::url()).unwrap();
    let config = ::redis::aio::ConnectionManagerConfig::new().set_response_timeout(None);
    let connection = ::redis::aio::ConnectionManager::new_with_config(client, config);
    let store = super::store().await.0.with_timeout(PATIENCE);
    let patience = Duration::from_millis(50);
    stays_in_step(store.wait_for_replicas(connection.await.unwrap(), 0, patience)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Redis Cluster: cargo xtask test runs it"]
async fn a_cluster_stays_in_step() {
    let keys = backends::redis_cluster().await.unwrap();
    let connection = keys.client.get_async_connection().await.unwrap();
    let store = RedisStore::new(connection).with_prefix(&keys.prefix);
    stays_in_step(store.unwrap().with_timeout(PATIENCE)).await;
}
