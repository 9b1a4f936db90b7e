//! Cost of what is recorded for operators: labels of owners, digests of members, the history of attempts, and metrics.
#![expect(
    clippy::unwrap_used,
    reason = "a benchmark that cannot run has nothing to say"
)]

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use idem_runtime::fingerprint::{Secret, digest};
use idem_runtime::key::{Identity, Operation, RecordId};
use idem_runtime::record::{ClaimId, MemberDigests, Outcome, Owner, OwnerLabel, Payload};
use idem_runtime::store::{ClaimOutcome, ClaimRequest, Store};
use idem_runtime::{
    Error, Fingerprint, Idem, Key, MemoryStore, MySqlStore, OnCrash, PostgresStore, RedisStore,
    Scope, SqliteStore, idempotent,
};
use idem_servers::{Options, Server};
use idem_tests::ratio::{Effort, Limits, Table, is_asked_for};
use idem_tests::slow_disk;
use metrics_exporter_prometheus::PrometheusBuilder;
use tokio::runtime::Runtime;

/// Labels, history and metrics may cost a first call this much.
const RECORDED: Limits = Limits::ratio(1.06, 1.03);
/// Number of claims in flight.
const WAVES: [usize; 2] = [1, 16];

/// What a claim records beside the record.
#[derive(Debug, Clone, Copy)]
struct Recorded {
    label: bool,
    members: bool,
}

const NOTHING: Recorded = Recorded {
    label: false,
    members: false,
};
const LABEL: Recorded = Recorded {
    label: true,
    members: false,
};
const ALL: Recorded = Recorded {
    label: true,
    members: true,
};

fn claim(recorded: Recorded) -> ClaimRequest {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let key = format!("0190f3c2-8f6a-7000-8000-{number:012}");
    let identity = Identity {
        scope: Scope::none(),
        operation: Operation::new("bench.recorded").unwrap(),
        key: Key::new(key).unwrap(),
    };
    // A label of the default length, and five members.
    let label = OwnerLabel::new("payments-7d4b9c-x2x7q/4711/2.1.0").unwrap();
    let members = MemberDigests::from_bytes(&[7; 46]).unwrap();
    ClaimRequest {
        id: RecordId::of(&identity),
        identity,
        fingerprint: digest(&number).unwrap(),
        claim_id: ClaimId::random(),
        lease: Duration::from_secs(30),
        retention: Duration::from_secs(24 * 3600),
        on_crash: OnCrash::Rerun,
        owner_label: recorded.label.then_some(label),
        members: recorded.members.then_some(members),
    }
}

async fn own(store: &dyn Store, claim: &ClaimRequest) -> Owner {
    let ClaimOutcome::Granted(granted) = store.claim(claim).await.unwrap() else {
        panic!("the key is new");
    };
    Owner {
        id: claim.id,
        claim_id: claim.claim_id,
        fencing_token: granted.fencing_token,
    }
}

/// The store's part of a first call.
async fn first_call(store: Arc<dyn Store>, recorded: Recorded) {
    let claim = claim(recorded);
    let owner = own(&*store, &claim).await;
    let outcome = Outcome::Completed(Payload {
        codec: "json/1".into(),
        bytes: (*b"34").into(),
    });
    store.complete(&owner, &outcome).await.unwrap();
}

/// An attempt that ends in a release. It is the part of a call that writes a line of history.
async fn attempt(store: Arc<dyn Store>, recorded: Recorded) {
    let claim = claim(recorded);
    let owner = own(&*store, &claim).await;
    store.release(&owner).await.unwrap();
}

fn on_store(runtime: &Runtime, name: &str, store: &Arc<dyn Store>, effort: Effort) {
    for tasks in WAVES {
        let wave = |recorded: Recorded| {
            runtime.block_on(async {
                let running: Vec<_> = (0..tasks)
                    .map(|_| tokio::spawn(first_call(Arc::clone(store), recorded)))
                    .collect();
                for task in running {
                    task.await.unwrap();
                }
            });
        };
        let title = format!("{name}, claim and completion, {tasks} at once");
        Table::against(&title, "nothing recorded", || wave(NOTHING))
            .with("with a label", Some(RECORDED), || wave(LABEL))
            .with("and digests of members", Some(RECORDED), || wave(ALL))
            .print(effort);
    }
    let title = format!("{name}, claim and release");
    let released = |recorded| runtime.block_on(attempt(Arc::clone(store), recorded));
    Table::against(&title, "history without a label", || released(NOTHING))
        .with("with a label", Some(RECORDED), || released(LABEL))
        .print(effort);
}

#[derive(Fingerprint)]
struct Payment {
    account: String,
    cents: u64,
    currency: String,
    reference: String,
}

#[idempotent(key = key, ttl = "24h", name = "bench.plain", store = idem)]
async fn plain(idem: &Idem<MemoryStore>, key: &str, payment: &Payment) -> Result<u64, Error> {
    Ok(black_box(payment).cents)
}

#[idempotent(key = key, ttl = "24h", name = "bench.digests", store = idem, member_digests)]
async fn digested(idem: &Idem<MemoryStore>, key: &str, payment: &Payment) -> Result<u64, Error> {
    Ok(black_box(payment).cents)
}

/// Calls on a memory store, which is replaced before its keys leave the processor's caches.
struct Calls {
    idem: Idem<MemoryStore>,
    number: u64,
    payment: Payment,
}

impl Calls {
    fn new() -> Self {
        Self {
            idem: signing(),
            number: 0,
            payment: Payment {
                account: "DE02120300000000202051".to_owned(),
                cents: 1050,
                currency: "EUR".to_owned(),
                reference: "invoice 2026-11-0047".to_owned(),
            },
        }
    }

    fn next_key(&mut self) -> String {
        self.number += 1;
        if self.number.is_multiple_of(10_000) {
            self.idem = signing();
        }
        format!("order-{}", self.number)
    }

    /// A first call. The memory store is always ready, so no executor is needed.
    fn plain(&mut self) -> u64 {
        let key = self.next_key();
        let call = plain(&self.idem, &key, &self.payment);
        call.now_or_never().unwrap().unwrap()
    }

    fn digested(&mut self) -> u64 {
        let key = self.next_key();
        let call = digested(&self.idem, &key, &self.payment);
        call.now_or_never().unwrap().unwrap()
    }
}

fn signing() -> Idem<MemoryStore> {
    let secret = Secret::new([7; 32]).unwrap();
    let builder = Idem::builder(MemoryStore::new());
    builder.fingerprint_secret(secret).build()
}

/// Whole calls on the memory store, where nothing hides what the engine does.
fn calls(effort: Effort) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let _entered = runtime.enter();
    let recorder = PrometheusBuilder::new().build_recorder();
    let [mut without, mut with_recorder, mut with_digests] = [(); 3].map(|()| Calls::new());
    let name = "memory, first calls";
    Table::against(name, "no recorder of metrics", || without.plain())
        .with("a Prometheus recorder", None, || {
            metrics::with_local_recorder(&recorder, || with_recorder.plain())
        })
        .with("digests of four members", None, || with_digests.digested())
        .print(effort);
}

fn main() {
    slow_disk::from_arguments(Path::new(env!("CARGO_TARGET_TMPDIR"))).unwrap();
    let effort = Effort::from_arguments();
    if is_asked_for("memory") {
        calls(effort);
    }
    let runtime = Runtime::new().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let options = Options::durable();
    let postgres = Server::postgres(&options).unwrap();
    let maria_db = Server::maria_db(&options).unwrap();
    let redis = Server::redis(&options).unwrap();
    let my_sql = Server::installed_my_sql(&options).unwrap();
    let stores: Vec<(&str, Arc<dyn Store>)> = runtime.block_on(async {
        let path = folder.path().join("bench.sqlite");
        let sqlite = SqliteStore::open(&path).await.unwrap();
        sqlite.migrate().await.unwrap();
        let postgres = PostgresStore::connect(&postgres.url()).await.unwrap();
        postgres.migrate().await.unwrap();
        let maria_db = MySqlStore::connect(&maria_db.url()).await.unwrap();
        maria_db.migrate().await.unwrap();
        let redis = RedisStore::connect(&redis.url()).await.unwrap();
        let mut stores = vec![
            ("SQLite", Arc::new(sqlite) as Arc<dyn Store>),
            ("PostgreSQL", Arc::new(postgres)),
            ("MariaDB", Arc::new(maria_db)),
            ("Redis", Arc::new(redis)),
        ];
        if let Some(server) = &my_sql {
            let my_sql = MySqlStore::connect(&server.url()).await.unwrap();
            my_sql.migrate().await.unwrap();
            stores.push(("MySQL", Arc::new(my_sql)));
        }
        stores
    });
    for (name, store) in stores.iter().filter(|(name, _)| is_asked_for(name)) {
        on_store(&runtime, name, store, effort);
    }
}
