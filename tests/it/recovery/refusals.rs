//! Recoveries that cannot work, and inputs that cannot be saved, are refused.

use std::time::Duration;

use idem_runtime::error::InvalidCall;
use idem_runtime::{Call, Error, Idem, MemoryStore, Recovery, SqliteStore};

use idem_tests::until;

use super::{HOUR, Job};

#[tokio::test]
async fn a_store_without_recovery_inputs_is_an_error() {
    let idem = Idem::new(MemoryStore::new());
    let started = Recovery::new(&idem).start();
    assert!(matches!(
        started,
        Err(Error::InvalidCall(InvalidCall::NoRecovery))
    ));
    let call = Call::new("jobs.run", "k", &(), HOUR).recover_with("a value");
    let refused: Result<(), Error> = idem.run(call, async || panic!("must not run")).await;
    assert!(matches!(
        refused,
        Err(Error::InvalidCall(InvalidCall::NoRecovery))
    ));
    let found = idem.records().find("jobs.run", "k").await;
    assert_eq!(found.unwrap(), None);
}

#[tokio::test]
async fn a_call_whose_recovery_input_cannot_be_saved_does_not_run() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("idem.db");
    let store = SqliteStore::open(&file).await.unwrap();
    let idem = Idem::builder(store).max_result_bytes(8).build();
    let run = async |input: &str| -> Result<(), Error> {
        let call = Call::new("jobs.run", "k", &(), HOUR).recover_with(input);
        idem.run(call, async || Ok(())).await
    };
    let answer = run("longer than eight bytes").await;
    assert!(matches!(
        answer,
        Err(Error::InvalidCall(InvalidCall::RecoveryInput(_)))
    ));

    // Six letters in quotation marks have exactly eight bytes.
    let longest = Call::new("jobs.run", "longest", &(), HOUR).recover_with("sixsix");
    let ran: Result<(), Error> = idem.run(longest, async || Ok(())).await;
    assert!(ran.is_ok(), "{ran:?}");

    // The store fails: the claim is released, because nothing has run.
    let db = sqlx::SqlitePool::connect_with(SqliteStore::connect_options(&file))
        .await
        .unwrap();
    sqlx::query("ALTER TABLE idem_records_recovery RENAME TO away")
        .execute(&db)
        .await
        .unwrap();
    assert!(matches!(run("short").await, Err(Error::Store(_))));
    sqlx::query("ALTER TABLE away RENAME TO idem_records_recovery")
        .execute(&db)
        .await
        .unwrap();
    until(async || match run("short").await {
        Ok(()) => true,
        Err(error) => {
            assert!(matches!(error, Error::InFlight { .. }), "{error:?}");
            false
        }
    })
    .await;
}

#[tokio::test]
async fn pauses_below_one_millisecond_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(directory.path().join("idem.db"));
    let idem = Idem::new(store.await.unwrap());
    let (none, long) = (Duration::ZERO, Duration::from_secs(1));
    for (first, longest) in [(none, long), (long, none), (none, none)] {
        let recovery = Recovery::new(&idem).backoff(first, longest).start();
        assert!(matches!(
            recovery,
            Err(Error::InvalidCall(InvalidCall::ShortPause))
        ));
    }
    let shortest = Duration::from_millis(1);
    let recovery = Recovery::new(&idem)
        .on("jobs.run", async |_: Job| Ok::<(), Error>(()))
        .backoff(shortest, shortest)
        .start();
    recovery.unwrap().stop().await;
}

#[tokio::test]
async fn a_recovery_that_could_do_nothing_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(directory.path().join("idem.db"));
    let idem = Idem::new(store.await.unwrap());
    let handler = async |_: Job| Ok::<(), Error>(());
    let refused = |recovery: Recovery| match recovery.start().unwrap_err() {
        Error::InvalidCall(error) => error,
        other => panic!("{other:?}"),
    };
    let recovery = || Recovery::new(&idem);
    assert_eq!(refused(recovery()), InvalidCall::NoHandler);
    let named = |name: &'static str| recovery().on(name, handler);
    assert_eq!(refused(named("")), InvalidCall::Name);
    let twice = named("jobs.run").on("jobs.run", handler);
    let error = InvalidCall::TwoHandlers("jobs.run".to_owned());
    assert_eq!(refused(twice), error);
    let idle = named("jobs.run").concurrency(0);
    assert_eq!(refused(idle), InvalidCall::ZeroConcurrency);
}
