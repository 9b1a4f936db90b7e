//! A server whose clock jumps forward: purger and relay delete nothing before its time.
//!
//! A schema that precedes `pg_catalog` in the search path has a function `statement_timestamp` of its own.

use std::time::Duration;

use idem_runtime::outbox::{Message, Outbox, Relay};
use idem_runtime::{Call, Error, Idem, Purger};
use idem_tests::until;
use sqlx::PgPool;

use super::{Database, execute, number};

const HOUR: Duration = Duration::from_secs(3600);
const OFTEN: Duration = Duration::from_millis(20);

/// Lets the clock of new connections be set.
async fn with_clock(database: &Database) -> PgPool {
    let pool = database.pool(8).await;
    execute(
        &pool,
        "CREATE SCHEMA clock;
         CREATE TABLE clock.ahead (by interval NOT NULL);
         INSERT INTO clock.ahead VALUES ('0');
         CREATE FUNCTION clock.statement_timestamp() RETURNS timestamptz LANGUAGE sql STABLE
             AS 'SELECT pg_catalog.statement_timestamp() + by FROM clock.ahead'",
    )
    .await;
    let path = format!(
        "ALTER DATABASE {} SET search_path = clock, pg_catalog, public",
        database.name
    );
    execute(&pool, &path).await;
    pool.close().await;
    database.pool(8).await
}

async fn jump(pool: &PgPool) {
    execute(pool, "UPDATE clock.ahead SET by = '3 days'").await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn a_jump_of_the_clock_deletes_no_record_before_its_time() {
    let database = Database::new().await;
    let pool = with_clock(&database).await;
    let store = idem_runtime::PostgresStore::new(pool.clone());
    store.migrate().await.unwrap();
    let idem = Idem::new(store);
    let run = async |key: &'static str, ttl| {
        let call = Call::new("clock", key, &1, ttl).lease(HOUR);
        idem.run(call, async || Ok::<_, Error>(1)).await.unwrap();
        // A record is first examined when its claim would have ended: now.
        execute(&pool, "UPDATE idem_records SET purge_after = ended_at").await;
    };
    // Given a purger that has seen the clock,
    let purger = Purger::new(&idem).poll_interval(OFTEN).start().unwrap();
    run("first", OFTEN).await;
    let records = "SELECT count(*) FROM idem_records";
    until(async || number(&pool, records).await == 0).await;
    // and a record of an hour, and one that expires soon,
    run("hour", HOUR).await;
    run("soon", Duration::from_secs(1)).await;
    // when the clock jumps,
    jump(&pool).await;
    // then the second one is deleted in its time, and the first one is kept.
    until(async || number(&pool, records).await == 1).await;
    let kept = "SELECT count(*) FROM idem_records WHERE idempotency_key = 'hour'";
    assert_eq!(number(&pool, kept).await, 1);
    purger.stop().await;
    pool.close().await;
    database.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn a_jump_of_the_clock_deletes_no_message_before_its_time() {
    let database = Database::new().await;
    let pool = with_clock(&database).await;
    let store = idem_runtime::PostgresStore::new(pool.clone());
    let outbox = Outbox::new(&store);
    outbox.migrate().await.unwrap();
    let relay = |topic, keep| {
        Relay::new(&outbox)
            .poll_interval(OFTEN)
            .keep_delivered(keep)
            .on(topic, async |_: Message<u64>| Ok::<_, Error>(()))
            .start()
            .unwrap()
    };
    let enqueue = async |topic| {
        let mut transaction = pool.begin().await.unwrap();
        let enqueued = outbox.enqueue(&mut *transaction, topic, &1_u64).await;
        enqueued.unwrap();
        transaction.commit().await.unwrap();
    };
    let deliver = async |topic, keep| {
        let delivering = relay(topic, keep);
        enqueue(topic).await;
        until(async || delivering.stats().delivered == 1).await;
        delivering.stop().await;
    };
    let messages = "SELECT count(*) FROM idem_outbox";
    // Given a delivered message that is kept for an hour, and a relay that has seen the clock,
    deliver("hour", HOUR).await;
    let purging = relay("first", OFTEN);
    enqueue("first").await;
    until(async || purging.stats().delivered == 1 && number(&pool, messages).await == 1).await;
    // and a message that is kept for a second,
    deliver("soon", Duration::from_secs(1)).await;
    // when the clock jumps,
    jump(&pool).await;
    // then the second one is deleted in its time, and the first one is kept.
    until(async || number(&pool, messages).await == 1).await;
    let kept = "SELECT count(*) FROM idem_outbox WHERE topic = 'hour'";
    assert_eq!(number(&pool, kept).await, 1);
    purging.stop().await;
    pool.close().await;
    database.drop().await;
}
