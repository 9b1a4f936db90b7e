//! The lines that `tracing_subscriber::fmt()` prints without any further setting.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use idem_runtime::{
    Call, Error, Idem, MemoryStore, MySqlStore, OnCrash, PostgresStore, Purger, Recovery,
    SqliteStore,
};
use idem_servers::{Options, Server};
use idem_tests::clocked::ClockedStore;
use idem_tests::recording::Recording;
use serde::{Deserialize, Serialize};
use tracing::Level;
use tracing_subscriber::fmt::MakeWriter;

use crate::{LEASE, kill};

/// Everything that was printed.
#[derive(Debug, Clone, Default)]
struct Printed(Arc<Mutex<Vec<u8>>>);

impl Printed {
    fn take(&self) -> String {
        String::from_utf8(std::mem::take(&mut self.0.lock().unwrap())).unwrap()
    }

    fn contains(&self, text: &str) -> bool {
        String::from_utf8_lossy(&self.0.lock().unwrap()).contains(text)
    }
}

impl Write for Printed {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Printed {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// Prints as `tracing_subscriber::fmt().init()` does.
fn print() -> (Printed, tracing::subscriber::DefaultGuard) {
    print_from(Level::INFO)
}

fn print_from(level: Level) -> (Printed, tracing::subscriber::DefaultGuard) {
    let printed = Printed::default();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_max_level(level)
        .with_writer(printed.clone())
        .finish();
    (printed, tracing::subscriber::set_default(subscriber))
}

fn call(key: &str) -> Call {
    Call::new("test.operation", &format!("secret-{key}"), &1, LEASE * 100)
        .scope("secret-scope")
        .on_crash(OnCrash::Refuse)
}

async fn crash(idem: &Idem<Arc<MemoryStore>>, key: &str) {
    let body = async || std::future::pending::<Result<String, Error>>().await;
    assert!(Box::pin(idem.run(call(key), body)).now_or_never().is_none());
    tokio::task::yield_now().await;
}

#[track_caller]
fn assert_warns_once(printed: &Printed, of: &str) {
    let text = printed.take();
    assert_eq!(text.matches("WARN").count(), 1, "{of}: {text}");
    assert!(text.contains("interrupted"), "{of}: {text}");
    assert!(
        text.contains("operation=\"test.operation\""),
        "{of}: {text}"
    );
    assert!(!text.contains("secret"), "{of}: {text}");
    let id = text.split("record=").nth(1).unwrap();
    let id: String = id.chars().take_while(char::is_ascii_hexdigit).collect();
    id.parse::<idem_runtime::key::RecordId>().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_record_that_becomes_interrupted_is_printed_once() {
    let (printed, _guard) = print();
    let store = Arc::new(MemoryStore::new());
    let idem = Idem::new(Arc::clone(&store));

    crash(&idem, "cancelled").await;
    assert_warns_once(&printed, "a dropped call");
    idem.run(call("cancelled"), async || Ok::<_, Error>(String::new()))
        .await
        .unwrap_err();
    assert_eq!(printed.take(), "");

    let failed = idem.run(call("failed"), async || Err::<String, _>(Error::LeaseLost));
    failed.await.unwrap_err();
    assert_warns_once(&printed, "an error that proves nothing");

    // The owner is gone without a trace, and the next call finds its lapsed record.
    kill(&idem, call("killed")).await;
    tokio::time::advance(LEASE * 2).await;
    let rival = Idem::new(store);
    let next = rival.run(call("killed"), async || Ok::<_, Error>(String::new()));
    next.await.unwrap_err();
    assert_warns_once(&printed, "a lapsed record");
}

/// An attribute was copied with its name.
mod copied {
    use idem_runtime::{Error, Idem, MemoryStore, idempotent};

    pub(super) struct Charges;
    pub(super) struct Refunds;

    impl Charges {
        #[idempotent(key = key, ttl = "1h", name = "test.copied", store = idem)]
        pub(super) async fn create(idem: &Idem<MemoryStore>, key: &str) -> Result<u32, Error> {
            Ok(1)
        }
    }

    impl Refunds {
        #[idempotent(key = key, ttl = "1h", name = "test.copied", store = idem)]
        pub(super) async fn create(idem: &Idem<MemoryStore>, key: &str) -> Result<u32, Error> {
            Ok(2)
        }
    }
}

#[tokio::test]
async fn two_functions_of_one_name_are_printed_once() {
    use copied::{Charges, Refunds};

    let (printed, _guard) = print();
    let one = Idem::new(MemoryStore::new());
    assert_eq!(Charges::create(&one, "secret").await.unwrap(), 1);
    // Another handle may be on the store of another service.
    let other = Idem::new(MemoryStore::new());
    assert_eq!(Refunds::create(&other, "secret").await.unwrap(), 2);
    assert_eq!(printed.take(), "");

    let result_of_the_other = Refunds::create(&one, "secret").await;
    assert_eq!(result_of_the_other.unwrap(), 1);
    let text = printed.take();
    assert_eq!(text.matches("WARN").count(), 1, "{text}");
    assert!(text.contains("operation=\"test.copied\""), "{text}");
    let path = concat!(module_path!(), "::copied::create");
    assert_eq!(text.matches(path).count(), 2, "{text}");
    assert!(!text.contains("secret"), "{text}");

    for idem in [&one, &other, &one] {
        Charges::create(idem, "another secret").await.unwrap();
        Refunds::create(idem, "another secret").await.unwrap();
    }
    // Only the other handle had not served both.
    assert_eq!(printed.take().matches("WARN").count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_replay_is_an_event_at_debug() {
    let (printed, _guard) = print_from(Level::DEBUG);
    let idem = Idem::new(MemoryStore::new());
    let run = || idem.run(call("k"), async || Ok::<_, Error>("secret".to_owned()));
    run().await.unwrap();
    assert!(!printed.take().contains("replayed"));
    run().await.unwrap();
    let text = printed.take();
    let line = text.lines().find(|line| line.contains("replayed")).unwrap();
    assert!(
        line.contains("DEBUG") && line.contains("test.operation"),
        "{line}"
    );
    assert!(!text.contains("secret"), "{text}");
}

/// Its type leaves an empty list out, and cannot read itself back without it.
#[derive(Debug, Serialize, Deserialize)]
struct Basket {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    items: Vec<String>,
}

#[tokio::test]
async fn a_result_that_does_not_read_back_is_printed_with_its_operation_and_member() {
    let (printed, _guard) = print();
    let idem = Idem::new(MemoryStore::new());
    for (key, items) in [("full", vec!["secret".to_owned()]), ("empty", Vec::new())] {
        let body = async || Ok::<_, Error>(Basket { items });
        idem.run(call(key), body).await.unwrap();
    }
    let text = printed.take();
    assert_eq!(text.lines().count(), 1, "{text}");
    for part in [
        "ERROR",
        "cannot be stored",
        "operation=\"test.operation\"",
        "member `items` is missing",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    assert!(!text.contains("secret"), "{text}");

    let body = async || Ok::<_, Error>(Basket { items: Vec::new() });
    let replayed = idem.run(call("empty"), body).await;
    assert!(matches!(replayed, Err(Error::Unrecorded)), "{replayed:?}");
}

/// A purger removes records in batches. It prints one line for all of them, or one for the records of dead owners and one
/// for all, or none.
#[tokio::test(start_paused = true)]
async fn a_purger_prints_what_it_has_found() {
    for (completed, abandoned, interrupted) in [
        (0, 0, 0),
        (2, 0, 0),
        (0, 3, 0),
        (0, 0, 4),
        (1900, 1800, 1700),
    ] {
        let (printed, _guard) = print_from(Level::DEBUG);
        let idem = Idem::new(MemoryStore::new());
        for n in 0..completed {
            let body = async || Ok::<_, Error>(String::new());
            idem.run(call(&n.to_string()), body).await.unwrap();
        }
        for (number, on_crash) in [(abandoned, OnCrash::Rerun), (interrupted, OnCrash::Refuse)] {
            for n in 0..number {
                let call = call(&format!("{on_crash:?}-{n}"));
                kill(&idem, call.on_crash(on_crash)).await;
            }
        }
        tokio::time::advance(LEASE * 200).await;
        printed.take();
        let interval = Duration::from_secs(1);
        let purger = Purger::new(&idem).poll_interval(interval).start();
        tokio::time::sleep(interval * 600).await;
        purger.unwrap().stop().await;
        let text = printed.take();
        let mut expected = Vec::new();
        if abandoned + interrupted > 0 {
            expected.push(format!(
                "WARN idem: records outlived their owners by more than their retention abandoned={abandoned} \
                 interrupted={interrupted}"
            ));
        }
        if completed + abandoned > 0 {
            expected.push(format!(
                "DEBUG idem: purged removed={} forgotten=0",
                completed + abandoned
            ));
        }
        let lines = text.lines();
        // Each line begins with its time.
        let lines: Vec<_> = lines
            .map(|line| line.split_once('Z').unwrap().1.trim())
            .collect();
        assert_eq!(lines, expected);
    }
}

/// Only a purger deletes late. A store that expires by itself deletes early.
#[tokio::test(start_paused = true)]
async fn a_jump_of_the_clock_is_a_warning_that_says_what_is_deleted() {
    for (store, deleted) in [
        (
            ClockedStore::open(),
            "what expires is deleted that much later",
        ),
        (ClockedStore::open_expiring(), "results may be gone early"),
    ] {
        let (printed, _guard) = print();
        let idem = Idem::new(store.clone());
        let interval = Duration::from_secs(60);
        let purger = Purger::new(&idem).poll_interval(interval).start().unwrap();
        tokio::time::sleep(interval * 3).await;
        store.set_forward(interval * 60);
        tokio::time::sleep(interval * 3).await;
        purger.stop().await;
        let text = printed.take();
        let jumps = text
            .lines()
            .filter(|line| line.contains("has jumped forward"));
        let jumps: Vec<_> = jumps.collect();
        assert!(
            matches!(&jumps[..], [one] if one.contains(deleted)),
            "{text}"
        );
    }
}

/// Each search prints each operation that it could not look for, and the next search comes soon.
#[tokio::test]
async fn a_recovery_prints_what_it_could_not_look_for() {
    let (printed, _guard) = print();
    let store = SqliteStore::in_memory().await.unwrap();
    store.pool().close().await;
    tokio::time::pause();
    let interval = Duration::from_secs(3600);
    let operations = ["test.first", "test.second"];
    let mut recovery = Recovery::new(&Idem::new(store)).poll_interval(interval);
    for operation in operations {
        recovery = recovery.on(operation, |_: u64| async { Ok::<_, Error>(()) });
    }
    let recovering = recovery.start().unwrap();
    tokio::time::sleep(interval * 3).await;
    recovering.stop().await;
    let text = printed.take();
    for operation in operations {
        let lines = text.lines().filter(|line| {
            line.contains("looking for calls to recover failed") && line.contains(operation)
        });
        assert!(lines.count() > 100, "the pauses are at most seconds long");
    }
}

/// Lines that a recovery prints of a call whose owner is gone without a trace, up to the one that ends with this text. It
/// makes the call once at most. With the numbers of recoveries that succeeded, failed and were given up, by its metrics.
async fn recover(on_crash: OnCrash, succeeds: bool, up_to: &str) -> (Vec<String>, [u64; 3]) {
    let (printed, _guard) = print();
    let recording = Recording::default();
    let _recorder = ::metrics::set_default_local_recorder(&recording);
    let pool = sqlx::sqlite::SqlitePoolOptions::new().max_connections(1);
    let pool = pool.connect("sqlite::memory:").await.unwrap();
    let store = SqliteStore::new(pool.clone());
    store.migrate().await.unwrap();
    // Another process recovers: in this one, calls wait for the owner that died.
    let idem = Idem::new(SqliteStore::new(pool.clone()));
    let call = move || {
        let call = Call::new("test.recovered", "k", &1_u64, Duration::from_secs(3600));
        call.on_crash(on_crash).recover_with(&1_u64)
    };
    kill(&Idem::new(store), call()).await;
    // A short lease could also lapse under the recovery, on a machine under load.
    let lapse = "UPDATE idem_records SET lease_until = first_claimed_at";
    sqlx::query(lapse).execute(&pool).await.unwrap();
    let make_due = "UPDATE idem_records_recovery SET recover_after = 1";
    sqlx::query(make_due).execute(&pool).await.unwrap();
    let short = Duration::from_millis(10);
    let again = idem.clone();
    let recovering = Recovery::new(&idem)
        .on("test.recovered", move |_: u64| {
            let idem = again.clone();
            async move {
                let body = async || match succeeds {
                    true => Ok(String::new()),
                    false => Err(Error::LeaseLost),
                };
                idem.run(call(), body).await
            }
        })
        .poll_interval(short)
        .backoff(short, short)
        .max_attempts(1)
        .start();
    let ended = async {
        while !printed.contains(up_to) {
            // The input of the call that failed is due after its lease.
            if printed.contains("did not end well") {
                sqlx::query(make_due).execute(&pool).await.unwrap();
            }
            tokio::time::sleep(short).await;
        }
    };
    let ended = tokio::time::timeout(Duration::from_secs(60), ended).await;
    recovering.unwrap().stop().await;
    let text = printed.take();
    ended.unwrap_or_else(|_| panic!("no line has {up_to:?}: {text}"));
    let lines = text.lines().filter(|line| line.contains("recover"));
    // Each line has its time and its level before its message, and the number of recoveries as its last field.
    let message_and_number = |line: &str| {
        let (_, message) = line.split_once(": ").unwrap();
        let (message, fields) = message.split_once(" operation=").unwrap();
        format!("{message} {}", fields.rsplit(' ').next().unwrap())
    };
    let counted = ["succeeded", "failed", "given_up"].map(|result| {
        recording.counter(&format!(
            "idem_recoveries_total{{operation=\"test.recovered\",result=\"{result}\"}}"
        ))
    });
    (lines.map(message_and_number).collect(), counted)
}

#[tokio::test]
async fn a_recovery_prints_each_call_that_it_makes() {
    let retried = "retrying a call whose owner crashed";
    let (lines, counted) = recover(OnCrash::Rerun, true, retried).await;
    assert_eq!(lines, [format!("{retried} recovery=1")]);
    assert_eq!(counted, [1, 0, 0]);
}

#[tokio::test]
async fn a_recovery_prints_each_call_that_fails_and_each_that_it_gives_up() {
    let given_up =
        "the call could not be recovered and is interrupted, an operator must resolve it";
    let (lines, counted) = recover(OnCrash::Rerun, false, given_up).await;
    assert_eq!(counted, [0, 1, 1]);
    let expected = [
        "retrying a call whose owner crashed recovery=1".to_owned(),
        "a recovery did not end well recovery=1".to_owned(),
        format!("{given_up} recoveries=1"),
    ];
    assert_eq!(lines, expected);
    let (lines, counted) = recover(OnCrash::Refuse, true, given_up).await;
    assert_eq!(lines, [format!("{given_up} recoveries=0")]);
    assert_eq!(counted, [0, 0, 1]);
}

#[tokio::test]
#[ignore = "needs PostgreSQL and MariaDB: cargo xtask test runs it"]
async fn stores_that_start_print_nothing() {
    let (printed, _guard) = print();
    let sqlite = SqliteStore::in_memory().await.unwrap();
    sqlite.migrate().await.unwrap();
    assert_eq!(printed.take(), "");

    // Several processes start at once, so that one finds the tables of another. One of them waits longer for the lock
    // than sqlx takes for slow.
    let postgres = Server::postgres(&Options::fast()).unwrap();
    let url = postgres.url();
    let rival = sqlx::PgPool::connect(&url).await.unwrap();
    let lock = "SELECT pg_advisory_xact_lock(x'6964656d'::bigint)";
    let mut locked = rival.begin().await.unwrap();
    sqlx::query(lock).execute(&mut *locked).await.unwrap();
    let started = join_all((0..5).map(|_| async {
        let store = PostgresStore::connect(&url).await.unwrap();
        store.migrate().await.unwrap();
        store.migrate().await.unwrap();
    }));
    let unlocked = async {
        tokio::time::sleep(Duration::from_millis(1_200)).await;
        locked.rollback().await.unwrap();
    };
    tokio::join!(started, unlocked);
    assert_quiet(&printed);

    let mysql = Server::maria_db(&Options::fast()).unwrap();
    mysql.query("CREATE DATABASE shop").unwrap();
    let url = mysql.url().replace("/mysql", "/shop");
    let started = join_all((0..5).map(|_| async {
        let store = MySqlStore::connect(&url).await.unwrap();
        store.migrate().await.unwrap();
        store.migrate().await.unwrap();
    }));
    started.await;
    assert_quiet(&printed);
}

/// A machine under load may make any statement slow, except that nothing waits for a lock inside of the server.
#[track_caller]
fn assert_quiet(printed: &Printed) {
    let text = printed.take();
    let slow = |line: &&str| line.contains("slow statement") && !line.contains("lock");
    let lines: Vec<_> = text.lines().filter(|line| !slow(line)).collect();
    assert!(lines.is_empty(), "{lines:#?}");
}
