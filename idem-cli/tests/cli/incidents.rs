//! Incidents as transcripts: each is made in an empty database, and is answered by at most three commands. The file
//! `incidents.txt` has them, and says how to read it.

use std::fmt::Write as _;
use std::process::Command;

use idem_runtime::fingerprint::{digest, json};
use idem_runtime::outbox::Outbox;
use idem_runtime::record::{ClaimId, Outcome, OwnerLabel, Payload};
use idem_runtime::store::ClaimRequest;
use idem_runtime::{Codec, OnCrash};
use idem_tests::claims::{claim_of, identity, own};
use sqlx::{AssertSqlSafe, SqlitePool};

use super::{Place, Ran};

const INCIDENTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cli/incidents.txt");
/// Largest number of commands of an incident.
const MOST_COMMANDS: usize = 3;

/// One incident.
struct Incident<'a> {
    title: &'a str,
    /// Lines that make it.
    given: Vec<&'a str>,
    commands: Vec<Typed<'a>>,
}

/// A command, and what its output has.
struct Typed<'a> {
    text: &'a str,
    code: i32,
    parts: Vec<&'a str>,
    /// What the output must not have.
    absent: Vec<&'a str>,
}

fn incidents(text: &str) -> Vec<Incident<'_>> {
    let mut incidents: Vec<Incident<'_>> = Vec::new();
    for line in text.lines().map(str::trim_end) {
        if let Some(title) = line.strip_prefix("== ") {
            incidents.push(Incident {
                title,
                given: Vec::new(),
                commands: Vec::new(),
            });
            continue;
        }
        let Some(incident) = incidents.last_mut() else {
            continue;
        };
        if let Some(given) = line.strip_prefix("given ") {
            incident.given.push(given);
        } else if let Some(text) = line.strip_prefix("$ ") {
            incident.commands.push(Typed {
                text,
                code: 0,
                parts: Vec::new(),
                absent: Vec::new(),
            });
        } else if let Some(typed) = incident.commands.last_mut() {
            let code = line.strip_prefix("(exit code ");
            if let Some(code) = code.and_then(|it| it.strip_suffix(')')) {
                typed.code = code.parse().unwrap();
            } else if let Some(absent) = line.strip_prefix("! ") {
                typed.absent.push(absent);
            } else if !line.is_empty() {
                typed.parts.push(line.trim_start());
            }
        }
    }
    incidents
}

/// Makes what a line says, see the file.
async fn make(place: &Place, pool: &SqlitePool, line: &str) {
    let (verb, rest) = line.split_once(' ').unwrap();
    match verb {
        "record" => record(place, pool, rest).await,
        "sql" => {
            sqlx::raw_sql(AssertSqlSafe(rest.to_owned()))
                .execute(pool)
                .await
                .unwrap();
        }
        "parked" => {
            let outbox = Outbox::new(pool.clone());
            outbox.migrate().await.unwrap();
            let mut words = rest.splitn(3, ' ');
            let (topic, key) = (words.next().unwrap(), words.next().unwrap());
            let mut tx = pool.begin().await.unwrap();
            let message = outbox.message(topic, "a message");
            message.key(key).enqueue(&mut *tx).await.unwrap();
            tx.commit().await.unwrap();
            let park = "UPDATE idem_outbox SET state = 'parked', attempt = 5, due_at = NULL, parked_at = enqueued_at, \
                        last_error = ? WHERE message_key = ?";
            let park = sqlx::query(park).bind(words.next().unwrap()).bind(key);
            park.execute(pool).await.unwrap();
        }
        _ => panic!("{line}"),
    }
}

/// A record: its operation, key and state, and more words.
async fn record(place: &Place, pool: &SqlitePool, words: &str) {
    let words: Vec<_> = words.split(' ').collect();
    let [operation, key, state, more @ ..] = words.as_slice() else {
        panic!("{words:?}");
    };
    let of = |name: &str| more.iter().find_map(|it| it.strip_prefix(name));
    let mut claim = claim_of(identity(of("scope=").unwrap_or_default(), operation, key));
    if let Some(request) = of("request=") {
        claim.fingerprint = digest(&json(request.as_bytes())).unwrap();
    }
    claim.owner_label = of("owner=").map(|it| OwnerLabel::new(it).unwrap());
    if more.contains(&"refuse") {
        claim.on_crash = OnCrash::Refuse;
    }
    let store = &place.store;
    let operations = store.operations().unwrap();
    operations
        .note_operation(&claim.identity.operation)
        .await
        .unwrap();
    for _ in 1..of("attempts=").map_or(1, |it| it.parse().unwrap()) {
        let owner = own(store, &claim).await;
        store.release(&owner).await.unwrap();
        claim.claim_id = ClaimId::random();
    }
    let owner = own(store, &claim).await;
    let payload = || Payload {
        codec: Codec::Json.tag().into(),
        bytes: of("value=").unwrap_or("null").as_bytes().into(),
    };
    match *state {
        "running" => {}
        "lapsed" => lapse(pool, &claim).await,
        "interrupted" => {
            store.interrupt(&owner).await.unwrap();
        }
        "released" => {
            store.release(&owner).await.unwrap();
        }
        "failed" => {
            let outcome = Outcome::Failed(payload());
            store.complete(&owner, &outcome).await.unwrap();
        }
        "completed" | "expired" => {
            let outcome = Outcome::Completed(payload());
            store.complete(&owner, &outcome).await.unwrap();
        }
        _ => panic!("{words:?}"),
    }
    if *state == "expired" {
        update(
            pool,
            &claim,
            "retention = 0, purge_after = first_claimed_at",
        )
        .await;
    }
    if let Some(hours) = of("hours=") {
        let micros = hours.parse::<i64>().unwrap() * 3_600_000_000;
        let age = format!(
            "first_claimed_at = first_claimed_at - {micros}, lease_until = lease_until - {micros}, \
             ended_at = ended_at - {micros}, purge_after = purge_after - {micros}"
        );
        update(pool, &claim, &age).await;
    }
}

async fn lapse(pool: &SqlitePool, claim: &ClaimRequest) {
    update(pool, claim, "lease_until = first_claimed_at").await;
}

/// Changes the row of a record by hand, as if time had passed.
async fn update(pool: &SqlitePool, claim: &ClaimRequest, change: &str) {
    let update = format!("UPDATE idem_records SET {change} WHERE id = ?");
    let update = sqlx::query(AssertSqlSafe(update)).bind(claim.id.as_bytes().as_slice());
    update.execute(pool).await.unwrap();
}

impl Typed<'_> {
    fn run(&self, place: &Place, folder: &std::path::Path) -> Ran {
        let typed = format!("idem() {{ \"$IDEM\" \"$@\"; }}\n{}", self.text);
        let output = Command::new("sh")
            .args(["-c", &typed])
            .current_dir(folder)
            .env("IDEM", env!("CARGO_BIN_EXE_idem"))
            .env("IDEM_STORE_URL", &place.url)
            .env("IDEM_ACTOR", "ann@desk")
            .output()
            .unwrap();
        Ran::new(output)
    }

    /// What differs from the transcript. Empty if all is as it says.
    fn differences(&self, ran: &Ran) -> String {
        let output = [&*ran.out, &*ran.err].concat();
        // Columns are as wide as their cells.
        let output: Vec<_> = output.split_whitespace().collect();
        let output = output.join(" ");
        let mut differences = String::new();
        if ran.code != Some(self.code) {
            writeln!(differences, "exit code {:?}, not {}", ran.code, self.code).unwrap();
        }
        for part in &self.parts {
            if !output.contains(part) {
                writeln!(differences, "no {part:?}").unwrap();
            }
        }
        for part in &self.absent {
            if output.contains(part) {
                writeln!(differences, "there is {part:?}").unwrap();
            }
        }
        differences
    }
}

#[tokio::test]
async fn each_incident_is_answered_by_its_commands() {
    let text = std::fs::read_to_string(INCIDENTS).unwrap();
    let incidents = incidents(&text);
    let mut differences = String::new();
    for incident in &incidents {
        assert!(
            (1..=MOST_COMMANDS).contains(&incident.commands.len()),
            "{} has {} commands",
            incident.title,
            incident.commands.len()
        );
        let place = Place::sqlite().await;
        let pool = SqlitePool::connect(&place.url).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        for line in &incident.given {
            make(&place, &pool, line).await;
        }
        for typed in &incident.commands {
            assert!(
                !typed.parts.is_empty(),
                "{}: nothing is expected of {}",
                incident.title,
                typed.text
            );
            let ran = typed.run(&place, folder.path());
            let difference = typed.differences(&ran);
            if !difference.is_empty() {
                let (title, text) = (incident.title, typed.text);
                writeln!(differences, "== {title}\n$ {text}\n{difference}{ran:#?}").unwrap();
            }
        }
    }
    assert!(differences.is_empty(), "{differences}");
    assert!(incidents.len() >= 30, "{}", incidents.len());
}
