//! The night in which the store is full. A database is on a small disk, which the test mounts, and a Redis has little
//! memory. Records fill it until it refuses the next one.
//!
//! Where nothing can be mounted, set `IDEM_TEST_WITHOUT_MOUNT=1`; otherwise the tests of the databases fail.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use idem_runtime::error::{StoreError, StoreErrorKind};
use idem_runtime::key::{Identity, Operation, RecordId};
use idem_runtime::operator::Counting;
use idem_runtime::record::{ClaimId, Digest, Outcome, Owner, OwnerLabel, Payload};
use idem_runtime::store::{ClaimOutcome, ClaimRequest};
use idem_runtime::{Key, OnCrash, Scope};
use idem_servers::{Options, RedisCluster, Server};
use idem_tests::small_disk::SmallDisk;
use sqlx::AssertSqlSafe;

use super::super::Place;
use super::service::{Letter, Service};
use super::transcript::Transcript;
use super::{ORDER, refusal};

/// Lease of a record that fills the store.
const LEASE: Duration = Duration::from_secs(1);
/// Number of writes that a full store refuses in a row. One page of an index is full before another, and one server of a
/// cluster.
const REFUSALS: u32 = 100;

/// Writes records until the store takes no more: first results, then claims with long keys, and then claims as small as
/// that of a letter. The records expire after the retention.
async fn fill(place: &Place, retention: Duration) {
    let mut number = 0;
    for (bytes, key_length) in [(50_000, 1), (0, 200), (0, 7)] {
        let mut refused = 0;
        while refused < REFUSALS {
            number += 1;
            assert!(number < 100_000, "there is always room");
            let key = format!("{number}{:x>1$}", "", key_length - 1);
            match write(place, &key, bytes, retention).await {
                Ok(()) => refused = 0,
                Err(error) => {
                    let kind = error.kind();
                    assert_eq!(
                        kind,
                        StoreErrorKind::Full,
                        "{:?}",
                        anyhow::Error::from(error)
                    );
                    refused += 1;
                }
            }
        }
    }
}

/// Claims a record, and completes it with a result of this size, unless that is 0.
async fn write(
    place: &Place,
    key: &str,
    bytes: usize,
    retention: Duration,
) -> Result<(), StoreError> {
    let identity = Identity {
        scope: Scope::none(),
        operation: Operation::new("scans.read").unwrap(),
        key: Key::new(key).unwrap(),
    };
    let claim = ClaimRequest {
        id: RecordId::of(&identity),
        identity,
        fingerprint: Digest::new(1, [0; 4], &[7; 32]),
        claim_id: ClaimId::random(),
        lease: LEASE,
        retention,
        on_crash: OnCrash::Rerun,
        owner_label: Some(OwnerLabel::new("web-3/4711/2.1.0").unwrap()),
        members: None,
    };
    let ClaimOutcome::Granted(granted) = place.store.claim(&claim).await? else {
        return Ok(());
    };
    let owner = Owner {
        id: claim.id,
        claim_id: claim.claim_id,
        fencing_token: granted.fencing_token,
    };
    if bytes == 0 {
        return Ok(());
    }
    // No database can compress random bytes.
    let random = std::iter::repeat_with(|| *ClaimId::random().as_bytes());
    let outcome = Outcome::Completed(Payload {
        codec: "json/1".into(),
        bytes: random.take(bytes / 16 + 1).flatten().collect(),
    });
    // On a slow machine, the record may have expired before its end.
    place.store.complete(&owner, &outcome).await?;
    Ok(())
}

/// A disk, and a file on it that can be deleted when it is full: 10 MB, because a database extends its files by megabytes.
struct Disk {
    disk: SmallDisk,
    ballast: PathBuf,
}

impl Disk {
    /// `None` if the environment says that nothing can be mounted.
    fn of(disk: Option<SmallDisk>) -> Option<Self> {
        let disk = disk?;
        let ballast = disk.path().join("ballast");
        fs::write(&ballast, vec![0; 10 << 20]).unwrap();
        Some(Self { disk, ballast })
    }
}

/// Waits until all records may be purged, by the store's clock.
async fn until_due(place: &Place) {
    loop {
        let stats = place.store.stats(Counting::Exactly).await.unwrap();
        if stats.purge_due == stats.records() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Nobody purges, and records that have expired fill the disk. A database on a disk that is full to the last byte deletes
/// nothing either, because it writes to its log before it deletes.
async fn expired_records_fill_the_disk(place: &Place, disk: &Disk) {
    // The disk may fill while a result is written, or while a claim is.
    write(place, "0", 0, Duration::from_secs(1)).await.unwrap();
    fill(place, Duration::from_secs(1)).await;
    until_due(place).await;
    let service = Service::new(place);
    let mut night = Transcript::new(place).with_counts();
    night.refused(&refusal(service.post(ORDER, "ann").await));
    night.run("idem stats", 0);
    fs::remove_file(&disk.ballast).unwrap();
    night.done("the ballast is deleted from the disk");
    night.run("idem purge --reason 'no purger was running' --yes", 0);
    let letter = service.post(ORDER, "ann").await.unwrap();
    night.answered(&letter);
    assert_eq!(letter, Letter { number: 7 });
    night.is_on_the_page("the disk is full");
}

#[tokio::test]
#[ignore = "needs root, who mounts a small disk"]
async fn sqlite() {
    let Some(disk) = Disk::of(SmallDisk::of("12m")) else {
        return;
    };
    let path = disk.disk.path().join("records.sqlite");
    idem_runtime::SqliteStore::open(&path).await.unwrap();
    let place = Place::at(format!("sqlite://{}", path.display()), String::new()).await;
    expired_records_fill_the_disk(&place, &disk).await;
}

#[tokio::test]
#[ignore = "needs PostgreSQL, and root, who mounts a small disk"]
async fn postgres() {
    // A vacuum would remove what refused writes have left, and make room for the letter.
    let options = Options::fast().set("autovacuum", "off");
    let server = Server::postgres(&options).unwrap();
    let Some(disk) = Disk::of(SmallDisk::under(&server, "12m")) else {
        return;
    };
    // The directory of a tablespace must be empty.
    let directory = disk.disk.path().join("tables");
    fs::create_dir(&directory).unwrap();
    disk.disk.give_to(&server);
    let directory = server.inside(&directory);
    let admin = sqlx::PgPool::connect(&server.url()).await.unwrap();
    for statement in [
        format!("CREATE TABLESPACE small LOCATION '{}'", directory.display()),
        "ALTER ROLE postgres SET default_tablespace = small".to_owned(),
    ] {
        let made = sqlx::raw_sql(AssertSqlSafe(statement))
            .execute(&admin)
            .await;
        made.unwrap();
    }
    let place = Place::at(server.url(), "idem_records".to_owned()).await;
    expired_records_fill_the_disk(&place, &disk).await;
}

#[tokio::test]
#[ignore = "needs MariaDB, and root, who mounts a small disk"]
async fn mysql() {
    let server = Server::maria_db(&Options::fast()).unwrap();
    let Some(disk) = Disk::of(SmallDisk::under(&server, "15m")) else {
        return;
    };
    // A database is a directory on disk.
    let database = server.directory().join("data").join("small");
    std::os::unix::fs::symlink(server.inside(disk.disk.path()), &database).unwrap();
    let url = server.url().replace("/mysql", "/small");
    let place = Place::at(url, "idem_records".to_owned()).await;
    expired_records_fill_the_disk(&place, &disk).await;
}

/// Limits the memory of a server to what it uses now, and this number of bytes more.
fn limit_memory(server: &Server, more: i64) {
    let memory = server.query("INFO memory").unwrap();
    let used = memory
        .lines()
        .find_map(|it| it.strip_prefix("used_memory:"));
    let used: i64 = used.unwrap().trim().parse().unwrap();
    let limit = used + more;
    server
        .query(&format!("CONFIG SET maxmemory {limit}"))
        .unwrap();
}

/// Redis deletes expired records itself, so those that fill it are needed, or kept for longer than they are needed.
async fn records_fill_the_memory(place: &Place, servers: &[Server]) {
    const ROOM: i64 = 3_000_000;
    /// More than a server frees when connections are idle, which shrinks their buffers.
    const BUFFERS: i64 = 300_000;
    servers.iter().for_each(|it| limit_memory(it, ROOM));
    fill(place, Duration::from_secs(90 * 86_400)).await;
    servers.iter().for_each(|it| limit_memory(it, -BUFFERS));
    let service = Service::new(place);
    let mut night = Transcript::new(place).with_counts();
    night.refused(&refusal(service.post(ORDER, "ann").await));
    night.run("idem stats", 0);
    let erase = "idem erase --where 'operation=scans.read state=completed' --reason 'a scan can be read again' --yes";
    night.run(erase, 0);
    let letter = service.post(ORDER, "ann").await.unwrap();
    night.answered(&letter);
    assert_eq!(letter, Letter { number: 7 });
    night.is_on_the_page("the memory is full");
}

#[tokio::test]
#[ignore = "needs Redis"]
async fn redis() {
    let options = Options::fast().set("maxmemory-policy", "noeviction");
    let server = Server::redis(&options).unwrap();
    let place = Place::at(server.url(), "idem:".to_owned()).await;
    records_fill_the_memory(&place, &[server]).await;
}

#[tokio::test]
#[ignore = "needs Redis"]
async fn redis_cluster() {
    let options = Options::fast().set("maxmemory-policy", "noeviction");
    let cluster = RedisCluster::start(&options).unwrap();
    let place = Place::at(cluster.urls().join(","), "idem:".to_owned()).await;
    records_fill_the_memory(&place, cluster.nodes()).await;
}
