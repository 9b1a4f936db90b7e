//! Contended histories: a short round on every store, and failovers of Redis.

#![expect(
    clippy::unwrap_used,
    reason = "a panic fails the test that it happens in"
)]

use std::time::Duration;

use idem_histories::failover;
use idem_histories::round::{self, Faults, Round};
use idem_tests::private::Kind;

/// Contended records of each store in the round that runs with all tests.
const RECORDS: u64 = 120;

/// Pause between two kills of the server.
const KILLS: Duration = Duration::from_millis(1500);

/// Pause between two transactions that other code leaves open.
const LEFT_OPEN: Duration = Duration::from_millis(5);

async fn is_linearizable(kind: Kind) {
    let kills = (Faults::LossesAndKills(KILLS), RECORDS);
    let calm = (Faults::None, RECORDS / 3);
    let foreign = (Faults::ForeignTransactions(LEFT_OPEN), RECORDS / 3);
    let rounds: &[(Faults, u64)] = match kind {
        Kind::Memory | Kind::Sqlite => &[(Faults::None, RECORDS)],
        Kind::Postgres | Kind::MariaDb => &[calm, kills, foreign],
        _ => &[calm, kills],
    };
    for (faults, records) in rounds.iter().copied() {
        let round = Round {
            kind,
            records,
            seed: 1,
            faults,
        };
        let report = round::run(&round, |_| {}).await.unwrap();
        let wrong = [&*report.rejected, &report.unexpected].concat();
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert!(report.contended >= records, "{report:?}");
        assert!(report.open > 0, "{report:?}");
        let has_witness = report.witnessed > records && report.kept > 0;
        assert_eq!(has_witness, kind != Kind::Memory, "{report:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_memory_store_is_linearizable() {
    is_linearizable(Kind::Memory).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sqlite_store_is_linearizable() {
    is_linearizable(Kind::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn the_postgres_store_is_linearizable() {
    is_linearizable(Kind::Postgres).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MariaDB: cargo xtask test runs it"]
async fn the_mysql_store_on_mariadb_is_linearizable() {
    is_linearizable(Kind::MariaDb).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MySQL: cargo xtask test runs it"]
async fn the_mysql_store_on_mysql_is_linearizable() {
    is_linearizable(Kind::MySql).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn the_redis_store_is_linearizable() {
    is_linearizable(Kind::Redis).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn the_redis_store_on_a_cluster_is_linearizable() {
    is_linearizable(Kind::RedisCluster).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs etcd: cargo xtask test runs it"]
async fn the_store_on_etcd_is_linearizable() {
    is_linearizable(Kind::Etcd).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn a_failover_of_redis_loses_the_last_transitions_and_nothing_else() {
    let report = failover::run(100, 1).await.unwrap();
    assert!(report.is_clean(), "{}", report.rejected.join("\n"));
    assert!(report.lost > 0 && report.intact > 0, "{report:?}");
}
