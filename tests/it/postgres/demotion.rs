//! An address that leads to a standby for a while, as during a failover. Connections to the standby stay open when the
//! address moves on, so a store must close them itself.

use std::net::SocketAddr;
use std::time::Duration;

use idem_runtime::error::StoreErrorKind;
use idem_runtime::store::{ClaimOutcome, TransactionalStore};
use idem_runtime::{PostgresStore, Store};
use idem_servers::{Options, Server};
use idem_tests::proxy::Proxy;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

use crate::records::claim;

/// A primary with the tables of the store, and its standby, behind one address.
struct Pair {
    primary: Server,
    standby: Server,
    proxy: Proxy,
}

impl Pair {
    async fn start() -> Self {
        let (primary, standby) = tokio::task::spawn_blocking(|| {
            let primary = Server::postgres(&Options::fast()).unwrap();
            let standby = Server::postgres_standby(&primary, &Options::fast()).unwrap();
            (primary, standby)
        })
        .await
        .unwrap();
        let proxy = Proxy::start(address(&primary)).await.unwrap();
        let pair = Self {
            primary,
            standby,
            proxy,
        };
        pair.store(1).await.migrate().await.unwrap();
        pair
    }

    /// A store with a pool that does not ping before each use.
    async fn store(&self, connections: u32) -> PostgresStore {
        let options = PgConnectOptions::new_without_pgpass()
            .host("127.0.0.1")
            .port(self.proxy.address().port())
            .username("postgres")
            .database("postgres");
        let pool = PgPoolOptions::new()
            .max_connections(connections)
            .acquire_timeout(Duration::from_secs(30))
            .test_before_acquire(false)
            .connect_with(options)
            .await
            .unwrap();
        PostgresStore::new(pool)
    }

    /// Waits until the standby has the tables.
    async fn until_replicated(&self) {
        // Commits of this server are written to the log later.
        let position = "SELECT pg_current_wal_insert_lsn()";
        let position = self.primary.query(position).unwrap();
        let there = format!("SELECT pg_last_wal_replay_lsn() >= '{position}'");
        for _ in 0..3_000 {
            if self.standby.query(&there).unwrap() == "t" {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the standby does not follow");
    }
}

fn address(server: &Server) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], server.port()))
}

/// A pool of one connection shows the fate of each connection: the refused statement is the last one on it.
#[tokio::test]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn a_connection_to_a_standby_is_not_used_again() {
    let pair = Pair::start().await;
    pair.until_replicated().await;
    for (store, name) in [
        (pair.store(1).await, "prepared"),
        (pair.store(1).await.without_prepared_statements(), "text"),
    ] {
        // Leased.
        pair.proxy.lead_to(address(&pair.standby));
        store.pool().acquire().await.unwrap().close().await.unwrap();
        let request = claim(&format!("{name} leased"));
        let refused = store.claim(&request).await.unwrap_err();
        assert_eq!(refused.kind(), StoreErrorKind::ReadOnly, "{refused:?}");
        assert!(refused.is_retryable(), "{refused:?}");
        pair.proxy.lead_to(address(&pair.primary));
        let answer = store.claim(&request).await.unwrap();
        assert!(matches!(answer, ClaimOutcome::Granted(_)), "{answer:?}");

        // In a transaction.
        pair.proxy.lead_to(address(&pair.standby));
        store.pool().acquire().await.unwrap().close().await.unwrap();
        let request = claim(&format!("{name} tx"));
        let mut transaction = store.begin().await.unwrap();
        let refused = store.claim_in(&mut transaction, None, &request).await;
        let refused = refused.unwrap_err();
        assert_eq!(refused.kind(), StoreErrorKind::ReadOnly, "{refused:?}");
        drop(transaction);
        pair.proxy.lead_to(address(&pair.primary));
        let mut transaction = store.begin().await.unwrap();
        let answer = store.claim_in(&mut transaction, None, &request).await;
        answer.unwrap();
        store.rollback(transaction).await.unwrap();
    }
}

/// Replays need no write, so a standby answers those that it has. The pool of a service that only replays keeps its
/// connections.
#[tokio::test]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn a_standby_answers_what_it_has() {
    let pair = Pair::start().await;
    let store = pair.store(1).await;
    let request = claim("replayed");
    store.claim(&request).await.unwrap();
    pair.until_replicated().await;
    pair.proxy.lead_to(address(&pair.standby));
    store.pool().acquire().await.unwrap().close().await.unwrap();
    let other = claim("replayed");
    let answer = store.claim(&other).await.unwrap();
    assert!(matches!(answer, ClaimOutcome::Existing(_)), "{answer:?}");
}
