//! Latency below the capacity, and what a call costs in processor time, beside statements by hand.
//!
//! Calls arrive at a fixed rate, whether or not others are answered, and the time of each counts from its arrival. The
//! rates are a quarter, a half, three quarters and nine tenths of what 64 tasks complete one after the other; of the two
//! that are compared, the slower one sets the rates of both. Both take turns of a second.
//!
//! The ratio is that of the median times. The table also has the percentiles, and the processor time of the client and of
//! the servers in microseconds a call, which is seconds for a million calls.
//!
//! Then one task makes calls one after the other: with pools of different sizes, over a network with a round trip of
//! 0.4 ms, with results of 100 KB and 1 MB, and the first calls of new handles.
//!
//! `cargo bench -p idem-benches --bench latency -- postgres` measures the tables whose titles contain a word, and
//! `--fsync=1ms` does so on a disk whose flushes take a millisecond longer.
#![expect(
    clippy::unwrap_used,
    reason = "a benchmark that cannot run has nothing to say"
)]

mod arrivals;
mod contestants;
mod network;
mod one_by_one;
mod processor;

use std::path::Path;

use idem_runtime::{MySqlStore, PostgresStore, SqliteStore};
use idem_tests::private::{Kind, Private, Writes};
use idem_tests::ratio::{Effort, is_asked_for};
use idem_tests::slow_disk;
use tokio::runtime::Runtime;

use contestants::{on_redis, on_sql};

/// Stores that are measured.
const KINDS: [Kind; 5] = [
    Kind::Sqlite,
    Kind::Postgres,
    Kind::MariaDb,
    Kind::MySql,
    Kind::Redis,
];
/// Number of connections of a pool.
const CONNECTIONS: u32 = 16;
/// Number of connections to a SQLite file, whose writers wait for one another.
const CONNECTIONS_TO_A_FILE: u32 = 4;

fn main() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    slow_disk::from_arguments(directory).unwrap();
    let effort = Effort::from_arguments();
    let directory = tempfile::tempdir_in(directory).unwrap();
    let runtime = Runtime::new().unwrap();
    for kind in KINDS {
        if is_asked_for(&kind.to_string()) && kind.is_installed() {
            let private = Private::start(kind, Writes::Flushed, directory.path()).unwrap();
            runtime.block_on(measure(kind, &private, effort));
        }
    }
}

async fn measure(kind: Kind, private: &Private, effort: Effort) {
    let address = &*private.address;
    let pairs = match kind {
        Kind::Sqlite => on_sql::<SqliteStore>(address, CONNECTIONS_TO_A_FILE, "near").await,
        Kind::Postgres => on_sql::<PostgresStore>(address, CONNECTIONS, "near").await,
        Kind::MariaDb | Kind::MySql => on_sql::<MySqlStore>(address, CONNECTIONS, "near").await,
        _ => on_redis(address, "near").await,
    };
    for pair in &pairs {
        arrivals::measure(kind, pair, private, effort).await;
    }
    one_by_one::measure(kind, private, effort).await;
}
