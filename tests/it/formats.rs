//! Data of earlier releases, in `tests/formats`: the current code reads it, continues it and operates on it, on each store.
//!
//! With the variable `IDEM_WRITE_FORMATS`, which `cargo xtask formats` sets, the data that the current code writes is
//! stored in that folder.

mod answers;
mod catalogue;
mod description;
mod dump;
mod entry;
mod outbox;
mod times;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use idem_runtime::Codec;
use idem_runtime::operator::OperatorStore;
use idem_runtime::outbox::Outbox;
use idem_runtime::record::{OnCrash, RecordState};
use idem_runtime::store::{AttemptEnd, AuditAction};
use idem_tests::places::{Backend, Files, Place, RedisKeys};
use idem_tests::sql::{AnyPool, Sql as _};
use idem_tests::{on_stores, places};
use sqlx::{MySqlPool, PgPool, SqlitePool};

use self::description::Description;
use self::times::Writing;

on_stores! { [operators] Shelf::open:
    every_release_is_read_continued_and_operated_on,
}

mod writing {
    use super::*;

    on_stores! { [operators] Shelf::open: a_second_run_writes_the_same }
}

/// Variable with the folder that gets the data of the current code.
const WRITES_TO: &str = "IDEM_WRITE_FORMATS";

/// Where the records of a store are, without the store.
#[derive(Clone)]
enum Raw {
    Sql(AnyPool, Outbox),
    Redis(RedisKeys),
}

/// Homes for records that can be dumped and loaded.
trait Bare {
    fn raw(&self) -> Raw;
}

macro_rules! bare {
    ($($pool:ty => $any:ident),+) => {
        $(impl Bare for $pool {
            fn raw(&self) -> Raw {
                Raw::Sql(AnyPool::$any(self.clone()), Outbox::new(self.clone()))
            }
        })+
    };
}

bare!(SqlitePool => Sqlite, PgPool => Postgres, MySqlPool => MySql);

impl Bare for RedisKeys {
    fn raw(&self) -> Raw {
        Raw::Redis(self.clone())
    }
}

/// An empty home, and the store that will read it.
struct Home {
    raw: Raw,
    open: Box<dyn AsyncOpen>,
}

#[async_trait::async_trait]
trait AsyncOpen: Send + Sync {
    async fn open(&self) -> Arc<dyn OperatorStore>;
}

struct Opener<S: Backend>(S::Home);

#[async_trait::async_trait]
impl<S: Backend + OperatorStore> AsyncOpen for Opener<S> {
    /// Opening a store applies the migrations.
    async fn open(&self) -> Arc<dyn OperatorStore> {
        Arc::new(S::open(&self.0).await.unwrap())
    }
}

/// The place of a store, and its file in the folders of releases.
struct Shelf {
    place: &'static str,
    homes: Vec<Home>,
    _files: Files,
}

/// Number of homes that a case needs at most.
const HOMES: usize = 3;

impl Shelf {
    async fn open<S: Backend + OperatorStore>(place: Place<S>) -> Self
    where
        S::Home: Bare,
    {
        let mut homes = Vec::new();
        for _ in 0..HOMES {
            let home = place.home().await.unwrap();
            let raw = home.raw();
            let open = Box::new(Opener::<S>(home));
            homes.push(Home { raw, open });
        }
        Self {
            place: place.name(),
            homes,
            _files: place.files(),
        }
    }

    /// Name of the file with the data of this place. A cluster has the layout of one server.
    fn file(&self) -> &'static str {
        match self.place {
            "redis" | "redis_cluster" => "redis.txt",
            "sqlite" => "sqlite.sql",
            "postgres" => "postgres.sql",
            "postgres_portable" => "postgres_portable.sql",
            "mariadb" => "mariadb.sql",
            "mysql" => "mysql.sql",
            other => panic!("give the place {other} a file in `tests/formats`"),
        }
    }
}

/// Folders of the releases, with their names.
fn releases() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("formats");
    let entries = std::fs::read_dir(folder)
        .unwrap()
        .map(|it| it.unwrap().path());
    let mut releases: Vec<_> = entries.filter(|it| it.is_dir()).collect();
    releases.sort();
    assert!(
        !releases.is_empty(),
        "there is no data of a release; run `cargo xtask formats`"
    );
    releases
}

fn read(folder: &Path, file: &str) -> String {
    let path = folder.join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn expected(folder: &Path) -> Description {
    serde_json::from_str(&read(folder, "expected.json")).unwrap()
}

async fn every_release_is_read_continued_and_operated_on(shelf: Shelf) {
    let releases = releases();
    assert!(releases.len() <= HOMES, "raise `HOMES`");
    for (folder, home) in releases.iter().zip(&shelf.homes) {
        let (file, expected) = (read(folder, shelf.file()), expected(folder));
        dump::load(&home.raw, &file).await;
        // The tables are those of the release, and now those of the current code.
        let store = home.open.open().await;
        if let Raw::Sql(_, outbox) = &home.raw {
            outbox.migrate().await.unwrap();
        }
        let found = description::describe(&*store, &home.raw, &expected.entries).await;
        let wanted = expected.clone().on(&*store, &home.raw);
        similar(&found, &wanted);
        answers::check(&store, &wanted).await;
        outbox::deliver(&home.raw, wanted.outbox.as_ref()).await;
        answers::operate(&store, &wanted).await;
        // Once more on the migrated tables.
        store.apply_migrations().await.unwrap();
    }
}

/// Compares descriptions part by part, so that a difference is shown where it is.
fn similar(found: &Description, wanted: &Description) {
    for (found, wanted) in found.entries.iter().zip(&wanted.entries) {
        assert_eq!(found, wanted, "{}", wanted.key);
    }
    assert_eq!(found.entries.len(), wanted.entries.len());
    assert_eq!(found.audit, wanted.audit);
    assert_eq!(found.operations, wanted.operations);
    assert_eq!(found.outbox, wanted.outbox);
}

/// Writes the data twice, into two homes.
async fn a_second_run_writes_the_same(shelf: Shelf) {
    // The data of a cluster is that of one server.
    if shelf.place == "redis_cluster" {
        return;
    }
    let mut runs = Vec::new();
    for home in &shelf.homes[..2] {
        let tables = dump::tables(&home.raw).await;
        let store = home.open.open().await;
        let writing = Arc::new(Writing::begin(Arc::clone(&store)).await);
        let entries = catalogue::write(&writing).await;
        outbox::write(&home.raw, &writing).await;
        let description = description::describe(&*store, &home.raw, &entries).await;
        let text = dump::dump(&home.raw, &writing, &entries, &tables).await;
        runs.push((text, description));
    }
    let (text, description) = &runs[0];
    if let Some(folder) = std::env::var_os(WRITES_TO) {
        let folder = PathBuf::from(folder);
        std::fs::write(folder.join(shelf.file()), text).unwrap();
        // All other stores have a part of what SQLite has.
        if shelf.place == "sqlite" {
            let json = serde_json::to_string_pretty(description).unwrap();
            std::fs::write(folder.join("expected.json"), json + "\n").unwrap();
        }
    }
    let (again, same) = &runs[1];
    similar(same, description);
    for (number, (line, other)) in text.lines().zip(again.lines()).enumerate() {
        assert_eq!(line, other, "line {}", number + 1);
    }
    assert_eq!(text.len(), again.len());
}

/// States of records. The match fails to compile when there is a new one.
fn states() -> BTreeSet<&'static str> {
    use RecordState::{Completed, Failed, Interrupted, Released, Running, Unrecorded};
    let all = [
        Running,
        Released,
        Completed,
        Failed,
        Unrecorded,
        Interrupted,
    ];
    let name = |state| match state {
        Running | Released | Completed | Failed | Unrecorded | Interrupted => state.as_str(),
    };
    all.into_iter().map(name).collect()
}

/// Policies after a crash. The match fails to compile when there is a new one.
fn policies() -> BTreeSet<&'static str> {
    use OnCrash::{Reconcile, Refuse, Rerun};
    let name = |policy| match policy {
        Rerun | Refuse | Reconcile => OnCrash::as_str(policy),
    };
    [Rerun, Refuse, Reconcile].into_iter().map(name).collect()
}

/// Whatever a store keeps occurs in the data of some release: a new state, codec, action or table needs data.
#[test]
fn the_data_is_complete() {
    let releases: Vec<_> = releases().iter().map(|it| expected(it)).collect();
    let entries = || releases.iter().flat_map(|it| &it.entries);
    let found: BTreeSet<_> = entries().filter_map(|it| it.state.as_deref()).collect();
    assert_eq!(found, states(), "states");
    let lapsed = entries().filter(|it| it.is_lapsed).count();
    assert!((1..entries().count()).contains(&lapsed), "lapsed leases");
    let found: BTreeSet<_> = entries().map(|it| it.on_crash.as_str()).collect();
    assert_eq!(found, policies(), "policies after a crash");
    let found: BTreeSet<_> = entries()
        .filter_map(|it| Some(it.payload.as_ref()?.codec.as_str()))
        .collect();
    let codecs = [Codec::Json, Codec::Cbor].map(Codec::tag);
    assert_eq!(found, BTreeSet::from(codecs), "codecs");
    let found: BTreeSet<_> = releases
        .iter()
        .flat_map(|it| it.audit.iter().map(|it| it.action.as_str()))
        .collect();
    let actions = AuditAction::ALL.map(AuditAction::as_str);
    assert_eq!(found, BTreeSet::from(actions), "actions of operators");
    let found: BTreeSet<_> = entries()
        .flat_map(|it| it.attempts.iter().filter_map(|it| it.split(' ').nth(1)))
        .collect();
    for end in AttemptEnd::ALL {
        assert!(
            found.contains(end.as_str()),
            "no attempt is {}",
            end.as_str()
        );
    }
    for (part, is_there) in [
        ("steps", entries().any(|it| !it.steps.is_empty())),
        (
            "recovery inputs",
            entries().any(|it| it.recovery_input.is_some()),
        ),
        ("digests of members", entries().any(|it| it.has_members)),
        ("noted replays", entries().any(|it| it.replays > 0)),
        ("scopes", entries().any(|it| !it.scope.is_empty())),
    ] {
        assert!(is_there, "{part}");
    }
}

/// Each table of the current code has rows in the data of some release.
#[tokio::test]
async fn each_table_has_data() {
    let place = places::sqlite();
    let home = place.home().await.unwrap();
    let raw = home.raw();
    let store = idem_runtime::SqliteStore::over(&home);
    store.migrate().await.unwrap();
    let Raw::Sql(pool, outbox) = &raw else {
        panic!("SQLite is an SQL database")
    };
    outbox.migrate().await.unwrap();
    let data: Vec<_> = releases().iter().map(|it| read(it, "sqlite.sql")).collect();
    for table in dump::names_of_tables(pool).await {
        let insert = format!("INSERT INTO \"{table}\" (");
        let has_rows = data.iter().any(|it| it.contains(&insert));
        assert!(has_rows, "{table} is empty in `tests/formats`");
    }
}
