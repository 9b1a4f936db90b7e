//! Error replies of real servers: each becomes a `StoreError` of the right kind that says what to do.

use std::time::{Duration, Instant};

use ::redis::Client;
use ::redis::aio::{ConnectionManager, ConnectionManagerConfig, MultiplexedConnection};
use idem_runtime::error::{StoreError, StoreErrorKind};
use idem_runtime::record::{ClaimId, Digest, Outcome, Owner};
use idem_runtime::store::{ClaimOutcome, ClaimRequest, FencedWrite};
use idem_runtime::{OnCrash, RedisStore, Store};
use idem_servers::{Options, Server};
use tokio::time::sleep;

use super::{claim, key, own, until_said};
use crate::records::{fresh, full_text};

const PATIENCE: Duration = Duration::from_secs(60);

#[track_caller]
fn is(error: &StoreError, kind: StoreErrorKind, advice: &str) {
    assert_eq!(error.kind(), kind, "{error:?}");
    let text = full_text(error);
    assert!(text.contains(advice), "{text:?} does not say {advice:?}");
}

/// Repeats a call until it fails, other than by a timeout.
async fn until_refused<T: std::fmt::Debug>(
    call: impl AsyncFn() -> Result<T, StoreError>,
) -> StoreError {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match call().await {
            Err(error) if error.kind() != StoreErrorKind::Timeout => return error,
            other => assert!(Instant::now() < deadline, "never refused: {other:?}"),
        }
        sleep(Duration::from_millis(10)).await;
    }
}

async fn raw(server: &Server) -> MultiplexedConnection {
    let client = Client::open(server.url()).unwrap();
    client.get_multiplexed_async_connection().await.unwrap()
}

/// Starts a replica of `primary`, and waits until it is connected.
pub(crate) async fn replica_of(primary: &Server) -> Server {
    let replica = Server::redis(&Options::fast()).unwrap();
    replica
        .query(&format!("REPLICAOF 127.0.0.1 {}", primary.port()))
        .unwrap();
    until_said(&replica, "INFO replication", "master_link_status:up").await;
    replica
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn a_full_server_refuses_claims_and_still_replays() {
    let server = Server::redis(&Options::fast().set("maxmemory-policy", "noeviction")).unwrap();
    let store = RedisStore::connect(&server.url()).await.unwrap();
    let done = claim(OnCrash::Rerun);
    let owner = own(&store, &done).await;
    store.complete(&owner, &Outcome::Unrecorded).await.unwrap();
    server.query("CONFIG SET maxmemory 1").unwrap();

    let error = store.claim(&fresh()).await.unwrap_err();
    is(&error, StoreErrorKind::Full, "give it more memory");
    let again = ClaimRequest {
        claim_id: ClaimId::random(),
        ..done
    };
    let replayed = store.claim(&again).await.unwrap();
    assert!(
        matches!(replayed, ClaimOutcome::Existing(_)),
        "{replayed:?}"
    );
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn a_replica_is_read_only() {
    let primary = Server::redis(&Options::fast()).unwrap();
    let replica = replica_of(&primary).await;
    let store = RedisStore::connect(&replica.url()).await.unwrap();
    assert!(store.get(&fresh().id).await.unwrap().is_none());
    let error = store.claim(&fresh()).await.unwrap_err();
    is(&error, StoreErrorKind::ReadOnly, "connect to the primary");
    assert!(error.is_retryable(), "a failover may follow");

    replica
        .query("CONFIG SET replica-serve-stale-data no")
        .unwrap();
    primary.kill().unwrap();
    let error = until_refused(async || store.get(&fresh().id).await).await;
    is(&error, StoreErrorKind::Unavailable, "lost its primary");
    assert!(error.is_retryable());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn a_server_that_loads_its_data_is_unavailable() {
    // Loading takes 200 µs a key. The server answers commands about once per thousand keys.
    let server = Server::redis(&Options::durable().set("key-load-delay", "200")).unwrap();
    server.query("CONFIG SET appendfsync no").unwrap();
    let mut writes = ::redis::pipe();
    for number in 0..10_000 {
        writes.set(number, "x").ignore();
    }
    let () = writes.query_async(&mut raw(&server).await).await.unwrap();
    let client = Client::open(server.url()).unwrap();
    let config = ConnectionManagerConfig::new().set_max_delay(Duration::from_millis(20));
    let manager = ConnectionManager::new_lazy_with_config(client, config).unwrap();
    let store = RedisStore::new(manager);
    std::thread::scope(|scope| {
        scope.spawn(|| server.restart().unwrap());
        tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(async {
                let error = until_loading(&store).await;
                is(
                    &error,
                    StoreErrorKind::Unavailable,
                    "still reading its data",
                );
                assert!(error.is_retryable());
            });
        });
    });
    own(&store, &fresh()).await;
}

/// Repeats a read until the error says that the server is loading its data. Until then the server does not accept
/// connections.
async fn until_loading(store: &RedisStore) -> StoreError {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let error = until_refused(async || store.get(&fresh().id).await).await;
        if full_text(&error).contains("LOADING") || error.to_string().contains("reading its data") {
            return error;
        }
        assert!(Instant::now() < deadline, "{error:?}");
    }
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn a_server_busy_with_a_script_is_a_conflict() {
    let server = Server::redis(&Options::fast().set("lua-time-limit", "50")).unwrap();
    let store = RedisStore::connect(&server.url()).await.unwrap();
    let mut connection = raw(&server).await;
    let endless = tokio::spawn(async move {
        let mut script = ::redis::cmd("EVAL");
        script.arg("while true do end").arg(0);
        script.exec_async(&mut connection).await
    });
    let error = until_refused(async || store.get(&fresh().id).await).await;
    is(
        &error,
        StoreErrorKind::Conflict,
        "busy with somebody's script",
    );
    assert!(error.is_retryable());
    server.query("SCRIPT KILL").unwrap();
    endless.await.unwrap().unwrap_err();
    own(&store, &fresh()).await;
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn a_server_that_cannot_save_refuses_claims() {
    let server = Server::redis(&Options::fast().set("save", "3600 1")).unwrap();
    let store = RedisStore::connect(&server.url()).await.unwrap();
    // The server writes a temporary file and renames it to `dump.rdb`. That fails if a folder has this name.
    std::fs::create_dir(server.directory().join("dump.rdb")).unwrap();
    server.query("BGSAVE").unwrap();
    until_said(&server, "INFO persistence", "rdb_last_bgsave_status:err").await;
    let error = store.claim(&fresh()).await.unwrap_err();
    is(&error, StoreErrorKind::Full, "cannot save to its disk");
    assert!(store.get(&fresh().id).await.unwrap().is_none());
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn a_login_without_the_right_password_is_denied() {
    let server = Server::redis(&Options::fast()).unwrap();
    server.query("CONFIG SET requirepass right").unwrap();
    let with = |login: &str| {
        server
            .url()
            .replace("redis://", &format!("redis://{login}"))
    };
    for login in ["", ":wrong@", "nobody:right@"] {
        let error = RedisStore::connect(&with(login)).await.unwrap_err();
        is(&error, StoreErrorKind::Denied, "check user and password");
    }
    RedisStore::connect(&with(":right@")).await.unwrap();
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn a_user_without_write_privileges_is_denied() {
    let server = Server::redis(&Options::fast()).unwrap();
    server
        .query("ACL SETUSER reader on >secret ~* +@read +@scripting +time +ping")
        .unwrap();
    let url = server.url().replace("redis://", "redis://reader:secret@");
    let store = RedisStore::connect(&url).await.unwrap();
    let error = store.claim(&fresh()).await.unwrap_err();
    is(&error, StoreErrorKind::Denied, "grant it the commands");
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn changed_records_are_corrupt() {
    let (store, prefix) = super::store().await;
    let claim = claim(OnCrash::Rerun);
    let owner = own(&store, &claim).await;
    let outcome = crate::records::outcome(b"1");
    store.complete(&owner, &outcome).await.unwrap();
    let (key, mut connection) = (key(&prefix, &claim), super::connect().await);
    let again = ClaimRequest {
        claim_id: ClaimId::random(),
        ..claim.clone()
    };
    let good: Vec<u8> = ::redis::cmd("GET")
        .arg(&key)
        .query_async(&mut connection)
        .await
        .unwrap();
    let mut odd_ones: Vec<(Vec<u8>, &str)> = Vec::new();
    let repair = "give the store another prefix";
    // Each byte of the head before the claim id, and the first one of each number and of the sections.
    for at in [0, 2, 3, 4, 21, 29, 37, 45, 57, 58] {
        let mut odd = good.clone();
        odd[at] = 0xF0;
        odd_ones.push((odd, repair));
    }
    let mut no_attempt = good.clone();
    no_attempt[53..57].fill(0);
    odd_ones.push((no_attempt, repair));
    // A value that is cut, at any byte.
    odd_ones.extend((1..good.len()).map(|length| (good[..length].to_vec(), repair)));
    // Too much, the request of another record, and no request.
    odd_ones.push(([&good[..], b"x"].concat(), repair));
    let mut another = good.clone();
    another[62 + Digest::LEN] ^= 1;
    odd_ones.push((another, repair));
    let mut newer = good.clone();
    newer[1] = 2;
    odd_ones.push((newer, "run the version of idem that wrote it"));
    let write = async |connection: &mut ConnectionManager, value: &[u8]| {
        let mut write = ::redis::cmd("SET");
        let write = write.arg(&key).arg(value).arg("KEEPTTL");
        let () = write.query_async(connection).await.unwrap();
    };
    for (odd, advice) in odd_ones {
        write(&mut connection, &odd).await;
        for error in [
            store.claim(&again).await.unwrap_err(),
            store.get(&claim.id).await.unwrap_err(),
        ] {
            is(&error, StoreErrorKind::Corrupt, advice);
        }
        let left: Vec<u8> = ::redis::cmd("GET")
            .arg(&key)
            .query_async(&mut connection)
            .await
            .unwrap();
        assert_eq!(left, odd, "a record that cannot be read is unchanged");
    }
    write(&mut connection, &good).await;
    assert!(store.get(&claim.id).await.unwrap().is_some());
    // An ended record whose expiry was taken away.
    let mut persist = ::redis::cmd("PERSIST");
    let () = persist
        .arg(&key)
        .query_async(&mut connection)
        .await
        .unwrap();
    for error in [
        store.claim(&again).await.unwrap_err(),
        store.get(&claim.id).await.unwrap_err(),
    ] {
        is(&error, StoreErrorKind::Corrupt, repair);
    }
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn transitions_wait_for_a_connected_replica() {
    let primary = Server::redis(&Options::fast()).unwrap();
    let replica = replica_of(&primary).await;
    let manager = || async {
        let client = Client::open(primary.url()).unwrap();
        let config = ConnectionManagerConfig::new().set_response_timeout(None);
        ConnectionManager::new_with_config(client, config)
            .await
            .unwrap()
    };
    let store = RedisStore::new(manager().await)
        .with_timeout(PATIENCE)
        .wait_for_replicas(manager().await, 1, Duration::from_secs(20));
    let claim = fresh();
    let owner = own(&store, &claim).await;
    let from_replica = RedisStore::connect(&replica.url()).await.unwrap();
    assert!(from_replica.get(&claim.id).await.unwrap().is_some());

    replica.kill().unwrap();
    until_said(&primary, "INFO replication", "connected_slaves:0").await;
    let brief = RedisStore::new(manager().await).wait_for_replicas(
        manager().await,
        1,
        Duration::from_millis(50),
    );
    let complete = async || brief.complete(&owner, &Outcome::Unrecorded).await;
    let error = complete().await.unwrap_err();
    is(
        &error,
        StoreErrorKind::Unavailable,
        "see whether they are connected",
    );
    assert!(error.is_retryable());

    replica.restart().unwrap();
    replica
        .query(&format!("REPLICAOF 127.0.0.1 {}", primary.port()))
        .unwrap();
    until_said(&replica, "INFO replication", "master_link_status:up").await;
    let done = store.complete(&owner, &Outcome::Unrecorded).await.unwrap();
    assert_eq!(done, FencedWrite::Applied);
    let replicated = record_of(&replica, &owner).await;
    assert!(replicated.state.is_ended(), "{replicated:?}");
}

async fn record_of(replica: &Server, owner: &Owner) -> idem_runtime::record::Record {
    let store = RedisStore::connect(&replica.url()).await.unwrap();
    store.get(&owner.id).await.unwrap().unwrap()
}
