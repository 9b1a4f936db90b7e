//! Several servers that accept writes, of Galera or of Group Replication: a service whose processes use different servers
//! keeps the rules of the contract. The case table runs on a pool with connections to all of them (`conformance: on_galera::*`,
//! `conformance: on_group::*`).

use std::net::SocketAddr;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use idem_runtime::error::StoreErrorKind;
use idem_runtime::operator::{Finding, OperatorStore as _, Severity};
use idem_runtime::record::{Owner, Payload, RecordState};
use idem_runtime::store::{
    ClaimInTransaction, ClaimOutcome, ClaimRequest, FencedWrite, TransactionalStore as _,
};
use idem_runtime::{Error, MySqlStore, Store};
use idem_servers::{GaleraCluster, GroupReplication, Options, Primaries, Server};
use idem_tests::claims::again;
use idem_tests::proxy::Proxy;
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlPool, MySqlPoolOptions};
use tokio::sync::RwLock;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::records::{fresh, outcome, own};
use crate::transaction::Failure;
use crate::transaction::bank::{Bank, CREDIT, DEBIT, Mode, NOTE, ON_ERROR, OnError};

/// Servers are started once for all tests, because a start takes seconds. They run until this process ends.
static GALERA: LazyLock<GaleraCluster> = LazyLock::new(|| {
    let cluster = GaleraCluster::start(&Options::fast()).unwrap();
    cluster.nodes()[0].query("CREATE DATABASE idem").unwrap();
    cluster
});

static GROUP: LazyLock<GroupReplication> = LazyLock::new(|| {
    let group = GroupReplication::start(Primaries::All, &Options::fast()).unwrap();
    group.members()[0].query("CREATE DATABASE idem").unwrap();
    group
});

/// A test that breaks a node has it alone.
static NODES: RwLock<()> = RwLock::const_new(());

/// Longest time until a node that was connected again has its data.
const PATIENCE: Duration = Duration::from_secs(120);

/// Ports of three servers, and the user of the database `idem` on them.
struct Servers {
    ports: Vec<u16>,
    user: MySqlConnectOptions,
}

impl Servers {
    fn galera() -> Self {
        let user = MySqlConnectOptions::new().username("root");
        let ports = GALERA.nodes().iter().map(Server::port).collect();
        Self { ports, user }
    }

    fn group() -> Self {
        Self::of(&GROUP)
    }

    fn of(group: &GroupReplication) -> Self {
        let user = MySqlConnectOptions::new();
        Self {
            ports: group.members().iter().map(Server::port).collect(),
            user: user.username("idem").password("secret"),
        }
    }

    /// Opens a store on one server, as a process that uses this server does.
    async fn open(&self, server: usize) -> MySqlStore {
        let options = self.user.clone().host("127.0.0.1").database("idem");
        let options = options.port(self.ports[server]);
        let pool = MySqlPoolOptions::new().test_before_acquire(false);
        MySqlStore::new(pool.connect_with(options).await.unwrap())
    }

    async fn open_all(&self) -> [MySqlStore; 3] {
        let stores = [self.open(0).await, self.open(1).await, self.open(2).await];
        for store in &stores {
            store.migrate().await.unwrap();
        }
        stores
    }
}

/// Makes a test of each case on each kind of servers.
macro_rules! on_servers {
    ($($case:ident),+ $(,)?) => {
        mod galera {
            $(
                #[tokio::test]
                #[ignore = "needs MariaDB: cargo xtask test runs it"]
                async fn $case() {
                    let _nodes = super::NODES.read().await;
                    super::$case(super::Servers::galera()).await;
                }
            )+
        }

        mod group {
            $(
                #[tokio::test]
                #[ignore = "needs MySQL: cargo xtask test runs it"]
                async fn $case() {
                    super::$case(super::Servers::group()).await;
                }
            )+
        }
    };
}

on_servers! {
    tables_are_created_from_all_servers_at_once,
    each_server_knows_at_once_what_another_has_acknowledged,
    one_of_three_servers_grants_a_claim,
    a_takeover_on_another_server_finds_the_steps_and_ends_the_owner,
    of_two_transactions_on_two_servers_one_commits,
    a_takeover_on_another_server_undoes_an_open_step,
    a_body_that_goes_on_after_a_conflict_of_servers_moves_nothing,
}

fn payload() -> Payload {
    Payload {
        codec: "json/1".into(),
        bytes: b"1"[..].into(),
    }
}

async fn tables_are_created_from_all_servers_at_once(servers: Servers) {
    let mut migrating = JoinSet::new();
    for process in 0..6 {
        let store = servers
            .open(process % 3)
            .await
            .with_table("at_once")
            .unwrap();
        migrating.spawn(async move {
            store.migrate().await.unwrap();
            own(&store, &fresh()).await;
        });
    }
    while let Some(migrated) = migrating.join_next().await {
        migrated.unwrap();
    }
}

async fn each_server_knows_at_once_what_another_has_acknowledged(servers: Servers) {
    let stores = servers.open_all().await;
    for round in 0..200 {
        let [first, second, third] = [round, round + 1, round + 2].map(|it| &stores[it % 3]);
        let claim = fresh();
        let owner = own(first, &claim).await;
        let completed = second.complete(&owner, &outcome(b"1")).await.unwrap();
        assert_eq!(completed, FencedWrite::Applied, "round {round}");
        match third.claim(&again(&claim)).await.unwrap() {
            ClaimOutcome::Existing(record) => assert_eq!(record.state, RecordState::Completed),
            granted => panic!("round {round}: {granted:?}"),
        }
        let record = first.get(&claim.id).await.unwrap();
        assert_eq!(record.map(|it| it.state), Some(RecordState::Completed));
    }
}

async fn one_of_three_servers_grants_a_claim(servers: Servers) {
    let stores = servers.open_all().await;
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

async fn a_takeover_on_another_server_finds_the_steps_and_ends_the_owner(servers: Servers) {
    let stores = servers.open_all().await;
    for round in 0..50 {
        let [first, second] = [round, round + 1].map(|it| &stores[it % 3]);
        let claim = ClaimRequest {
            lease: Duration::ZERO,
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

/// The lock of a transactional claim holds on one server. The commits decide.
async fn of_two_transactions_on_two_servers_one_commits(servers: Servers) {
    let [first, second, third] = servers.open_all().await;
    for _ in 0..10 {
        let winner = fresh();
        let loser = again(&winner);
        let mut transactions = Vec::new();
        for (store, claim) in [(&first, &winner), (&second, &loser)] {
            let mut transaction = store.begin().await.unwrap();
            let claimed = store.claim_in(&mut transaction, None, claim).await.unwrap();
            let ClaimInTransaction::Granted(granted) = claimed else {
                panic!("the locks of another server are invisible: {claimed:?}");
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
        assert_eq!(record.state, RecordState::Completed);
    }
}

/// A transaction that saves a step has checked its owner on its own server only. Its commit must fail if the record was
/// taken over on another server meanwhile.
async fn a_takeover_on_another_server_undoes_an_open_step(servers: Servers) {
    let [first, second, _] = servers.open_all().await;
    let claim = ClaimRequest {
        lease: Duration::ZERO,
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

/// Another server commits a change of a row that an open transaction has changed. The transaction is undone, and its
/// session goes on.
async fn a_body_that_goes_on_after_a_conflict_of_servers_moves_nothing(servers: Servers) {
    let store = servers.open(0).await;
    let elsewhere = servers.open(1).await.pool().clone();
    let pool = store.pool().clone();
    let bank = Bank::over(store, pool, None).await;
    // A group refuses to change tables without a primary key.
    let number = "ALTER TABLE transfers ADD number BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY";
    super::execute(&bank.pool, number).await;
    for mode in [Mode::Tx, Mode::Step] {
        for on_error in ON_ERROR {
            let key = format!("{mode:?} {on_error:?}");
            let answer = bank
                .call(mode, &key, async |tx| {
                    on_error.run::<MySqlStore>(tx, NOTE, &key).await?;
                    on_error.run::<MySqlStore>(tx, DEBIT, "left").await?;
                    move_back(&elsewhere).await;
                    let undone = wait_until_undone(tx).await;
                    match on_error {
                        OnError::GiveBack => return Err(undone.into()),
                        OnError::Ignore => {}
                        OnError::Repeat => on_error.run::<MySqlStore>(tx, CREDIT, "right").await?,
                    }
                    Ok(1)
                })
                .await;
            match (answer, on_error) {
                (Err(Failure::Database(_)), OnError::GiveBack) => {}
                (
                    Err(Failure::Idempotency(Error::Store(error))),
                    OnError::Ignore | OnError::Repeat,
                ) => {
                    assert_eq!(error.kind(), StoreErrorKind::Conflict, "{key}: {error}");
                }
                (answer, _) => panic!("{key}: {answer:?}"),
            }
            // One statement, because the other server's transfer may be applied in between two.
            let sum = "SELECT CAST(sum(balance) AS SIGNED) FROM accounts";
            assert_eq!(bank.number(sum).await, 2000, "{key}");
            assert_eq!(bank.noted(&key).await, 0, "{key}");
            // The key is free.
            let way = ["left", "right"];
            bank.at_last(mode, OnError::GiveBack, &key, way).await;
            assert_eq!(bank.noted(&key).await, 1, "{key}");
            assert_eq!(bank.number(sum).await, 2000, "{key}");
        }
    }
}

/// Commits a transfer on a server that may not have applied yet what another one has committed.
async fn move_back(pool: &MySqlPool) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let moved = async {
            let (mut tx, mut rows) = (pool.begin().await?, 0);
            for (statement, id) in [(CREDIT, "left"), (DEBIT, "right")] {
                let done = sqlx::query(statement).bind(id).execute(&mut *tx).await?;
                rows += done.rows_affected();
            }
            if rows == 2 {
                tx.commit().await?;
            }
            Ok::<_, sqlx::Error>(rows)
        };
        match moved.await {
            Ok(2) => return,
            moved => assert!(Instant::now() < deadline, "{moved:?}"),
        }
        sleep(Duration::from_millis(20)).await;
    }
}

/// Waits until the server has undone the transaction. Returns the error that says so.
async fn wait_until_undone(tx: &mut MySqlConnection) -> sqlx::Error {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let touch = "UPDATE accounts SET balance = balance WHERE id = ?";
        let touched = OnError::GiveBack.run::<MySqlStore>(tx, touch, "left").await;
        if let Err(undone) = touched {
            return undone;
        }
        assert!(Instant::now() < deadline, "the transaction goes on");
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
#[ignore = "needs MariaDB: cargo xtask test runs it"]
async fn a_galera_node_without_a_majority_refuses_until_it_rejoins() {
    let _nodes = NODES.write().await;
    let [majority, _, minority] = Servers::galera().open_all().await;
    let claim = fresh();
    own(&minority, &claim).await;
    GALERA.isolate(2).unwrap();
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
    let loss = finding(&minority, LOSS).await;
    assert_eq!(loss.severity, Severity::Problem, "{loss:?}");

    let later = fresh();
    own(&majority, &later).await;
    GALERA.reconnect(2).unwrap();
    GALERA.wait_until_complete().unwrap();
    let record = minority.get(&later.id).await.unwrap();
    assert_eq!(record.map(|it| it.state), Some(RecordState::Running));
    own(&minority, &fresh()).await;
    let loss = finding(&minority, LOSS).await;
    assert_eq!(loss.severity, Severity::Ok, "{loss:?}");
}

/// Such a node answers a statement that it has not prepared yet as it answers one that waits for a lock in vain.
#[tokio::test]
#[ignore = "needs MariaDB: cargo xtask test runs it"]
async fn connections_to_a_galera_node_without_a_majority_are_replaced() {
    let _nodes = NODES.write().await;
    let servers = Servers::galera();
    let address = |node: usize| SocketAddr::from(([127, 0, 0, 1], servers.ports[node]));
    let proxy = Proxy::start(address(2)).await.unwrap();
    let options = servers.user.clone().host("127.0.0.1").database("idem");
    let options = options.port(proxy.address().port());
    let pool = MySqlPoolOptions::new().test_before_acquire(false);
    let store = MySqlStore::new(pool.connect_with(options).await.unwrap());
    store.migrate().await.unwrap();

    GALERA.isolate(2).unwrap();
    proxy.lead_to(address(0));
    // The connections are still those to the node that is cut off.
    let deadline = Instant::now() + PATIENCE;
    for statement in 0.. {
        let claim = fresh();
        let answers = [
            store.get(&claim.id).await.map(drop),
            store.claim(&claim).await.map(drop),
        ];
        let refused = answers.into_iter().find_map(Result::err);
        let Some(error) = refused else { break };
        assert!(error.is_retryable(), "{error:?}");
        assert!(Instant::now() < deadline, "after {statement}: {error:?}");
        sleep(Duration::from_millis(50)).await;
    }
    GALERA.reconnect(2).unwrap();
    GALERA.wait_until_complete().unwrap();
}

/// Check of what a failover loses.
const LOSS: &str = "loss of the server";

/// The finding of a check.
async fn finding(store: &MySqlStore, check: &str) -> Finding {
    let findings = store.findings().await;
    findings.into_iter().find(|it| it.check == check).unwrap()
}

/// The finding of a check of a server that answers each of them.
async fn finding_among_answers(store: &MySqlStore, check: &str) -> Finding {
    let findings = store.findings().await;
    let has_failed = |it: &Finding| it.found.starts_with("the check failed");
    assert!(!findings.iter().any(has_failed), "{findings:?}");
    findings.into_iter().find(|it| it.check == check).unwrap()
}

#[tokio::test]
#[ignore = "needs MySQL: cargo xtask test runs it"]
async fn group_secondaries_refuse_claims_and_a_primary_alone_says_what_it_lost() {
    let group = GroupReplication::start(Primaries::One, &Options::fast()).unwrap();
    group.members()[0].query("CREATE DATABASE idem").unwrap();
    let servers = Servers::of(&group);
    let primary = servers.open(0).await;
    primary.migrate().await.unwrap();
    own(&primary, &fresh()).await;
    let loss = finding_among_answers(&primary, LOSS).await;
    assert_eq!(loss.severity, Severity::Ok, "{loss:?}");
    assert!(loss.found.contains("is the primary in"), "{loss:?}");

    let deadline = Instant::now() + PATIENCE;
    let secondary = servers.open(1).await;
    // A secondary applies what its primary has committed.
    while let Err(error) = secondary.get(&fresh().id).await {
        assert!(Instant::now() < deadline, "{error:?}");
        sleep(Duration::from_millis(20)).await;
    }
    secondary.migrate().await.unwrap();
    let refused = secondary.claim(&fresh()).await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::ReadOnly, "{refused:?}");
    let loss = finding_among_answers(&secondary, LOSS).await;
    assert!(loss.found.contains("is a secondary in"), "{loss:?}");
    let writable = finding_among_answers(&secondary, "writable").await;
    assert_eq!(writable.severity, Severity::Problem, "{writable:?}");

    for member in &group.members()[1..] {
        member.kill().unwrap();
    }
    loop {
        let loss = finding_among_answers(&primary, LOSS).await;
        if loss.severity == Severity::Problem {
            assert!(loss.found.contains("lost the majority"), "{loss:?}");
            break;
        }
        assert!(Instant::now() < deadline, "{loss:?}");
        sleep(Duration::from_millis(50)).await;
    }
}
