//! Notes of replays in the history of their records.

use std::time::Duration;

use idem_runtime::key::{Identity, Operation, RecordId};
use idem_runtime::record::OwnerLabel;
use idem_runtime::store::{NotedReplay, Store};
use idem_runtime::{Call, Error, Idem, Key, MemoryStore, Scope, SqliteStore};
use sqlx::{Connection as _, SqliteConnection};

const HOUR: Duration = Duration::from_secs(3600);

fn noting<S: Store>(store: S, one_in: u32) -> Idem<S> {
    Idem::builder(store)
        .owner_label(OwnerLabel::new("web-1").unwrap())
        .note_replays(one_in)
        .build()
}

async fn call<S: Store>(idem: &Idem<S>, key: &str) -> u64 {
    let call = Call::new("test.notes", key, &(), HOUR);
    idem.run(call, async || Ok::<_, Error>(7)).await.unwrap()
}

async fn noted<S: Store>(idem: &Idem<S>, key: &str) -> Vec<NotedReplay> {
    let identity = Identity {
        scope: Scope::none(),
        operation: Operation::new("test.notes").unwrap(),
        key: Key::new(key).unwrap(),
    };
    let attempts = idem.records().attempts(&RecordId::of(&identity)).await;
    attempts.unwrap().unwrap().replays
}

#[tokio::test]
async fn replays_are_noted_with_the_label_of_the_process() {
    let idem = noting(MemoryStore::new(), 1);
    for _ in 0..4 {
        assert_eq!(call(&idem, "k").await, 7);
        idem.drain().await;
    }
    let replays = noted(&idem, "k").await;
    assert_eq!(replays.len(), 3);
    for replay in replays {
        assert_eq!(replay.by.unwrap().as_str(), "web-1");
    }
}

#[tokio::test]
async fn the_default_notes_none() {
    let idem = Idem::new(MemoryStore::new());
    call(&idem, "k").await;
    call(&idem, "k").await;
    assert_eq!(idem.detached_tasks(), 0);
    assert_eq!(noted(&idem, "k").await, []);
}

/// Each of 400 replays is noted with a probability of a quarter. That none or all are noted is as good as impossible.
#[tokio::test]
async fn a_sample_of_replays_is_noted() {
    let idem = noting(MemoryStore::new(), 4);
    let mut count = 0;
    for number in 0..400 {
        let key = format!("k{number}");
        call(&idem, &key).await;
        call(&idem, &key).await;
        idem.drain().await;
        count += noted(&idem, &key).await.len();
    }
    assert!((1..400).contains(&count), "{count} of 400 were noted");
}

/// Notes wait for the writer that blocks the database. The replays only read, and wait for nothing.
#[tokio::test]
async fn a_note_that_waits_delays_no_replay() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notes.sqlite");
    let store = SqliteStore::open(&path).await.unwrap();
    store.migrate().await.unwrap();
    let idem = noting(store, 1);
    call(&idem, "k").await;

    let url = format!("sqlite://{}", path.display());
    let mut writer = SqliteConnection::connect(&url).await.unwrap();
    sqlx::raw_sql("BEGIN IMMEDIATE")
        .execute(&mut writer)
        .await
        .unwrap();
    for _ in 0..40 {
        assert_eq!(call(&idem, "k").await, 7);
    }
    let waiting = idem.detached_tasks();
    assert!((1..=16).contains(&waiting), "{waiting} notes are waiting");
    sqlx::raw_sql("ROLLBACK")
        .execute(&mut writer)
        .await
        .unwrap();
    idem.drain().await;
    let written = noted(&idem, "k").await.len();
    assert!((1..=16).contains(&written), "{written} notes were written");
}
