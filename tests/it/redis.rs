//! Behaviour of `RedisStore` that the case table does not cover.

pub(crate) mod demotion;
mod drops;
pub(crate) mod error_replies;
mod failover;
mod native;
pub(crate) mod privileges;
pub(crate) mod resharding;
mod sentinel;
mod stuck;
mod values;

use std::time::{Duration, Instant};

use ::redis::Client;
use ::redis::aio::ConnectionManager;
use idem_runtime::error::StoreErrorKind;
use idem_runtime::record::{Outcome, Timestamp};
use idem_runtime::store::{ClaimOutcome, ClaimRequest, FencedWrite};
use idem_runtime::{OnCrash, RedisStore, Store};
use idem_servers::Server;
use idem_tests::claims::again;
use idem_tests::until;
use tokio::net::TcpListener;

use crate::records::{self, fresh, own};

fn url() -> String {
    std::env::var("IDEM_TEST_REDIS_URL").unwrap()
}

async fn connect() -> ConnectionManager {
    let client = Client::open(url()).unwrap();
    ConnectionManager::new(client).await.unwrap()
}

/// A store with a unique key prefix, and the prefix.
async fn store() -> (RedisStore, String) {
    let prefix = format!("it-{:032x}:", rand::random::<u128>());
    let store = RedisStore::connect(&url()).await.unwrap();
    (store.with_prefix(&prefix).unwrap(), prefix)
}

/// Claims fresh keys until a claim is granted. Returns the kinds of the errors until then, all of which can be retried.
async fn until_granted(store: &RedisStore) -> Vec<StoreErrorKind> {
    let mut kinds = Vec::new();
    until(async || match store.claim(&fresh()).await {
        Ok(ClaimOutcome::Granted(_)) => true,
        Ok(other) => panic!("{other:?} for a fresh key"),
        Err(error) => {
            assert!(error.is_retryable(), "{error:?}");
            kinds.push(error.kind());
            false
        }
    })
    .await;
    kinds
}

/// Asks a server until its answer contains this text.
async fn until_said(server: &Server, question: &str, answer: &str) {
    until(async || server.query(question).unwrap().contains(answer)).await;
}

fn claim(on_crash: OnCrash) -> ClaimRequest {
    ClaimRequest {
        lease: Duration::from_secs(30),
        on_crash,
        ..records::claim("k")
    }
}

fn key(prefix: &str, claim: &ClaimRequest) -> String {
    let hex: String = claim
        .id
        .as_bytes()
        .iter()
        .map(|it| format!("{it:02x}"))
        .collect();
    format!("{prefix}{hex}")
}

/// Time until a key expires, in milliseconds; -1 if it never does.
async fn ttl(key: &str) -> i64 {
    ::redis::cmd("PTTL")
        .arg(key)
        .query_async(&mut connect().await)
        .await
        .unwrap()
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn scripts_that_the_server_forgot_are_loaded_again() {
    let (store, _) = store().await;
    let claim = claim(OnCrash::Rerun);
    let owner = own(&store, &claim).await;
    let () = ::redis::cmd("SCRIPT")
        .arg("FLUSH")
        .query_async(&mut connect().await)
        .await
        .unwrap();
    let done = store.complete(&owner, &Outcome::Unrecorded).await.unwrap();
    assert_eq!(done, FencedWrite::Applied);
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn foreign_values_are_corrupt_and_left_unchanged() {
    let (store, prefix) = store().await;
    let claim = claim(OnCrash::Rerun);
    let key = key(&prefix, &claim);
    let mut connection = connect().await;
    for write in [
        vec!["SET", &key, "x"],
        vec!["SET", &key, ""],
        vec!["HSET", &key, "a", "b"],
        // A record as it was stored before the first release.
        vec![
            "HSET",
            &key,
            "status",
            "running - 3600 rerun 1 000102030405060708090a0b0c0d0e0f 1 1 1",
        ],
    ] {
        let mut command = ::redis::cmd(write[0]);
        let () = command
            .arg(&write[1..])
            .query_async(&mut connection)
            .await
            .unwrap();
        let before: Vec<u8> = ::redis::cmd("DUMP")
            .arg(&key)
            .query_async(&mut connection)
            .await
            .unwrap();
        let error = store.claim(&claim).await.unwrap_err();
        assert_eq!(
            error.kind(),
            StoreErrorKind::Corrupt,
            "{write:?}: {error:?}"
        );
        assert!(error.to_string().contains("repair the key"), "{error}");
        store.purge(100, Timestamp::MAX).await.unwrap();
        let after: Vec<u8> = ::redis::cmd("DUMP")
            .arg(&key)
            .query_async(&mut connection)
            .await
            .unwrap();
        assert_eq!(before, after);
        let () = ::redis::cmd("DEL")
            .arg(&key)
            .query_async(&mut connection)
            .await
            .unwrap();
    }
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn a_wrong_password_is_denied() {
    let url = url().replacen("redis://", "redis://nobody:wrong@", 1);
    let error = RedisStore::connect(&url).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Denied, "{error:?}");
}

#[tokio::test]
async fn a_server_that_never_answers_is_a_timeout() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}/", silent.local_addr().unwrap());
    let error = RedisStore::connect(&url).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Timeout, "{error:?}");
    assert!(error.is_retryable());
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn only_records_that_may_expire_have_an_expiry() {
    // In seconds.
    const RETENTION: i64 = 3600;
    const SLOW: i64 = 20;
    for (on_crash, lease) in [
        (OnCrash::Rerun, 30),
        (OnCrash::Rerun, RETENTION),
        (OnCrash::Refuse, 30),
    ] {
        let (store, prefix) = store().await;
        let mut claim = claim(on_crash);
        claim.lease = Duration::from_secs(lease as u64);
        let key = key(&prefix, &claim);
        let owner = own(&store, &claim).await;
        let left = ttl(&key).await;
        if on_crash == OnCrash::Rerun {
            assert!(left > (lease + RETENTION - SLOW) * 1000, "{left}");
        } else {
            assert_eq!(left, -1, "{on_crash:?} runs");
        }
        store.complete(&owner, &Outcome::Unrecorded).await.unwrap();
        let left = ttl(&key).await / 1000;
        assert!(
            (RETENTION - SLOW..=RETENTION).contains(&left),
            "{on_crash:?} after {lease} s: {left}"
        );
    }
    // A shorter retention than a minute: the fencing token is remembered for a minute.
    let (store, prefix) = store().await;
    let mut claim = claim(OnCrash::Rerun);
    claim.retention = Duration::from_secs(1);
    let owner = own(&store, &claim).await;
    store.complete(&owner, &Outcome::Unrecorded).await.unwrap();
    let left = ttl(&key(&prefix, &claim)).await / 1000;
    assert!((60 - SLOW..=60).contains(&left), "{left}");
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn a_replay_writes_nothing() {
    let (store, prefix) = store().await;
    let claim = claim(OnCrash::Rerun);
    let owner = own(&store, &claim).await;
    store.complete(&owner, &Outcome::Unrecorded).await.unwrap();
    let key = key(&prefix, &claim);
    let mut connection = connect().await;
    // The EXEC of a transaction that watches the key fails after any write to the key, even of an equal value.
    let client = Client::open(url()).unwrap();
    let mut watching = client.get_multiplexed_async_connection().await.unwrap();
    let () = ::redis::cmd("WATCH")
        .arg(&key)
        .query_async(&mut watching)
        .await
        .unwrap();
    assert!(matches!(
        store.claim(&again(&claim)).await.unwrap(),
        ClaimOutcome::Existing(_)
    ));
    let untouched = ::redis::pipe()
        .atomic()
        .cmd("PING")
        .query_async::<Option<Vec<String>>>(&mut watching)
        .await
        .unwrap();
    assert!(untouched.is_some(), "the replay wrote its record");
    // Checks that a write is detected: otherwise this test could not fail.
    let () = ::redis::cmd("WATCH")
        .arg(&key)
        .query_async(&mut watching)
        .await
        .unwrap();
    let () = ::redis::cmd("PERSIST")
        .arg(&key)
        .query_async(&mut connection)
        .await
        .unwrap();
    let touched = ::redis::pipe()
        .atomic()
        .cmd("PING")
        .query_async::<Option<Vec<String>>>(&mut watching)
        .await
        .unwrap();
    assert!(touched.is_none());
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn a_lost_connection_is_replaced() {
    let client = Client::open(url()).unwrap();
    let mut connection = ConnectionManager::new(client).await.unwrap();
    let id: i64 = ::redis::cmd("CLIENT")
        .arg("ID")
        .query_async(&mut connection)
        .await
        .unwrap();
    let store = RedisStore::new(connection);
    let () = ::redis::cmd("CLIENT")
        .arg("KILL")
        .arg("ID")
        .arg(id)
        .query_async(&mut connect().await)
        .await
        .unwrap();
    let begun = Instant::now();
    let id = claim(OnCrash::Rerun).id;
    while let Err(error) = store.get(&id).await {
        assert!(error.is_retryable(), "{error:?}");
        assert!(begun.elapsed() < Duration::from_secs(10), "{error:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn a_claim_with_too_few_replicas_fails_and_its_repetition_finds_it() {
    let (store, _) = store().await;
    let patience = Duration::from_millis(20);
    let strict = store
        .clone()
        .wait_for_replicas(connect().await, 1000, patience);
    let claim = claim(OnCrash::Rerun);
    let error = strict.claim(&claim).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error:?}");
    // The claim took effect, so a repeated claim with its claim id is granted.
    let relaxed = store.wait_for_replicas(connect().await, 0, patience);
    let owner = own(&relaxed, &claim).await;
    for _ in 0..2 {
        let done = relaxed
            .complete(&owner, &Outcome::Unrecorded)
            .await
            .unwrap();
        assert_eq!(done, FencedWrite::Applied);
    }
}

#[tokio::test]
async fn prefixes_with_characters_that_redis_interprets_are_refused() {
    let manager = ConnectionManager::new_lazy_with_config(
        Client::open("redis://127.0.0.1:1/").unwrap(),
        ::redis::aio::ConnectionManagerConfig::new(),
    );
    let store = RedisStore::new(manager.unwrap());
    for prefix in ["", "a*", "a{b}", "a b", "ä", &"a".repeat(65)] {
        let error = store.clone().with_prefix(prefix).unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Schema, "{prefix:?}");
    }
    assert!(store.with_prefix("shop/idem:").is_ok());
}
