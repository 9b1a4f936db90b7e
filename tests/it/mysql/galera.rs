//! Several nodes of Galera: a service whose processes use different nodes keeps the rules of the contract. The case table
//! runs on a pool with connections to all nodes (`conformance: galera::*`).

use std::net::SocketAddr;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use idem_runtime::record::{ClaimId, Owner, Payload};
use idem_runtime::store::operator::{OperatorStore as _, Severity};
use idem_runtime::store::{
    ClaimInTransaction, ClaimOutcome, ClaimRequest, FencedWrite, TransactionalStore as _,
};
use idem_runtime::{MySqlStore, State, Store, StoreErrorKind};
use idem_servers::{GaleraCluster, Options};
use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions};
use tokio::sync::RwLock;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::records::{fresh, outcome, own};

/// Started once for all tests, because a start takes seconds. It runs until this process ends.
static CLUSTER: LazyLock<GaleraCluster> = LazyLock::new(|| {
    let cluster = GaleraCluster::start(&Options::fast()).unwrap();
    cluster.nodes()[0].query("CREATE DATABASE idem").unwrap();
    cluster
});

/// A test that breaks a node has it alone.
static NODES: RwLock<()> = RwLock::const_new(());

/// Longest time until a node that was connected again has its data.
const PATIENCE: Duration = Duration::from_secs(120);

fn address(node: usize) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], CLUSTER.nodes()[node].port()))
}

/// Opens a store on one node, as a process that uses this node does.
async fn open(node: usize) -> MySqlStore {
    let options = MySqlConnectOptions::new()
        .host("127.0.0.1")
        .port(address(node).port())
        .username("root")
        .database("idem");
    let pool = MySqlPoolOptions::new().test_before_acquire(false);
    MySqlStore::new(pool.connect_with(options).await.unwrap())
}

async fn open_all() -> [MySqlStore; 3] {
    let stores = [open(0).await, open(1).await, open(2).await];
    for store in &stores {
        store.migrate().await.unwrap();
    }
    stores
}

/// Creates the same request of another caller.
fn again(claim: &ClaimRequest) -> ClaimRequest {
    ClaimRequest {
        claim_id: ClaimId::random(),
        ..claim.clone()
    }
}

fn payload() -> Payload {
    Payload {
        codec: "json/1".into(),
        bytes: b"1"[..].into(),
    }
}

#[tokio::test]
#[ignore = "needs MariaDB: cargo xtask test runs it"]
async fn tables_are_created_from_all_nodes_at_once() {
    let _nodes = NODES.read().await;
    let mut migrating = JoinSet::new();
    for process in 0..6 {
        let store = open(process % 3).await.with_table("at_once").unwrap();
        migrating.spawn(async move {
            store.migrate().await.unwrap();
            own(&store, &fresh()).await;
        });
    }
    while let Some(migrated) = migrating.join_next().await {
        migrated.unwrap();
    }
}

#[tokio::test]
#[ignore = "needs MariaDB: cargo xtask test runs it"]
async fn each_node_knows_at_once_what_another_has_acknowledged() {
    let _nodes = NODES.read().await;
    let stores = open_all().await;
    for round in 0..200 {
        let [first, second, third] = [round, round + 1, round + 2].map(|it| &stores[it % 3]);
        let claim = fresh();
        let owner = own(first, &claim).await;
        let completed = second.complete(&owner, &outcome(b"1")).await.unwrap();
        assert_eq!(completed, FencedWrite::Applied, "round {round}");
        match third.claim(&again(&claim)).await.unwrap() {
            ClaimOutcome::Existing(record) => assert_eq!(record.state, State::Completed),
            granted => panic!("round {round}: {granted:?}"),
        }
        let record = first.get(&claim.id).await.unwrap();
        assert_eq!(record.map(|it| it.state), Some(State::Completed));
    }
}

#[tokio::test]
#[ignore = "needs MariaDB: cargo xtask test runs it"]
async fn one_of_three_nodes_grants_a_claim() {
    let _nodes = NODES.read().await;
    let stores = open_all().await;
    for _ in 0..20 {
        let claim = fresh();
        let mut claiming = JoinSet::new();
        for caller in 0..9 {
            let (store, claim) = (stores[caller % 3].clone(), again(&claim));
            claiming.spawn(async move { store.claim(&claim).await.unwrap() });
        }
        let outcomes = claiming.join_all().await;
        let granted = outcomes
            .iter()
            .filter(|it| matches!(it, ClaimOutcome::Granted(_)));
        assert_eq!(granted.count(), 1, "{outcomes:?}");
    }
}

#[tokio::test]
#[ignore = "needs MariaDB: cargo xtask test runs it"]
async fn a_takeover_on_another_node_finds_the_steps_and_ends_the_owner() {
    let _nodes = NODES.read().await;
    let stores = open_all().await;
    for round in 0..50 {
        let [first, second] = [round, round + 1].map(|it| &stores[it % 3]);
        let claim = ClaimRequest {
            lease: Duration::from_millis(1),
            ..fresh()
        };
        let owner = own(first, &claim).await;
        let steps = first.steps().unwrap();
        let saved = steps.save_step(&owner, "charge", &payload()).await.unwrap();
        assert_eq!(saved, FencedWrite::Applied);

        let record = second.get(&claim.id).await.unwrap().unwrap();
        let next = again(&claim);
        let ClaimOutcome::Granted(granted) = second
            .take_over(&record.observation(), &next)
            .await
            .unwrap()
        else {
            panic!("round {round}: the record did not change");
        };
        let successor = Owner {
            id: claim.id,
            claim_id: next.claim_id,
            fencing_token: granted.fencing_token,
        };
        assert!(granted.fencing_token > owner.fencing_token);
        let found = second.steps().unwrap().saved_steps(&successor).await;
        assert_eq!(found.unwrap().map(|it| it.len()), Some(1), "round {round}");
        let late = steps.save_step(&owner, "mail", &payload()).await.unwrap();
        assert_eq!(late, FencedWrite::Fenced, "round {round}");
        let late = first.complete(&owner, &outcome(b"2")).await.unwrap();
        assert_eq!(late, FencedWrite::Fenced, "round {round}");
    }
}

/// The lock of a transactional claim holds on one node. The commits decide.
#[tokio::test]
#[ignore = "needs MariaDB: cargo xtask test runs it"]
async fn of_two_transactions_on_two_nodes_one_commits() {
    let _nodes = NODES.read().await;
    let [first, second, third] = open_all().await;
    for _ in 0..10 {
        let winner = fresh();
        let loser = again(&winner);
        let mut transactions = Vec::new();
        for (store, claim) in [(&first, &winner), (&second, &loser)] {
            let mut transaction = store.begin().await.unwrap();
            let claimed = store.claim_in(&mut transaction, None, claim).await.unwrap();
            let ClaimInTransaction::Granted(granted) = claimed else {
                panic!("the locks of another node are invisible: {claimed:?}");
            };
            let owner = Owner {
                id: claim.id,
                claim_id: claim.claim_id,
                fencing_token: granted.fencing_token,
            };
            transactions.push((store, transaction, owner));
        }
        let (store, mut transaction, owner) = transactions.remove(0);
        let outcome = outcome(b"1");
        store
            .complete_in(&mut transaction, &owner, &outcome)
            .await
            .unwrap();
        store.commit(transaction).await.unwrap();

        let (store, mut transaction, owner) = transactions.remove(0);
        let lost = match store.complete_in(&mut transaction, &owner, &outcome).await {
            Ok(_) => store.commit(transaction).await,
            Err(error) => Err(error),
        };
        let lost = lost.unwrap_err();
        assert_eq!(lost.kind(), StoreErrorKind::Conflict, "{lost:?}");
        let record = third.get(&winner.id).await.unwrap().unwrap();
        assert_eq!(record.claim_id, Some(winner.claim_id));
        assert_eq!(record.state, State::Completed);
    }
}

/// A transaction that saves a step has checked its owner on its own node only. Its commit must fail if the record was
/// taken over on another node meanwhile.
#[tokio::test]
#[ignore = "needs MariaDB: cargo xtask test runs it"]
async fn a_takeover_on_another_node_undoes_an_open_step() {
    let _nodes = NODES.read().await;
    let [first, second, _] = open_all().await;
    let claim = ClaimRequest {
        lease: Duration::from_millis(1),
        ..fresh()
    };
    let owner = own(&first, &claim).await;
    let mut transaction = first.begin().await.unwrap();
    let saved = first
        .save_step_in(&mut transaction, &owner, "charge", &payload())
        .await;
    assert_eq!(saved.unwrap(), FencedWrite::Applied);

    let record = second.get(&claim.id).await.unwrap().unwrap();
    let next = again(&claim);
    let taken = second
        .take_over(&record.observation(), &next)
        .await
        .unwrap();
    let ClaimOutcome::Granted(granted) = taken else {
        panic!("{taken:?}");
    };
    let undone = first.commit(transaction).await.unwrap_err();
    assert_eq!(undone.kind(), StoreErrorKind::Conflict, "{undone:?}");
    let successor = Owner {
        id: claim.id,
        claim_id: next.claim_id,
        fencing_token: granted.fencing_token,
    };
    let steps = first.steps().unwrap().saved_steps(&successor).await;
    assert_eq!(steps.unwrap().map(|it| it.len()), Some(0));
}

#[tokio::test]
#[ignore = "needs MariaDB: cargo xtask test runs it"]
async fn a_node_without_a_majority_refuses_until_it_rejoins() {
    let _nodes = NODES.write().await;
    let [majority, _, minority] = open_all().await;
    let claim = fresh();
    own(&minority, &claim).await;
    CLUSTER.isolate(2).unwrap();
    let deadline = Instant::now() + PATIENCE;
    // Until the node notices, a claim waits for the others, or loses to a conflict.
    let refused = loop {
        let limit = Duration::from_secs(5);
        if let Ok(Err(error)) = tokio::time::timeout(limit, minority.claim(&fresh())).await {
            assert!(error.is_retryable(), "{error:?}");
            if error.kind() == StoreErrorKind::Unavailable {
                break error;
            }
        }
        assert!(Instant::now() < deadline, "the node still answers");
        sleep(Duration::from_millis(50)).await;
    };
    assert!(refused.to_string().contains("majority"), "{refused}");
    let error = minority.get(&claim.id).await.unwrap_err();
    assert!(error.is_retryable(), "{error:?}");
    let findings = minority.findings().await;
    let loss = findings.iter().find(|it| it.check == "loss of the server");
    assert_eq!(
        loss.map(|it| it.severity),
        Some(Severity::Problem),
        "{loss:?}"
    );

    let later = fresh();
    own(&majority, &later).await;
    CLUSTER.reconnect(2).unwrap();
    CLUSTER.wait_until_complete().unwrap();
    let record = minority.get(&later.id).await.unwrap();
    assert_eq!(record.map(|it| it.state), Some(State::Running));
    own(&minority, &fresh()).await;
    let findings = minority.findings().await;
    let loss = findings.iter().find(|it| it.check == "loss of the server");
    assert_eq!(loss.map(|it| it.severity), Some(Severity::Ok), "{loss:?}");
}
