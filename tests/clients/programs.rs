//! Clients that are separate programs. Each is killed by its process id when its test ends early.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::Context as _;
use tokio::process::Command;

use crate::answers::{self, Answers};
use crate::bank::PATH;
use crate::{CALLERS, OPERATIONS, RETRIES, SENT_AGAIN, Work};

/// The interpreter of an environment with the packages of `requirements.txt`.
const PYTHON: &str = "IDEM_TEST_PYTHON";
const NODE: &str = "node";

/// Sends all operations by a script in Python.
pub(crate) async fn python(script: &str, work: Work) -> Answers {
    let python = std::env::var_os(PYTHON)
        .with_context(|| {
            format!(
                "{PYTHON} is not set: `cargo xtask test` sets it, or set it to the `python3` of an environment into which \
                 `pip install -r tests/clients/requirements.txt` has installed the clients (Debian's package python3-venv \
                 makes environments)"
            )
        })
        .unwrap();
    let mut command = Command::new(python);
    // `-B` leaves no compiled files in the repository.
    command.arg("-B").arg(path_of(script));
    all_by(command, &work).await
}

/// Sends all operations by Node's `fetch`.
pub(crate) async fn fetch(work: Work) -> Answers {
    let mut command = Command::new(NODE);
    command.arg(path_of("with_fetch.mjs"));
    all_by(command, &work).await
}

/// Returns true if Node is installed. Otherwise prints a note that its tests prove nothing.
pub(crate) fn node_is_installed() -> bool {
    let version = std::process::Command::new(NODE).arg("--version").output();
    if let Err(error) = &version {
        println!("skipped: cannot run `{NODE}` ({error}); Debian has it in the package nodejs");
    }
    version.is_ok()
}

fn path_of(script: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "clients", script]
        .iter()
        .collect()
}

/// Sends all operations with one program, which ends when its standard input is closed.
async fn all_by(mut command: Command, work: &Work) -> Answers {
    let mut program = command
        .arg(format!("{}{PATH}", work.base))
        .arg(&work.keys)
        .args([OPERATIONS, SENT_AGAIN, CALLERS as u64, RETRIES.into()].map(|it| it.to_string()))
        .env("NO_PROXY", "*")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("cannot run {command:?}"))
        .unwrap();
    // The kernel closes the pipe at any end of this process.
    let alive = program.stdin.take();
    let output = program.wait_with_output().await.unwrap();
    drop(alive);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", output.status);
    Answers::read(&String::from_utf8(output.stdout).unwrap())
}

/// Sends each operation with a separate curl process.
pub(crate) async fn curl(work: Work) -> Answers {
    let directory = tempfile::tempdir().unwrap();
    // The processes mostly wait, because curl's back-off is in whole seconds.
    Answers::collect(2 * CALLERS, async |operation| {
        let reply = directory.path().join(operation.to_string());
        curl_once(&work, operation, &reply).await
    })
    .await
}

async fn curl_once(work: &Work, operation: u64, reply: &Path) -> Result<String, String> {
    let output = Command::new("curl")
        .args(["--silent", "--show-error", "--fail", "--noproxy", "*"])
        .args(["--retry-all-errors", "--retry-delay", "1"])
        .args(["--retry", &RETRIES.to_string()])
        .args(["--request", "POST", "--oauth2-bearer", "ann"])
        .args([
            "--header",
            &format!("Idempotency-Key: \"{}\"", work.key(operation)),
        ])
        .args(["--data", &format!("amount={operation}&currency=eur")])
        // A file, because curl empties it before a retry.
        .arg("--output")
        .arg(reply)
        .arg(format!("{}{PATH}", work.base))
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .expect("curl is installed: apt-get install curl");
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr)
            .trim()
            .replace('\n', "; "));
    }
    answers::receipt(&std::fs::read_to_string(reply).unwrap())
}
