//! Every subcommand, with an output that nobody reads and with one that cannot be written.

use std::fs::OpenOptions;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use idem_runtime::Idem;
use idem_runtime::key::RecordId;
use idem_runtime::outbox::Outbox;
use idem_runtime::record::{ClaimId, Digest, OwnerLabel, Payload, RecordState};
use idem_runtime::store::ManualChange;
use idem_tests::claims::{claim_of, identity, own};
use sqlx::SqlitePool;

use super::{Place, on_letter, request};

/// Arguments of each subcommand on a store with an interrupted letter `order-1`, and the exit code if all is written.
const COMMANDS: [(&[&str], i32); 31] = [
    (&["list"], 0),
    (&["list", "--json"], 0),
    (&["list", "--where", "state=interrupted"], 0),
    (&["stuck"], 3),
    (
        &["show", "letters.post", "order-1", "--scope", "tenant-3"],
        0,
    ),
    (
        &["explain", "letters.post", "order-1", "--scope", "tenant-3"],
        0,
    ),
    (&["explain", "letters.post", "order-9"], 3),
    (
        &["steps", "letters.post", "order-1", "--scope", "tenant-3"],
        0,
    ),
    (
        &["attempts", "letters.post", "order-1", "--scope", "tenant-3"],
        0,
    ),
    (
        &[
            "find",
            "order-1",
            "--scope",
            "tenant-3",
            "--operation",
            "letters.post",
        ],
        0,
    ),
    (&["export", "--scope", "tenant-3"], 0),
    (&["audit"], 3),
    (&["stats"], 0),
    (&["stats", "--exact", "--json"], 0),
    (&["doctor"], 0),
    (&["doctor", "--json"], 0),
    (&["migrate", "--plan"], 0),
    (&["migrate", "--sql"], 0),
    (&["outbox", "list"], 0),
    (&["outbox", "list", "--json"], 0),
    (&["outbox", "audit"], 3),
    (&["completions", "bash"], 0),
    (&["man"], 0),
    (&["help"], 0),
    (&["--version"], 0),
    (&["erase", "--where", "stuck", "--dry-run"], 0),
    (&["serve"], 0),
    // Changes. The exit code says what became of them.
    (
        &["outbox", "requeue", "none", "--yes", "--reason", "asked"],
        3,
    ),
    (
        &["outbox", "discard", "none", "--yes", "--reason", "asked"],
        3,
    ),
    (&["migrate", "--apply"], 0),
    (&["purge", "--yes", "--reason", "make room"], 0),
];
/// Commands that change a record, with what they need besides.
const CHANGES: [(&str, &[&str], Option<RecordState>); 5] = [
    ("complete", &["--value", "7"], Some(RecordState::Completed)),
    ("correct", &["--value", "7"], Some(RecordState::Completed)),
    ("fail", &["--error", "7"], Some(RecordState::Failed)),
    ("release", &[], Some(RecordState::Released)),
    ("erase", &[], None),
];
/// Commands that are not in the lists above, because they need a terminal.
const ON_A_TERMINAL: [&str; 1] = ["watch"];

/// End of the output of the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reader {
    /// The reader has left, as `head` does.
    Left,
    /// No byte can be written.
    Full,
}

impl Reader {
    fn open(self) -> Stdio {
        match self {
            Self::Left => {
                let (reader, writer) = std::io::pipe().unwrap();
                drop(reader);
                writer.into()
            }
            Self::Full => OpenOptions::new()
                .write(true)
                .open("/dev/full")
                .unwrap()
                .into(),
        }
    }
}

fn run(place: &Place, to: Reader, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_idem"))
        .env("IDEM_STORE_URL", &place.url)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(to.open())
        .output()
        .unwrap()
}

async fn place() -> Place {
    let place = Place::sqlite().await;
    place.interrupted("order-1").await;
    let pool = SqlitePool::connect(&place.url).await.unwrap();
    Outbox::new(pool).migrate().await.unwrap();
    place
}

#[tokio::test]
async fn a_command_ends_well_if_nobody_reads_it_and_fails_if_it_cannot_write() {
    let place = place().await;
    for (arguments, code) in COMMANDS {
        let is_change = arguments.contains(&"--yes") || arguments.contains(&"--apply");
        for to in [Reader::Left, Reader::Full] {
            let ran = run(&place, to, arguments);
            let told = String::from_utf8_lossy(&ran.stderr);
            assert!(!told.contains("panicked"), "{arguments:?}: {told}");
            let expected = match to {
                // Without its address and its code, nobody can use the page.
                _ if arguments == ["serve"] => 1,
                Reader::Full if !is_change => 1,
                _ => code,
            };
            assert_eq!(
                ran.status.code(),
                Some(expected),
                "{arguments:?} to {to:?}: {told}"
            );
            let is_told = told.contains("output is incomplete") || arguments == ["serve"];
            assert_eq!(
                is_told,
                to == Reader::Full || arguments == ["serve"],
                "{arguments:?} to {to:?}: {told}"
            );
        }
    }
}

#[tokio::test]
async fn the_exit_code_says_what_became_of_a_change() {
    for to in [Reader::Left, Reader::Full] {
        for (command, more, state) in CHANGES {
            for as_json in [false, true] {
                let place = place().await;
                let asked = ["--yes", "--reason", "asked the post"];
                if command == "correct" {
                    let wrong = on_letter("complete", &["--value", "8"]);
                    place.idem(&[&wrong[..], &asked].concat()).expect(0, &[]);
                }
                let mut arguments = on_letter(command, more);
                arguments.extend(asked);
                arguments.extend(as_json.then_some("--json"));
                let ran = run(&place, to, &arguments);
                let told = String::from_utf8_lossy(&ran.stderr);
                assert_eq!(
                    ran.status.code(),
                    Some(0),
                    "{arguments:?} to {to:?}: {told}"
                );
                let id = RecordId::of(
                    &request("order-1", Duration::ZERO, Digest::new(1, [0; 4], &[7; 32])).identity,
                );
                let record = place.store.get(&id).await.unwrap();
                assert_eq!(record.map(|it| it.state), state, "{arguments:?} to {to:?}");
            }
        }
    }
}

/// A new subcommand needs a line in the lists above.
#[test]
fn every_subcommand_is_in_these_tests() {
    let page = include_str!("../../../docs/cli.md");
    let headings = page
        .lines()
        .filter_map(|line| line.strip_prefix("## idem "));
    // `idem outbox` alone only prints its help.
    for path in headings.filter(|it| *it != "outbox") {
        let path: Vec<_> = path.split(' ').collect();
        let is_listed = COMMANDS
            .iter()
            .any(|(arguments, _)| arguments.starts_with(&path));
        let is_change = CHANGES.iter().any(|(name, ..)| path == [*name]);
        assert!(
            is_listed || is_change || ON_A_TERMINAL.contains(&path[0]),
            "{path:?}"
        );
    }
}

#[tokio::test]
async fn one_edited_row_fails_no_command() {
    let place = place().await;
    place.interrupted("order-2").await;
    let pool = SqlitePool::connect(&place.url).await.unwrap();
    let edit =
        "UPDATE idem_records SET operation = 'letters.sent' WHERE idempotency_key = 'order-1'";
    sqlx::query(edit).execute(&pool).await.unwrap();
    let id = RecordId::of(
        &request("order-1", Duration::ZERO, Digest::new(1, [0; 4], &[7; 32])).identity,
    )
    .to_string();
    let named = ["1 records cannot be read", &id, "order-2"];
    let told = place.idem(&["list"]).expect(0, &named);
    assert!(!told.out.contains("delete it"), "{told:?}");
    place.idem(&["stuck"]).expect(3, &named);
    place.idem(&["stuck", "--attempts", "2"]).expect(3, &named);
    let json = place.idem(&["list", "--json"]).expect(0, &[]);
    let json: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(json["unreadable"][0]["name"], *id, "{json}");
    let erase = ["erase", "--where", "stuck", "--yes", "--reason", "asked"];
    place
        .idem(&erase)
        .expect(0, &["1 records cannot be read", &id, "done       1"]);
    // With the edited row alone, cron still hears of it.
    place.idem(&["stuck"]).expect(3, &["no records", &id]);
    let none = ["list", "--where", "state=completed"];
    place.idem(&none).expect(3, &["no records"]);
}

/// The remedy of a missing table names the command that the operator has.
#[tokio::test]
async fn a_missing_table_is_said_once_with_the_command_that_creates_it() {
    let place = Place::sqlite().await;
    let ran = place.idem(&["--table", "other", "list"]);
    assert!(ran.err.contains("run `idem migrate --apply`"), "{ran:?}");
    assert_eq!(ran.err.matches("no such table").count(), 1, "{ran:?}");
}

/// Every table, printed on a terminal of 80 columns, with names that are long and usual.
#[tokio::test]
async fn tables_keep_words_whole_at_80_columns() {
    const COLUMNS: usize = 80;
    const KEY: &str = "0f8fad5b-d9cb-469f-a165-70867728950e";
    const OPERATION: &str = "payments.charge_customer";
    const SCOPE: &str = "tenant-0042/customer-4711";
    const OWNER: &str = "web-3.eu-central/4711/2.1.0";
    const STEP: &str = "reserve-the-amount-at-the-bank";
    let place = Place::sqlite().await;
    let store = &place.store;
    let mut claim = claim_of(identity(SCOPE, OPERATION, KEY));
    claim.owner_label = Some(OwnerLabel::new(OWNER).unwrap());
    let change = ManualChange::new("ann@desk-17", "the bank has no charge with this key").unwrap();
    for _ in 0..2 {
        let owner = own(store, &claim).await;
        let payload = Payload {
            codec: "json/1".into(),
            bytes: b"7".as_slice().into(),
        };
        let steps = store.steps().unwrap();
        steps.save_step(&owner, STEP, &payload).await.unwrap();
        store.interrupt(&owner).await.unwrap();
        let idem = Idem::new(Arc::clone(store));
        let record = idem.records().get(&claim.id).await.unwrap().unwrap();
        let by = idem.records().by(&change);
        by.release(&record.observation()).await.unwrap();
        claim.claim_id = ClaimId::random();
    }
    let owner = own(store, &claim).await;
    store.interrupt(&owner).await.unwrap();
    let pool = SqlitePool::connect(&place.url).await.unwrap();
    let outbox = Outbox::new(pool.clone());
    outbox.migrate().await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    let message = outbox.message("payments.receipts", "a receipt");
    message.key(KEY).enqueue(&mut *tx).await.unwrap();
    tx.commit().await.unwrap();
    let park = "UPDATE idem_outbox SET state = 'parked', attempt = 5, due_at = NULL, parked_at = enqueued_at, \
                last_error = 'the mail server refuses the address'";
    sqlx::query(park).execute(&pool).await.unwrap();
    let id = claim.id.to_string();
    let tables: [(&[&str], &[&str]); 10] = [
        (&["list"], &[KEY, OPERATION, SCOPE, OWNER, "interrupted"]),
        (&["stuck"], &[KEY, OPERATION, SCOPE, OWNER, "interrupted"]),
        (&["find", KEY, "--scan"], &[KEY, OPERATION, SCOPE, OWNER]),
        (
            &["attempts", "--id", &id],
            &[OWNER, "interrupted", "released"],
        ),
        (&["steps", "--id", &id, "--payloads"], &[STEP, "json/1"]),
        (
            &["audit"],
            &[KEY, OPERATION, "ann@desk-17", "released", "charge"],
        ),
        (&["stats"], &[OPERATION, "interrupted", SCOPE]),
        (&["outbox", "list"], &[KEY, "payments.receipts", "refuses"]),
        (&["doctor"], &["schema", "indexes"]),
        (&["migrate", "--index", "key", "--plan"], &["entries"]),
    ];
    for (arguments, words) in tables {
        let typed = format!(
            "stty cols {COLUMNS} rows 24; exec {} {}",
            env!("CARGO_BIN_EXE_idem"),
            arguments.join(" ")
        );
        let ran = Command::new("script")
            .args(["--quiet", "--return", "--command", &typed, "/dev/null"])
            .env("IDEM_STORE_URL", &place.url)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let shown = String::from_utf8(ran.stdout).unwrap();
        for word in words {
            assert!(
                shown.contains(word),
                "{arguments:?} breaks {word}:\n{shown}"
            );
        }
        let is_table = !["doctor", "migrate", "stats"].contains(&arguments[0]);
        for line in shown.lines().filter(|_| is_table) {
            let is_sentence = line.ends_with('.') || line.starts_with("searched");
            let width = line.trim_end().chars().count();
            assert!(
                is_sentence || width <= COLUMNS,
                "{arguments:?}: {width} columns:\n{shown}"
            );
        }
    }
}
