//! The process between a test and its server, which outlives the test for as long as it takes to clean up.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context as _, bail, ensure};

use crate::binaries::{self, User};

/// A shell that reads its orders from a pipe. However the test ends, the kernel closes the pipe's other end; then the
/// shell stops the server, and the program that runs beside it if there is one, and removes the directory. No handler, no panic hook and no cooperation of the test is
/// needed, so that `kill -9` of the test leaves nothing behind either.
///
/// The shell is the server's parent and does not wait for it before it has killed it, so the server's process id cannot
/// have become another process's. It is in a process group of its own, because Ctrl-C is sent to a whole group.
///
/// `SIGHUP` is ignored because the kernel sends it to a group with a paused process in it when the test dies, `SIGPIPE`
/// because the test may die before it reads an answer.
///
/// What a shell starts in the background ignores `SIGQUIT` until it has handlers of its own. A server that is still
/// starting would miss its signal, so it is sent again until the server has ended, and `SIGKILL` after some time.
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
    /// Closed first of all by [`Drop`].
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    log: PathBuf,
    /// How long the log was when the server was started.
    log_before: u64,
    pid: Option<u32>,
}

impl Guardian {
    /// Watches over a directory, which is the guardian's from now on, as `user` if there is one. `stop` is the signal,
    /// such as `KILL`, that ends the server together with the processes that it started.
    pub(crate) fn new(directory: &Path, stop: &str, user: Option<User>) -> anyhow::Result<Self> {
        binaries::PS.find()?;
        let mut command = Command::new("sh");
        command.args(["-c", SCRIPT, "guardian"]);
        command.arg(directory).arg(stop);
        command.current_dir(directory).process_group(0);
        // A MariaDB that starts removes the temporary tables of those that share the place.
        command.env("TMPDIR", directory);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(Stdio::null());
        if let Some(User { uid, gid }) = user {
            command.uid(uid).gid(gid);
        }
        let mut shell = command.spawn().context("`sh` cannot be run")?;
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

    /// Starts a program that the server needs beside it, once. It stays while the server is killed and started again.
    pub(crate) fn start_companion(&mut self, command: &[impl AsRef<OsStr>]) -> anyhow::Result<()> {
        let (command, log) = (line(command)?, quoted(self.log.as_os_str())?);
        self.order(&format!(
            "{command} </dev/null >>{log} 2>&1 & companion=$!; echo"
        ))?;
        Ok(())
    }

    /// Whether the companion has ended by itself.
    pub(crate) fn has_companion_died(&mut self) -> anyhow::Result<bool> {
        let state = self.order("echo \"$(ps -o stat= -p $companion)\"")?;
        Ok(state.is_empty() || state.starts_with('Z'))
    }

    /// Starts the server. The guardian must not have one already.
    pub(crate) fn start(&mut self, command: &[impl AsRef<OsStr>]) -> anyhow::Result<()> {
        self.log_before = self.log.metadata().map_or(0, |log| log.len());
        let (command, log) = (line(command)?, quoted(self.log.as_os_str())?);
        let pid = self.order(&format!(
            "{command} </dev/null >>{log} 2>&1 & pid=$!; echo $pid"
        ))?;
        self.pid = Some(pid.parse().context("the guardian's answer")?);
        Ok(())
    }

    /// The server's process id, until it is killed.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.pid
    }

    /// `SIGKILL`, if there is a server. It has ended when this returns.
    pub(crate) fn kill(&mut self) -> anyhow::Result<()> {
        if self.pid.take().is_some() {
            // The processes of a PostgreSQL end when they notice that the first one is gone, but not while paused.
            self.order(
                "others=$(children); kill -KILL $pid; wait $pid; pid=; [ -z \"$others\" ] || kill -CONT $others; echo",
            )?;
        }
        Ok(())
    }

    /// `SIGSTOP` to the server and to the processes that it started, itself first lest it start another.
    pub(crate) fn pause(&mut self) -> anyhow::Result<()> {
        ensure!(self.pid.is_some(), "there is no server to pause");
        let status = self.order("kill -STOP $pid && kill -STOP $pid $(children); echo $?")?;
        ensure!(status == "0", "the server cannot be stopped");
        Ok(())
    }

    /// `SIGCONT` to whatever [`pause`](Self::pause) stopped.
    pub(crate) fn resume(&mut self) -> anyhow::Result<()> {
        ensure!(self.pid.is_some(), "there is no server to resume");
        let status = self.order("kill -CONT $(children) $pid; echo $?")?;
        ensure!(status == "0", "the server cannot be continued");
        Ok(())
    }

    /// Whether the server has ended by itself: it is a zombie, since nobody has waited for it.
    pub(crate) fn has_died(&mut self) -> anyhow::Result<bool> {
        if self.pid.is_none() {
            return Ok(true);
        }
        let state = self.order("echo \"$(ps -o stat= -p $pid)\"")?;
        Ok(state.is_empty() || state.starts_with('Z'))
    }

    /// Whether the server has said this since it was last started.
    pub(crate) fn has_said(&self, text: &str) -> bool {
        let log = std::fs::read(&self.log).unwrap_or_default();
        let began = usize::try_from(self.log_before).unwrap_or(usize::MAX);
        let said = log.get(began..).unwrap_or_default();
        String::from_utf8_lossy(said).contains(text)
    }

    /// The end of what the server said, or the programs before it where there is none yet.
    pub(crate) fn log(&self) -> String {
        const SHOWN: usize = 4_000;
        let log = std::fs::read(&self.log).unwrap_or_default();
        let own = log.get(self.log_before as usize..).unwrap_or_default();
        let end = &own[own.len().saturating_sub(SHOWN)..];
        String::from_utf8_lossy(end).into_owned()
    }

    /// Sends a line of shell that answers with a line.
    fn order(&mut self, order: &str) -> anyhow::Result<String> {
        let orders = self.orders.as_mut().context("the guardian was dismissed")?;
        let mut answer = String::new();
        writeln!(orders, "{order}")
            .and_then(|()| self.answers.read_line(&mut answer))
            .context("the server's guardian")?;
        if !answer.ends_with('\n') {
            bail!("the server's guardian has ended");
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

/// The command, quoted for a shell.
fn line(command: &[impl AsRef<OsStr>]) -> anyhow::Result<String> {
    let words: Vec<_> = command
        .iter()
        .map(|word| quoted(word.as_ref()))
        .collect::<anyhow::Result<_>>()?;
    Ok(words.join(" "))
}

fn quoted(word: &OsStr) -> anyhow::Result<String> {
    let word = word.to_str().context("a path that is not UTF-8")?;
    ensure!(!word.contains('\n'), "a line break in {word:?}");
    Ok(format!("'{}'", word.replace('\'', r"'\''")))
}
