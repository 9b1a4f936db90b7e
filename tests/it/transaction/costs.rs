//! The work of PostgreSQL and MariaDB for a call, counted by the servers themselves.

use idem_runtime::{Error, Idem, MySqlStore, PostgresStore, idempotent};
use idem_servers::{Options, Server};
use idem_tests::places;
use idem_tests::sql::Sql as _;
use sqlx::mysql::MySqlPoolOptions;
use sqlx::postgres::PgPoolOptions;
use sqlx::{MySqlPool, Row as _};

use super::places::{Database, Orders, TABLE};

const CALLS: i64 = 20;

/// Makes one order.
#[idempotent(key = key, ttl = "1h", name = "costs.plain", store = idem, tx = tx)]
async fn plain<S: Orders>(idem: &Idem<S>, key: &str) -> Result<i64, Error> {
    order::<S>(tx).await
}

/// Makes one order, with stored errors.
#[idempotent(key = key, ttl = "1h", name = "costs.stored_error", store = idem, tx = tx, replay_err = Stored::Error)]
async fn with_stored_error<S: Orders>(idem: &Idem<S>, key: &str) -> Result<i64, Stored> {
    Ok(order::<S>(tx).await?)
}

#[derive(Debug, serde::Serialize, serde::Deserialize, thiserror::Error)]
enum Stored {
    #[error("stored")]
    Error,
    #[error(transparent)]
    #[serde(skip)]
    Idempotency(#[from] Error),
}

async fn order<S: Orders>(tx: &mut S::Connection) -> Result<i64, Error> {
    S::order(tx, "k", 1).await.unwrap();
    Ok(7)
}

async fn plain_calls<S: Orders>(idem: &Idem<S>) {
    for call in 0..CALLS {
        plain::<S>(idem, &call.to_string()).await.unwrap();
    }
}

/// The store's statements that PostgreSQL has executed since the last query, from `pg_stat_statements`.
#[derive(Debug, PartialEq, Eq)]
struct Executed {
    statements: i64,
    commits: i64,
    log_records: i64,
}

impl Executed {
    fn take(server: &Server) -> Self {
        let counted = server
            .query(
                "SELECT coalesce(sum(calls), 0), coalesce(sum(calls) FILTER (WHERE query = 'COMMIT'), 0), \
                 coalesce(sum(wal_records), 0) FROM pg_stat_statements WHERE query NOT LIKE '%pg_stat%'",
            )
            .unwrap();
        server.query("SELECT pg_stat_statements_reset()").unwrap();
        let mut numbers = counted.split('|').map(|it| it.trim().parse().unwrap());
        let mut next = || numbers.next().unwrap();
        Self {
            statements: next(),
            commits: next(),
            log_records: next(),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn a_call_is_five_statements_on_postgres_and_a_replay_three_that_write_nothing() {
    // Given a server that counts statements, and a connection that has prepared its statements.
    let options = Options::fast()
        .set("shared_preload_libraries", "pg_stat_statements")
        .set("pg_stat_statements.track_utility", "on")
        .set("autovacuum", "off");
    let server = Server::postgres(&options).unwrap();
    server.query("CREATE EXTENSION pg_stat_statements").unwrap();
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .test_before_acquire(false)
        .connect(&server.url())
        .await
        .unwrap();
    sqlx::query(TABLE).execute(&pool).await.unwrap();
    let store = PostgresStore::new(pool);
    store.migrate().await.unwrap();
    let idem = Idem::new(store);
    plain::<PostgresStore>(&idem, "before").await.unwrap();
    Executed::take(&server);

    // When all calls are first calls, then each one is begin, claim, order, record and commit.
    plain_calls::<PostgresStore>(&idem).await;
    // The claim writes nothing, and the completed record is one insert: a row, its confirmation because the insert could
    // conflict, and its entries in two indexes.
    let logged = server
        .query(
            "SELECT coalesce(sum(wal_records) FILTER (WHERE query LIKE 'SELECT%idem_records_reserve%'), -1), \
             coalesce(sum(wal_records) FILTER (WHERE query LIKE 'INSERT INTO \"idem_records\"%'), -1), \
             coalesce(sum(wal_bytes) FILTER (WHERE query LIKE '%idem_records%'), -1), \
             count(*) FILTER (WHERE query LIKE 'UPDATE%') FROM pg_stat_statements",
        )
        .unwrap();
    let logged: Vec<i64> = logged
        .split('|')
        .map(|it| it.trim().parse().unwrap())
        .collect();
    let [of_claims, of_records, bytes, updates] = logged[..] else {
        panic!("{logged:?}");
    };
    println!("{} bytes of the log for each record", bytes / CALLS);
    assert_eq!((of_claims, updates), (0, 0), "{logged:?}");
    // The pages of a small table split a few times.
    assert!(
        (4 * CALLS..4 * CALLS + 5).contains(&of_records),
        "{logged:?}"
    );
    let first = Executed::take(&server);
    assert_eq!((first.statements, first.commits), (5 * CALLS, CALLS));

    // When they are repeated, then no statement writes. A read may remove row versions that nobody sees any more, and log
    // that: there are none.
    server.query("VACUUM").unwrap();
    Executed::take(&server);
    plain_calls::<PostgresStore>(&idem).await;
    let replayed = Executed::take(&server);
    assert_eq!(
        replayed,
        Executed {
            statements: 3 * CALLS,
            commits: 0,
            log_records: 0
        }
    );

    // When errors are stored, then there is a savepoint as well.
    for call in 0..CALLS {
        with_stored_error::<PostgresStore>(&idem, &call.to_string())
            .await
            .unwrap();
    }
    let first = Executed::take(&server);
    assert_eq!((first.statements, first.commits), (6 * CALLS, CALLS));
}

/// Number of statements that the session of the only connection has sent to MariaDB.
async fn asked(pool: &MySqlPool, name: &str) -> i64 {
    let row = sqlx::raw_sql("SHOW SESSION STATUS")
        .fetch_all(pool)
        .await
        .unwrap();
    let row = row.iter().find(|row| row.get::<String, _>(0) == name);
    row.unwrap().get::<String, _>(1).parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MariaDB: cargo xtask test runs it"]
async fn a_call_is_six_exchanges_on_maria_db_and_a_replay_one_that_writes_nothing() {
    let place = Database::open(places::mariadb()).await;
    let pool = MySqlPoolOptions::new()
        .max_connections(1)
        .test_before_acquire(false)
        .connect_with(MySqlStore::options(&place.pool))
        .await
        .unwrap();
    let store = MySqlStore::new(pool.clone());
    store.migrate().await.unwrap();
    let idem = Idem::new(store);
    plain::<MySqlStore>(&idem, "before").await.unwrap();
    // Reading the counter is a statement, too.
    let counts = async || {
        let mut counts = Vec::new();
        for name in ["Questions", "Com_commit", "Com_insert", "Com_update"] {
            counts.push(asked(&pool, name).await);
        }
        counts
    };
    let spent = |before: &[i64], after: &[i64]| -> Vec<i64> {
        let pairs = before.iter().zip(after);
        pairs.map(|(before, after)| after - before).collect()
    };
    let begun = counts().await;
    let idle = spent(&begun, &counts().await);

    let before = counts().await;
    plain_calls::<MySqlStore>(&idem).await;
    let mut first = spent(&before, &counts().await);
    first[0] -= idle[0];
    // Three statements begin the transaction, and three end it, in one exchange each. The driver sends a rollback when it
    // takes the connection back.
    assert_eq!(first[0], (4 + 3 + 3 + 1) * CALLS, "{first:?}");
    assert_eq!(first[1], CALLS);

    let before = counts().await;
    plain_calls::<MySqlStore>(&idem).await;
    let mut replayed = spent(&before, &counts().await);
    replayed[0] -= idle[0];
    assert_eq!(replayed, [CALLS, 0, 0, 0]);
}
