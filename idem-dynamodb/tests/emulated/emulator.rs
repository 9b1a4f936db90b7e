//! Emulators of DynamoDB as processes, and clients that count what they send.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::interceptors::BeforeTransmitInterceptorContextRef;
use aws_sdk_dynamodb::config::{
    BehaviorVersion, ConfigBag, Credentials, Intercept, Region, RuntimeComponents,
};
use aws_sdk_dynamodb::error::BoxError;
use idem_dynamodb::DynamoDbStore;
use idem_store::Store as _;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// Folder `node_modules` with dynalite.
const DYNALITE: &str = "IDEM_TEST_DYNALITE";
/// Python with moto.
const MOTO: &str = "IDEM_TEST_MOTO";
/// Endpoint to test instead of moto.
const ENDPOINT: &str = "IDEM_TEST_DYNAMODB_URL";

/// A running emulator. Dropping this value stops it.
pub(crate) struct Emulator {
    url: String,
    process: Option<(Child, ChildStdin, Lines<BufReader<ChildStdout>>)>,
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/emulators")
        .join(name)
}

fn variable(name: &str) -> anyhow::Result<String> {
    std::env::var(name)
        .with_context(|| format!("{name} is not set; run `cargo xtask test dynamodb`"))
}

/// Returns true if a variable names another endpoint than moto.
pub(crate) fn is_endpoint_named() -> bool {
    std::env::var_os(ENDPOINT).is_some()
}

impl Emulator {
    pub(crate) async fn dynalite() -> anyhow::Result<Self> {
        let mut command = Command::new("node");
        command
            .arg(script("dynalite.js"))
            .env("NODE_PATH", variable(DYNALITE)?);
        Self::start(command).await
    }

    /// Starts moto, unless a variable names another endpoint.
    pub(crate) async fn moto() -> anyhow::Result<Self> {
        if let Ok(url) = std::env::var(ENDPOINT) {
            return Ok(Self { url, process: None });
        }
        let mut command = Command::new(variable(MOTO)?);
        command.arg(script("moto_server.py"));
        Self::start(command).await
    }

    async fn start(mut command: Command) -> anyhow::Result<Self> {
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("the emulator cannot be started")?;
        let input = process.stdin.take().context("it has an input")?;
        let output = process.stdout.take().context("it has an output")?;
        let mut lines = BufReader::new(output).lines();
        let port = lines.next_line().await?;
        let port = port.context("the emulator ended before it listened")?;
        Ok(Self {
            url: format!("http://127.0.0.1:{port}"),
            process: Some((process, input, lines)),
        })
    }

    /// Sets the clock of dynalite this much ahead of that of the machine.
    pub(crate) async fn set_ahead(&mut self, by: Duration) -> anyhow::Result<()> {
        let (_, input, lines) = self.process.as_mut().context("it was started here")?;
        let line = format!("{}\n", by.as_millis());
        input.write_all(line.as_bytes()).await?;
        anyhow::ensure!(lines.next_line().await?.as_deref() == Some("set"));
        Ok(())
    }

    /// Creates a table and a store on it, and counts the requests.
    pub(crate) async fn store(&self) -> anyhow::Result<(DynamoDbStore, Requests)> {
        let requests = Requests::default();
        let name = format!("idem-{}", idem_store::random::number());
        let store = DynamoDbStore::new(&self.client(&requests), name);
        store.create_table().await?;
        // The time is known well after some answers: those just before and just after a new second.
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(1200) {
            store.now().await?;
        }
        Ok((store, requests))
    }

    pub(crate) fn client(&self, requests: &Requests) -> Client {
        let config = aws_sdk_dynamodb::Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .http_client(aws_smithy_http_client::Builder::new().build_http())
            .region(Region::new("us-east-1"))
            .credentials_provider(Credentials::new("key", "secret", None, None, "test"))
            .endpoint_url(&self.url)
            .interceptor(requests.clone());
        Client::from_conf(config.build())
    }
}

/// Names of the requests that a client has sent, each with its number.
#[derive(Debug, Clone, Default)]
pub(crate) struct Requests(Arc<Mutex<BTreeMap<String, usize>>>);

impl Requests {
    /// Takes what was counted since the last time, as text.
    pub(crate) fn take(&self) -> String {
        let mut counted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let counted = std::mem::take(&mut *counted);
        let counted = counted
            .iter()
            .map(|(name, count)| format!("{count} {name}"));
        counted.collect::<Vec<_>>().join(", ")
    }

    /// Names of the requests that were counted since the last time.
    pub(crate) fn names(&self) -> Vec<String> {
        let counted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counted.keys().cloned().collect()
    }
}

impl Intercept for Requests {
    fn name(&self) -> &'static str {
        "CountsRequests"
    }

    fn read_before_transmit(
        &self,
        context: &BeforeTransmitInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let target = context.request().headers().get("x-amz-target");
        let name = target.and_then(|it| it.split_once('.')).map(|it| it.1);
        let mut counted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *counted.entry(name.unwrap_or("?").to_owned()).or_default() += 1;
        Ok(())
    }
}
