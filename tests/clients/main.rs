//! Third-party clients, and the crate's own, over a network that loses requests and replies.
//!
//! Each test sends 500 operations with a key each to a server with an
//! [`IdempotencyLayer`](idem_runtime::http::IdempotencyLayer). [`network`] loses four exchanges of ten. The client must
//! answer every operation, the server must run every operation once, and all answers of an operation must be equal.
//!
//! The losses follow from a seed, which each test prints. `IDEM_TEST_SEED`, a decimal number, gives the seed.

#![expect(
    clippy::unwrap_used,
    reason = "a panic fails the test that it happens in"
)]

mod answers;
mod bank;
mod network;
mod own;
mod programs;

use std::time::{Duration, Instant};

use idem_runtime::{Idem, PostgresStore, SqliteStore, Store};
use idem_tests::backends;

use self::answers::Answers;
use self::bank::Bank;
use self::network::{ANY_LOSS, BEFORE_THE_REPLY, Kinds, Network};

const OPERATIONS: u64 = 500;
/// Number of concurrent operations of a client.
const CALLERS: usize = 32;
/// One operation in this many is sent once more after its answer, like a second click of a user.
const SENT_AGAIN: u64 = 5;
/// Retries of every client. The number exceeds [`network::MAX_LOST`], so that some retries are left for 409.
const RETRIES: u32 = 10;
/// Time limit of one test: long enough for a test to see a key that is blocked for a lease.
const TIME_LIMIT: Duration = Duration::from_secs(120);

const SEED: &str = "IDEM_TEST_SEED";

/// Parameters of a client.
#[derive(Debug, Clone)]
struct Work {
    /// Base URL of the proxy.
    base: String,
    /// The prefix of the keys: the key of an operation ends in `-` and its number.
    keys: String,
}

impl Work {
    fn key(&self, operation: u64) -> String {
        format!("{}-{operation}", self.keys)
    }

    /// Number of times that the client sends an operation that is answered.
    fn sends(operation: u64) -> usize {
        1 + usize::from(operation.is_multiple_of(SENT_AGAIN))
    }
}

async fn sqlite<C>(client: &str, losses: Kinds, send: impl FnOnce(Work) -> C)
where
    C: Future<Output = Answers>,
{
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(directory.path().join("idem.sqlite")).await;
    let idem = Idem::new(store.unwrap());
    every_operation_runs_once(&format!("{client} on SQLite"), idem, losses, send).await;
}

async fn postgres<C>(client: &str, losses: Kinds, send: impl FnOnce(Work) -> C)
where
    C: Future<Output = Answers>,
{
    let store = PostgresStore::new(backends::postgres().await.unwrap());
    store.migrate().await.unwrap();
    let idem = Idem::new(store);
    every_operation_runs_once(&format!("{client} on PostgreSQL"), idem, losses, send).await;
}

async fn every_operation_runs_once<S, C>(
    name: &str,
    idem: Idem<S>,
    losses: Kinds,
    send: impl FnOnce(Work) -> C,
) where
    S: Store,
    C: Future<Output = Answers>,
{
    let seed = match std::env::var(SEED) {
        Ok(seed) => seed.parse().expect("IDEM_TEST_SEED is a decimal number"),
        Err(_) => rand::random(),
    };
    println!("{name}: {SEED}={seed}");
    let bank = Bank::open(&idem).await;
    let network = Network::start(bank.address(), seed, losses).await;
    let work = Work {
        base: format!("http://{}", network.address()),
        keys: format!("seed-{seed}"),
    };

    let began = Instant::now();
    let answers = tokio::time::timeout(TIME_LIMIT, send(work)).await;
    let took = began.elapsed().as_secs_f64();
    // Handlers run to their end even if their clients have disconnected.
    let statement = bank.close().await;
    println!("{name}: {took:.1} s; {network}; {statement}");

    let answers = answers.unwrap_or_else(|_| panic!("{name} takes longer than {TIME_LIMIT:?}"));
    let wrong = statement.compare(&answers);
    assert!(
        wrong.is_empty(),
        "{name}, {SEED}={seed}: {} of {OPERATIONS} operations are wrong; {network}; {statement}\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    network.assert_lossy();
}

/// Generates a test of a client on each store.
macro_rules! on_each_store {
    ($client:ident, $losses:expr, $send:expr $(, ignore = $needs:literal)? $(, if $installed:path)?) => {
        mod $client {
            use super::*;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            $(#[ignore = $needs])?
            async fn runs_every_operation_once_on_sqlite() {
                $(if !$installed() { return; })?
                sqlite(stringify!($client), $losses, $send).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            #[ignore = "needs PostgreSQL: cargo xtask test runs it"]
            async fn runs_every_operation_once_on_postgres() {
                $(if !$installed() { return; })?
                postgres(stringify!($client), $losses, $send).await;
            }
        }
    };
}

on_each_store!(idem_client, ANY_LOSS, own::send_all);
on_each_store!(curl, ANY_LOSS, programs::curl);
on_each_store!(
    requests,
    ANY_LOSS,
    |work| programs::python("with_requests.py", work),
    ignore = "needs Python's clients: cargo xtask test runs it"
);
// The SDK does not retry a request whose reply breaks off: it raises an error immediately.
on_each_store!(
    stripe,
    BEFORE_THE_REPLY,
    |work| programs::python("with_stripe.py", work),
    ignore = "needs Python's clients: cargo xtask test runs it"
);
on_each_store!(fetch, ANY_LOSS, programs::fetch, if programs::node_is_installed);
