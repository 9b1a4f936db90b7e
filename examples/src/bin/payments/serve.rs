//! `payments serve`: a worker process that serves, and a supervisor that starts a new worker when one dies.

use std::io::{ErrorKind, Read as _};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use idem_runtime::Purger;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net::TcpListener;
use tokio::process::{Child, ChildStdin, Command};
use tokio::signal::ctrl_c;

use crate::service::Payments;
use crate::{numbers, page};

/// Serves until Ctrl-C, on one port and one file. When the worker process dies, starts another one.
pub(crate) async fn supervise(mut port: u16) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("payments.sqlite");
    for number in 1.. {
        let mut serving = Serving::start(&file, port, number).await?;
        if number == 1 {
            println!(
                "http://127.0.0.1:{}/   (press Ctrl-C to stop)",
                serving.port
            );
        }
        port = serving.port;
        tokio::select! {
            biased;
            stopped = ctrl_c() => {
                serving.stop().await?;
                return Ok(stopped?);
            }
            died = serving.process.wait() => {
                println!("process {} has died ({}), another one starts", serving.pid, died?);
            }
        }
    }
    Ok(())
}

/// Handle of a running worker process.
struct Serving {
    process: Child,
    /// Standard input of the worker: it is closed when this process ends, and the worker then exits. `Child::wait`
    /// would close it too, so it is taken out of the child.
    _lifeline: ChildStdin,
    pid: u32,
    port: u16,
}

impl Serving {
    /// Starts a worker process. The worker accepts connections when this returns.
    async fn start(file: &Path, port: u16, number: u32) -> anyhow::Result<Self> {
        let mut process = Command::new(std::env::current_exe()?)
            .arg(WORKER)
            .arg(port.to_string())
            .arg(file)
            .arg(number.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let pid = process.id().context("the worker has already ended")?;
        let lifeline = process
            .stdin
            .take()
            .context("the worker has no piped input")?;
        let stdout = process
            .stdout
            .take()
            .context("the worker has no piped output")?;
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

    /// Kills the worker process and waits for its end, so that nothing writes into its folder afterwards.
    async fn stop(mut self) -> std::io::Result<ExitStatus> {
        self.process.start_kill()?;
        self.process.wait().await
    }
}

/// Internal command of a worker process, followed by the fields of [`Worker`].
pub(crate) const WORKER: &str = "serve-until-dead";
/// Prefix of the line in which a worker prints its port.
const LISTENING: &str = "listening on ";

/// Worker process, which may be crashed by a request.
pub(crate) struct Worker {
    pub(crate) port: u16,
    pub(crate) file: PathBuf,
    /// Number of worker processes started so far, this one included.
    pub(crate) number: u32,
}

impl Worker {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        die_with_the_parent();
        let Self { port, file, number } = self;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await;
        let listener = match listener {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                bail!(
                    "port {port} is in use: choose another one with `--port`, or 0 for any free port"
                );
            }
            listener => listener?,
        };
        let numbers = numbers::route()?;
        let mut shop = Payments::open(&file, Duration::from_secs(24 * 60 * 60)).await?;
        // Gives the user time to click again during a charge.
        shop.processor.pause = Duration::from_millis(700);
        Purger::new(&shop.idem).start()?.detach();
        shop.idem.report_stuck(Duration::from_secs(60))?.detach();
        let routes = page::routes(Arc::new(shop), number).await?.merge(numbers);
        println!("{LISTENING}{}", listener.local_addr()?.port());
        Ok(axum::serve(listener, routes).await?)
    }
}

/// Exits when the parent process ends, for any reason: the parent writes nothing to this process's standard input,
/// which is closed when the parent ends. Ctrl-C is sent to both processes, and only the parent handles it.
fn die_with_the_parent() {
    std::thread::spawn(|| {
        while let Ok(1..) = std::io::stdin().read(&mut [0]) {}
        std::process::exit(0);
    });
    tokio::spawn(async { while ctrl_c().await.is_ok() {} });
}
