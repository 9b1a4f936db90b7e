//! Other processes on the same store: one that is paused past its lease, one whose clock is wrong, ten that migrate
//! concurrently. Each runs the program `caller`, which reports its progress on its output and waits for lines on its
//! input.

use std::process::Stdio;
use std::time::Duration;

use idem_runtime::Idem;
use idem_runtime::record::Record;
use idem_tests::{backends, until};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

mod clocks;
mod migrating;
mod paused;
mod transactions;

const PROGRAM: &str = env!("CARGO_BIN_EXE_caller");
/// Longest wait for the next line of another process.
const PATIENCE: Duration = Duration::from_secs(60);

/// A store with a URL that other processes can open.
struct Place {
    address: String,
    _directory: Option<TempDir>,
}

impl Place {
    /// A file that does not exist yet.
    fn sqlite() -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self {
            address: format!("sqlite://{}", directory.path().join("idem.db").display()),
            _directory: Some(directory),
        }
    }

    fn at(address: String) -> Self {
        Self {
            address,
            _directory: None,
        }
    }

    /// An empty database.
    async fn postgres() -> Self {
        let pool = backends::postgres().await.unwrap();
        let url = sqlx::ConnectOptions::to_url_lossy(&*pool.connect_options());
        pool.close().await;
        Self::at(url.into())
    }

    /// An empty database.
    async fn mysql() -> Self {
        let pool = backends::mariadb().await.unwrap();
        let url = sqlx::ConnectOptions::to_url_lossy(&*pool.connect_options());
        pool.close().await;
        Self::at(url.into())
    }

    /// A Redis server that is shared with other tests, so keys must be unique.
    fn redis() -> Self {
        Self::at(backends::variable(backends::REDIS).unwrap())
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
