//! Another process in the middle of a transaction: paused for longer than anything waits, cut off, and killed.

use std::time::Duration;

use idem_runtime::{Call, Error, Idem, MySqlStore, PostgresStore, RunOptions, SqliteStore, State};
use idem_tests::backends::OPERATION;
use idem_tests::ledger::Database;

use super::{Caller, Place, eventually, unique_key};

/// How long the store may take, and a busy file; in milliseconds.
const TIMEOUT: u64 = 200;
const TTL: Duration = Duration::from_secs(600);

/// A database with a ledger, and a handle of this process on it.
struct Shop<S: Database> {
    place: Place,
    idem: Idem<S>,
    pool: S::Pool,
}

impl<S: Database> Shop<S> {
    async fn at(place: Place) -> Self {
        let (store, pool) = S::connect(&place.address).await.unwrap();
        store.make_ledger(&pool).await.unwrap();
        let timeout = Duration::from_millis(TIMEOUT);
        let idem = Idem::builder(store)
            .store_timeout(timeout)
            .store_patience(timeout)
            .build();
        Self { place, idem, pool }
    }

    /// The receipts of a key that are committed.
    async fn receipts(&self, key: &str) -> Vec<String> {
        let mut ledger = S::ledger(&self.pool).await.unwrap();
        ledger.remove(key).unwrap_or_default()
    }

    async fn state(&self, key: &str) -> Option<State> {
        let scope = idem_runtime::Scope::none();
        let found = self.idem.records().find(OPERATION, key, &scope).await;
        found.unwrap().map(|record| record.state)
    }

    /// A call of this process in a transaction, for the same request.
    async fn transact(&self, key: &str) -> Result<String, Error> {
        let call = Call::new(OPERATION, key, "request", TTL);
        self.idem
            .run_in_transaction(call, RunOptions::new(), async |tx, _| {
                S::charge(tx, key, "ours").await.unwrap();
                Ok("ours".to_owned())
            })
            .await
    }

    /// One with a lease, and a step in a transaction.
    async fn step(&self, key: &str) -> Result<String, Error> {
        let call = Call::new(OPERATION, key, "request", TTL);
        let body = async |attempt: idem_runtime::Attempt| {
            let charge = attempt.step_tx(&self.idem, "charge", async |tx| {
                S::charge(tx, key, "ours").await.unwrap();
                Ok("ours".to_owned())
            });
            charge.await
        };
        self.idem.run_with(call, RunOptions::new(), body).await
    }

    /// Another process between its effect and its commit.
    async fn transacting(&self, key: &str, sql: &str) -> Caller {
        let timeout = TIMEOUT.to_string();
        let arguments = [
            "transact",
            &self.place.address,
            key,
            &timeout,
            sql,
            "theirs",
        ];
        let mut caller = Caller::start(&arguments);
        assert_eq!(caller.hear().await, "running");
        caller
    }

    /// Another process between the effect of its step and the commit of it.
    async fn stepping(&self, key: &str, lease: &str) -> Caller {
        let arguments = ["step", &self.place.address, key, lease, "theirs"];
        let mut caller = Caller::start(&arguments);
        assert_eq!(caller.hear().await, "running");
        caller
    }
}

/// Asks until there is an answer.
async fn at_last(mut call: impl AsyncFnMut() -> Result<String, Error>) -> String {
    let mut answer = None;
    eventually("an answer", async || {
        match call().await {
            Ok(value) => answer = Some(value),
            Err(error) => assert!(error.is_retryable(), "{error:?}"),
        }
        answer.is_some()
    })
    .await;
    answer.unwrap()
}

/// There is no lease that could be lost: whoever asks meanwhile is told to come back, and the commit is the one effect.
async fn a_pause_before_the_commit_changes_nothing<S: Database>(place: Place) {
    let (shop, key) = (Shop::<S>::at(place).await, unique_key());
    let mut owner = shop.transacting(&key, "").await;
    owner.pause().await;
    // Long for everything that has a limit: this is about the time that passes.
    tokio::time::sleep(Duration::from_millis(10 * TIMEOUT)).await;
    let error = shop.transact(&key).await.unwrap_err();
    assert!(error.is_retryable(), "{error:?}");
    assert!(shop.receipts(&key).await.is_empty());

    owner.resume().await;
    owner.go_on().await;
    assert_eq!(owner.hear().await, "executed theirs");
    assert_eq!(at_last(async || shop.transact(&key).await).await, "theirs");
    assert_eq!(shop.receipts(&key).await, ["theirs"]);
}

/// The server does not wait for the paused one. It rolls back, and what ran meanwhile is the one effect.
async fn a_connection_closed_meanwhile_is_rolled_back<S: Database>(place: Place, closing: &str) {
    let (shop, key) = (Shop::<S>::at(place).await, unique_key());
    let mut owner = shop.transacting(&key, closing).await;
    owner.pause().await;
    assert_eq!(at_last(async || shop.transact(&key).await).await, "ours");
    tokio::time::sleep(Duration::from_millis(10 * TIMEOUT)).await;

    owner.resume().await;
    owner.go_on().await;
    assert_eq!(owner.hear().await, "store");
    assert_eq!(shop.receipts(&key).await, ["ours"]);
    // It asks again, as it was told to.
    let timeout = TIMEOUT.to_string();
    let again = [
        "transact",
        &shop.place.address,
        &key,
        &timeout,
        "",
        "theirs",
    ];
    assert_eq!(Caller::start(&again).hear().await, "replayed ours");
    assert_eq!(shop.receipts(&key).await, ["ours"]);
}

/// Killed before the commit, the step has not happened; killed after it, the step does not happen again.
async fn a_step_of_the_dead_happened_or_did_not<S: Database>(place: Place) {
    let shop = Shop::<S>::at(place).await;
    let (before, after) = (unique_key(), unique_key());
    // Dropped, it is killed.
    drop(shop.stepping(&before, "400").await);
    assert_eq!(at_last(async || shop.step(&before).await).await, "ours");
    assert_eq!(shop.receipts(&before).await, ["ours"]);

    let mut owner = shop.stepping(&after, "400").await;
    owner.go_on().await;
    assert_eq!(owner.hear().await, "saved");
    drop(owner);
    assert_eq!(at_last(async || shop.step(&after).await).await, "theirs");
    assert_eq!(shop.receipts(&after).await, ["theirs"]);
}

/// Somebody takes over while the step runs, whose own step is the one effect.
async fn a_takeover_refuses_the_commit_of_a_step<S: Database>(place: Place) {
    let (shop, key) = (Shop::<S>::at(place).await, unique_key());
    let mut owner = shop.stepping(&key, "400").await;
    owner.pause().await;
    assert_eq!(at_last(async || shop.step(&key).await).await, "ours");
    owner.resume().await;
    owner.go_on().await;
    // Its call is given what is stored, the step itself having been refused.
    let told = owner.hear().await;
    assert!(told == "replayed ours" || told == "lease-lost", "{told}");
    assert_eq!(shop.receipts(&key).await, ["ours"]);
}

/// Where nobody else writes meanwhile, nobody can take over either: the step is the one effect.
async fn a_paused_step_keeps_the_file<S: Database>(place: Place) {
    let (shop, key) = (Shop::<S>::at(place).await, unique_key());
    let mut owner = shop.stepping(&key, "400").await;
    owner.pause().await;
    tokio::time::sleep(Duration::from_millis(10 * TIMEOUT)).await;
    let error = shop.step(&key).await.unwrap_err();
    assert!(error.is_retryable(), "{error:?}");
    owner.resume().await;
    owner.go_on().await;
    let mut told = owner.hear().await;
    if told == "saved" {
        owner.go_on().await;
        told = owner.hear().await;
    }
    // Its heartbeat may have given the lease up by then; the step stays.
    assert!(told == "executed theirs" || told == "lease-lost", "{told}");
    assert_eq!(at_last(async || shop.step(&key).await).await, "theirs");
    assert_eq!(shop.receipts(&key).await, ["theirs"]);
    assert_eq!(shop.state(&key).await, Some(State::Completed));
}

#[tokio::test(flavor = "multi_thread")]
async fn on_sqlite() {
    a_pause_before_the_commit_changes_nothing::<SqliteStore>(Place::sqlite()).await;
    a_step_of_the_dead_happened_or_did_not::<SqliteStore>(Place::sqlite()).await;
    a_paused_step_keeps_the_file::<SqliteStore>(Place::sqlite()).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn on_postgres() {
    a_pause_before_the_commit_changes_nothing::<PostgresStore>(Place::postgres().await).await;
    let closing = "SET idle_in_transaction_session_timeout = 300";
    let place = Place::postgres().await;
    a_connection_closed_meanwhile_is_rolled_back::<PostgresStore>(place, closing).await;
    a_step_of_the_dead_happened_or_did_not::<PostgresStore>(Place::postgres().await).await;
    a_takeover_refuses_the_commit_of_a_step::<PostgresStore>(Place::postgres().await).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MariaDB: cargo xtask test runs it"]
async fn on_maria_db() {
    a_pause_before_the_commit_changes_nothing::<MySqlStore>(Place::mysql().await).await;
    let place = Place::mysql().await;
    let closing = "SET SESSION wait_timeout = 1";
    a_connection_closed_meanwhile_is_rolled_back::<MySqlStore>(place, closing).await;
    a_step_of_the_dead_happened_or_did_not::<MySqlStore>(Place::mysql().await).await;
    a_takeover_refuses_the_commit_of_a_step::<MySqlStore>(Place::mysql().await).await;
}
