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

use std::sync::Arc;
use std::time::{Duration, Instant};

use idem_runtime::{Idem, Store};
use idem_tests::on_stores;
use idem_tests::places::{Backend, Place, shared};

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

/// A store of the server.
struct Records {
    place: &'static str,
    idem: Idem<Arc<dyn Store>>,
}

impl Records {
    async fn open<S: Backend>(place: Place<S>) -> Self {
        Self {
            place: place.name(),
            idem: Idem::new(shared(place).await),
        }
    }
}

async fn every_operation_runs_once<C>(
    client: &str,
    Records { place, idem }: Records,
    losses: Kinds,
    send: impl FnOnce(Work) -> C,
) where
    C: Future<Output = Answers>,
{
    let name = format!("{client} on {place}");
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

/// Generates the tests of a client.
macro_rules! client {
    ($client:ident, $losses:expr, $send:expr $(, #[ignore = $needs:literal])? $(, if $installed:path)?) => {
        mod $client {
            use super::*;

            on_stores! { [clients] $(#[ignore = $needs])? Records::open: runs_every_operation_once }

            async fn runs_every_operation_once(records: Records) {
                $(if !$installed() { return; })?
                every_operation_runs_once(stringify!($client), records, $losses, $send).await;
            }
        }
    };
}

client!(idem_client, ANY_LOSS, own::send_all);
client!(curl, ANY_LOSS, programs::curl);
client!(
    requests,
    ANY_LOSS,
    |work| programs::python("with_requests.py", work),
    #[ignore = "needs Python's clients: cargo xtask test runs it"]
);
// The SDK does not retry a request whose reply breaks off: it raises an error immediately.
client!(
    stripe,
    BEFORE_THE_REPLY,
    |work| programs::python("with_stripe.py", work),
    #[ignore = "needs Python's clients: cargo xtask test runs it"]
);
client!(fetch, ANY_LOSS, programs::fetch, if programs::node_is_installed);
