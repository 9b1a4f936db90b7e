//! An owner whose whole process is stopped, heartbeats included, for longer than its lease, and then continues.

use std::time::Duration;

use idem_runtime::record::RecordState;
use idem_runtime::{Call, Error, Idem};
use idem_tests::backends::OPERATION;
use idem_tests::{on_stores, places, until};
use tokio::sync::oneshot;

use super::{Caller, Home, record, unique_key};
use crate::records::end_lease;

on_stores! { [versions] Home::of:
    a_paused_owner_gets_the_stored_outcome,
    a_paused_owner_loses_its_lease,
    a_paused_owner_may_complete_late,
}

const TTL: Duration = Duration::from_secs(600);
const LEASE: Duration = TTL;

/// Starts an owner in another process, and pauses it in its body.
async fn paused_owner(home: &Home, key: &str, lease: Duration) -> Caller {
    let [lease, ttl] = [lease, TTL].map(|it| it.as_millis().to_string());
    let mut owner = Caller::start(&["call", &home.address, key, &lease, &ttl, "theirs"]);
    assert_eq!(owner.next_line().await, "running");
    owner.pause().await;
    owner
}

/// Starts an owner in another process, pauses it in its body, and ends its lease.
async fn silent_owner(home: &Home, idem: &Idem, key: &str) -> Caller {
    let owner = paused_owner(home, key, LEASE).await;
    end_lease(idem.store(), &record(idem, key).await.unwrap())
        .await
        .unwrap();
    owner
}

/// Makes a call of this process, for the same request.
async fn ours(
    idem: &Idem,
    key: &str,
    body: impl AsyncFnOnce() -> Result<String, Error>,
) -> Result<String, Error> {
    let call = Call::new(OPERATION, key, "request", TTL).lease(LEASE);
    idem.run(call, body).await
}

/// Another process took over and has an outcome: the paused owner gets the same one.
async fn a_paused_owner_gets_the_stored_outcome(home: Home) {
    let (idem, key) = (home.open().await, unique_key());
    let mut owner = silent_owner(&home, &idem, &key).await;
    let value = ours(&idem, &key, async || Ok("ours".to_owned())).await;
    assert_eq!(value.unwrap(), "ours");
    owner.resume().await;
    owner.proceed().await;
    assert_eq!(owner.next_line().await, "replayed ours");
    let record = record(&idem, &key).await.unwrap();
    assert_eq!((record.state, record.attempt), (RecordState::Completed, 2));
    let replayed = ours(&idem, &key, async || panic!("it is done")).await;
    assert_eq!(replayed.unwrap(), "ours");
}

/// Another process took over and still runs: the paused owner gets an error, and its result is not recorded.
async fn a_paused_owner_loses_its_lease(home: Home) {
    let (idem, key) = (home.open().await, unique_key());
    let mut owner = silent_owner(&home, &idem, &key).await;
    let (running, has_begun) = oneshot::channel();
    let (finish, finished) = oneshot::channel();
    let taking_over = tokio::spawn({
        let (idem, key) = (idem.clone(), key.clone());
        async move {
            ours(&idem, &key, async || {
                running.send(()).unwrap();
                finished.await.unwrap();
                Ok("ours".to_owned())
            })
            .await
        }
    });
    has_begun.await.unwrap();
    owner.resume().await;
    owner.proceed().await;
    assert_eq!(owner.next_line().await, "lease-lost");
    let running = record(&idem, &key).await.unwrap();
    assert_eq!((running.state, running.attempt), (RecordState::Running, 2));
    finish.send(()).unwrap();
    assert_eq!(taking_over.await.unwrap().unwrap(), "ours");
    let replayed = ours(&idem, &key, async || panic!("it is done")).await;
    assert_eq!(replayed.unwrap(), "ours");
}

/// No other owner took over: an owner may complete even if its lease has expired. The lease ends in real time here, by the
/// clocks of the server and of the owner. Nobody else claims the key, so a slow owner loses nothing.
async fn a_paused_owner_may_complete_late(home: Home) {
    const SHORT_LEASE: Duration = Duration::from_millis(400);
    let (idem, key) = (home.open().await, unique_key());
    let mut owner = paused_owner(&home, &key, SHORT_LEASE).await;
    until(async || record(&idem, &key).await.unwrap().is_lapsed()).await;
    owner.resume().await;
    owner.proceed().await;
    assert_eq!(owner.next_line().await, "executed theirs");
    let record = record(&idem, &key).await.unwrap();
    assert_eq!((record.state, record.attempt), (RecordState::Completed, 1));
    let replayed = ours(&idem, &key, async || panic!("it is done")).await;
    assert_eq!(replayed.unwrap(), "theirs");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Redis and a Redis Cluster: cargo xtask test runs it"]
async fn a_paused_owner_on_redis() {
    for place in [places::redis(), places::redis_cluster()] {
        a_paused_owner_gets_the_stored_outcome(Home::of(place.clone()).await).await;
        a_paused_owner_loses_its_lease(Home::of(place.clone()).await).await;
        a_paused_owner_may_complete_late(Home::of(place).await).await;
    }
}
