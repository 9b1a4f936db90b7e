//! Texts that callers and operators choose, in every table and as JSON, on terminals of several widths.

use std::process::{Command, Stdio};
use std::time::Duration;

use idem_runtime::key::{Identity, Operation, RecordId};
use idem_runtime::outbox::{Message, Outbox, Relay};
use idem_runtime::record::{Outcome, Owner, OwnerLabel, Payload};
use idem_runtime::store::{ClaimRequest, ManualChange};
use idem_runtime::{Idem, Key, OnCrash, Scope, SqliteStore};
use idem_tests::claims::{claim_of, own};
use serde_json::Value;
use sqlx::Executor as _;

use super::Place;

/// Control characters of seven and eight bits, a change of direction, wide and combining characters, and a filler.
const HOSTILE: &str =
    "\u{1b}[2J\u{1b}]0;x\u{7}\u{9b}31m\u{202e}gpj\r\n\t数数e\u{301}\u{301}\u{3164}\u{feff}";
/// Hostile text without control characters: the types of keys, scopes, labels and reasons refuse those.
const PRINTABLE: &str = "\u{202e}gpj\u{2066} 数数e\u{301}\u{301}\u{3164}\u{feff}\u{e0041}";
const LEASE: Duration = Duration::from_secs(600);
const MIB: usize = 1 << 20;

fn identity(key: &str) -> Identity {
    Identity {
        scope: Scope::new(PRINTABLE).unwrap(),
        operation: Operation::new(format!("letters.{PRINTABLE}")).unwrap(),
        key: Key::new(key).unwrap(),
    }
}

async fn claim(place: &Place, key: &str) -> Owner {
    let claim = ClaimRequest {
        lease: LEASE,
        retention: LEASE,
        on_crash: OnCrash::Refuse,
        owner_label: Some(OwnerLabel::new(PRINTABLE).unwrap()),
        ..claim_of(identity(key))
    };
    own(&place.store, &claim).await
}

fn payload(text: &str) -> Payload {
    Payload {
        codec: HOSTILE.to_owned().into(),
        bytes: text.as_bytes().into(),
    }
}

/// Runs the command on a terminal of this width, and returns what it shows.
fn on_terminal(place: &Place, width: usize, command: &str) -> String {
    let idem = env!("CARGO_BIN_EXE_idem");
    let output = Command::new("script")
        .args(["--quiet", "--command"])
        .arg(format!("stty rows 50 cols {width}; exec {idem} {command}"))
        .arg("/dev/null")
        .env("IDEM_STORE_URL", &place.url)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// Number of columns of these texts on a terminal.
fn columns(line: &str) -> usize {
    let width = |character: char| match character {
        '\u{300}'..='\u{36f}' => 0,
        '数' => 2,
        _ => 1,
    };
    line.chars().map(width).sum()
}

/// No character that moves the cursor, changes the direction of text or hides it.
fn assert_safe(shown: &str, context: &str) {
    let is_safe = |character: char| {
        matches!(character, '\n' | ' '..='~' | '数' | '\u{300}'..='\u{36f}')
            || character.is_alphanumeric()
    };
    let wrong = shown
        .replace("\r\n", "\n")
        .chars()
        .find(|it| !is_safe(*it) || *it == '\u{3164}');
    assert_eq!(wrong, None, "{context}: {}", shown.escape_debug());
}

/// A store in which every text is hostile, with a large result, a large step and a parked message.
async fn hostile_place() -> Place {
    let place = Place::sqlite().await;
    let large = HOSTILE.repeat(MIB / HOSTILE.len() + 1);
    let done = claim(&place, "done").await;
    let steps = place.store.steps().unwrap();
    steps
        .save_step(&done, HOSTILE, &payload(HOSTILE))
        .await
        .unwrap();
    let ended = Outcome::Completed(payload(&large));
    place.store.complete(&done, &ended).await.unwrap();
    let stuck = claim(&place, &"k".repeat(255)).await;
    place.store.interrupt(&stuck).await.unwrap();
    let stuck = claim(&place, "stuck").await;
    steps
        .save_step(&stuck, "large", &payload(&large))
        .await
        .unwrap();
    place.store.interrupt(&stuck).await.unwrap();

    let idem = Idem::new(place.store.clone());
    let change = ManualChange::new(PRINTABLE, PRINTABLE.repeat(20)).unwrap();
    let gone = claim(&place, "gone").await;
    place.store.interrupt(&gone).await.unwrap();
    let record = idem.records().get(&gone.id).await.unwrap().unwrap();
    idem.records()
        .by(&change)
        .erase(&record.observation())
        .await
        .unwrap();

    let store = SqliteStore::connect(&place.url).await.unwrap();
    let outbox = Outbox::new(&store);
    outbox.migrate().await.unwrap();
    let mut connection = store.pool().acquire().await.unwrap();
    for _ in 0..2 {
        outbox
            .enqueue(&mut *connection, "letters", &HOSTILE)
            .await
            .unwrap();
    }
    drop(connection);
    let relay = Relay::new(&outbox)
        .on("letters", async |_: Message<String>| Err(HOSTILE))
        .max_attempts(1)
        .start()
        .unwrap();
    while outbox.backlog().await.unwrap().parked < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    relay.stop().await;
    let parked = outbox.parked(None, 1).await.unwrap().messages;
    assert!(outbox.by(&change).discard(parked[0].key()).await.unwrap());
    // Another program may write to the tables, too.
    let update = sqlx::query("UPDATE idem_outbox SET topic = ?").bind(HOSTILE);
    store.pool().execute(update).await.unwrap();
    place
}

#[tokio::test]
async fn no_text_changes_the_terminal_or_breaks_a_table() {
    let place = hostile_place().await;
    let id = |key: &str| RecordId::of(&identity(key)).to_string();
    let (done, stuck) = (id("done"), id("stuck"));
    let tables = [
        "list".to_owned(),
        "stuck".to_owned(),
        "stats".to_owned(),
        format!("attempts --id {done}"),
        format!("steps --id {done} --payloads"),
        "audit".to_owned(),
        "outbox list".to_owned(),
        "outbox audit".to_owned(),
    ];
    for command in &tables {
        for width in [40, 80, 200] {
            let shown = on_terminal(&place, width, command);
            assert_safe(&shown, command);
            assert!(shown.lines().count() > 1, "{command}: {shown}");
            for line in shown.lines() {
                assert!(
                    columns(line) <= width,
                    "{command} at {width}: {line:?} in {shown}"
                );
            }
        }
    }
    for command in [
        format!("show --id {done} --payload"),
        format!("show --id {stuck}"),
        format!("explain --id {done}"),
        format!("steps --id {stuck} --payloads"),
        format!("release --id {stuck} --reason x"),
        "erase --where state=interrupted --dry-run".to_owned(),
        "outbox list --payloads".to_owned(),
        "doctor".to_owned(),
        format!("show --id {done} --payload --json"),
        format!("explain --id {done} --json"),
        format!("attempts --id {done} --json"),
        format!("steps --id {stuck} --payloads --json"),
        "list --json".to_owned(),
        "stuck --json".to_owned(),
        "stats --json".to_owned(),
        "audit --json".to_owned(),
        "outbox list --payloads --json".to_owned(),
        "outbox audit --json".to_owned(),
        "erase --where state=interrupted --dry-run --json".to_owned(),
    ] {
        let shown = on_terminal(&place, 80, &command);
        assert_safe(&shown, &command);
        if command.ends_with("--json") {
            assert!(
                serde_json::from_str::<Value>(&shown).is_ok(),
                "{command}: {shown}"
            );
        }
    }
}

#[tokio::test]
async fn a_result_of_a_mebibyte_is_shown_whole_and_counted() {
    let place = hostile_place().await;
    let done = RecordId::of(&identity("done")).to_string();
    let show = place
        .idem(&["show", "--id", &done, "--payload"])
        .expect(0, &[]);
    let result = HOSTILE.repeat(MIB / HOSTILE.len() + 1);
    let count = |text: &str, part: &str| text.matches(part).count();
    // The operation, the scope, the owner and the codec have these characters, too.
    assert_eq!(
        count(&show.out, "\\u{202e}gpj"),
        count(&result, "\u{202e}gpj") + 4
    );
    let json = place
        .idem(&["show", "--id", &done, "--payload", "--json"])
        .expect(0, &[]);
    let json: Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(json["payload"].as_str(), Some(&*result));
}

#[tokio::test]
async fn of_thousands_of_attempts_the_last_ones_are_listed_and_the_others_counted() {
    const ATTEMPTS: usize = 3_000;
    let place = Place::sqlite().await;
    for _ in 0..ATTEMPTS {
        let owner = claim(&place, "busy").await;
        place.store.release(&owner).await.unwrap();
    }
    let id = RecordId::of(&identity("busy")).to_string();
    let json = place
        .idem(&["attempts", "--id", &id, "--json"])
        .expect(0, &[]);
    let json: Value = serde_json::from_str(&json.out).unwrap();
    let listed = json["attempts"].as_array().unwrap();
    assert!(listed.len() <= 200, "{}", listed.len());
    assert_eq!(json["dropped"], ATTEMPTS - listed.len());
    assert_eq!(listed.last().unwrap()["attempt"], ATTEMPTS);
    let shown = on_terminal(&place, 40, &format!("attempts --id {id}"));
    assert_safe(&shown, "attempts");
    let dropped = format!("{} earlier attempts are not kept", ATTEMPTS - listed.len());
    assert!(shown.contains(&dropped), "{shown}");
    assert!(shown.lines().all(|line| columns(line) <= 40), "{shown}");
}
