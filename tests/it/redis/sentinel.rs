//! Stores on the primary that sentinels name. The case table runs on such a store too (`conformance: redis_sentinel::*`).

use std::time::Duration;

use idem_runtime::RedisStore;
use idem_runtime::error::StoreErrorKind;
use idem_runtime::store::redis::RedisConnection;
use idem_servers::{Options, RedisSentinels};
use idem_tests::until;
use tokio::task::spawn_blocking;

use super::until_granted;

async fn start() -> RedisSentinels {
    let started = spawn_blocking(|| RedisSentinels::start(&Options::fast()));
    started.await.unwrap().unwrap()
}

async fn connect(
    sentinels: &RedisSentinels,
    name: &str,
) -> Result<RedisStore, idem_runtime::error::StoreError> {
    let urls = sentinels.urls();
    RedisStore::connect_sentinel(urls.iter().map(String::as_str), &format!("redis://{name}/")).await
}

/// Number of keys of a server.
fn keys(sentinels: &RedisSentinels, server: usize) -> u64 {
    let size = sentinels.servers()[server].query("DBSIZE").unwrap();
    size.parse().unwrap()
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn a_store_finds_the_new_primary_after_a_kill_and_after_a_pause() {
    let sentinels = start().await;
    let reads = connect(&sentinels, RedisSentinels::NAME).await.unwrap();
    let urls = sentinels.urls();
    let primary = format!("redis://{}/", RedisSentinels::NAME);
    let writes = RedisConnection::connect_sentinel(urls.iter().map(String::as_str), &primary);
    let waiting = connect(&sentinels, RedisSentinels::NAME)
        .await
        .unwrap()
        .wait_for_replicas(writes.await.unwrap(), 1, Duration::from_secs(1));
    let stores = [reads, waiting];

    let killed = sentinels.primary().unwrap();
    sentinels.servers()[killed].kill().unwrap();
    for store in &stores {
        until_granted(store).await;
    }
    let second = sentinels.primary().unwrap();
    assert_ne!(second, killed);
    assert_eq!(
        keys(&sentinels, second),
        2,
        "the claims are on the new primary"
    );

    sentinels.servers()[killed].restart().unwrap();
    assert_eq!(sentinels.wait_until_complete().unwrap(), second);
    sentinels.servers()[second].pause().unwrap();
    for store in &stores {
        until_granted(store).await;
    }
    let third = sentinels.primary().unwrap();
    assert_ne!(third, second);
    assert_eq!(keys(&sentinels, third), 4);

    // The old primary comes back as one, and is demoted. The stores stay where they are.
    sentinels.servers()[second].resume().unwrap();
    assert_eq!(sentinels.wait_until_complete().unwrap(), third);
    for store in &stores {
        until_granted(store).await;
    }
    assert_eq!(keys(&sentinels, third), 6);
}

/// A failover by hand closes no connection of the old primary, which answers as a replica afterwards.
#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn a_demoted_primary_leads_to_a_new_search() {
    let sentinels = start().await;
    let store = connect(&sentinels, RedisSentinels::NAME).await.unwrap();
    until_granted(&store).await;
    let first = sentinels.primary().unwrap();
    let failover = format!("SENTINEL FAILOVER {}", RedisSentinels::NAME);
    sentinels.sentinels()[0].query(&failover).unwrap();
    until(async || sentinels.primary().is_some_and(|it| it != first)).await;
    let second = sentinels.wait_until_complete().unwrap();
    let before = keys(&sentinels, second);
    until_granted(&store).await;
    assert_eq!(keys(&sentinels, second), before + 1);
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn wrong_names_and_addresses_are_errors() {
    let sentinels = start().await;
    let error = connect(&sentinels, "nobody").await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error:?}");
    assert!(
        error.to_string().contains("no primary of this name"),
        "{error}"
    );
    // A server in the place of a sentinel.
    let url = sentinels.servers()[0].url();
    let error = RedisStore::connect_sentinel([&*url], "redis://idem/").await;
    assert!(error.is_err());
    let error =
        RedisStore::connect_sentinel(["redis://127.0.0.1:1/"], "unix:///run/redis/socket").await;
    assert_eq!(error.unwrap_err().kind(), StoreErrorKind::Other);
}
