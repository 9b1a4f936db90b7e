//! Tables whose rows were copied without their sequences, as by a switch to a logical replica of PostgreSQL.

use idem_runtime::outbox;
use idem_tests::places;

use super::manual::park;
use super::{Database, TOPIC, placed};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn a_migration_advances_sequences_beyond_the_copied_rows() {
    let database = Database::open(places::postgres()).await;
    let keys = park(&database, 3).await;
    for key in &keys {
        assert!(database.manually().requeue(key).await.unwrap());
    }
    let highest = "SELECT max(id) FROM idem_outbox";
    let copied = database.number(highest).await;
    for sequence in ["idem_outbox_id_seq", "idem_outbox_audit_entry_seq"] {
        let reset = format!("ALTER SEQUENCE {sequence} RESTART");
        database.execute(&reset).await;
    }
    database.outbox.migrate().await.unwrap();
    for order in 10..12 {
        let message = placed(order);
        database.enqueue(outbox::message(TOPIC, &message)).await;
        assert_eq!(
            database.number(highest).await,
            copied + (order as i64 - 9),
            "the order is that of enqueuing"
        );
    }
    // The audit goes on as well: nothing is parked, so an entry is written by the statement itself.
    let entry = database
        .number("SELECT nextval('idem_outbox_audit_entry_seq')")
        .await;
    assert_eq!(entry, 4);

    // A sequence that is ahead is not set back.
    database
        .execute("SELECT setval('idem_outbox_id_seq', 1000)")
        .await;
    database.outbox.migrate().await.unwrap();
    database.enqueue(outbox::message(TOPIC, &placed(20))).await;
    assert_eq!(database.number(highest).await, 1001);
}
