//! Ten processes that start concurrently on an empty database, like the instances of a service after a deploy.

use std::time::Duration;

use idem_runtime::{Call, Error};
use idem_tests::backends::{self, OPERATION};
use idem_tests::on_stores;
use idem_tests::places::{Backend, Place};
use idem_tests::sql::AnyPool;

use super::{Caller, Home};

on_stores! { [versions] empty: ten_processes_migrate_concurrently }

/// An empty database, or a file that does not exist yet.
async fn empty<S: Backend>(place: Place<S>) -> Home {
    let mut home = Home::of(place).await;
    if home.address.starts_with("sqlite:") {
        home.address.push_str(".new");
    }
    home
}

async fn ten_processes_migrate_concurrently(home: Home) {
    let address = &home.address;
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
    let idem = home.open().await;
    let call = Call::new(OPERATION, "k", "request", Duration::from_secs(600));
    let value = idem.run(call, async || Ok::<_, Error>(7)).await;
    assert_eq!(value.unwrap(), 7);
    let (_, pool) = backends::open_pooled(address, "").await.unwrap();
    let pool = pool.unwrap();
    let versions: &[_] = match pool {
        AnyPool::Postgres(_) => &["1", "2", "3", "4", "5", "6", "7"],
        AnyPool::Sqlite(_) | AnyPool::MySql(_) => &["1", "2", "3", "4", "5", "6"],
    };
    let applied = pool.texts(APPLIED).await.unwrap();
    // PostgreSQL pads them.
    let applied: Vec<_> = applied.iter().map(|it| it.trim_end()).collect();
    assert_eq!(applied, versions);
}

const APPLIED: &str =
    "SELECT CAST(version AS CHAR(9)) FROM idem_records_migrations ORDER BY version";
