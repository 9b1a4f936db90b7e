//! A store replaces a connection to a Redis Cluster that no longer answers. The cluster connection of redis-rs can
//! deadlock after a node is lost, and then never answers again.

use std::time::{Duration, Instant};

use idem_runtime::store::ClaimOutcome;
use idem_runtime::{RedisConnection, RedisStore, Store, StoreErrorKind};
use idem_servers::{Options, RedisCluster, Server};
use tokio::runtime::{Builder, Runtime};

use crate::records::fresh;

/// Longest time until a store gets an answer again. It covers two calls, a new connection, which waits twice for a
/// stopped node, and some pauses for a slow machine.
const PATIENCE: Duration = Duration::from_secs(40);

/// Runtime of a driver that is no longer polled.
struct Stopped(Option<Runtime>);

impl Drop for Stopped {
    fn drop(&mut self) {
        // Dropping a runtime blocks until its threads end, and blocking in a task panics.
        self.0.take().unwrap().shutdown_background();
    }
}

/// A connection whose driver stops once it is connected, so that no command is answered.
async fn stuck(urls: &[String]) -> (RedisConnection, Stopped) {
    let urls = urls.to_vec();
    tokio::task::spawn_blocking(move || {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let connecting = RedisConnection::connect_cluster(urls.iter().map(String::as_str));
        let connection = runtime.block_on(connecting).unwrap();
        (connection, Stopped(Some(runtime)))
    })
    .await
    .unwrap()
}

/// Claims until a claim is granted. Returns the number of claims without an answer.
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
async fn a_stuck_cluster_connection_is_replaced() {
    let cluster = RedisCluster::start(&Options::fast()).unwrap();
    let (connection, _runtime) = stuck(&cluster.urls()).await;
    is_answered_again(&RedisStore::new(connection)).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn writes_that_wait_for_replicas_are_answered_again() {
    let cluster = RedisCluster::start(&Options::fast()).unwrap();
    let (reads, _runtime) = stuck(&cluster.urls()).await;
    let (writes, _writes_runtime) = stuck(&cluster.urls()).await;
    let patience = Duration::from_millis(500);
    let store = RedisStore::new(reads).wait_for_replicas(writes, 1, patience);
    is_answered_again(&store).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn a_stuck_connection_is_replaced_while_a_node_is_stopped() {
    let cluster = RedisCluster::start(&Options::fast()).unwrap();
    let (connection, _runtime) = stuck(&cluster.urls()).await;
    let is_replica = |node: &&Server| {
        let replication = node.query("INFO replication").unwrap();
        replication.contains("role:slave")
    };
    let replica = cluster.nodes().iter().find(is_replica).unwrap();
    replica.pause().unwrap();
    is_answered_again(&RedisStore::new(connection)).await;
    replica.resume().unwrap();
}
