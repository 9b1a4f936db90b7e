//! A connection to a Redis Cluster that does not answer any more, as redis-rs leaves one behind that waits for its own lock
//! after a node was lost: the store makes a new one.

use std::time::{Duration, Instant};

use idem_runtime::record::ClaimId;
use idem_runtime::store::{ClaimOutcome, ClaimRequest};
use idem_runtime::{RedisConnection, RedisStore, Store, StoreErrorKind};
use idem_servers::{Options, RedisCluster, Server};
use tokio::runtime::{Builder, Runtime};

use crate::records::claim;

/// How long a store may take to be answered again: two calls, a new connection, which waits twice for a node that is
/// stopped, and some pauses in case the machine was too slow for that.
const PATIENCE: Duration = Duration::from_secs(40);

fn fresh() -> ClaimRequest {
    ClaimRequest {
        claim_id: ClaimId::random(),
        ..claim(&format!("{:032x}", rand::random::<u128>()))
    }
}

/// The runtime of a driver that nothing runs any more.
struct Asleep(Option<Runtime>);

impl Drop for Asleep {
    fn drop(&mut self) {
        // A runtime that waits for its threads must not be dropped in a task.
        self.0.take().unwrap().shutdown_background();
    }
}

/// A connection whose driver runs only until it is connected: whatever is sent over it is never answered.
async fn stuck(urls: &[String]) -> (RedisConnection, Asleep) {
    let urls = urls.to_vec();
    tokio::task::spawn_blocking(move || {
        let asleep = Builder::new_current_thread().enable_all().build().unwrap();
        let connecting = RedisConnection::open_cluster(urls.iter().map(String::as_str));
        let connection = asleep.block_on(connecting).unwrap();
        (connection, Asleep(Some(asleep)))
    })
    .await
    .unwrap()
}

/// Claims until one is granted, and returns the number of calls that were not answered.
async fn until_granted(store: &RedisStore) -> usize {
    let deadline = Instant::now() + PATIENCE;
    let mut unanswered = 0;
    loop {
        match store.claim(&fresh()).await {
            Ok(ClaimOutcome::Granted(_)) => return unanswered,
            Ok(other) => panic!("{other:?} for a fresh key"),
            Err(error) => {
                assert!(error.is_retryable(), "{error:?}");
                assert_eq!(error.kind(), StoreErrorKind::Timeout, "{error:?}");
                assert!(Instant::now() < deadline, "never answered: {error:?}");
                unanswered += 1;
            }
        }
    }
}

async fn is_answered_again(store: &RedisStore) {
    assert_ne!(
        until_granted(store).await,
        0,
        "the connection was not stuck"
    );
    assert_eq!(until_granted(store).await, 0, "the new connection is used");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn a_store_whose_cluster_connection_is_stuck_is_answered_again() {
    let cluster = RedisCluster::start(&Options::fast()).unwrap();
    let (connection, _asleep) = stuck(&cluster.urls()).await;
    is_answered_again(&RedisStore::new(connection)).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn the_writes_that_wait_for_replicas_are_answered_again() {
    let cluster = RedisCluster::start(&Options::fast()).unwrap();
    let (reads, _asleep) = stuck(&cluster.urls()).await;
    let (writes, _also_asleep) = stuck(&cluster.urls()).await;
    let patience = Duration::from_millis(500);
    let store = RedisStore::new(reads).wait_for_replicas(writes, 1, patience);
    is_answered_again(&store).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn a_node_that_is_stopped_does_not_keep_a_store_from_a_new_connection() {
    let cluster = RedisCluster::start(&Options::fast()).unwrap();
    let (connection, _asleep) = stuck(&cluster.urls()).await;
    let is_replica = |node: &&Server| {
        let replication = node.query("INFO replication").unwrap();
        replication.contains("role:slave")
    };
    let replica = cluster.nodes().iter().find(is_replica).unwrap();
    replica.pause().unwrap();
    is_answered_again(&RedisStore::new(connection)).await;
    replica.resume().unwrap();
}
