//! Writes of operators and of background tasks, and transactions of the store's own, on connections with an open transaction.

use idem_runtime::advanced::RunOptions;
use idem_runtime::key::RecordId;
use idem_runtime::operator::OperatorStore;
use idem_runtime::record::{RecordState, Timestamp};
use idem_runtime::store::{FencedWrite, ManualChange, Resolution, Resolved};
use idem_runtime::{Attempt, Call, Idem};
use idem_tests::places::{self, Place};
use idem_tests::sql::Sql;

use super::{OPERATION, is_completed, leave};
use crate::records::{HOUR, claim, outcome, own};

/// A transaction that has changed a table of the application.
const CHANGED: &str = "BEGIN; INSERT INTO things (id) VALUES (1)";

async fn count<S: Sql>(elsewhere: &S::Pool, table: &str) -> i64 {
    let count = format!("SELECT count(*) FROM {table}");
    S::number(elsewhere, &count, &[]).await.unwrap()
}

/// What a write says is true for others, and what somebody left open is never committed.
async fn writes_commit_themselves_alone<S: Sql + OperatorStore>(place: Place<S>) {
    let home = place.home().await.unwrap();
    let elsewhere = S::over(&home);
    elsewhere.create_tables().await.unwrap();
    let table = "CREATE TABLE things (id INTEGER NOT NULL)";
    S::any(&home).execute(table).await.unwrap();
    let by = ManualChange::new("ann", "the letter has arrived").unwrap();
    for connections in [1, 2] {
        let pool = S::pool(&S::options(&home), connections as u32, true);
        let store = S::over(&pool);
        let leave = async || leave::<S>(&pool, connections, CHANGED).await;
        let observe = async |id: RecordId| elsewhere.get(&id).await.unwrap().unwrap();

        for is_manual in [false, true] {
            let claim = claim(&format!("resolved {connections} {is_manual}"));
            let owner = own(&elsewhere, &claim).await;
            elsewhere.interrupt(&owner).await.unwrap();
            let observed = observe(claim.id).await.observation();
            let complete = Resolution::Complete(outcome(b"1"));
            leave().await;
            let resolved = match is_manual {
                true => {
                    let audit = store.audit().unwrap();
                    audit.resolve_manually(&observed, &complete, &by).await
                }
                false => store.resolve(&observed, &complete).await,
            };
            assert_eq!(resolved.unwrap(), Resolved::Done);
            assert_eq!(observe(claim.id).await.state, RecordState::Completed);
        }

        let claim = claim(&format!("noted {connections}"));
        let owner = own(&elsewhere, &claim).await;
        let completed = elsewhere.complete(&owner, &outcome(b"1")).await;
        assert_eq!(completed.unwrap(), FencedWrite::Applied);
        leave().await;
        let attempts = store.attempts().unwrap();
        let noted = attempts.note_replay(&claim.id, owner.fencing_token, None);
        assert!(noted.await.unwrap());
        let attempts = elsewhere.attempts().unwrap().attempts(&claim.id).await;
        assert_eq!(attempts.unwrap().unwrap().replays.len(), 1);

        let expire = "UPDATE idem_records SET retention = 1, purge_after = 1";
        S::any(&home).execute(expire).await.unwrap();
        leave().await;
        let purged = store.purge(100, Timestamp::MAX).await.unwrap();
        assert_eq!(purged.removed, 3);
        assert_eq!(count::<S>(&home, "idem_records").await, 0);

        let idem = Idem::new(store.clone());
        let key = format!("tx {connections}");
        let call = Call::new(OPERATION, &key, &1, HOUR);
        leave().await;
        let body = async |tx: &mut S::Connection, _: Attempt| {
            S::text(tx, "INSERT INTO things (id) VALUES (2)").await?;
            Ok::<_, crate::transaction::Failure>(7)
        };
        let run = idem.run_in_transaction(call, RunOptions::new(), body);
        assert_eq!(run.await.unwrap(), 7);
        assert!(is_completed(&Idem::new(elsewhere.clone()), &key).await);
        S::any(&home)
            .execute("DELETE FROM idem_records")
            .await
            .unwrap();
        S::close(pool).await;
        assert_eq!(count::<S>(&home, "things WHERE id = 1").await, 0);
        assert_eq!(
            count::<S>(&home, "things WHERE id = 2").await,
            connections as i64
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn on_postgres_writes_commit_themselves_alone() {
    writes_commit_themselves_alone(places::postgres()).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MariaDB: cargo xtask test runs it"]
async fn on_mariadb_writes_commit_themselves_alone() {
    writes_commit_themselves_alone(places::mariadb()).await;
}
