//! Another process in the middle of a transaction: paused for longer than any time-out, disconnected, and killed.

use std::time::Duration;

use idem_runtime::advanced::RunOptions;
use idem_runtime::key::RecordId;
use idem_runtime::record::{Record, RecordState};
use idem_runtime::{Call, Error, Idem, SqliteStore};
use idem_tests::backends::OPERATION;
use idem_tests::claims::{end_lease, identity};
use idem_tests::ledger::Database;
use idem_tests::places::{self, Place};
use idem_tests::sql::AnyPool;
use idem_tests::{on_stores, until};

use super::{Caller, Home, unique_key};

on_stores! { [versions] Shop::of:
    a_pause_before_the_commit_changes_nothing,
    a_step_of_a_killed_process_is_committed_or_rolled_back,
}

mod servers {
    use super::*;

    on_stores! { [server versions] Shop::of:
        a_connection_closed_during_a_pause_is_rolled_back,
        a_step_cannot_commit_after_a_takeover,
    }
}

/// Time-out of the store and of a busy file, in milliseconds.
const TIMEOUT: u64 = 200;
const TTL: Duration = Duration::from_secs(600);

/// A database with a ledger, and this process's handle on it.
struct Shop<S: Database> {
    home: Home,
    idem: Idem<S>,
    pool: S::Pool,
}

impl<S: Database> Shop<S> {
    async fn of(place: Place<S>) -> Self {
        let home = Home::of(place).await;
        let (store, pool) = S::connect(&home.address).await.unwrap();
        store.make_ledger(&pool).await.unwrap();
        let timeout = Duration::from_millis(TIMEOUT);
        let idem = Idem::builder(store)
            .store_timeout(timeout)
            .store_patience(timeout)
            .build();
        Self { home, idem, pool }
    }

    /// Committed receipts of a key.
    async fn receipts(&self, key: &str) -> Vec<String> {
        let mut ledger = S::ledger(&self.pool).await.unwrap();
        ledger.remove(key).unwrap_or_default()
    }

    async fn record(&self, key: &str) -> Option<Record> {
        let id = RecordId::of(&identity("", OPERATION, key));
        self.idem.store().get(&id).await.unwrap()
    }

    /// Ends the lease of a process that was killed or is paused. The transaction of a killed one may hold a lock for a
    /// moment.
    async fn end_lease(&self, key: &str) {
        let record = self.record(key).await.unwrap();
        until(async || end_lease(self.idem.store(), &record).await.is_ok()).await;
    }

    /// Makes a call of this process in a transaction, for the same request.
    async fn transact(&self, key: &str) -> Result<String, Error> {
        let call = Call::new(OPERATION, key, "request", TTL);
        self.idem
            .run_in_transaction(call, RunOptions::new(), async |tx, _| {
                S::charge(tx, key, "ours").await.unwrap();
                Ok("ours".to_owned())
            })
            .await
    }

    /// Makes a call with a lease, and with a step in a transaction.
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

    /// Starts another process, and stops it between its effect and its commit.
    async fn transacting(&self, key: &str, sql: &str) -> Caller {
        // It has to connect first.
        let timeout = (5 * TIMEOUT).to_string();
        let arguments = ["transact", &self.home.address, key, &timeout, sql, "theirs"];
        let mut caller = Caller::start(&arguments);
        assert_eq!(caller.next_line().await, "running");
        caller
    }

    /// Starts another process, and stops it between the effect of its step and the step's commit.
    async fn stepping(&self, key: &str, lease: Duration) -> Caller {
        let lease = lease.as_millis().to_string();
        let arguments = ["step", &self.home.address, key, &lease, "theirs"];
        let mut caller = Caller::start(&arguments);
        assert_eq!(caller.next_line().await, "running");
        caller
    }
}

/// Retries until there is an answer.
async fn at_last(mut call: impl AsyncFnMut() -> Result<String, Error>) -> String {
    let mut answer = None;
    until(async || {
        match call().await {
            Ok(value) => answer = Some(value),
            Err(error) => assert!(error.is_retryable(), "{error:?}"),
        }
        answer.is_some()
    })
    .await;
    answer.unwrap()
}

/// There is no lease to lose: a concurrent caller gets a retryable error, and the commit is the only effect.
async fn a_pause_before_the_commit_changes_nothing<S: Database>(shop: Shop<S>) {
    let key = unique_key();
    let mut owner = shop.transacting(&key, "").await;
    owner.pause().await;
    // Long compared with every time-out: this tests elapsed time.
    tokio::time::sleep(Duration::from_millis(10 * TIMEOUT)).await;
    let error = shop.transact(&key).await.unwrap_err();
    assert!(error.is_retryable(), "{error:?}");
    assert!(shop.receipts(&key).await.is_empty());

    owner.resume().await;
    owner.proceed().await;
    assert_eq!(owner.next_line().await, "executed theirs");
    assert_eq!(at_last(async || shop.transact(&key).await).await, "theirs");
    assert_eq!(shop.receipts(&key).await, ["theirs"]);
}

/// The server does not wait for the paused process. It rolls the transaction back, and the call that ran in the
/// meantime is the only effect.
async fn a_connection_closed_during_a_pause_is_rolled_back<S: Database>(shop: Shop<S>) {
    // Longer than the other process needs for its next statement on a busy machine.
    let closing = match S::any(&shop.pool) {
        AnyPool::MySql(_) => "SET SESSION wait_timeout = 3",
        AnyPool::Postgres(_) | AnyPool::Sqlite(_) => {
            "SET idle_in_transaction_session_timeout = '3s'"
        }
    };
    let key = unique_key();
    let mut owner = shop.transacting(&key, closing).await;
    owner.pause().await;
    assert_eq!(at_last(async || shop.transact(&key).await).await, "ours");
    tokio::time::sleep(Duration::from_millis(10 * TIMEOUT)).await;

    owner.resume().await;
    owner.proceed().await;
    assert_eq!(owner.next_line().await, "store");
    assert_eq!(shop.receipts(&key).await, ["ours"]);
    // It retries, because the error is retryable, and has time to connect.
    let again = ["transact", &shop.home.address, &key, "30000", "", "theirs"];
    assert_eq!(Caller::start(&again).next_line().await, "replayed ours");
    assert_eq!(shop.receipts(&key).await, ["ours"]);
}

/// Killed before the commit, the step has not happened; killed after it, the step does not run again.
async fn a_step_of_a_killed_process_is_committed_or_rolled_back<S: Database>(shop: Shop<S>) {
    let (before, after) = (unique_key(), unique_key());
    // Dropped, it is killed.
    drop(shop.stepping(&before, TTL).await);
    shop.end_lease(&before).await;
    assert_eq!(at_last(async || shop.step(&before).await).await, "ours");
    assert_eq!(shop.receipts(&before).await, ["ours"]);

    let mut owner = shop.stepping(&after, TTL).await;
    owner.proceed().await;
    assert_eq!(owner.next_line().await, "saved");
    drop(owner);
    shop.end_lease(&after).await;
    assert_eq!(at_last(async || shop.step(&after).await).await, "theirs");
    assert_eq!(shop.receipts(&after).await, ["theirs"]);
}

/// Another process takes over while the step runs, and its own step is the only effect.
async fn a_step_cannot_commit_after_a_takeover<S: Database>(shop: Shop<S>) {
    let key = unique_key();
    let mut owner = shop.stepping(&key, TTL).await;
    owner.pause().await;
    shop.end_lease(&key).await;
    assert_eq!(at_last(async || shop.step(&key).await).await, "ours");
    owner.resume().await;
    owner.proceed().await;
    // The call gets the stored outcome, although its step was refused.
    let answer = owner.next_line().await;
    assert!(
        answer == "replayed ours" || answer == "lease-lost",
        "{answer}"
    );
    assert_eq!(shop.receipts(&key).await, ["ours"]);
}

/// No other process can write during the transaction, so none can take over: the step is the only effect. The lease ends
/// in real time, because the file is locked. Whether its owner notices makes no difference.
async fn a_paused_step_keeps_its_lock_on_the_file(shop: Shop<SqliteStore>) {
    const SHORT_LEASE: Duration = Duration::from_millis(400);
    let key = unique_key();
    let mut owner = shop.stepping(&key, SHORT_LEASE).await;
    owner.pause().await;
    tokio::time::sleep(Duration::from_millis(10 * TIMEOUT)).await;
    let error = shop.step(&key).await.unwrap_err();
    assert!(error.is_retryable(), "{error:?}");
    owner.resume().await;
    owner.proceed().await;
    let mut answer = owner.next_line().await;
    if answer == "saved" {
        owner.proceed().await;
        answer = owner.next_line().await;
    }
    // Its heartbeat may have given up the lease by then; the step stays committed.
    assert!(
        answer == "executed theirs" || answer == "lease-lost",
        "{answer}"
    );
    assert_eq!(at_last(async || shop.step(&key).await).await, "theirs");
    assert_eq!(shop.receipts(&key).await, ["theirs"]);
    let state = shop.record(&key).await.map(|it| it.state);
    assert_eq!(state, Some(RecordState::Completed));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_step_on_sqlite() {
    a_paused_step_keeps_its_lock_on_the_file(Shop::of(places::sqlite()).await).await;
}
