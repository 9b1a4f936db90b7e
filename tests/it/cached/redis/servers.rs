//! The cache on dedicated servers: one server that is demoted, and users with no more than the documented privileges.

use std::collections::BTreeSet;
use std::time::Duration;

use idem_runtime::conformance::faults::FaultStore;
use idem_runtime::store::{ClaimRequest, Resolution};
use idem_runtime::{Cached, MemoryStore, Store};
use idem_servers::{Options, RedisCluster, Server};
use redis::aio::ConnectionManager;
use tokio::time::{Instant, sleep};

use super::super::{ended, found, observed};
use super::{Counted, Service};
use crate::redis::demotion::Pair;
use crate::redis::privileges::{Documented, as_caller, refused};

/// A failover behind the address of the cache: the old primary keeps its connections open and refuses writes.
#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn a_cache_whose_server_was_demoted_finds_the_new_primary() {
    let pair = Pair::start().await;
    let service = Service {
        connection: pair.manager().await,
        ..Service::at(&pair.url())
    };
    let cached = service.process();
    let first = ended(&service.store, "first", b"1").await;
    service.found_and_cached(&cached, &first).await;
    pair.demote().await;
    pair.lead_to_the_primary();

    let deadline = Instant::now() + Duration::from_secs(60);
    for number in 0.. {
        let claim = ended(&service.store, &format!("later-{number}"), b"1").await;
        found(&cached, &claim).await;
        sleep(Duration::from_millis(50)).await;
        let there = pair
            .second
            .query(&format!("EXISTS {}", service.key(&claim)));
        if there.unwrap() == "1" {
            break;
        }
        assert!(Instant::now() < deadline, "no record is cached any more");
    }
}

const CACHED: &str = include_str!("../../../../idem-runtime/src/store/cached.rs");

/// Sends each kind of Redis command that a cache uses. Cache hits prove that Redis answered.
async fn walk_of_a_cache(process: impl Fn() -> Cached<Counted>, store: &Counted) {
    let claim = ended(store, "walk", b"1").await;
    let deadline = Instant::now() + Duration::from_secs(30);
    while process_hits(&process, &claim).await == 0 {
        assert!(Instant::now() < deadline, "no record is cached");
        sleep(Duration::from_millis(10)).await;
    }
    let seen = observed(store, &claim).await;
    for _ in 0..2 {
        process().resolve(&seen, &Resolution::Erase).await.unwrap();
    }
}

async fn process_hits(process: impl Fn() -> Cached<Counted>, claim: &ClaimRequest) -> u64 {
    let cached = process();
    found(&cached, claim).await;
    cached.stats().hits
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn the_documented_privileges_are_enough_for_a_cache() {
    let server = Server::redis(&Options::fast()).unwrap();
    let mut service = Service::at(&server.url());
    let user = Documented::of(CACHED).all(&format!("{}:*", service.name));
    server.query(&user).unwrap();
    let client = redis::Client::open(format!("{}1", as_caller(&server.url()))).unwrap();
    service.connection = ConnectionManager::new(client).await.unwrap();
    walk_of_a_cache(|| service.process(), &service.store).await;
    // The cache drops an unreadable value.
    let claim = ended(&service.store, "garbage", b"1").await;
    server
        .query(&format!("-n 1 SET {} garbage", service.key(&claim)))
        .unwrap();
    let cached = service.process();
    found(&cached, &claim).await;
    assert!(!cached.stats().circuit_open);
    assert_eq!(refused(&server), BTreeSet::new());
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn the_documented_privileges_are_enough_for_a_cache_on_a_cluster() {
    let cluster = RedisCluster::start(&Options::fast()).unwrap();
    let name = "privileges";
    let user = Documented::of(CACHED).all(&format!("{name}:*"));
    for node in cluster.nodes() {
        node.query(&user).unwrap();
    }
    let urls: Vec<_> = cluster.urls().iter().map(|it| as_caller(it)).collect();
    let client = redis::cluster::ClusterClient::new(urls).unwrap();
    let connection = client.get_async_connection().await.unwrap();
    let store = FaultStore::new(MemoryStore::new());
    let process = || {
        Cached::in_redis(store.clone(), connection.clone(), name).timeout(Duration::from_secs(10))
    };
    walk_of_a_cache(process, &store).await;
    for node in cluster.nodes() {
        assert_eq!(refused(node), BTreeSet::new());
    }
}
