//! Other processes on the same store: one that is paused past its lease, one whose clock is wrong, ten that migrate
//! concurrently. Each runs the program `caller`, which reports its progress on its output and waits for lines on its
//! input.

use std::process::Stdio;
use std::time::Duration;

use idem_runtime::Idem;
use idem_runtime::record::Record;
use idem_tests::places::{Backend, Files, Place};
use idem_tests::{backends, until};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

mod clocks;
mod migrating;
mod paused;
mod transactions;

const PROGRAM: &str = env!("CARGO_BIN_EXE_caller");
/// Longest wait for the next line of another process.
const PATIENCE: Duration = Duration::from_secs(60);

/// Records that other processes can open as well.
struct Home {
    address: String,
    _files: Files,
}

impl Home {
    async fn of<S: Backend>(place: Place<S>) -> Self {
        Self {
            address: S::address(&place.home().await.unwrap()).unwrap(),
            _files: place.files(),
        }
    }

    async fn open(&self) -> Idem {
        backends::open(&self.address).await.unwrap()
    }
}

/// A unique key.
fn unique_key() -> String {
    format!("key-{:032x}", rand::random::<u128>())
}

/// Record of the key that the program was started with.
async fn record(idem: &Idem, key: &str) -> Option<Record> {
    idem.records().find(backends::OPERATION, key).await.unwrap()
}

/// The program `caller`, killed on drop.
struct Caller {
    process: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Caller {
    fn start(arguments: &[&str]) -> Self {
        Self::run(Command::new(PROGRAM).args(arguments))
    }

    fn run(command: &mut Command) -> Self {
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        Self {
            input: process.stdin.take().unwrap(),
            output: BufReader::new(process.stdout.take().unwrap()).lines(),
            process,
        }
    }

    /// Next line of its output.
    async fn next_line(&mut self) -> String {
        tokio::time::timeout(PATIENCE, self.output.next_line())
            .await
            .expect("the program prints nothing")
            .unwrap()
            .expect("the program ended without output; its error is above")
    }

    /// Lets the program continue.
    async fn proceed(&mut self) {
        self.input.write_all(b"proceed\n").await.unwrap();
    }

    /// Sends `SIGSTOP`. The process has stopped completely when this returns.
    async fn pause(&self) {
        self.signal("-STOP").await;
        until(async || {
            let state = Command::new("ps")
                .args(["-o", "stat=", "-p", &self.pid()])
                .output();
            state.await.unwrap().stdout.starts_with(b"T")
        })
        .await;
    }

    async fn resume(&self) {
        self.signal("-CONT").await;
    }

    async fn signal(&self, signal: &str) {
        let kill = Command::new("kill")
            .args([signal, &self.pid()])
            .status()
            .await;
        assert!(kill.unwrap().success());
    }

    fn pid(&self) -> String {
        self.process.id().unwrap().to_string()
    }
}
