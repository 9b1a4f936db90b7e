//! The process between a test and its server. It outlives the test until it has cleaned up.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context as _, bail, ensure};

use crate::binaries::{self, User};

/// A shell that reads its orders from a pipe. At any end of the test, the kernel closes the pipe's other end. Then the
/// shell stops the server and its companion program, if there is one, and removes the directory. That needs no handler,
/// no panic hook and no cooperation of the test, so that `kill -9` of the test leaves nothing behind either.
///
/// The shell is the server's parent and reaps it only after killing it, so the server's process id cannot have become
/// that of another process. The shell is in a separate process group, because Ctrl-C is sent to a whole group.
///
/// `SIGHUP` is ignored because the kernel sends it to a group with a stopped process in it when the test dies.
/// `SIGPIPE` is ignored because the test may die before it reads an answer.
///
/// A background process of a shell ignores `SIGQUIT` until it installs its own handlers. A server that is still
/// starting would miss its signal. The shell therefore repeats the signal until the server has ended, and sends
/// `SIGKILL` after some time.
///
/// The arguments are the directory and the signal that stops the server.
const SCRIPT: &str = r#"
trap '' HUP PIPE
pid= companion=
children() {
    ps -A -o pid= -o ppid= | while read -r child parent; do
        if [ "$parent" = "$pid" ]; then echo "$child"; fi
    done
}
while IFS= read -r order; do eval "$order"; done
if [ -n "$pid" ]; then
    kill -CONT $pid $(children)
    attempt=0
    while state=$(ps -o stat= -p $pid); [ -n "$state" ] && [ "${state#Z}" = "$state" ]; do
        [ $attempt -lt 100 ] || set -- "$1" KILL
        kill -"$2" $pid
        attempt=$((attempt + 1))
        sleep 0.05
    done
    wait $pid
fi
if [ -n "$companion" ]; then
    kill -KILL $companion
    wait $companion
fi
cd /
for attempt in 1 2 3 4 5; do
    rm -rf "$1" && break
    sleep 1
done
"#;

pub(crate) struct Guardian {
    shell: Child,
    /// Closed first, by [`Drop`].
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    log: PathBuf,
    /// Length of the log when the server was started.
    log_before: u64,
    pid: Option<u32>,
}

impl Guardian {
    /// Takes over a directory and watches it, as `user` if there is one. `stop` is the signal, such as `KILL`, that
    /// ends the server and the processes that it started.
    pub(crate) fn new(directory: &Path, stop: &str, user: Option<User>) -> anyhow::Result<Self> {
        binaries::PS.find()?;
        let mut command = Command::new("sh");
        command.args(["-c", SCRIPT, "guardian"]);
        command.arg(directory).arg(stop);
        command.current_dir(directory).process_group(0);
        // A starting MariaDB removes the temporary tables of all servers that share the directory.
        command.env("TMPDIR", directory);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(Stdio::null());
        if let Some(User { uid, gid }) = user {
            command.uid(uid).gid(gid);
        }
        let mut shell = command.spawn().context("cannot run `sh`")?;
        let (orders, answers) = (shell.stdin.take(), shell.stdout.take());
        Ok(Self {
            orders,
            answers: BufReader::new(answers.context("the guardian has no output")?),
            shell,
            log: directory.join("log"),
            log_before: 0,
            pid: None,
        })
    }

    /// Runs a program to its end.
    pub(crate) fn run(&mut self, command: &[impl AsRef<OsStr>]) -> anyhow::Result<()> {
        let (command, log) = (line(command)?, quoted(self.log.as_os_str())?);
        let status = self.order(&format!("{command} </dev/null >>{log} 2>&1; echo $?"))?;
        ensure!(status == "0", "{command} ended with {status}");
        Ok(())
    }

    /// Starts a program that the server needs, once. It keeps running while the server is killed and restarted.
    pub(crate) fn start_companion(&mut self, command: &[impl AsRef<OsStr>]) -> anyhow::Result<()> {
        let (command, log) = (line(command)?, quoted(self.log.as_os_str())?);
        self.order(&format!(
            "{command} </dev/null >>{log} 2>&1 & companion=$!; echo"
        ))?;
        Ok(())
    }

    /// Returns true if the companion has exited without a kill.
    pub(crate) fn has_companion_died(&mut self) -> anyhow::Result<bool> {
        let state = self.order("echo \"$(ps -o stat= -p $companion)\"")?;
        Ok(state.is_empty() || state.starts_with('Z'))
    }

    /// Starts the server. The guardian must not have a running one.
    pub(crate) fn start(&mut self, command: &[impl AsRef<OsStr>]) -> anyhow::Result<()> {
        self.log_before = self.log.metadata().map_or(0, |log| log.len());
        let (command, log) = (line(command)?, quoted(self.log.as_os_str())?);
        let pid = self.order(&format!(
            "{command} </dev/null >>{log} 2>&1 & pid=$!; echo $pid"
        ))?;
        self.pid = Some(pid.parse().context("the guardian printed no process id")?);
        Ok(())
    }

    /// Process id of the server, until the server is killed.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.pid
    }

    /// Sends `SIGKILL` to the server, if there is one, and waits until it has ended.
    pub(crate) fn kill(&mut self) -> anyhow::Result<()> {
        if self.pid.take().is_some() {
            // The processes of a PostgreSQL end when they notice that their parent is gone, but not while they are
            // stopped.
            self.order(
                "others=$(children); kill -KILL $pid; wait $pid; pid=; [ -z \"$others\" ] || kill -CONT $others; echo",
            )?;
        }
        Ok(())
    }

    /// Sends `SIGSTOP` to the server and then to the processes that it started, so that it cannot start another.
    pub(crate) fn pause(&mut self) -> anyhow::Result<()> {
        ensure!(self.pid.is_some(), "there is no server to pause");
        let status = self.order("kill -STOP $pid && kill -STOP $pid $(children); echo $?")?;
        ensure!(status == "0", "cannot stop the server");
        Ok(())
    }

    /// Sends `SIGCONT` to every process that [`pause`](Self::pause) stopped.
    pub(crate) fn resume(&mut self) -> anyhow::Result<()> {
        ensure!(self.pid.is_some(), "there is no server to resume");
        let status = self.order("kill -CONT $(children) $pid; echo $?")?;
        ensure!(status == "0", "cannot continue the server");
        Ok(())
    }

    /// Returns true if the server has exited without a kill: it is then a zombie, since its parent has not reaped it.
    pub(crate) fn has_died(&mut self) -> anyhow::Result<bool> {
        if self.pid.is_none() {
            return Ok(true);
        }
        let state = self.order("echo \"$(ps -o stat= -p $pid)\"")?;
        Ok(state.is_empty() || state.starts_with('Z'))
    }

    /// Returns true if the server's log contains this text since the last start.
    pub(crate) fn has_logged(&self, text: &str) -> bool {
        let log = std::fs::read(&self.log).unwrap_or_default();
        let began = usize::try_from(self.log_before).unwrap_or(usize::MAX);
        let said = log.get(began..).unwrap_or_default();
        String::from_utf8_lossy(said).contains(text)
    }

    /// End of the server's log, or of the output of earlier programs if there is no log yet.
    pub(crate) fn log(&self) -> String {
        const SHOWN: usize = 4_000;
        let log = std::fs::read(&self.log).unwrap_or_default();
        let own = log.get(self.log_before as usize..).unwrap_or_default();
        let end = &own[own.len().saturating_sub(SHOWN)..];
        String::from_utf8_lossy(end).into_owned()
    }

    /// Sends a shell line that answers with a line.
    fn order(&mut self, order: &str) -> anyhow::Result<String> {
        let orders = self
            .orders
            .as_mut()
            .context("the guardian has been stopped")?;
        let mut answer = String::new();
        writeln!(orders, "{order}")
            .and_then(|()| self.answers.read_line(&mut answer))
            .context("cannot talk to the guardian of the server")?;
        if !answer.ends_with('\n') {
            bail!("the guardian of the server has ended");
        }
        Ok(answer.trim().to_owned())
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        drop(self.orders.take());
        let _ = self.shell.wait();
    }
}

/// Quotes the command for a shell.
fn line(command: &[impl AsRef<OsStr>]) -> anyhow::Result<String> {
    let words: Vec<_> = command
        .iter()
        .map(|word| quoted(word.as_ref()))
        .collect::<anyhow::Result<_>>()?;
    Ok(words.join(" "))
}

fn quoted(word: &OsStr) -> anyhow::Result<String> {
    let word = word.to_str().context("a path is not UTF-8")?;
    ensure!(!word.contains('\n'), "{word:?} contains a line break");
    Ok(format!("'{}'", word.replace('\'', r"'\''")))
}
