//! A failover behind one address. The old primary becomes a replica but keeps its connections, and the address leads
//! new connections to the new primary. Stores that were connected before find the new primary without help.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use ::redis::Client;
use ::redis::aio::{ConnectionManager, ConnectionManagerConfig};
use idem_runtime::error::StoreErrorKind;
use idem_runtime::{Call, Error, Idem, RedisStore, Store};
use idem_servers::{Options, Server};
use idem_tests::proxy::Proxy;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::error_replies::replica_of;
use super::{until_granted, until_said};
use crate::records::{HOUR, fresh};

/// Longest time until a store finds the new primary: some pauses between reconnections.
const PATIENCE: Duration = Duration::from_secs(30);

/// Two servers behind one address.
pub(crate) struct Pair {
    first: Server,
    pub(crate) second: Server,
    proxy: Proxy,
}

impl Pair {
    pub(crate) async fn start() -> Self {
        let first = Server::redis(&Options::fast()).unwrap();
        let second = replica_of(&first).await;
        let proxy = Proxy::start(address(&first)).await.unwrap();
        Self {
            first,
            second,
            proxy,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}/", self.proxy.address())
    }

    pub(crate) async fn manager(&self) -> ConnectionManager {
        let client = Client::open(self.url()).unwrap();
        let config = ConnectionManagerConfig::new().set_response_timeout(None);
        ConnectionManager::new_with_config(client, config)
            .await
            .unwrap()
    }

    /// Makes the second server the primary, and the first one its replica. The address still leads to the first one.
    pub(crate) async fn demote(&self) {
        self.second.query("REPLICAOF NO ONE").unwrap();
        let port = self.second.port();
        self.first
            .query(&format!("REPLICAOF 127.0.0.1 {port}"))
            .unwrap();
        until_said(&self.first, "INFO replication", "master_link_status:up").await;
    }

    /// Makes the address lead new connections to the second server.
    pub(crate) fn lead_to_the_primary(&self) {
        self.proxy.lead_to(address(&self.second));
    }
}

fn address(server: &Server) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], server.port()))
}

async fn claims_again(pair: &Pair, store: &RedisStore) {
    assert_eq!(until_granted(store).await, []);
    pair.demote().await;
    let refused = store.claim(&fresh()).await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::ReadOnly, "{refused:?}");
    // Claims stay refused while the address leads to the replica.
    sleep(Duration::from_millis(100)).await;
    let refused = store.claim(&fresh()).await.unwrap_err();
    assert!(refused.is_retryable(), "{refused:?}");

    pair.lead_to_the_primary();
    until_granted(store).await;
    assert_eq!(
        until_granted(store).await,
        [],
        "the new primary is lost again"
    );
    let records = pair.second.query("DBSIZE").unwrap();
    assert_ne!(records, "1", "the claims are not on the new primary");
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn a_store_whose_server_was_demoted_claims_again() {
    let pair = Pair::start().await;
    let store = RedisStore::connect(&pair.url()).await.unwrap();
    claims_again(&pair, &store).await;
}

/// The store can replace any connection, also one that the caller made, with either protocol.
#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn a_connection_of_the_caller_is_replaced_too() {
    let pair = Pair::start().await;
    let store = RedisStore::new(pair.manager().await);
    claims_again(&pair, &store).await;

    let pair = Pair::start().await;
    let store = RedisStore::connect(&format!("{}?protocol=resp3", pair.url())).await;
    claims_again(&pair, &store.unwrap()).await;
}

/// With `wait_for_replicas`, writes have a separate connection. The replica refuses writes but not reads, and the
/// connection of the reads must be replaced nevertheless.
#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn reads_go_to_the_new_primary_with_the_writes() {
    let pair = Pair::start().await;
    let patience = Duration::from_secs(1);
    let store =
        RedisStore::new(pair.manager().await).wait_for_replicas(pair.manager().await, 0, patience);
    claims_again(&pair, &store).await;

    // Cuts the replica off, so that only the primary has new records.
    pair.first.query("CONFIG SET masterauth nonsense").unwrap();
    pair.first.query("REPLICAOF 127.0.0.1 1").unwrap();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let claim = fresh();
        let granted = store.claim(&claim).await;
        if granted.is_ok() && matches!(store.get(&claim.id).await, Ok(Some(_))) {
            break;
        }
        assert!(Instant::now() < deadline, "reads stay on the replica");
        sleep(Duration::from_millis(20)).await;
    }
}

/// The engine repeats the refused claim, so the caller does nothing.
#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn the_first_call_after_a_failover_succeeds() {
    let pair = Pair::start().await;
    let idem = Idem::builder(RedisStore::connect(&pair.url()).await.unwrap())
        .store_patience(PATIENCE)
        .build();
    pair.demote().await;
    pair.lead_to_the_primary();
    let call = Call::new("demotion.call", "key", "request", HOUR);
    let answer = idem.run(call, async || Ok::<_, Error>(7)).await;
    assert_eq!(answer.unwrap(), 7);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn a_thousand_refused_claims_make_one_connection() {
    let pair = Pair::start().await;
    let store = RedisStore::connect(&pair.url()).await.unwrap();
    pair.demote().await;
    let before = pair.proxy.accepted();
    let begun = Instant::now();
    let mut claims = JoinSet::new();
    for _ in 0..1000 {
        let store = store.clone();
        claims.spawn(async move { store.claim(&fresh()).await });
    }
    let claims = timeout(PATIENCE, claims.join_all());
    for answer in claims.await.expect("a claim hangs") {
        let error = answer.unwrap_err();
        assert!(error.is_retryable(), "{error:?}");
    }
    until_reconnected(&pair, before).await;
    // One reconnection immediately, then at most one a second. A slow machine may need several seconds.
    let made = pair.proxy.accepted() - before;
    assert!(made <= 1 + begun.elapsed().as_secs(), "{made} connections");

    pair.lead_to_the_primary();
    until_granted(&store).await;
}

async fn until_reconnected(pair: &Pair, before: u64) {
    let deadline = Instant::now() + PATIENCE;
    while pair.proxy.accepted() == before {
        assert!(Instant::now() < deadline, "never reconnected");
        sleep(Duration::from_millis(5)).await;
    }
}
