//! A failover behind one address: the server at its end is demoted and keeps its connections, and the address leads to the
//! new primary from then on. Whoever was connected before goes on by itself.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use ::redis::Client;
use ::redis::aio::{ConnectionManager, ConnectionManagerConfig};
use idem_runtime::record::ClaimId;
use idem_runtime::store::{ClaimOutcome, ClaimRequest};
use idem_runtime::{Call, Error, Idem, RedisStore, Store, StoreErrorKind};
use idem_servers::{Options, Server};
use idem_tests::proxy::Proxy;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::answers::{following, until_said};
use crate::records::HOUR;

/// How long a store may take to find the new primary: some pauses between renewals.
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
        let second = following(&first).await;
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

    /// The second server is the primary, and the first one follows it. The address still leads to the first one.
    pub(crate) async fn demote(&self) {
        self.second.query("REPLICAOF NO ONE").unwrap();
        let port = self.second.port();
        self.first
            .query(&format!("REPLICAOF 127.0.0.1 {port}"))
            .unwrap();
        until_said(&self.first, "INFO replication", "master_link_status:up").await;
    }

    pub(crate) fn lead_to_the_primary(&self) {
        self.proxy.lead_to(address(&self.second));
    }
}

fn address(server: &Server) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], server.port()))
}

fn fresh() -> ClaimRequest {
    ClaimRequest {
        claim_id: ClaimId::random(),
        ..crate::records::claim(&format!("{:032x}", rand::random::<u128>()))
    }
}

/// Claims until one is granted, and gives the kinds of the errors until then.
async fn until_granted(store: &RedisStore) -> Vec<StoreErrorKind> {
    let deadline = Instant::now() + PATIENCE;
    let mut kinds = Vec::new();
    loop {
        match store.claim(&fresh()).await {
            Ok(ClaimOutcome::Granted(_)) => return kinds,
            Ok(other) => panic!("{other:?} for a fresh key"),
            Err(error) => {
                assert!(error.is_retryable(), "{error:?}");
                assert!(Instant::now() < deadline, "never granted: {error:?}");
                kinds.push(error.kind());
                sleep(Duration::from_millis(20)).await;
            }
        }
    }
}

async fn claims_again(pair: &Pair, store: &RedisStore) {
    assert_eq!(until_granted(store).await, []);
    pair.demote().await;
    let refused = store.claim(&fresh()).await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::ReadOnly, "{refused:?}");
    // For as long as the address leads to the replica, that is all that there is to say.
    sleep(Duration::from_millis(100)).await;
    let refused = store.claim(&fresh()).await.unwrap_err();
    assert!(refused.is_retryable(), "{refused:?}");

    pair.lead_to_the_primary();
    until_granted(store).await;
    assert_eq!(until_granted(store).await, [], "not found for good");
    let followed = pair.second.query("DBSIZE").unwrap();
    assert_ne!(followed, "1", "the claims are not on the new primary");
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn a_store_whose_server_was_demoted_claims_again() {
    let pair = Pair::start().await;
    let store = RedisStore::open(&pair.url()).await.unwrap();
    claims_again(&pair, &store).await;
}

/// The renewal needs nothing but the connection, whoever made it, and by either protocol.
#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn a_connection_of_the_caller_is_given_up_as_well() {
    let pair = Pair::start().await;
    let store = RedisStore::new(pair.manager().await);
    claims_again(&pair, &store).await;

    let pair = Pair::start().await;
    let store = RedisStore::open(&format!("{}?protocol=resp3", pair.url())).await;
    claims_again(&pair, &store.unwrap()).await;
}

/// Writes go over a connection of their own then, and the reads, which nothing refuses, must leave the replica as well.
#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn reads_leave_the_replica_with_the_writes() {
    let pair = Pair::start().await;
    let patience = Duration::from_secs(1);
    let store =
        RedisStore::new(pair.manager().await).wait_for_replicas(pair.manager().await, 0, patience);
    claims_again(&pair, &store).await;

    // What the replica does not receive any more is there for whoever reads the primary.
    pair.first.query("CONFIG SET masterauth nonsense").unwrap();
    pair.first.query("REPLICAOF 127.0.0.1 1").unwrap();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let claim = fresh();
        let granted = store.claim(&claim).await;
        if granted.is_ok() && matches!(store.get(&claim.id).await, Ok(Some(_))) {
            break;
        }
        assert!(Instant::now() < deadline, "the replica is read for ever");
        sleep(Duration::from_millis(20)).await;
    }
}

/// Nobody who calls has to do anything: the engine repeats the claim.
#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn a_call_after_a_failover_needs_no_second_one() {
    let pair = Pair::start().await;
    let idem = Idem::builder(RedisStore::open(&pair.url()).await.unwrap())
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
    let store = RedisStore::open(&pair.url()).await.unwrap();
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
    // One at first, and one a second at most, however long this machine took.
    let made = pair.proxy.accepted() - before;
    assert!(made <= 1 + begun.elapsed().as_secs(), "{made} connections");

    pair.lead_to_the_primary();
    until_granted(&store).await;
}

async fn until_reconnected(pair: &Pair, before: u64) {
    let deadline = Instant::now() + PATIENCE;
    while pair.proxy.accepted() == before {
        assert!(Instant::now() < deadline, "never connected anew");
        sleep(Duration::from_millis(5)).await;
    }
}
