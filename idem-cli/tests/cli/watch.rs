//! The live view, on a terminal.

use std::io::{Read as _, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use sqlx::Executor as _;

use super::Place;

/// Sequences that switch to the second screen of the terminal, and back to the first.
const ENTERED: &str = "\u{1b}[?1049h";
const LEFT: &str = "\u{1b}[?1049l";
/// Sequences that hide the cursor, and show it.
const HIDDEN: &str = "\u{1b}[?25l";
const SHOWN: &str = "\u{1b}[?25h";

/// The command in a terminal of its own, from util-linux.
struct Terminal {
    run: Child,
    keys: ChildStdin,
    screen: ChildStdout,
    seen: String,
}

impl Terminal {
    fn watch(place: &Place) -> Self {
        let idem = env!("CARGO_BIN_EXE_idem");
        let mut run = Command::new("script")
            .args(["--quiet", "--return", "--command"])
            // Without `exec` a shell may stay between. It would die of the Ctrl-C that the command handles. With it, the
            // command has the process id of the shell.
            .arg(format!("echo pid=$$.; exec {idem} watch --every 1s"))
            .arg("/dev/null")
            .env("IDEM_STORE_URL", &place.url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (keys, screen) = (run.stdin.take().unwrap(), run.stdout.take().unwrap());
        Self {
            run,
            keys,
            screen,
            seen: String::new(),
        }
    }

    /// Reads until this text was shown, once more than before.
    fn wait_for(&mut self, text: &str) {
        let times = self.seen.matches(text).count();
        let mut bytes = self.seen.clone().into_bytes();
        while String::from_utf8_lossy(&bytes).matches(text).count() == times {
            let mut byte = [0];
            let read = self.screen.read(&mut byte).unwrap();
            assert_eq!(
                read,
                1,
                "no {text:?} in {}",
                String::from_utf8_lossy(&bytes)
            );
            bytes.push(byte[0]);
        }
        self.seen = String::from_utf8_lossy(&bytes).into_owned();
    }

    /// Reads the rest. Returns the exit code and all that was shown.
    fn end(mut self) -> (Option<i32>, String) {
        let mut rest = Vec::new();
        self.screen.read_to_end(&mut rest).unwrap();
        self.seen.push_str(&String::from_utf8_lossy(&rest));
        (self.run.wait().unwrap().code(), self.seen)
    }
}

/// The terminal is as it was: the first screen, with a cursor.
fn is_restored(seen: &str) {
    for (changed, restored) in [(ENTERED, LEFT), (HIDDEN, SHOWN)] {
        let last = (seen.rfind(changed), seen.rfind(restored));
        assert!(last.0.is_some() && last.0 < last.1, "{seen:?}");
    }
}

#[tokio::test]
async fn the_view_follows_the_store_and_ends_with_ctrl_c() {
    let place = Place::sqlite().await;
    place.interrupted("order-1").await;
    let mut terminal = Terminal::watch(&place);
    terminal.wait_for("records    1");
    place.interrupted("order-2").await;
    terminal.wait_for("records    2");
    terminal.keys.write_all(b"\x03").unwrap();
    let (code, seen) = terminal.end();
    assert_eq!(code, Some(0), "{seen:?}");
    is_restored(&seen);
}

#[tokio::test]
async fn the_view_ends_with_each_signal_that_ends_a_program() {
    for signal in ["TERM", "HUP"] {
        let place = Place::sqlite().await;
        let mut terminal = Terminal::watch(&place);
        terminal.wait_for("no records");
        let (_, pid) = terminal.seen.split_once("pid=").unwrap();
        let (pid, _) = pid.split_once('.').unwrap();
        let sent = Command::new("kill").args(["-s", signal, pid]).status();
        assert!(sent.unwrap().success());
        let (code, seen) = terminal.end();
        assert_eq!(code, Some(0), "{signal}: {seen:?}");
        is_restored(&seen);
    }
}

#[tokio::test]
async fn the_terminal_is_restored_after_an_error() {
    let place = Place::sqlite().await;
    let mut terminal = Terminal::watch(&place);
    terminal.wait_for("no records");
    let store = idem_runtime::SqliteStore::connect(&place.url)
        .await
        .unwrap();
    store
        .pool()
        .execute("DROP TABLE idem_records")
        .await
        .unwrap();
    let (code, seen) = terminal.end();
    assert_eq!(code, Some(1), "{seen:?}");
    is_restored(&seen);
    let error = seen.rfind("error: ").unwrap();
    assert!(seen.rfind(LEFT).unwrap() < error, "{seen:?}");
}

#[tokio::test]
async fn without_a_terminal_there_is_no_view() {
    let place = Place::sqlite().await;
    place
        .idem(&["watch"])
        .expect_error(1, "use `idem stats --json`");
    place
        .idem(&["watch", "--every", "1ms"])
        .expect_error(2, "at least a second");
}
