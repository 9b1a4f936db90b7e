//! The cache in Redis: what it spares all processes of a service, what it never believes, and that losing it loses
//! nothing.

use std::time::Duration;

use idem_runtime::conformance::faults::{FaultStore, Op};
use idem_runtime::record::Token;
use idem_runtime::store::{Claim, ClaimRequest, Resolution, Resolved};
use idem_runtime::{Cached, Call, Error, Idem, MemoryStore, Store};
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep, timeout};

use super::{ended, found, observed, payload};
use crate::records::{HOUR, claim, own};

type Counted = FaultStore<MemoryStore>;

/// A store, and a name of its own in Redis for the cache in front of it.
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

    /// What one process of the service has.
    fn process(&self) -> Cached<Counted> {
        Cached::in_redis(self.store.clone(), self.connection.clone(), &self.name)
            // A machine that is busy with other tests may be slow; what tests time-outs sets its own.
            .timeout(Duration::from_secs(10))
    }

    /// The only key that the cache has put there.
    async fn key(&self) -> String {
        let mut command = redis::cmd("KEYS");
        command.arg(format!("{}:*", self.name));
        let keys: Vec<String> = self.ask(&command).await;
        let [key] = &keys[..] else {
            panic!("{keys:?} instead of one key")
        };
        key.clone()
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

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn what_one_process_read_is_replayed_in_all() {
    let service = Service::new();
    let claim = ended(&service.store, "shared", b"the \n result").await;
    found(&service.process(), &claim).await;
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
async fn a_record_is_kept_in_redis_no_longer_than_it_may_be_served() {
    let service = Service::new();
    let cached = service.process().max_age(Duration::from_secs(30));
    let claim = ended(&service.store, "bounded", b"1").await;
    found(&cached, &claim).await;
    let mut command = redis::cmd("PTTL");
    command.arg(service.key().await);
    let left: i64 = service.ask(&command).await;
    assert!((1..=30_000).contains(&left), "{left} ms left");
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn nothing_is_served_from_redis_past_its_retention() {
    let service = Service::new();
    let cached = service.process();
    let claim = ClaimRequest {
        retention: Duration::from_millis(300),
        ..claim("expires")
    };
    let holder = own(&cached, &claim).await;
    let ending = crate::records::ending(b"1");
    cached.complete(&holder, &ending).await.unwrap();
    let again = ClaimRequest {
        token: Token::random(),
        ..claim
    };
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        match cached.claim(&again).await.unwrap() {
            Claim::Existing(record) => assert!(!record.is_expired(), "{record:?}"),
            Claim::Granted(_) => break,
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
    idem.run(call(1), body).await.unwrap();
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
async fn what_no_cache_writes_is_replaced_by_the_truth() {
    let service = Service::new();
    let cached = service.process();
    let claim = ended(&service.store, "garbage", b"true").await;
    found(&cached, &claim).await;
    let key = service.key().await;
    let value: Vec<u8> = service.ask(redis::cmd("GET").arg(&key)).await;

    let half = &value[..value.len() / 2];
    for (garbage, life_ms) in [
        (&b""[..], 9_000),
        (b"garbage", 9_000),
        (b"\xff\x00", 9_000),
        (b"idem-record/2\n{}\n", 9_000),
        (half, 9_000),
        // A life that somebody prolonged says nothing of the record's age.
        (&value, 90_000_000),
    ] {
        service.put(&key, garbage, life_ms).await;
        service.store.reset();
        assert_eq!(payload(&found(&cached, &claim).await), b"true");
        assert_eq!(service.store.total(), 1, "{garbage:?} was believed");
        assert_eq!(payload(&found(&cached, &claim).await), b"true");
        assert_eq!(service.store.total(), 1, "{garbage:?} was left there");
    }
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn the_record_of_another_key_is_not_replayed() {
    let service = Service::new();
    let cached = service.process();
    let mine = ended(&service.store, "mine", b"mine").await;
    found(&cached, &mine).await;
    let key = service.key().await;
    let () = service.ask(redis::cmd("DEL").arg(&key)).await;
    let other = ended(&service.store, "other", b"other").await;
    found(&cached, &other).await;
    let value: Vec<u8> = service
        .ask(redis::cmd("GET").arg(service.key().await))
        .await;

    service.put(&key, &value, 9_000).await;
    assert_eq!(payload(&found(&cached, &mine).await), b"mine");
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn an_erasure_is_heeded_in_all_processes_at_once() {
    let service = Service::new();
    let claim = ended(&service.store, "erased", b"1").await;
    found(&service.process(), &claim).await;
    let seen = observed(&service.store, &claim).await;
    let erased = service.process().resolve(&seen, &Resolution::Erase).await;
    assert_eq!(erased.unwrap(), Resolved::Done);
    own(&service.process(), &claim).await;
}

/// One process reads the record, another erases it, and only then the first one has its answer and keeps it.
#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn a_read_that_an_erasure_elsewhere_overtook_is_not_kept() {
    let service = Service::new();
    let claim = ended(&service.store, "overtaken", b"1").await;
    let seen = observed(&service.store, &claim).await;
    let gate = service.store.hold_after(Op::Claim);
    let (reader, eraser) = (service.process(), service.process());
    let reads = found(&reader, &claim);
    let erases = async {
        gate.reached().await;
        let erased = eraser.resolve(&seen, &Resolution::Erase).await;
        assert_eq!(erased.unwrap(), Resolved::Done);
        // Whoever looks in the meantime leaves the mark of the erasure where it is.
        own(&service.process(), &claim).await;
        gate.open();
    };
    tokio::join!(reads, erases);
    own(&service.process(), &claim).await;
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn a_cache_in_process_stands_in_front_of_the_one_in_redis() {
    let service = Service::new();
    let claim = ended(&service.store, "both", b"1").await;
    let cached = Cached::new(service.process());
    found(&cached, &claim).await;
    let key = service.key().await;
    let () = service.ask(redis::cmd("DEL").arg(&key)).await;
    found(&cached, &claim).await;
    assert_eq!(service.store.total(), 1);

    let seen = observed(&service.store, &claim).await;
    let erased = cached.resolve(&seen, &Resolution::Erase).await;
    assert_eq!(erased.unwrap(), Resolved::Done);
    own(&cached, &claim).await;
}

/// Each kind of call gets the answer that it would get without the cache.
async fn goes_on_without(service: &Service) {
    let cached = service.process().timeout(Duration::from_millis(20));
    let walk = async {
        for number in 0..50 {
            let claim = claim(&format!("key-{number}"));
            let holder = own(&cached, &claim).await;
            let ending = crate::records::ending(b"done");
            cached.complete(&holder, &ending).await.unwrap();
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
async fn a_redis_that_is_not_there_fails_no_call() {
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
