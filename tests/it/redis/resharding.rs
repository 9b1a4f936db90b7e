//! Purges, lists and claims on a Redis Cluster while a slot is half moved, as during resharding.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use ::redis::cluster::ClusterClient;
use idem_runtime::error::StoreError;
use idem_runtime::record::{ClaimId, RecordState, Timestamp};
use idem_runtime::store::{ClaimOutcome, ClaimRequest, FencedWrite, Filter, PageRequest};
use idem_runtime::{OnCrash, RedisStore, Store};
use idem_servers::{Options, RedisCluster, Server};
use tokio::time::sleep;

use super::failover::{slot, slots_of};
use super::key;
use crate::records::{HOUR, claim, outcome, own};

/// Far more than a purge takes on a busy machine.
const PURGED_WITHIN: Duration = Duration::from_secs(60);
const PREFIX: &str = "idem:";
/// Number of records: enough for two of them to share a slot, and for each node to have some.
const RECORDS: usize = 400;

/// A slot whose keys are being moved from one primary to another.
pub(crate) struct OpenSlot<'a> {
    source: &'a Server,
    target: &'a Server,
}

impl<'a> OpenSlot<'a> {
    pub(crate) fn new(cluster: &'a RedisCluster, slot: u16) -> Self {
        let is_primary = |node: &&Server| {
            let replication = node.query("INFO replication").unwrap();
            replication.contains("role:master")
        };
        let has = |node: &Server| {
            let slots = slots_of(node);
            slots
                .iter()
                .any(|(first, last)| (*first..=*last).contains(&slot))
        };
        let primaries: Vec<&Server> = cluster.nodes().iter().filter(is_primary).collect();
        let source = *primaries.iter().find(|it| has(it)).unwrap();
        let target = *primaries.iter().find(|it| !has(it)).unwrap();
        let id = |node: &Server| node.query("CLUSTER MYID").unwrap();
        let (from, to) = (id(source), id(target));
        target
            .query(&format!("CLUSTER SETSLOT {slot} IMPORTING {from}"))
            .unwrap();
        source
            .query(&format!("CLUSTER SETSLOT {slot} MIGRATING {to}"))
            .unwrap();
        Self { source, target }
    }

    /// Moves one key to the other node.
    pub(crate) fn migrate(&self, key: &str) {
        let port = self.target.port();
        let said = self
            .source
            .query(&format!("MIGRATE 127.0.0.1 {port} {key} 0 5000"))
            .unwrap();
        assert_eq!(said, "OK", "{key}");
    }
}

pub(crate) fn slot_of(claim: &ClaimRequest) -> u16 {
    slot(key(PREFIX, claim).as_bytes())
}

/// Finds two claims whose keys share a slot.
fn neighbours(claims: &[ClaimRequest]) -> (ClaimRequest, ClaimRequest) {
    let mut first_of = HashMap::new();
    for claim in claims {
        if let Some(first) = first_of.insert(slot_of(claim), claim) {
            return (first.clone(), claim.clone());
        }
    }
    panic!("no two keys share a slot")
}

/// Claim whose lease lapses immediately, so that a purge marks the record as interrupted.
fn abandoned(number: usize) -> ClaimRequest {
    ClaimRequest {
        lease: Duration::ZERO,
        retention: Duration::ZERO,
        on_crash: OnCrash::Refuse,
        ..claim(&format!("abandoned-{number}"))
    }
}

/// Repeats what fails because the client stands still. See `redis/cluster.rs`.
async fn while_the_client_stands_still<T>(
    mut call: impl AsyncFnMut() -> Result<T, StoreError>,
) -> T {
    let deadline = Instant::now() + PURGED_WITHIN;
    loop {
        match call().await {
            Ok(done) => return done,
            Err(error) if error.is_retryable() && Instant::now() < deadline => {}
            Err(error) => panic!("{error:?}"),
        }
    }
}

async fn purge_all(store: &RedisStore) -> u64 {
    let mut interrupted = 0;
    loop {
        let purged =
            while_the_client_stands_still(async || store.purge(1000, Timestamp::MAX).await);
        let purged = purged.await;
        interrupted += purged.interrupted;
        if !purged.more {
            return interrupted;
        }
    }
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn purges_lists_and_claims_work_while_a_slot_moves() {
    let cluster = RedisCluster::start(&Options::fast()).unwrap();
    let urls = cluster.urls();
    let store = RedisStore::connect_cluster(urls.iter().map(String::as_str))
        .await
        .unwrap();
    let claims: Vec<_> = (0..RECORDS).map(abandoned).collect();
    for claim in &claims {
        own(&store, claim).await;
    }
    let (moved, stays) = neighbours(&claims);
    let open = OpenSlot::new(&cluster, slot_of(&moved));
    open.migrate(&key(PREFIX, &moved));

    // A purge skips keys that are just being moved, and a later purge finds them on either node.
    let mut marked = 0;
    for _ in 0..14 {
        marked += purge_all(&store).await;
        let page = PageRequest {
            limit: 1000,
            after: None,
        };
        let listed =
            while_the_client_stands_still(async || store.list(&Filter::default(), &page).await);
        assert_eq!(listed.await.records.len(), RECORDS);
    }
    // Counted from here, because the reads above take long on a busy machine.
    let deadline = Instant::now() + PURGED_WITHIN;
    while marked < RECORDS as u64 {
        assert!(Instant::now() < deadline, "{marked} of {RECORDS} marked");
        marked += purge_all(&store).await;
        sleep(Duration::from_millis(50)).await;
    }
    for claim in [&moved, &stays] {
        let record = store.get(&claim.id).await.unwrap().unwrap();
        assert_eq!(record.state, RecordState::Interrupted);
    }

    // Claims in that slot work: of existing keys on either node, and of fresh keys.
    let fresh = (0..)
        .map(|number| claim(&format!("fresh-{number}")))
        .find(|it| slot_of(it) == slot_of(&moved))
        .unwrap();
    let owner = own(&store, &fresh).await;
    let done = store.complete(&owner, &outcome(b"1")).await.unwrap();
    assert_eq!(done, FencedWrite::Applied);
    for claim in [moved, stays, fresh] {
        let again = ClaimRequest {
            claim_id: ClaimId::random(),
            lease: HOUR,
            ..claim
        };
        let answer = store.claim(&again).await.unwrap();
        assert!(matches!(answer, ClaimOutcome::Existing(_)), "{answer:?}");
    }
}

/// A write and its `WAIT` are one pipeline, which must be redirected as a whole.
#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn writes_that_wait_for_replicas_work_while_a_slot_moves() {
    let cluster = RedisCluster::start(&Options::fast()).unwrap();
    let connect = async || {
        let client = ClusterClient::new(cluster.urls()).unwrap();
        client.get_async_connection().await.unwrap()
    };
    let store = RedisStore::new(connect().await).wait_for_replicas(
        connect().await,
        0,
        Duration::from_millis(100),
    );
    let claims: Vec<_> = (0..RECORDS).map(|it| claim(&format!("key-{it}"))).collect();
    let (moved, stays) = neighbours(&claims);
    let mut owners = Vec::new();
    for claim in [&moved, &stays] {
        owners.push(own(&store, claim).await);
    }
    let open = OpenSlot::new(&cluster, slot_of(&moved));
    open.migrate(&key(PREFIX, &moved));
    for owner in owners {
        let done = store.complete(&owner, &outcome(b"1")).await.unwrap();
        assert_eq!(done, FencedWrite::Applied);
    }
}
