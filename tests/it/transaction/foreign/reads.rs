//! Reads on connections with an open transaction: of a snapshot that is out of date, or of changes that are not committed.

use std::time::Duration;

use idem_runtime::operator::{Counting, OperatorStore};
use idem_runtime::record::{Record, RecordState};
use idem_runtime::store::{
    AuditFilter, ClaimOutcome, ClaimRequest, Filter, ManualChange, PageRequest, Resolution,
};
use idem_runtime::{Error, Idem, MySqlStore, PostgresStore};
use idem_tests::places::{self, Place};
use idem_tests::sql::Sql;

use super::{call, leave};
use crate::records::{claim, outcome, own};

/// A transaction that has changed records.
const CHANGED: &str = "BEGIN; UPDATE idem_records SET codec = 'other/1'";

/// Ways to read a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Read {
    Replay,
    Get,
    List,
    ListWithPayloads,
    Attempts,
    Audit,
    Stats,
}

const READS: [Read; 7] = [
    Read::Replay,
    Read::Get,
    Read::List,
    Read::ListWithPayloads,
    Read::Attempts,
    Read::Audit,
    Read::Stats,
];

impl Read {
    /// Returns true if the outcome of the record is read, as an operator has stored it.
    async fn finds_outcome<S: OperatorStore>(self, store: &S, claim: &ClaimRequest) -> bool {
        let filter = Filter {
            state: Some(RecordState::Completed),
            ..Filter::default()
        };
        let page = PageRequest {
            limit: 1000,
            ..PageRequest::default()
        };
        let is_it = |record: &Record| {
            record.id == claim.id && record.outcome().is_some_and(|it| it == outcome(b"1"))
        };
        match self {
            Self::Replay => match store.claim(claim).await.unwrap() {
                ClaimOutcome::Existing(record) => is_it(&record),
                ClaimOutcome::Granted(granted) => panic!("it is taken over: {granted:?}"),
            },
            Self::Get => store
                .get(&claim.id)
                .await
                .unwrap()
                .is_some_and(|it| is_it(&it)),
            Self::ListWithPayloads => {
                let filter = Filter {
                    payloads: true,
                    ..filter
                };
                let listed = store.list(&filter, &page).await.unwrap().records;
                listed.iter().any(|it| is_it(&it.record))
            }
            Self::List => {
                let listed = store.list(&filter, &page).await.unwrap().records;
                listed.iter().any(|it| {
                    let codec = it.payload.as_ref().map(|payload| &*payload.codec);
                    it.record.id == claim.id && codec == Some("json/1")
                })
            }
            Self::Attempts => {
                let attempts = store.attempts().unwrap().attempts(&claim.id).await;
                attempts.unwrap().is_some_and(|it| is_it(&it.record))
            }
            Self::Audit => {
                let of_record = AuditFilter {
                    id: Some(claim.id),
                    ..AuditFilter::default()
                };
                let audit = store.audit().unwrap().audit(&of_record, &page).await;
                audit.unwrap().entries.len() == 1
            }
            Self::Stats => {
                let stats = store.stats(Counting::Exactly).await.unwrap();
                stats
                    .groups
                    .iter()
                    .all(|it| it.state == RecordState::Completed)
            }
        }
    }
}

/// Each read returns what is committed, whatever transaction is open on each connection of its pool.
async fn reads_return_what_is_committed<S: Sql + OperatorStore>(place: Place<S>, snapshot: &str) {
    let home = place.home().await.unwrap();
    let elsewhere = S::over(&home);
    elsewhere.create_tables().await.unwrap();
    let by = ManualChange::new("ann", "the letter has arrived").unwrap();
    for connections in [1, 2] {
        for is_text in [false, true] {
            let pool = S::pool(&S::options(&home), connections as u32, true);
            let store = match is_text {
                true => S::over(&pool).unprepared(),
                false => S::over(&pool),
            };
            for read in READS {
                for left_open in [snapshot, CHANGED] {
                    // On another connection, a replay would wait for the locks of the changes.
                    if left_open == CHANGED && connections > 1 {
                        continue;
                    }
                    let claim = claim(&format!("{connections} {is_text} {read:?} {left_open}"));
                    let owner = own(&elsewhere, &claim).await;
                    elsewhere.interrupt(&owner).await.unwrap();
                    if left_open == snapshot {
                        leave::<S>(&pool, connections, left_open).await;
                    }
                    let record = elsewhere.get(&claim.id).await.unwrap().unwrap();
                    let observed = record.observation();
                    let complete = Resolution::Complete(outcome(b"1"));
                    let audit = elsewhere.audit().unwrap();
                    let resolved = audit.resolve_manually(&observed, &complete, &by);
                    resolved.await.unwrap();
                    if left_open == CHANGED {
                        leave::<S>(&pool, connections, left_open).await;
                    }
                    let found = read.finds_outcome(&store, &claim).await;
                    assert!(found, "{read:?} {connections} {is_text} {left_open}");
                    // Another connection may have read.
                    leave::<S>(&pool, connections, "SELECT 1").await;
                }
            }
            S::close(pool).await;
        }
    }
}

/// A duplicate that waits for a call of another process sees its end.
async fn a_duplicate_that_waits_sees_the_end<S: Sql>(place: Place<S>, snapshot: &str) {
    let home = place.home().await.unwrap();
    let elsewhere = Idem::new(S::over(&home));
    elsewhere.store().create_tables().await.unwrap();
    let pool = S::pool(&S::options(&home), 1, true);
    let idem = Idem::new(S::over(&pool));
    let (began, has_begun) = tokio::sync::oneshot::channel();
    let (end, may_end) = tokio::sync::oneshot::channel::<()>();
    let first = elsewhere.run(call("a"), async || {
        began.send(()).unwrap();
        may_end.await.unwrap();
        Ok::<_, Error>(7)
    });
    let duplicate = async {
        has_begun.await.unwrap();
        let call = call("a").wait(Duration::from_secs(20));
        let body = async || -> Result<u64, Error> { panic!("it runs again") };
        let waiting = idem.run(call, body);
        let leaving = async {
            for _ in 0..5 {
                leave::<S>(&pool, 1, snapshot).await;
            }
            end.send(()).unwrap();
        };
        tokio::join!(waiting, leaving).0
    };
    let (first, duplicate) = tokio::join!(first, duplicate);
    assert_eq!(first.unwrap(), 7);
    assert_eq!(duplicate.unwrap(), 7);
}

/// A transaction of PostgreSQL that goes on to see what it saw first.
const SNAPSHOT: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM idem_records";
/// As above, of MariaDB.
const SNAPSHOT_OF_MARIADB: &str =
    "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; START TRANSACTION WITH CONSISTENT SNAPSHOT";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn postgres_reads_what_is_committed() {
    reads_return_what_is_committed::<PostgresStore>(places::postgres(), SNAPSHOT).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn on_postgres_a_duplicate_that_waits_sees_the_end() {
    a_duplicate_that_waits_sees_the_end::<PostgresStore>(places::postgres(), SNAPSHOT).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MariaDB: cargo xtask test runs it"]
async fn mariadb_reads_what_is_committed() {
    reads_return_what_is_committed::<MySqlStore>(places::mariadb(), SNAPSHOT_OF_MARIADB).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MariaDB: cargo xtask test runs it"]
async fn on_mariadb_a_duplicate_that_waits_sees_the_end() {
    a_duplicate_that_waits_sees_the_end::<MySqlStore>(places::mariadb(), SNAPSHOT_OF_MARIADB).await;
}
