//! Faults of servers and records while the workers work.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use idem_servers::Server;
use idem_tests::at_database;
use rand::RngExt;
use tokio::task::{JoinHandle, block_in_place};

use super::callers::busy_key;
use super::database::OnePool;
use super::reports::{Suspect, lock};
use crate::worker::wall_clock;

/// Time in which clients must be connected again after the server is back, in milliseconds.
const RECOVERED: u64 = 2_500;
/// The limit for a cluster: a node that comes back waits five seconds before it serves.
const CLUSTER_RECOVERED: u64 = 9_000;

/// Times at which the server was unreachable, in milliseconds of the wall clock.
#[derive(Debug, Default)]
pub(super) struct Outages(Mutex<Vec<(u64, u64)>>);

impl Outages {
    /// Returns true if the server was unreachable at any time during the suspect's interval.
    pub(super) fn excuse(&self, suspect: &Suspect) -> bool {
        lock(&self.0)
            .iter()
            .any(|(from, to)| suspect.begun_at <= *to && suspect.ended_at >= *from)
    }

    fn add(&self, from: u64, servers: &[Server]) {
        let recovered = match servers {
            [_] => RECOVERED,
            _ => CLUSTER_RECOVERED,
        };
        lock(&self.0).push((from, wall_clock() + recovered));
    }

    /// Stops one of the servers, sometimes for longer than a store time-out, and continues it.
    pub(super) async fn stop(&self, servers: &[Server]) -> anyhow::Result<()> {
        let (server, time) = {
            let mut rng = rand::rng();
            let server = &servers[rng.random_range(0..servers.len())];
            (server, Duration::from_millis(rng.random_range(100..3_500)))
        };
        let from = wall_clock();
        block_in_place(|| server.pause())?;
        tokio::time::sleep(time).await;
        block_in_place(|| server.resume())?;
        self.add(from, servers);
        Ok(())
    }

    /// Kills one of the servers, and restarts it with its data.
    pub(super) fn kill(&self, servers: &[Server]) -> anyhow::Result<()> {
        let server = &servers[rand::rng().random_range(0..servers.len())];
        let from = wall_clock();
        block_in_place(|| {
            server.kill()?;
            server.restart()
        })?;
        self.add(from, servers);
        Ok(())
    }
}

/// Another session that locks records for seconds, until it is stopped.
pub(super) struct Locker {
    task: JoinHandle<()>,
    stops: Arc<AtomicBool>,
}

impl Locker {
    /// Starts the session. `None` for a store without locks.
    pub(super) fn start(address: &str, begun_at: u64, locks: &Arc<AtomicU64>) -> Option<Self> {
        let stops = Arc::new(AtomicBool::new(false));
        let (of, locks, until) = (address.to_owned(), Arc::clone(locks), Arc::clone(&stops));
        let task = at_database!(
            address,
            S => tokio::spawn(async move { hold_locks::<S>(&of, begun_at, &locks, &until).await }),
            else return None
        );
        Some(Self { task, stops })
    }

    pub(super) async fn stop(self) {
        self.stops.store(true, Ordering::Relaxed);
        // A closed connection holds no lock.
        let _ = tokio::time::timeout(Duration::from_secs(10), self.task).await;
    }
}

async fn hold_locks<S: OnePool>(
    address: &str,
    begun_at: u64,
    locks: &AtomicU64,
    stops: &AtomicBool,
) {
    while !stops.load(Ordering::Relaxed) {
        let pause = rand::rng().random_range(10..200);
        tokio::time::sleep(Duration::from_millis(pause)).await;
        let hold = rand::rng().random_range(S::LOCKED);
        let held = async {
            let mut session = S::session(address).await?;
            if S::lock(&mut session, "mixed.busy", &busy_key(begun_at)).await? {
                locks.fetch_add(1, Ordering::Relaxed);
                let until = wall_clock() + hold;
                while wall_clock() < until && !stops.load(Ordering::Relaxed) {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
            S::unlock(&mut session).await
        };
        // The server may be down; the session ends with its connection.
        let _ = tokio::time::timeout(Duration::from_secs(8), held).await;
    }
}
