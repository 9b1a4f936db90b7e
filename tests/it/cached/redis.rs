//! The cache in Redis: reads of the store that it saves for all processes of a service, values that it never trusts,
//! and that its loss loses no record.

mod servers;

use std::time::Duration;

use idem_runtime::conformance::faults::{FaultStore, Op};
use idem_runtime::record::{ClaimId, Record, RecordState};
use idem_runtime::store::{ClaimOutcome, ClaimRequest, Resolution, Resolved};
use idem_runtime::{Cached, Call, Error, Idem, MemoryStore, Store};
use idem_servers::{Options, Server};
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout};

use super::{ended, found, observed, payload};
use crate::records::{HOUR, claim, own};

type Counted = FaultStore<MemoryStore>;

/// A store, and a key prefix in Redis for the cache in front of it.
struct Service {
    store: Counted,
    connection: ConnectionManager,
    name: String,
}

impl Service {
    fn new() -> Self {
        let url = std::env::var("IDEM_TEST_REDIS_URL").unwrap();
        Self::at(&url)
    }

    fn at(url: &str) -> Self {
        let client = redis::Client::open(url).unwrap();
        let config = ConnectionManagerConfig::new();
        let id: u64 = rand::random();
        Self {
            store: FaultStore::new(MemoryStore::new()),
            connection: ConnectionManager::new_lazy_with_config(client, config).unwrap(),
            name: format!("idem-test-{id:016x}"),
        }
    }

    /// The cache of one process of the service.
    fn process(&self) -> Cached<Counted> {
        Cached::in_redis(self.store.clone(), self.connection.clone(), &self.name)
            // A machine that is busy with other tests may be slow; tests of time-outs set their own.
            .timeout(Duration::from_secs(10))
    }

    /// Redis key of the record of this claim.
    fn key(&self, claim: &ClaimRequest) -> String {
        let hex: String = claim
            .id
            .as_bytes()
            .iter()
            .map(|it| format!("{it:02x}"))
            .collect();
        format!("{}:record/2:{hex}", self.name)
    }

    /// Claims a completed record, and waits until the tasks that cache it have finished.
    async fn found_and_cached(&self, cached: &Cached<Counted>, claim: &ClaimRequest) -> Record {
        // This connection has its own tasks.
        let _: Option<String> = self.ask(redis::cmd("GET").arg("nothing")).await;
        let before = tasks();
        let record = found(cached, claim).await;
        until_tasks_are(before).await;
        record
    }

    async fn ask<T: redis::FromRedisValue>(&self, command: &redis::Cmd) -> T {
        let mut connection = self.connection.clone();
        command.query_async(&mut connection).await.unwrap()
    }

    async fn put(&self, key: &str, value: &[u8], life_ms: u64) {
        let mut command = redis::cmd("SET");
        command.arg(key).arg(value).arg("PX").arg(life_ms);
        let () = self.ask(&command).await;
    }
}

fn tasks() -> usize {
    Handle::current().metrics().num_alive_tasks()
}

async fn until_tasks_are(before: usize) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while tasks() > before {
        assert!(
            Instant::now() < deadline,
            "the tasks that cache records never end"
        );
        sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn a_record_that_one_process_read_is_replayed_in_all() {
    let service = Service::new();
    let claim = ended(&service.store, "shared", b"the \n result").await;
    let process = service.process();
    service.found_and_cached(&process, &claim).await;
    assert_eq!(service.store.total(), 1);

    let mut replayed = found(&service.process(), &claim).await;
    assert_eq!(
        service.store.total(),
        1,
        "the other process asked the store"
    );
    let stored = found(service.store.inner(), &claim).await;
    assert!(!replayed.is_expired());
    replayed.read_at = stored.read_at;
    assert_eq!(replayed, stored);
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn a_redis_key_expires_when_its_record_may_no_longer_be_served() {
    let service = Service::new();
    let cached = service.process().max_age(Duration::from_secs(30));
    let claim = ended(&service.store, "bounded", b"1").await;
    service.found_and_cached(&cached, &claim).await;
    let mut command = redis::cmd("PTTL");
    command.arg(service.key(&claim));
    let left: i64 = service.ask(&command).await;
    assert!((1..=30_000).contains(&left), "{left} ms left");
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn no_record_is_served_from_redis_after_its_retention() {
    let service = Service::new();
    let cached = service.process();
    let claim = ClaimRequest {
        retention: Duration::from_millis(300),
        ..claim("expires")
    };
    let owner = own(&cached, &claim).await;
    let outcome = crate::records::outcome(b"1");
    cached.complete(&owner, &outcome).await.unwrap();
    let again = ClaimRequest {
        claim_id: ClaimId::random(),
        ..claim
    };
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        match cached.claim(&again).await.unwrap() {
            ClaimOutcome::Existing(record) => assert!(!record.is_expired(), "{record:?}"),
            ClaimOutcome::Granted(_) => break,
        }
        assert!(Instant::now() < deadline, "replayed long after its time");
        sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn another_request_is_refused_from_redis() {
    let service = Service::new();
    let call = |request: u64| Call::new("test.operation", "key", &request, HOUR);
    let body = async || Ok::<_, Error>("done".to_owned());
    let idem = Idem::new(service.process());
    idem.run(call(1), body).await.unwrap();
    let before = tasks();
    idem.run(call(1), body).await.unwrap();
    until_tasks_are(before).await;
    service.store.outage();

    let elsewhere = Idem::new(service.process());
    let reused = elsewhere
        .run(call(2), async || -> Result<String, Error> {
            panic!("ran another request")
        })
        .await;
    assert!(matches!(reused, Err(Error::KeyReused)), "{reused:?}");
    assert_eq!(elsewhere.run(call(1), body).await.unwrap(), "done");
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn unreadable_values_are_replaced_by_the_stored_record() {
    let service = Service::new();
    let cached = service.process();
    let claim = ended(&service.store, "garbage", b"true").await;
    service.found_and_cached(&cached, &claim).await;
    let key = service.key(&claim);
    let value: Vec<u8> = service.ask(redis::cmd("GET").arg(&key)).await;

    for garbage in [
        &b""[..],
        b"garbage",
        b"\xff\x00",
        b"idem-record/2 7\n{}\n",
        &value[..value.len() / 2],
    ] {
        service.put(&key, garbage, 9_000).await;
        service.store.reset();
        let record = service.found_and_cached(&cached, &claim).await;
        assert_eq!(payload(&record), b"true");
        assert_eq!(service.store.total(), 1, "{garbage:?} was believed");
        assert_eq!(payload(&found(&cached, &claim).await), b"true");
        assert_eq!(service.store.total(), 1, "{garbage:?} was left there");
    }
}

/// The expiry of a record is stored in the record, so prolonging the expiry of the Redis key does not prolong it.
#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn a_longer_expiry_of_a_redis_key_does_not_prolong_its_record() {
    let service = Service::new();
    let cached = service.process().max_age(Duration::from_millis(200));
    let claim = ended(&service.store, "prolonged", b"1").await;
    service.found_and_cached(&cached, &claim).await;
    let () = service
        .ask(redis::cmd("PERSIST").arg(service.key(&claim)))
        .await;
    let deadline = Instant::now() + Duration::from_secs(30);
    service.store.reset();
    while service.store.total() == 0 {
        assert!(Instant::now() < deadline, "replayed long after its time");
        found(&cached, &claim).await;
        sleep(Duration::from_millis(5)).await;
    }
}

/// Redis delays the writes, as a network might, and no process knows of it. A late write must neither stay in the cache
/// nor outlive the tombstone of an erasure.
#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn a_record_that_is_written_late_is_not_cached() {
    let server = Server::redis(&Options::fast()).unwrap();
    let service = Service::at(&server.url());
    let brief = service.process().max_age(Duration::from_millis(200));
    let long = service.process();
    let ends = ended(&service.store, "ends", b"1").await;
    let late = ended(&service.store, "late", b"1").await;
    // From now on the server knows the script, and each write is one command.
    let first = ended(&service.store, "first", b"1").await;
    service.found_and_cached(&long, &first).await;
    let gates = [Op::Claim, Op::Claim].map(|op| service.store.hold_after(op));
    let reads = async { tokio::join!(found(&brief, &ends), found(&long, &late)) };
    let delays = async {
        for gate in &gates {
            gate.reached().await;
        }
        server.query("CLIENT PAUSE 60000 WRITE").unwrap();
        for gate in &gates {
            gate.open();
        }
        // The server's clock decides.
        let seconds = || -> u64 {
            let time = server.query("TIME").unwrap();
            time.lines().next().unwrap().parse().unwrap()
        };
        let begun_at = seconds();
        while seconds() <= begun_at + 6 {
            sleep(Duration::from_millis(50)).await;
        }
        let clients = server.query("INFO clients").unwrap();
        assert!(clients.contains("blocked_clients:1"), "{clients}");
        server.query("CLIENT UNPAUSE").unwrap();
    };
    tokio::join!(reads, delays);
    // Sent after the writes, on their connection.
    for claim in [&ends, &late] {
        let there: bool = service
            .ask(redis::cmd("EXISTS").arg(service.key(claim)))
            .await;
        assert!(!there, "put there long after it was read");
    }
}

/// Redis pauses while the record is written there; the call that read the record returns long before.
#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn no_call_waits_until_its_record_is_cached() {
    const LONG: Duration = Duration::from_secs(600);
    let server = Server::redis(&Options::fast()).unwrap();
    let mut service = Service::at(&server.url());
    let client = redis::Client::open(server.url()).unwrap();
    let config = ConnectionManagerConfig::new().set_response_timeout(None);
    service.connection = ConnectionManager::new_lazy_with_config(client, config).unwrap();
    let cached = service.process().timeout(LONG);
    let claim = ended(&service.store, "still", b"1").await;
    let gate = service.store.hold_after(Op::Claim);
    let stops = async {
        gate.reached().await;
        server.pause().unwrap();
        gate.open();
    };
    let reads = async { tokio::join!(found(&cached, &claim), stops).0 };
    let record = timeout(LONG / 10, reads).await.expect("the call waited");
    assert_eq!(payload(&record), b"1");
    server.resume().unwrap();
}

/// A tombstone may have replaced the value by the time that an unreadable value is removed.
#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn only_the_value_that_was_read_is_removed() {
    let remove = redis::Script::new(include_str!(
        "../../../idem-runtime/src/store/cached/remove.lua"
    ));
    let mut service = Service::new();
    let key = service.name.clone();
    service.put(&key, b"idem-erased/2 7\n", 9_000).await;
    for (read, dropped) in [("garbage", 0), ("idem-erased/2 7\n", 1)] {
        let mut step = remove.key(&key);
        let step = step.arg(read).invoke_async::<u32>(&mut service.connection);
        assert_eq!(step.await.unwrap(), dropped, "{read:?}");
    }
}

#[tokio::test]
#[ignore = "needs a Redis Cluster: cargo xtask test runs it"]
async fn records_are_shared_on_a_cluster() {
    let keys = idem_tests::backends::redis_cluster().await.unwrap();
    let connection = keys.client.get_async_connection().await.unwrap();
    let store = FaultStore::new(MemoryStore::new());
    let process = || {
        Cached::in_redis(store.clone(), connection.clone(), &keys.prefix)
            .timeout(Duration::from_secs(10))
    };
    // On all nodes. Erasures come last, since they leave tasks running.
    let mut claims = Vec::new();
    for number in 0..20 {
        let claim = ended(&store, &format!("shared-{number}"), b"1").await;
        let before = tasks();
        found(&process(), &claim).await;
        until_tasks_are(before).await;
        store.reset();
        assert_eq!(payload(&found(&process(), &claim).await), b"1");
        assert_eq!(store.total(), 0, "{number}: the other process asked");
        claims.push(claim);
    }
    for claim in claims {
        let seen = observed(&store, &claim).await;
        let erased = process().resolve(&seen, &Resolution::Erase).await;
        assert_eq!(erased.unwrap(), Resolved::Done);
        own(&process(), &claim).await;
    }
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn a_redis_value_of_another_type_is_ignored_and_left_unchanged() {
    let service = Service::new();
    let cached = service.process();
    let strange = ended(&service.store, "strange", b"1").await;
    let key = service.key(&strange);
    let () = service
        .ask(redis::cmd("RPUSH").arg(&key).arg("somebody's"))
        .await;
    for _ in 0..2 {
        let record = service.found_and_cached(&cached, &strange).await;
        assert_eq!(payload(&record), b"1");
    }
    let seen = observed(&service.store, &strange).await;
    let erased = cached.resolve(&seen, &Resolution::Erase).await;
    assert_eq!(erased.unwrap(), Resolved::Done);
    let stored: String = service.ask(redis::cmd("LINDEX").arg(&key).arg(0)).await;
    assert_eq!(stored, "somebody's");

    assert!(
        !cached.stats().circuit_open,
        "Redis was given up for one key"
    );
    let other = ended(&service.store, "other", b"2").await;
    service.found_and_cached(&cached, &other).await;
    service.store.reset();
    found(&cached, &other).await;
    assert_eq!(service.store.total(), 0);
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn the_record_of_another_key_is_not_replayed() {
    let service = Service::new();
    let cached = service.process();
    let mine = ended(&service.store, "mine", b"mine").await;
    let other = ended(&service.store, "other", b"other").await;
    service.found_and_cached(&cached, &other).await;
    let mut command = redis::cmd("GET");
    command.arg(service.key(&other));
    let value: Vec<u8> = service.ask(&command).await;

    service.put(&service.key(&mine), &value, 9_000).await;
    assert_eq!(payload(&found(&cached, &mine).await), b"mine");
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn a_cache_counts_its_answers() {
    let service = Service::new();
    let cached = service.process();
    let claim = ended(&service.store, "counted", b"1").await;
    service.found_and_cached(&cached, &claim).await;
    found(&cached, &claim).await;
    found(&cached, &claim).await;
    let stats = cached.stats();
    assert_eq!((stats.hits, stats.misses), (2, 1));
    assert_eq!((stats.bytes, stats.circuit_open), (0, false));
    let store = cached.into_inner();
    assert_eq!(store.total(), 1);
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn an_erasure_takes_effect_in_all_processes_immediately() {
    let service = Service::new();
    let claim = ended(&service.store, "erased", b"1").await;
    let process = service.process();
    service.found_and_cached(&process, &claim).await;
    let seen = observed(&service.store, &claim).await;
    let erased = service.process().resolve(&seen, &Resolution::Erase).await;
    assert_eq!(erased.unwrap(), Resolved::Done);
    own(&service.process(), &claim).await;
}

/// One process reads the record, another erases it, and only then does the first get its answer and cache it.
#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn a_record_read_before_an_erasure_elsewhere_is_not_cached() {
    let service = Service::new();
    let claim = ended(&service.store, "overtaken", b"1").await;
    let seen = observed(&service.store, &claim).await;
    let gate = service.store.hold_after(Op::Claim);
    let (reader, eraser) = (service.process(), service.process());
    let _: Option<String> = service.ask(redis::cmd("GET").arg("nothing")).await;
    let before = tasks();
    let reads = found(&reader, &claim);
    let erases = async {
        gate.reached().await;
        let erased = eraser.resolve(&seen, &Resolution::Erase).await;
        assert_eq!(erased.unwrap(), Resolved::Done);
        // A claim in the meantime leaves the tombstone in place.
        own(&service.process(), &claim).await;
        gate.open();
    };
    tokio::join!(reads, erases);
    until_tasks_are(before).await;
    let other = ClaimRequest {
        claim_id: ClaimId::random(),
        ..claim
    };
    assert_eq!(
        found(&service.process(), &other).await.state,
        RecordState::Running
    );
}

/// The tombstone of an erasure is evicted while an older read is in flight. That read then caches the record again: for
/// some seconds, not for the maximum age.
#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn an_erased_record_whose_tombstone_was_evicted_is_replayed_for_seconds_only() {
    let service = Service::new();
    let claim = ended(&service.store, "evicted", b"1").await;
    let seen = observed(&service.store, &claim).await;
    let gate = service.store.hold_after(Op::Claim);
    let (reader, eraser) = (service.process(), service.process());
    let reads = found(&reader, &claim);
    let erases = async {
        gate.reached().await;
        let erased = eraser.resolve(&seen, &Resolution::Erase).await;
        assert_eq!(erased.unwrap(), Resolved::Done);
        let evicted: u32 = service
            .ask(redis::cmd("DEL").arg(service.key(&claim)))
            .await;
        assert_eq!(evicted, 1, "there was no mark");
        gate.open();
    };
    tokio::join!(reads, erases);
    let deadline = Instant::now() + Duration::from_secs(30);
    let mut came_back = false;
    loop {
        let value: Option<Vec<u8>> = service
            .ask(redis::cmd("GET").arg(service.key(&claim)))
            .await;
        let is_mark = value
            .as_ref()
            .is_some_and(|it| it.starts_with(b"idem-erased/"));
        if is_mark {
            break;
        }
        came_back |= value.is_some();
        assert!(Instant::now() < deadline, "replayed up to the maximum age");
        sleep(Duration::from_millis(20)).await;
    }
    assert!(came_back, "nothing was at stake");
    own(&service.process(), &claim).await;
}

/// An erasure covers one fencing token: a later record under the key is cached immediately.
#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn a_record_after_an_erasure_is_cached() {
    let service = Service::new();
    let process = service.process();
    let claim = ended(&service.store, "anew", b"1").await;
    service.found_and_cached(&process, &claim).await;
    let seen = observed(&service.store, &claim).await;
    let erased = process.resolve(&seen, &Resolution::Erase).await;
    assert_eq!(erased.unwrap(), Resolved::Done);
    let claim = ended(&service.store, "anew", b"2").await;
    service.found_and_cached(&process, &claim).await;
    service.store.reset();
    assert_eq!(payload(&found(&service.process(), &claim).await), b"2");
    assert_eq!(service.store.total(), 0, "the newer record was not cached");
}

/// A record with a higher fencing token, written without any cache, replaces one that is no longer served.
#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn a_newer_record_replaces_an_older_one() {
    let service = Service::new();
    let (brief, process) = (service.process().max_age(Duration::ZERO), service.process());
    let claim = ended(&service.store, "past", b"1").await;
    service.found_and_cached(&process, &claim).await;
    let seen = observed(&service.store, &claim).await;
    let erased = service
        .store
        .inner()
        .resolve(&seen, &Resolution::Erase)
        .await;
    assert_eq!(erased.unwrap(), Resolved::Done);
    let claim = ended(&service.store, "past", b"2").await;
    // A cache with a shorter maximum age asks the store, and the record that it caches is younger.
    assert_eq!(payload(&found(&brief, &claim).await), b"2");
    let brief = service.process().max_age(Duration::from_millis(1));
    sleep(Duration::from_millis(2)).await;
    let record = service.found_and_cached(&brief, &claim).await;
    assert_eq!(payload(&record), b"2");
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn a_cache_in_process_works_in_front_of_the_one_in_redis() {
    let service = Service::new();
    let claim = ended(&service.store, "both", b"1").await;
    let cached = Cached::new(service.process());
    let _: Option<String> = service.ask(redis::cmd("GET").arg("nothing")).await;
    let before = tasks();
    found(&cached, &claim).await;
    until_tasks_are(before).await;
    let mut command = redis::cmd("DEL");
    command.arg(service.key(&claim));
    let removed: u32 = service.ask(&command).await;
    assert_eq!(removed, 1);
    found(&cached, &claim).await;
    assert_eq!(service.store.total(), 1);

    let seen = observed(&service.store, &claim).await;
    let erased = cached.resolve(&seen, &Resolution::Erase).await;
    assert_eq!(erased.unwrap(), Resolved::Done);
    own(&cached, &claim).await;
}

/// Checks that each kind of call gets the same answer as without the cache.
async fn goes_on_without(service: &Service) {
    let cached = service.process().timeout(Duration::from_millis(20));
    let walk = async {
        for number in 0..50 {
            let claim = claim(&format!("key-{number}"));
            let owner = own(&cached, &claim).await;
            let outcome = crate::records::outcome(b"done");
            cached.complete(&owner, &outcome).await.unwrap();
            assert_eq!(payload(&found(&cached, &claim).await), b"done");
            let record = cached.get(&claim.id).await.unwrap().unwrap();
            let seen = record.observation();
            let erased = cached.resolve(&seen, &Resolution::Erase).await;
            assert_eq!(erased.unwrap(), Resolved::Done);
            own(&cached, &claim).await;
        }
    };
    timeout(Duration::from_secs(60), walk).await.unwrap();
}

#[tokio::test]
async fn an_unreachable_redis_fails_no_call() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    goes_on_without(&Service::at(&format!("redis://{address}/"))).await;
}

#[tokio::test]
async fn a_redis_that_never_answers_fails_no_call() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let silent = tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((connection, _)) = listener.accept().await {
            held.push(connection);
        }
    });
    goes_on_without(&Service::at(&format!("redis://{address}/"))).await;
    silent.abort();
}
