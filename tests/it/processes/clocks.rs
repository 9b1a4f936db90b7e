//! A process whose clock is hours ahead of or behind the clock of the server and of all others: leases, takeovers and
//! retention use only the server's clock. `libfaketime` shifts the clock of the process.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use idem_runtime::record::{Record, RecordState};
use idem_runtime::{Call, Error, Idem};
use idem_servers::{Options, Server};
use idem_tests::backends::OPERATION;
use idem_tests::places::Files;
use idem_tests::{on_stores, until};
use tokio::process::Command;
use tokio::sync::oneshot;

use super::{Caller, Home, PROGRAM, record, unique_key};
use crate::records::end_lease;

on_stores! { [server versions] Home::of: the_clock_of_the_server_decides }

const LONG: Duration = Duration::from_secs(600);
/// Retention of a record that the test lets expire.
const SHORT: Duration = Duration::from_millis(500);

/// The program, with its wall clock shifted by this much; the monotonic clock is unchanged.
fn apart(hours: &str, arguments: &[&str]) -> Caller {
    let mut command = Command::new(PROGRAM);
    command.args(arguments);
    // The dynamic loader replaces `$LIB` with this system's library directory.
    command.env("LD_PRELOAD", "/usr/$LIB/faketime/libfaketime.so.1");
    command.env("FAKETIME", hours);
    command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    Caller::run(&mut command)
}

fn call_apart(hours: &str, home: &Home, key: &str, ttl: Duration) -> Caller {
    let [lease, ttl] = [LONG, ttl].map(|it| it.as_millis().to_string());
    apart(hours, &["call", &home.address, key, &lease, &ttl, "theirs"])
}

async fn ours(
    idem: &Idem,
    key: &str,
    body: impl AsyncFnOnce() -> Result<String, Error>,
) -> Result<String, Error> {
    let call = Call::new(OPERATION, key, "request", LONG).lease(LONG);
    idem.run(call, body).await
}

/// Asserts that the times of a record that was claimed a moment ago are those of the server's clock.
fn assert_times(record: &Record) {
    assert_eq!(record.state, RecordState::Running);
    assert!(record.first_claimed_at <= record.read_at, "{record:?}");
    let left = record.lease_until.since(record.read_at);
    assert!(left <= LONG && left > LONG / 2, "{record:?}");
}

async fn the_clock_of_the_server_decides(home: Home) {
    let idem = home.open().await;
    for hours in ["+5h", "-5h"] {
        let clock: u64 = apart(hours, &["clock"]).next_line().await.parse().unwrap();
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_secs();
        assert!(
            clock.abs_diff(now) > 4 * 3600,
            "is libfaketime installed? {clock}, {now}"
        );

        // Its lease is valid for our process, though the clocks differ.
        let key = unique_key();
        let mut owner = call_apart(hours, &home, &key, LONG);
        assert_eq!(owner.next_line().await, "running", "{hours}");
        assert_times(&record(&idem, &key).await.unwrap());
        let answer = ours(&idem, &key, async || panic!("the key is claimed")).await;
        assert!(matches!(answer, Err(Error::InFlight { .. })), "{answer:?}");
        owner.proceed().await;
        assert_eq!(owner.next_line().await, "executed theirs");
        let value = ours(&idem, &key, async || panic!("the call is completed")).await;
        assert_eq!(value.unwrap(), "theirs");
        let done = record(&idem, &key).await.unwrap();
        let remaining = done.expires_at().unwrap().since(done.read_at);
        assert!(
            remaining <= LONG && remaining > LONG / 2,
            "{hours}: {remaining:?}"
        );

        // When the other process is killed, we take over once its lease has ended, and not before.
        let key = unique_key();
        let mut owner = call_apart(hours, &home, &key, LONG);
        assert_eq!(owner.next_line().await, "running", "{hours}");
        drop(owner);
        let running = record(&idem, &key).await.unwrap();
        assert_times(&running);
        let answer = ours(&idem, &key, async || panic!("the key is claimed")).await;
        assert!(matches!(answer, Err(Error::InFlight { .. })), "{answer:?}");
        end_lease(idem.store(), &running).await.unwrap();
        let value = ours(&idem, &key, async || Ok("ours".to_owned())).await;
        assert_eq!(value.unwrap(), "ours", "{hours}");
        assert_eq!(record(&idem, &key).await.unwrap().attempt, 2);

        // Our lease is valid for the other process, and our outcome is neither expired for it nor purged by it.
        let key = unique_key();
        let (running, has_begun) = oneshot::channel();
        let (finish, finished) = oneshot::channel();
        let calling = tokio::spawn({
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
        let mut duplicate = call_apart(hours, &home, &key, LONG);
        assert_eq!(duplicate.next_line().await, "in-flight", "{hours}");
        let kept_by_its_purge = async |state| {
            let said = apart(hours, &["purge", &home.address]).next_line().await;
            assert!(said.starts_with("purged "), "{said}");
            assert_eq!(record(&idem, &key).await.unwrap().state, state, "{hours}");
        };
        kept_by_its_purge(RecordState::Running).await;
        finish.send(()).unwrap();
        assert_eq!(calling.await.unwrap().unwrap(), "ours");
        kept_by_its_purge(RecordState::Completed).await;
        let mut duplicate = call_apart(hours, &home, &key, LONG);
        assert_eq!(duplicate.next_line().await, "replayed ours", "{hours}");

        // It takes over from an owner with our clock whose lease has expired, and runs again a call whose record has
        // expired by the server's clock.
        let key = unique_key();
        let long = LONG.as_millis().to_string();
        let words = ["call", &home.address, &key, &long, &long, "nobody's"];
        let mut owner = Caller::start(&words);
        assert_eq!(owner.next_line().await, "running");
        drop(owner);
        end_lease(idem.store(), &record(&idem, &key).await.unwrap())
            .await
            .unwrap();
        let executes = async |attempt| {
            let mut next = call_apart(hours, &home, &key, SHORT);
            assert_eq!(next.next_line().await, "running", "{hours}, {attempt}");
            let running = record(&idem, &key).await.unwrap();
            assert_eq!(running.attempt, attempt, "{hours}");
            next.proceed().await;
            assert_eq!(
                next.next_line().await,
                "executed theirs",
                "{hours}, {attempt}"
            );
        };
        executes(2).await;
        until(async || record(&idem, &key).await.is_none()).await;
        executes(1).await;
    }
}

/// On a dedicated server, since a purge examines every record.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Redis and libfaketime: cargo xtask test runs it"]
async fn a_clock_set_apart_from_that_of_redis() {
    let server = Server::redis(&Options::fast()).unwrap();
    let home = Home {
        address: server.url(),
        _files: Files::default(),
    };
    the_clock_of_the_server_decides(home).await;
}
