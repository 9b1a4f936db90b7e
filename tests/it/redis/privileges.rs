//! Users with exactly the documented privileges can use the store. The tests read the privileges from the
//! documentation.

use std::collections::BTreeSet;
use std::time::Duration;

use ::redis::Client;
use ::redis::aio::ConnectionManager;
use ::redis::cluster::ClusterClient;
use idem_runtime::error::StoreErrorKind;
use idem_runtime::record::Timestamp;
use idem_runtime::store::{
    ClaimOutcome, ClaimRequest, FencedWrite, Filter, PageRequest, Resolution, Resolved, StepStore,
};
use idem_runtime::{OnCrash, RedisStore, Store};
use idem_servers::{Options, RedisCluster, Server};
use idem_tests::claims::again;

use super::key;
use super::resharding::{OpenSlot, slot_of};
use crate::records::{HOUR, claim, outcome, own};

const STORE: &str = include_str!("../../../idem-runtime/src/store/redis.rs");

/// Privileges in the lists of the section "Privileges" of a source file, each list with the words before its colon.
pub(crate) struct Documented(Vec<(String, Vec<String>)>);

impl Documented {
    pub(crate) fn of(source: &str) -> Self {
        let lines = source
            .lines()
            .map(|line| line.trim_start().trim_start_matches("///").trim());
        let section = lines
            .skip_while(|line| *line != "# Privileges")
            .skip(1)
            .take_while(|line| !line.starts_with("# "));
        let items: Vec<_> = section
            .filter_map(|line| line.strip_prefix("- ")?.split_once(": "))
            .map(|(when, list)| {
                let words = list.trim_matches('`').split(' ');
                (when.to_owned(), words.map(str::to_owned).collect())
            })
            .collect();
        assert!(!items.is_empty(), "no privileges are documented");
        Self(items)
    }

    /// Command that creates a user with all documented privileges on these keys.
    pub(crate) fn all(&self, keys: &str) -> String {
        self.user(keys, |_| true)
    }

    fn user(&self, keys: &str, is_meant: impl Fn(&str) -> bool) -> String {
        let meant = self.0.iter().filter(|(when, _)| is_meant(when));
        let words: Vec<_> = meant.flat_map(|(_, words)| words.clone()).collect();
        assert!(words.iter().all(|it| it.starts_with('+')), "{words:?}");
        format!("ACL SETUSER caller on >secret ~{keys} {}", words.join(" "))
    }
}

/// URL with the login of the user.
pub(crate) fn as_caller(url: &str) -> String {
    url.replace("redis://", "redis://caller:secret@")
}

/// Refused commands, without `CLIENT SETINFO`, which clients send but do not need.
pub(crate) fn refused(server: &Server) -> BTreeSet<String> {
    let log = server.query("ACL LOG").unwrap();
    let lines: Vec<_> = log.lines().map(str::trim).collect();
    let objects = lines.windows(2).filter(|two| two[0] == "object");
    objects
        .map(|two| two[1].to_owned())
        .filter(|it| it != "client|setinfo")
        .collect()
}

/// Makes every transition that calls need.
async fn calls(store: &RedisStore, name: &str) {
    let payload = idem_runtime::record::Payload {
        codec: "json/1".into(),
        bytes: b"1"[..].into(),
    };
    let named = |part: &str| claim(&format!("{name}-{part}"));
    // A claim, a renewal, saved steps, a completion and a replay.
    let first = named("first");
    let owner = own(store, &first).await;
    assert_eq!(
        store.renew(&owner, HOUR).await.unwrap(),
        FencedWrite::Applied
    );
    for _ in 0..2 {
        let saved = store.save_step(&owner, "step", &payload).await.unwrap();
        assert_eq!(saved, FencedWrite::Applied);
    }
    let steps = store.saved_steps(&owner).await.unwrap();
    assert_eq!(steps.unwrap().len(), 1);
    let done = store.complete(&owner, &outcome(b"1")).await.unwrap();
    assert_eq!(done, FencedWrite::Applied);
    let replayed = store.claim(&again(&first)).await.unwrap();
    assert!(
        matches!(replayed, ClaimOutcome::Existing(_)),
        "{replayed:?}"
    );
    assert!(store.get(&first.id).await.unwrap().is_some());
    // A release and a new claim, an interruption and its resolution, an erasure and a new claim.
    let second = ClaimRequest {
        on_crash: OnCrash::Refuse,
        ..named("second")
    };
    let owner = own(store, &second).await;
    assert_eq!(store.release(&owner).await.unwrap(), FencedWrite::Applied);
    let second = again(&second);
    let owner = own(store, &second).await;
    assert_eq!(store.interrupt(&owner).await.unwrap(), FencedWrite::Applied);
    for resolution in [Resolution::Complete(outcome(b"2")), Resolution::Erase] {
        let record = store.get(&second.id).await.unwrap().unwrap();
        let resolved = store.resolve(&record.observation(), &resolution).await;
        assert_eq!(resolved.unwrap(), Resolved::Done, "{resolution:?}");
    }
    own(store, &again(&second)).await;
    // A takeover of a lapsed record, and a claim of an expired one, which deletes its steps.
    let lapsed = ClaimRequest {
        lease: Duration::ZERO,
        ..named("lapsed")
    };
    own(store, &lapsed).await;
    let record = store.get(&lapsed.id).await.unwrap().unwrap();
    let taken = store
        .take_over(&record.observation(), &again(&lapsed))
        .await;
    assert!(matches!(taken.unwrap(), ClaimOutcome::Granted(_)));
    let expired = ClaimRequest {
        retention: Duration::ZERO,
        ..named("expired")
    };
    let owner = own(store, &expired).await;
    store.save_step(&owner, "step", &payload).await.unwrap();
    store.complete(&owner, &outcome(b"1")).await.unwrap();
    own(store, &again(&expired)).await;
}

/// Lists and purges, as an operator and a purger do.
async fn maintenance(store: &RedisStore, name: &str) {
    let gone = ClaimRequest {
        lease: Duration::ZERO,
        retention: Duration::ZERO,
        ..claim(&format!("{name}-gone"))
    };
    let unknown = ClaimRequest {
        on_crash: OnCrash::Refuse,
        ..ClaimRequest {
            identity: claim(&format!("{name}-unknown")).identity,
            id: claim(&format!("{name}-unknown")).id,
            ..gone.clone()
        }
    };
    own(store, &gone).await;
    own(store, &unknown).await;
    let everything = PageRequest {
        limit: 1000,
        after: None,
    };
    let listed = store.list(&Filter::default(), &everything).await.unwrap();
    assert!(!listed.records.is_empty());
    let (mut removed, mut interrupted) = (0, 0);
    loop {
        let purged = store.purge(1000, Timestamp::MAX).await.unwrap();
        removed += purged.removed;
        interrupted += purged.interrupted;
        if !purged.more {
            break;
        }
    }
    assert!(removed > 0 && interrupted == 1, "{removed} {interrupted}");
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn the_documented_privileges_are_enough_for_one_server() {
    let server = Server::redis(&Options::fast().set("maxmemory-policy", "allkeys-lru")).unwrap();
    server.query(&Documented::of(STORE).all("idem:*")).unwrap();
    let url = format!("{}1", as_caller(&server.url()));
    let store = RedisStore::connect(&url).await.unwrap();
    assert!(store.warn_of_eviction().await.unwrap());
    calls(&store, "plain").await;
    maintenance(&store, "plain").await;
    let manager = ConnectionManager::new(Client::open(url).unwrap());
    let patience = Duration::from_millis(100);
    let waits = store.wait_for_replicas(manager.await.unwrap(), 0, patience);
    calls(&waits, "waits").await;
    assert_eq!(refused(&server), BTreeSet::new());
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn the_privileges_marked_always_are_enough_for_calls() {
    let server = Server::redis(&Options::fast()).unwrap();
    let user = Documented::of(STORE).user("idem:*", |when| when == "always");
    server.query(&user).unwrap();
    let store = RedisStore::connect(&as_caller(&server.url()))
        .await
        .unwrap();
    calls(&store, "plain").await;
    assert_eq!(refused(&server), BTreeSet::from(["info".to_owned()]));
    let error = store.purge(10, Timestamp::MAX).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Denied, "{error:?}");
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn the_documented_privileges_are_enough_for_a_cluster() {
    let cluster = RedisCluster::start(&Options::fast()).unwrap();
    let user = Documented::of(STORE).user("idem:*", |when| !when.contains("database"));
    for node in cluster.nodes() {
        node.query(&user).unwrap();
    }
    let urls: Vec<_> = cluster.urls().iter().map(|it| as_caller(it)).collect();
    let store = RedisStore::connect_cluster(urls.iter().map(String::as_str))
        .await
        .unwrap();
    store.warn_of_eviction().await.unwrap();
    calls(&store, "plain").await;
    maintenance(&store, "plain").await;
    let client = ClusterClient::new(urls).unwrap();
    let connection = client.get_async_connection().await.unwrap();
    let patience = Duration::from_millis(100);
    let waits = store.clone().wait_for_replicas(connection, 0, patience);
    calls(&waits, "waits").await;

    // A completion that is redirected, because its key is being moved.
    let moved = claim("moved");
    let owner = own(&store, &moved).await;
    OpenSlot::new(&cluster, slot_of(&moved)).migrate(&key("idem:", &moved));
    let done = store.complete(&owner, &outcome(b"1")).await.unwrap();
    assert_eq!(done, FencedWrite::Applied);
    for node in cluster.nodes() {
        assert_eq!(refused(node), BTreeSet::new());
    }
}
