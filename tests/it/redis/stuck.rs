//! A store replaces a connection to a Redis Cluster that no longer answers. The cluster connection of redis-rs can
//! deadlock after a node is lost, and then never answers again.

use std::time::Duration;

use futures_util::FutureExt as _;
use idem_runtime::RedisStore;
use idem_runtime::Store as _;
use idem_runtime::error::StoreErrorKind;
use idem_runtime::store::redis::RedisConnection;
use idem_servers::{Options, RedisCluster, Server};
use tokio::runtime::{Builder, Runtime};

use super::{fresh, until_granted};

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

async fn is_answered_again(store: &RedisStore) {
    let unanswered = until_granted(store).await;
    assert!(!unanswered.is_empty(), "the connection was not stuck");
    assert!(
        unanswered.iter().all(|it| *it == StoreErrorKind::Timeout),
        "{unanswered:?}"
    );
    assert_eq!(until_granted(store).await, [], "the new connection is used");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn a_stuck_cluster_connection_is_replaced() {
    let cluster = RedisCluster::start(&Options::fast()).unwrap();
    let (connection, _runtime) = stuck(&cluster.urls()).await;
    is_answered_again(&RedisStore::new(connection)).await;
}

/// A command of the stuck connection, and later one that has its turn on the new connection, belong to futures that nobody
/// polls any more.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn commands_that_are_not_polled_hold_up_no_others() {
    let cluster = RedisCluster::start(&Options::fast()).unwrap();
    let (connection, _runtime) = stuck(&cluster.urls()).await;
    let store = RedisStore::new(connection);
    let id = fresh().id;
    let mut parked = vec![store.get(&id)];
    assert!(parked[0].as_mut().now_or_never().is_none());
    is_answered_again(&store).await;
    for _ in 0..3 {
        let mut next = store.get(&id);
        assert!(next.as_mut().now_or_never().is_none());
        parked.push(next);
    }
    assert_eq!(until_granted(&store).await, []);
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
