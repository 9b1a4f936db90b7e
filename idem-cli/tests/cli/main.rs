//! The command, run as an operator runs it, on each store with its real server.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests fail by panicking, too"
)]

use std::io::{Read as _, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use idem_runtime::OnCrash;
use idem_runtime::operator::OperatorStore;
use idem_runtime::record::{ClaimId, Digest, Outcome, Owner};
use idem_runtime::store::{ClaimRequest, FencedWrite};
use idem_tests::claims::{claim_of, identity, own};
use idem_tests::places::{self, Backend, Files};
use idem_tests::{backends, on_stores};

mod bulk;
mod corrections;
mod doctor;
mod hostile;
mod incidents;
mod look;
mod migrate;
mod nights;
mod outbox;
mod output;
mod scopes;
mod serve;
mod tls;
mod watch;

use bulk::records_that_meet_a_condition_are_changed_together;
use corrections::a_wrong_result_is_corrected;
use doctor::a_healthy_store_has_no_problem;
use look::{
    a_listing_shows_owners_and_no_results, a_request_is_compared_with_the_record,
    members_that_differ_are_named, records_are_counted_by_operation_and_state,
    records_are_selected_by_condition_and_attempts,
    saved_steps_are_listed_and_their_results_hidden,
};
use scopes::{
    a_key_is_found_with_and_without_its_scope, everything_of_a_scope_is_exported_and_erased,
};

/// A store that the command connects to.
struct Place {
    store: Arc<dyn OperatorStore>,
    url: String,
    /// Option of the command that names the table or prefix, if it is not the default.
    options: Vec<String>,
    files: Files,
}

impl Place {
    /// A store in this place. On a server, its table or prefix has a name of its own.
    async fn open<S: Backend>(place: places::Place<S>) -> Self {
        let home = place.home().await.unwrap();
        Self::in_home(&place, &home).await
    }

    async fn in_home<S: Backend>(place: &places::Place<S>, home: &S::Home) -> Self {
        let name = match place.needs() {
            [] => String::new(),
            _ => unique(),
        };
        Self {
            files: place.files(),
            ..Self::at(S::address(home).unwrap(), name).await
        }
    }

    async fn sqlite() -> Self {
        Self::open(places::sqlite()).await
    }

    /// Connects to a store, and creates its tables. An empty name stands for the default table.
    async fn at(url: String, name: String) -> Self {
        let store = backends::open_named(&url, &name).await.unwrap();
        let option = match url.starts_with("redis") {
            true => "--prefix",
            false => "--table",
        };
        let options = match name.is_empty() {
            true => Vec::new(),
            false => vec![option.to_owned(), name],
        };
        Self {
            store,
            url,
            options,
            files: Files::default(),
        }
    }

    /// This store, without options of the command.
    fn without_options(&self) -> Self {
        Self {
            store: Arc::clone(&self.store),
            url: self.url.clone(),
            options: Vec::new(),
            files: self.files.clone(),
        }
    }

    fn server(store: Arc<dyn OperatorStore>, url: String, option: &str, name: String) -> Self {
        Self {
            store,
            url,
            options: vec![option.to_owned(), name],
            files: Files::default(),
        }
    }

    /// Runs the command. Its standard input is no terminal.
    fn idem(&self, arguments: &[&str]) -> Ran {
        let output = Command::new(env!("CARGO_BIN_EXE_idem"))
            .env("IDEM_STORE_URL", &self.url)
            .args(&self.options)
            .args(arguments)
            .output()
            .unwrap();
        Ran::new(output)
    }

    /// Claims a record, and leaves it to its lease.
    async fn claim(&self, key: &str, lease: Duration) -> Owner {
        self.claim_for(key, lease, Digest::new(1, [0; 4], &[7; 32]))
            .await
    }

    /// Claims a record for a request with this fingerprint.
    async fn claim_for(&self, key: &str, lease: Duration, fingerprint: Digest) -> Owner {
        own(&self.store, &request(key, lease, fingerprint)).await
    }

    /// Claims a record and marks it as interrupted: nobody knows whether the letter was posted.
    async fn interrupted(&self, key: &str) -> Owner {
        let owner = self.claim(key, Duration::from_secs(600)).await;
        self.store.interrupt(&owner).await.unwrap();
        owner
    }
}

/// Claim of a letter with this key.
fn request(key: &str, lease: Duration, fingerprint: Digest) -> ClaimRequest {
    ClaimRequest {
        fingerprint,
        lease,
        on_crash: OnCrash::Refuse,
        ..claim_of(identity("tenant-3", "letters.post", key))
    }
}

/// Output of a run of the command, and its exit code.
#[derive(Debug)]
struct Ran {
    out: String,
    err: String,
    code: Option<i32>,
}

impl Ran {
    fn new(output: Output) -> Self {
        Self {
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
            code: output.status.code(),
        }
    }

    #[track_caller]
    fn expect(self, code: i32, parts: &[&str]) -> Self {
        assert_eq!(self.code, Some(code), "{self:?}");
        for part in parts {
            assert!(self.out.contains(part), "no {part:?} in {self:?}");
        }
        self
    }

    #[track_caller]
    fn expect_error(self, code: i32, part: &str) {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert!(self.err.contains(part), "no {part:?} in {self:?}");
    }
}

/// Run of the command on a terminal, which waits for the answer to its question.
struct Asked {
    run: Child,
    keys: ChildStdin,
    screen: ChildStdout,
}

impl Asked {
    fn new(place: &Place, arguments: &str) -> Self {
        // A terminal to ask on, from util-linux. Without `exec` a shell would stay between.
        let idem = env!("CARGO_BIN_EXE_idem");
        let mut run = Command::new("script")
            .args(["--quiet", "--return", "--command"])
            .arg(format!("exec {idem} {arguments}"))
            .arg("/dev/null")
            .env("IDEM_STORE_URL", &place.url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (keys, mut screen) = (run.stdin.take().unwrap(), run.stdout.take().unwrap());
        let mut seen = Vec::new();
        while !seen.ends_with(b"[y/N] ") {
            let mut byte = [0];
            screen
                .read_exact(&mut byte)
                .unwrap_or_else(|_| panic!("no question: {}", String::from_utf8_lossy(&seen)));
            seen.extend(byte);
        }
        Self { run, keys, screen }
    }

    /// Answers the question. Returns the exit code, and the rest of the output.
    fn answer(mut self, keys: &[u8]) -> (Option<i32>, String) {
        self.keys.write_all(keys).unwrap();
        let mut rest = String::new();
        self.screen.read_to_string(&mut rest).unwrap();
        (self.run.wait().unwrap().code(), rest)
    }
}

/// Name of a table or prefix of its own.
fn unique() -> String {
    let id = ClaimId::random();
    let digits: String = id.as_bytes().iter().map(|it| format!("{it:02x}")).collect();
    format!("cli_{digits}")
}

const LETTER: [&str; 4] = ["letters.post", "order-1", "--scope", "tenant-3"];

fn on_letter<'a>(command: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&[command], &LETTER[..], more].concat()
}

/// An interrupted letter is found, explained, and completed: the way of a night.
async fn an_interrupted_letter_is_found_explained_and_completed(place: Place) {
    place.claim("order-0", Duration::from_secs(600)).await;
    place.idem(&["stuck"]).expect(0, &["no records"]);
    let owner = place.interrupted("order-1").await;
    place
        .idem(&["stuck"])
        .expect(3, &["letters.post", "order-1", "tenant-3", "interrupted"]);
    place.idem(&on_letter("explain", &[])).expect(
        0,
        &[
            "it is unknown whether the work was done",
            "`Interrupted` (over HTTP 409)",
            "idem complete",
            "idem release",
            &owner.id.to_string(),
        ],
    );
    place
        .idem(&on_letter("complete", &["--value", "7"]))
        .expect_error(1, "pass --yes");
    place
        .idem(&on_letter(
            "complete",
            &["--value", "7", "--yes", "--reason", "asked the post"],
        ))
        .expect(0, &["done"]);
    place
        .idem(&on_letter("explain", &[]))
        .expect(0, &["The work was done", "the stored result"]);
    let shown = place
        .idem(&on_letter("show", &[]))
        .expect(0, &["completed", "json/1, 1 bytes", "hidden"]);
    assert!(!shown.out.contains("result      7"), "{shown:?}");
    place
        .idem(&on_letter("show", &["--payload"]))
        .expect(0, &["result      7"]);
    place.idem(&["stuck"]).expect(0, &["no records"]);
    place
        .idem(&on_letter(
            "release",
            &["--yes", "--reason", "asked the post"],
        ))
        .expect_error(1, "does not apply");
}

/// A record is released, failed, and erased; a key that is gone is said to be so.
async fn a_record_is_failed_released_and_erased(place: Place) {
    place.interrupted("order-1").await;
    place
        .idem(&on_letter(
            "release",
            &["--yes", "--reason", "asked the post"],
        ))
        .expect(0, &["done"]);
    place.idem(&on_letter("explain", &[])).expect(
        0,
        &[
            "released the key",
            "The next call with this key runs the work",
        ],
    );
    place
        .idem(&on_letter(
            "erase",
            &["--yes", "--reason", "asked the post"],
        ))
        .expect(0, &["done"]);
    place
        .idem(&on_letter("show", &[]))
        .expect(3, &["No record has this key"]);
    place.interrupted("order-1").await;
    place
        .idem(&on_letter(
            "fail",
            &["--error", "\"lost\"", "--yes", "--reason", "asked the post"],
        ))
        .expect(0, &["done"]);
    place
        .idem(&on_letter("explain", &[]))
        .expect(0, &["failed for good", "the stored error"]);
}

/// Attempts have owners, manual changes have an actor and a reason, and a change that has no effect is not told of.
async fn who_changed_and_who_ran_a_record_is_told(place: Place) {
    place.idem(&["audit"]).expect(3, &["no manual changes"]);
    place.interrupted("order-1").await;
    place
        .idem(&on_letter("release", &["--yes"]))
        .expect_error(1, "pass --reason");
    place
        .idem(&on_letter("release", &["--yes", "--reason", "two\nlines"]))
        .expect_error(1, "write it in one line");
    let by_ann = [
        "--yes",
        "--actor",
        "ann@desk",
        "--reason",
        "the box was full",
    ];
    place
        .idem(&on_letter("release", &by_ann))
        .expect(0, &["done"]);
    place
        .idem(&on_letter("attempts", &[]))
        .expect(0, &["ATTEMPT", "OWNER", "unknown", "resolved-released"]);
    // The record is ended or gone, and its audit remains.
    place
        .idem(&on_letter(
            "complete",
            &["--yes", "--value", "7", "--reason", "late"],
        ))
        .expect_error(1, "does not apply");
    let by_bob = ["--yes", "--actor", "bob@desk", "--reason", "begin again"];
    place
        .idem(&on_letter("erase", &by_bob))
        .expect(0, &["done"]);
    let told = place.idem(&on_letter("audit", &[])).expect(
        0,
        &[
            "ann@desk",
            "the box was full",
            "released",
            "bob@desk",
            "begin again",
            "erased",
        ],
    );
    let place_of = |name: &str| told.out.find(name).unwrap();
    assert!(place_of("bob@desk") < place_of("ann@desk"), "{told:?}");
    let of_bob = place
        .idem(&["audit", "--actor", "bob@desk", "--since", "1h", "--json"])
        .expect(0, &["begin again"]);
    let of_bob: serde_json::Value = serde_json::from_str(&of_bob.out).unwrap();
    assert_eq!(of_bob["entries"].as_array().unwrap().len(), 1, "{of_bob}");
    assert_eq!(of_bob["entries"][0]["state"], "released", "{of_bob}");
    place
        .idem(&on_letter("attempts", &[]))
        .expect(3, &["No record has this key"]);
}

/// While the lease of an owner is valid, no command changes its record.
async fn a_living_owner_is_left_alone(place: Place) {
    let owner = place.claim("order-1", Duration::from_secs(600)).await;
    place
        .idem(&on_letter("explain", &[]))
        .expect(0, &["Attempt 1 runs", "`InFlight`", "No command applies"]);
    for command in ["release", "erase"] {
        place
            .idem(&on_letter(
                command,
                &["--yes", "--reason", "asked the post"],
            ))
            .expect_error(1, "does not apply");
    }
    let outcome = Outcome::Unrecorded;
    let written = place.store.complete(&owner, &outcome).await.unwrap();
    assert_eq!(written, FencedWrite::Applied);
}

/// Pages of a listing contain each record once, as JSON, too.
async fn a_listing_continues_where_a_page_ended(place: Place) {
    for key in ["order-1", "order-2", "order-3"] {
        place.interrupted(key).await;
    }
    let (mut keys, mut after) = (Vec::new(), None::<String>);
    loop {
        let mut arguments = vec![
            "list",
            "--limit",
            "2",
            "--json",
            "--operation",
            "letters.post",
        ];
        arguments.extend(after.iter().flat_map(|it| ["--after", it]));
        let page = place.idem(&arguments).expect(0, &[]);
        let page: serde_json::Value = serde_json::from_str(&page.out).unwrap();
        let records = page["records"].as_array().unwrap();
        assert!(records.len() <= 2, "{page}");
        for record in records {
            assert_eq!(record["state"], "interrupted");
            assert_eq!(record["scope"], "tenant-3");
            keys.push(record["key"].as_str().unwrap().to_owned());
        }
        after = page["next"].as_str().map(str::to_owned);
        if after.is_none() {
            break;
        }
    }
    keys.sort();
    assert_eq!(keys, ["order-1", "order-2", "order-3"]);
    place
        .idem(&["list", "--state", "completed"])
        .expect(3, &["no records"]);
    place.idem(&["purge"]).expect_error(1, "pass --yes");
    place
        .idem(&["purge", "--yes"])
        .expect_error(1, "the reason of the change is missing");
    let purged = place
        .idem(&["purge", "--yes", "--reason", "make room"])
        .expect(0, &["deleted      0"]);
    let by_itself = place.store.expires_by_itself();
    let says_so = purged.out.contains("deletes expired records itself");
    assert_eq!(says_so, by_itself, "{}", purged.out);
}

on_stores! { [operators] Place::open:
    an_interrupted_letter_is_found_explained_and_completed,
    a_wrong_result_is_corrected,
    a_record_is_failed_released_and_erased,
    who_changed_and_who_ran_a_record_is_told,
    a_living_owner_is_left_alone,
    a_listing_continues_where_a_page_ended,
    a_request_is_compared_with_the_record,
    members_that_differ_are_named,
    saved_steps_are_listed_and_their_results_hidden,
    records_are_counted_by_operation_and_state,
    a_listing_shows_owners_and_no_results,
    records_are_selected_by_condition_and_attempts,
    records_that_meet_a_condition_are_changed_together,
    a_healthy_store_has_no_problem,
    a_key_is_found_with_and_without_its_scope,
    everything_of_a_scope_is_exported_and_erased,
}

#[tokio::test]
async fn wrong_arguments_are_refused_with_what_to_do() {
    let place = Place::sqlite().await;
    place.idem(&["show"]).expect_error(2, "required");
    for command in ["show", "audit", "erase"] {
        place
            .idem(&[command, "letters.post"])
            .expect_error(2, "<KEY>");
    }
    place
        .idem(&on_letter(
            "complete",
            &["--yes", "--reason", "asked the post"],
        ))
        .expect_error(2, "--without-value");
    place
        .idem(&["--prefix", "a:", "list"])
        .expect_error(1, "--prefix is for Redis");
    place
        .idem(&["--url", "postgres://me:secret@localhost/db", "list"])
        .expect_error(1, "set IDEM_STORE_URL instead");
    place
        .idem(&["--sentinels", "redis://:secret@localhost", "list"])
        .expect_error(1, "set IDEM_SENTINEL_URLS instead");
    place
        .idem(&["--sentinels", "redis://localhost", "list"])
        .expect_error(1, "--sentinels is for one Redis");
    place
        .idem(&["--url", "mongodb://localhost", "list"])
        .expect_error(1, "there is no store for `mongodb:`");
    place
        .idem(&["list", "--after", "nonsense\u{1b}[2J"])
        .expect_error(1, "cursor");
    place.interrupted("order-1").await;
    place
        .idem(&on_letter(
            "complete",
            &["--value", "sent", "--yes", "--reason", "asked the post"],
        ))
        .expect_error(1, "not JSON");
}

#[tokio::test]
async fn an_operator_who_decides_too_late_is_told_what_changed() {
    let place = Place::sqlite().await;
    let owner = place.interrupted("order-1").await;
    let asked = Asked::new(
        &place,
        &on_letter("release", &["--reason", "asked"]).join(" "),
    );
    // Meanwhile the owner was only slow, and completes.
    let completed = place.store.complete(&owner, &Outcome::Unrecorded).await;
    assert_eq!(completed.unwrap(), FencedWrite::Applied);
    let (code, rest) = asked.answer(b"y\n");
    assert_eq!(code, Some(4), "{rest}");
    assert!(rest.contains("no longer as it was shown"), "{rest}");
    assert!(rest.contains("unrecorded"), "{rest}");
}

/// A change needs an actor: the name of the user, or `--actor`.
#[tokio::test]
async fn a_change_is_made_by_somebody() {
    let place = Place::sqlite().await;
    place.interrupted("order-1").await;
    let id = Command::new("id").arg("-un").output().unwrap();
    let name = String::from_utf8(id.stdout).unwrap();
    let release = |path: &str, more: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_idem"))
            .env_clear()
            .env("PATH", path)
            .env("IDEM_STORE_URL", &place.url)
            .args(on_letter(
                "release",
                &["--yes", "--reason", "asked the post"],
            ))
            .args(more)
            .output()
            .unwrap();
        Ran::new(output)
    };
    // Nothing says the name of the user.
    release("/nowhere", &[]).expect_error(1, "pass --actor, or set IDEM_ACTOR");
    place.idem(&["audit"]).expect(3, &["no manual changes"]);
    release(&std::env::var("PATH").unwrap(), &[]).expect(0, &["done"]);
    let by = format!("{}@", name.trim());
    place.idem(&["audit"]).expect(0, &[&by]);
}

/// Another database than that of the service does not pass for one without records.
#[tokio::test]
async fn a_database_without_tables_is_not_an_empty_one() {
    let folder = tempfile::tempdir().unwrap();
    let place = Place {
        url: format!("sqlite://{}/other.sqlite?mode=rwc", folder.path().display()),
        ..Place::sqlite().await
    };
    let named = |command| on_letter(command, &[]);
    let purge = vec!["purge", "--yes", "--reason", "a test"];
    let audit = vec!["audit"];
    for command in [
        vec!["list"],
        vec!["stuck"],
        vec!["stats"],
        audit,
        purge,
        named("explain"),
        named("show"),
    ] {
        let ran = place.idem(&command);
        assert!(!ran.err.contains("migrate()"), "{ran:?}");
        assert!(ran.err.contains("idem migrate --apply"), "{ran:?}");
        ran.expect_error(1, "check the database of the URL, --schema and --table");
    }
    place.idem(&["doctor"]).expect(4, &["idem migrate --plan"]);
}

/// A Redis has no tables. It is refused if it has neither a record nor an entry of an audit.
#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn a_redis_with_nothing_of_idem_is_not_an_empty_store() {
    let place = Place::open(places::redis()).await;
    let named = |command| on_letter(command, &[]);
    let purge = ["purge", "--yes", "--reason", "a test"];
    let refused = || {
        for command in [
            vec!["list"],
            vec!["stuck"],
            vec!["stats"],
            vec!["stats", "--exact"],
            purge.to_vec(),
            named("explain"),
            named("show"),
            named("steps"),
            named("attempts"),
        ] {
            place
                .idem(&command)
                .expect_error(1, "has nothing of idem's under the prefix");
        }
        place
            .idem(&["doctor"])
            .expect(0, &["nothing of idem's under the prefix", "--prefix"]);
    };
    refused();
    // The records of other applications are not counted.
    let client = ::redis::Client::open(&*place.url).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let mut foreign = ::redis::cmd("SET");
    let name = format!("{}x", place.options[1]);
    let () = foreign
        .arg(&name)
        .arg(1)
        .query_async(&mut connection)
        .await
        .unwrap();
    refused();

    place.interrupted("order-1").await;
    place.idem(&["stuck"]).expect(3, &["order-1"]);
    let selected = ["list", "--state", "completed"];
    place.idem(&selected).expect(3, &["no records"]);
    place
        .idem(&on_letter("erase", &["--yes", "--reason", "a test"]))
        .expect(0, &["done"]);
    // The audit is left.
    place.idem(&["stuck"]).expect(0, &["no records"]);
}

#[tokio::test]
async fn a_store_that_is_not_there_is_said_to_be_so() {
    let folder = tempfile::tempdir().unwrap();
    let place = Place {
        url: format!("sqlite://{}/none/records.sqlite", folder.path().display()),
        ..Place::sqlite().await
    };
    let ran = place.idem(&["list"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.starts_with("error: "), "{ran:?}");
    assert!(!folder.path().join("none").exists());
}
