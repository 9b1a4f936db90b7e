//! Cost of the optional index of stuck records: a first call on a table with the index, against one on a table without.
//! Each row is a wave of concurrent calls with distinct keys. Both tables have some records before.
#![expect(
    clippy::unwrap_used,
    reason = "a benchmark that cannot run has nothing to say"
)]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use idem_runtime::key::{Identity, Operation, RecordId};
use idem_runtime::operator::{OperatorStore, OptionalIndex};
use idem_runtime::record::{ClaimId, Digest, Outcome, Owner, Payload};
use idem_runtime::store::{ClaimOutcome, ClaimRequest};
use idem_runtime::{Key, MySqlStore, OnCrash, PostgresStore, Scope, SqliteStore};
use idem_servers::{Options, Server};
use idem_tests::ratio::{Effort, Table, is_asked_for};
use idem_tests::slow_disk;
use tokio::runtime::Runtime;

const WAVES: [u64; 2] = [1, 64];
/// Number of records before the measurement.
const BEFORE: u64 = 20_000;
/// Name of the table with the index.
const INDEXED: &str = "indexed";

type Store = Arc<dyn OperatorStore>;

fn main() {
    slow_disk::from_arguments(Path::new(env!("CARGO_TARGET_TMPDIR"))).unwrap();
    let effort = Effort::from_arguments();
    let runtime = Runtime::new().unwrap();
    let options = Options::durable();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("bench.sqlite");
    let measure = |name: &str, plain: Store, indexed: Store| {
        runtime.block_on(prepare(&plain, &indexed, effort));
        for tasks in WAVES {
            measure(&runtime, name, [&plain, &indexed], tasks, effort);
        }
    };
    if is_asked_for("SQLite") {
        let store = runtime.block_on(SqliteStore::open(&path)).unwrap();
        let indexed = store.clone().with_table(INDEXED).unwrap();
        measure("SQLite", Arc::new(store), Arc::new(indexed));
    }
    if is_asked_for("PostgreSQL") {
        let server = Server::postgres(&options).unwrap();
        let store = runtime.block_on(PostgresStore::connect(&server.url()));
        let store = store.unwrap();
        let indexed = store.clone().with_table(INDEXED).unwrap();
        measure("PostgreSQL", Arc::new(store), Arc::new(indexed));
    }
    let maria_db = is_asked_for("MariaDB").then(|| Server::maria_db(&options).unwrap());
    let my_sql = is_asked_for("MySQL").then(|| Server::installed_my_sql(&options).unwrap());
    for (name, server) in [("MariaDB", maria_db), ("MySQL", my_sql.flatten())] {
        let Some(server) = server else { continue };
        let store = runtime.block_on(MySqlStore::connect(&server.url()));
        let store = store.unwrap();
        let indexed = store.clone().with_table(INDEXED).unwrap();
        measure(name, Arc::new(store), Arc::new(indexed));
    }
}

async fn prepare(plain: &Store, indexed: &Store, effort: Effort) {
    for store in [plain, indexed] {
        store.apply_migrations().await.unwrap();
    }
    indexed.create_index(OptionalIndex::Stuck).await.unwrap();
    if matches!(effort, Effort::Measure) {
        for store in [plain, indexed] {
            for _ in 0..BEFORE / 100 {
                wave(store, 100).await;
            }
        }
    }
}

fn measure(runtime: &Runtime, name: &str, stores: [&Store; 2], tasks: u64, effort: Effort) {
    let [plain, indexed] = stores;
    let title = format!("{name}, first calls, {tasks} at once");
    let run = |store: &Store| runtime.block_on(wave(store, tasks));
    Table::against(&title, "without the index", || run(plain))
        .with("with the index", None, || run(indexed))
        .print(effort);
}

async fn wave(store: &Store, tasks: u64) {
    let running: Vec<_> = (0..tasks)
        .map(|_| tokio::spawn(call(Arc::clone(store))))
        .collect();
    for call in running {
        call.await.unwrap();
    }
}

/// Claims and completes a record.
async fn call(store: Store) {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let identity = Identity {
        scope: Scope::none(),
        operation: Operation::new("bench").unwrap(),
        key: Key::new(format!("k{}", NEXT.fetch_add(1, Ordering::Relaxed))).unwrap(),
    };
    let claim = ClaimRequest {
        id: RecordId::of(&identity),
        identity,
        fingerprint: Digest::new(1, [0; 4], &[7; 32]),
        claim_id: ClaimId::random(),
        lease: Duration::from_secs(30),
        retention: Duration::from_secs(24 * 3600),
        on_crash: OnCrash::Rerun,
        owner_label: None,
        members: None,
    };
    let ClaimOutcome::Granted(granted) = store.claim(&claim).await.unwrap() else {
        panic!("the key is in use");
    };
    let owner = Owner {
        id: claim.id,
        claim_id: claim.claim_id,
        fencing_token: granted.fencing_token,
    };
    let outcome = Outcome::Completed(Payload {
        codec: "json/1".into(),
        bytes: Arc::from(&b"34"[..]),
    });
    store.complete(&owner, &outcome).await.unwrap();
}
