//! Ten processes that start concurrently on an empty database, like the instances of a service after a deploy.

use std::time::Duration;

use idem_runtime::{Call, Error};
use idem_tests::backends::OPERATION;
use idem_tests::ledger::Database;
use idem_tests::on_stores;
use idem_tests::places::{Backend as _, Place};

use super::{Caller, Home};

on_stores! { [versions] Homes::of: ten_processes_migrate_concurrently }

/// An empty database, and one that a single process has migrated.
struct Homes<S: Database> {
    empty: Home,
    migrated: S::Pool,
}

impl<S: Database> Homes<S> {
    async fn of(place: Place<S>) -> Self {
        let migrated = place.home().await.unwrap();
        S::open(&migrated).await.unwrap();
        let mut empty = Home::of(place).await;
        if empty.address.starts_with("sqlite:") {
            // A file that does not exist yet.
            empty.address.push_str(".new");
        }
        Self { empty, migrated }
    }
}

async fn ten_processes_migrate_concurrently<S: Database>(homes: Homes<S>) {
    let address = &homes.empty.address;
    let mut processes: Vec<_> = (0..10)
        .map(|_| Caller::start(&["migrate", address]))
        .collect();
    for process in &mut processes {
        assert_eq!(process.next_line().await, "ready");
    }
    // All processes wait, and start together.
    for process in &mut processes {
        process.proceed().await;
    }
    for process in &mut processes {
        assert_eq!(process.next_line().await, "migrated");
    }
    for process in processes {
        let Caller { mut process, .. } = process;
        assert!(process.wait().await.unwrap().success());
    }
    let idem = homes.empty.open().await;
    let call = Call::new(OPERATION, "k", "request", Duration::from_secs(600));
    let value = idem.run(call, async || Ok::<_, Error>(7)).await;
    assert_eq!(value.unwrap(), 7);
    let (_, pool) = S::connect(address).await.unwrap();
    let applied = S::any(&pool).texts(APPLIED).await.unwrap();
    assert!(!applied.is_empty());
    assert_eq!(
        applied,
        S::any(&homes.migrated).texts(APPLIED).await.unwrap()
    );
}

const APPLIED: &str =
    "SELECT CAST(version AS CHAR(9)) FROM idem_records_migrations ORDER BY version";
