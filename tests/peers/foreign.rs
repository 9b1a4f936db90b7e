//! Programs in other languages, which make calls with a library in their own tasks or threads.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use idem_tests::steady::Turn;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// Interpreter with the libraries of Python.
const PYTHON: &str = "IDEM_BENCH_PYTHON";
/// Folder with the libraries of npm.
const NODE_MODULES: &str = "IDEM_BENCH_NODE_MODULES";
/// Libraries of npm: names in the tables, and arguments of the program.
const OF_NPM: [(&str, &str); 2] = [
    ("Powertools 2.35 (TypeScript)", "powertools"),
    ("node-idempotency 1.0.11 (TypeScript)", "node-idempotency"),
];

/// A running program, which has completed the keys of replays.
pub(crate) struct Program {
    name: &'static str,
    process: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Program {
    /// Starts a program for each library that is installed, with this Redis.
    pub(crate) async fn all(url: &str) -> Vec<Self> {
        let mut all = Vec::new();
        if let Some(python) = installed(PYTHON) {
            let mut command = Command::new(python);
            command.arg(path_of("powertools.py")).arg(url);
            all.push(Self::start("Powertools 3.37 (Python)", command).await);
        }
        if let Some(packages) = installed(NODE_MODULES) {
            for (name, library) in OF_NPM {
                let mut command = Command::new("node");
                command.arg(path_of("libraries.js")).args([url, library]);
                command.env("NODE_PATH", &packages);
                all.push(Self::start(name, command).await);
            }
        }
        all
    }

    async fn start(name: &'static str, mut command: Command) -> Self {
        let process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn();
        let mut process = process.unwrap_or_else(|error| panic!("{name}: {command:?}: {error}"));
        let output = BufReader::new(process.stdout.take().unwrap());
        let mut program = Self {
            name,
            input: process.stdin.take().unwrap(),
            output: output.lines(),
            process,
        };
        assert_eq!(program.answer().await, "ready", "{name}");
        program
    }

    /// Name in the tables.
    pub(crate) const fn name(&self) -> &'static str {
        self.name
    }

    async fn answer(&mut self) -> String {
        let line = self.output.next_line().await.unwrap();
        line.unwrap_or_else(|| panic!("{}: the program ended; its message is above", self.name))
    }

    /// Makes calls of a kind, `first` or `replay`, with a number of tasks.
    pub(crate) async fn turn(&mut self, kind: &str, tasks: usize, slice: Duration) -> Turn {
        let command = format!("{kind} {tasks} {}\n", slice.as_millis());
        self.input.write_all(command.as_bytes()).await.unwrap();
        let answer = self.answer().await;
        let (nanoseconds, calls) = answer.split_once(' ').unwrap();
        let took = Duration::from_nanos(nanoseconds.parse().unwrap());
        (took, calls.parse().unwrap())
    }

    /// Ends the program, which stops at the end of its input.
    pub(crate) async fn stop(mut self) {
        drop(self.input);
        let status = self.process.wait().await.unwrap();
        assert!(status.success(), "{}: {status}", self.name);
    }
}

/// Value of a variable that `cargo xtask bench peers` sets. Prints a note if it is not set.
fn installed(variable: &str) -> Option<OsString> {
    let value = std::env::var_os(variable);
    if value.is_none() {
        println!("without {variable} there are fewer libraries; `cargo xtask bench peers` sets it");
    }
    value
}

fn path_of(program: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), program].iter().collect()
}
