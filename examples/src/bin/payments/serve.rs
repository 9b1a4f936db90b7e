//! `payments serve`: a process that serves, and one that starts another when it has died.

use std::io::{ErrorKind, Read as _};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net::TcpListener;
use tokio::process::{Child, ChildStdin, Command};
use tokio::signal::ctrl_c;

use crate::page;
use crate::service::Payments;

/// Serves until Ctrl-C, on one port and one file, whatever becomes of the process that does it.
pub(crate) async fn supervise(mut port: u16) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("payments.sqlite");
    for life in 1.. {
        let mut serving = Serving::start(&file, port, life).await?;
        if life == 1 {
            println!("http://127.0.0.1:{}/   (Ctrl-C ends it)", serving.port);
        }
        port = serving.port;
        tokio::select! {
            biased;
            stopped = ctrl_c() => {
                serving.stop().await?;
                return Ok(stopped?);
            }
            died = serving.process.wait() => {
                println!("process {} has died ({}); here is another", serving.pid, died?);
            }
        }
    }
    Ok(())
}

/// A process that serves.
struct Serving {
    process: Child,
    /// Closed when this process ends, which ends that one. Waiting would close it, were it left in its place.
    _lifeline: ChildStdin,
    pid: u32,
    port: u16,
}

impl Serving {
    /// It serves when this returns.
    async fn start(file: &Path, port: u16, life: u32) -> anyhow::Result<Self> {
        let mut process = Command::new(std::env::current_exe()?)
            .arg(WORKER)
            .arg(port.to_string())
            .arg(file)
            .arg(life.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let pid = process.id().context("it was just started")?;
        let lifeline = process.stdin.take().context("its stdin is a pipe")?;
        let stdout = process.stdout.take().context("its stdout is a pipe")?;
        let mut said = String::new();
        BufReader::new(stdout).read_line(&mut said).await?;
        match said.trim().strip_prefix(LISTENING) {
            Some(port) => Ok(Self {
                process,
                _lifeline: lifeline,
                pid,
                port: port.parse()?,
            }),
            None => bail!("the server did not start: {}", process.wait().await?),
        }
    }

    /// It has ended when this returns, so that nobody writes into its folder any more.
    async fn stop(mut self) -> std::io::Result<ExitStatus> {
        self.process.start_kill()?;
        self.process.wait().await
    }
}

/// The command of a process that serves, followed by what is in a [`Worker`].
pub(crate) const WORKER: &str = "serve-until-dead";
/// What it says before its port.
const LISTENING: &str = "listening on ";

/// A process that serves, and may die of it.
pub(crate) struct Worker {
    pub(crate) port: u16,
    pub(crate) file: PathBuf,
    /// How many there have been, with this one.
    pub(crate) life: u32,
}

impl Worker {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        die_with_the_parent();
        let Self { port, file, life } = self;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await;
        let listener = match listener {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                bail!("port {port} is taken: choose another one with --port, or 0 for any");
            }
            listener => listener?,
        };
        let mut shop = Payments::open(&file, Duration::from_secs(24 * 60 * 60)).await?;
        // Long enough to click once more meanwhile.
        shop.processor.pause = Duration::from_millis(700);
        let routes = page::routes(Arc::new(shop), life).await?;
        println!("{LISTENING}{}", listener.local_addr()?.port());
        Ok(axum::serve(listener, routes).await?)
    }
}

/// The parent writes nothing to this process's stdin: it ends when the parent does, however that comes about. Ctrl-C is
/// sent to both of them, and is for the parent alone.
fn die_with_the_parent() {
    std::thread::spawn(|| {
        while let Ok(1..) = std::io::stdin().read(&mut [0]) {}
        std::process::exit(0);
    });
    tokio::spawn(async { while ctrl_c().await.is_ok() {} });
}
