//! A worker process, and the task that reads its output.

use std::path::Path;
use std::process::Stdio;

use anyhow::Context;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

use crate::Mode;

/// A worker process and the task that reads its output.
pub(crate) struct Worker {
    process: Child,
    listener: JoinHandle<()>,
}

impl Worker {
    /// Starts this program, or another build of it, as a worker, and calls `hear` with each line of its output.
    pub(crate) fn start(
        program: &Path,
        mode: Mode,
        store: &str,
        ledger: &Path,
        begun_at: u64,
        mut hear: impl FnMut(&str) + Send + 'static,
    ) -> anyhow::Result<Self> {
        let mut process = Command::new(program)
            .args(["work", mode.as_str()])
            .arg(store)
            .arg(ledger)
            .arg(begun_at.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("cannot start a worker")?;
        let stdout = process
            .stdout
            .take()
            .context("the worker has no piped output")?;
        let listener = tokio::spawn(async move {
            let mut lines = BufReader::new(stdout).split(b'\n');
            while let Ok(Some(line)) = lines.next_segment().await {
                // The last line of a killed worker may be cut short; then no caller got an answer.
                if let Ok(line) = String::from_utf8(line) {
                    hear(&line);
                }
            }
        });
        Ok(Self { process, listener })
    }

    /// Id of the process, while it runs.
    pub(crate) fn id(&self) -> Option<u32> {
        self.process.id()
    }

    /// Sends the worker an order, as a line. A worker that has died ignores it.
    pub(crate) async fn order(&mut self, order: &str) {
        if let Some(stdin) = &mut self.process.stdin {
            let _ = stdin.write_all(format!("{order}\n").as_bytes()).await;
        }
    }

    /// Returns true if the worker has exited without a kill.
    pub(crate) fn has_died(&mut self) -> bool {
        !matches!(self.process.try_wait(), Ok(None))
    }

    /// Kills the worker with SIGKILL, and waits until its earlier output has been read.
    pub(crate) async fn kill(mut self) -> anyhow::Result<()> {
        self.process.kill().await?;
        self.listener.await?;
        Ok(())
    }
}
