//! A process that charges as fast as it can until it is killed, and reports the answer to each call.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::bail;
use idem_runtime::advanced::{Provenance, ResultSource, with_provenance};
use idem_runtime::{Error, Idem, idempotent};
use rand::RngExt;
use sqlx::SqlitePool;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};
use tokio::task::JoinSet;

use idem_tests::backends;

/// Time after which all workers move on to the next key, in milliseconds.
const KEY_PERIOD: u64 = 60;
/// Number of keys in use concurrently, under each mode.
const CONCURRENT_KEYS: u64 = 4;
/// Number of concurrent calls of a worker.
const CONCURRENT_CALLS: usize = 3;

#[derive(Debug)]
pub(crate) struct Orders {
    /// Address of the records.
    pub(crate) store: String,
    /// File of the ledger, if the ledger is not in the database of the records.
    pub(crate) ledger: PathBuf,
    /// Start of the first worker, in milliseconds of the wall clock: all workers derive the current keys from it.
    pub(crate) begun_at: u64,
}

/// Errors of the gateway and the ledger.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChargeError {
    #[error("the gateway did not answer, and charged nothing")]
    TimedOut,
    #[error("cannot write to the ledger")]
    Ledger(#[from] sqlx::Error),
    #[error(transparent)]
    Idempotency(#[from] Error),
}

/// A service with a ledger, which records the real effects.
#[derive(Debug, Clone)]
pub(crate) struct Service {
    idem: Idem,
    ledger: SqlitePool,
}

impl Service {
    pub(crate) async fn open(store: &str, ledger: &Path) -> anyhow::Result<Self> {
        Ok(Self {
            idem: backends::open(store).await?,
            ledger: open_ledger(ledger).await?,
        })
    }

    pub(crate) fn idem(&self) -> &Idem {
        &self.idem
    }

    pub(crate) fn ledger(&self) -> &SqlitePool {
        &self.ledger
    }

    /// Charges at least once.
    #[idempotent(key = key, ttl = "24h", name = "crash.rerun", store = self.idem, lease = "400ms")]
    pub(crate) async fn rerun(&self, key: &str) -> Result<String, ChargeError> {
        self.charge("rerun", key).await
    }

    /// Charges at most once.
    #[idempotent(key = key, ttl = "24h", name = "crash.refuse", store = self.idem, lease = "400ms",
                 on_crash = refuse, release_err = ChargeError::TimedOut)]
    pub(crate) async fn refuse(&self, key: &str) -> Result<String, ChargeError> {
        self.charge("refuse", key).await
    }

    /// Waits briefly before and after the effect, so that kills hit both sides of it.
    async fn charge(&self, mode: &str, key: &str) -> Result<String, ChargeError> {
        let (before, after, timed_out) = {
            let mut rng = rand::rng();
            (
                rng.random_range(0..6),
                rng.random_range(0..6),
                rng.random_bool(0.1),
            )
        };
        tokio::time::sleep(Duration::from_millis(before)).await;
        if timed_out {
            return Err(ChargeError::TimedOut);
        }
        // Different each time, so that two runs never look like one.
        let receipt = format!("{:016x}", rand::random::<u64>());
        sqlx::query("INSERT INTO ledger (mode, key, receipt) VALUES (?, ?, ?)")
            .bind(mode)
            .bind(key)
            .bind(&receipt)
            .execute(&self.ledger)
            .await?;
        tokio::time::sleep(Duration::from_millis(after)).await;
        Ok(receipt)
    }
}

/// Creates the tables of the records and the ledger.
pub(crate) async fn prepare(store: &str, ledger: &Path) -> anyhow::Result<()> {
    backends::open(store).await?;
    sqlx::query(
        "CREATE TABLE ledger (mode TEXT NOT NULL, key TEXT NOT NULL, receipt TEXT NOT NULL)",
    )
    .execute(&open_ledger(ledger).await?)
    .await?;
    Ok(())
}

/// Opens one file, for any store, with separate transactions: a fault of the store must not damage the ledger.
async fn open_ledger(file: &Path) -> anyhow::Result<SqlitePool> {
    let options = SqliteConnectOptions::new()
        .filename(file)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .busy_timeout(Duration::from_secs(30));
    Ok(SqlitePoolOptions::new()
        .max_connections(2)
        .connect_with(options)
        .await?)
}

/// Milliseconds since the epoch by the wall clock.
pub(crate) fn wall_clock() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as u64)
}

pub(crate) async fn work(orders: Orders) -> anyhow::Result<()> {
    let service = loop {
        match Service::open(&orders.store, &orders.ledger).await {
            Ok(service) => break service,
            // The server may be down now. The supervisor will kill this process.
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    };
    call_on(orders.begun_at, move |key| {
        let service = service.clone();
        async move {
            let (mode, (answer, provenance)) = if rand::random() {
                ("rerun", with_provenance(service.rerun(&key)).await)
            } else {
                ("refuse", with_provenance(service.refuse(&key)).await)
            };
            say(mode, &key, &line_of(&answer, provenance));
            if matches!(answer, Err(ChargeError::Idempotency(_))) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
    })
    .await
}

/// Calls with the current keys, a few concurrently, until this process is killed.
pub(crate) async fn call_on<F>(
    begun_at: u64,
    call: impl Fn(String) -> F + Clone + Send + 'static,
) -> anyhow::Result<()>
where
    F: Future<Output = ()> + Send,
{
    let mut calls: JoinSet<()> = JoinSet::new();
    for _ in 0..CONCURRENT_CALLS {
        let call = call.clone();
        calls.spawn(async move {
            loop {
                let age = wall_clock().saturating_sub(begun_at);
                let number = age / KEY_PERIOD + rand::rng().random_range(0..CONCURRENT_KEYS);
                call(format!("key-{number}")).await;
            }
        });
    }
    // The calls loop forever, so only a panic ends one.
    calls.join_next().await.transpose()?;
    bail!("the calls of a worker ended, but none panicked")
}

/// Writes a line with a single write, so that a kill cuts it off or leaves it whole.
pub(crate) fn say(mode: &str, key: &str, answer: &str) {
    let line = format!("{mode} {key} {answer}\n");
    // A closed pipe means that the supervisor is gone; it will kill this process.
    let _ = std::io::stdout().lock().write_all(line.as_bytes());
}

fn line_of(answer: &Result<String, ChargeError>, provenance: Option<Provenance>) -> String {
    let executed = provenance.is_some_and(|it| it.source == ResultSource::Executed);
    match answer {
        Ok(receipt) if executed => format!("own {receipt}"),
        Ok(receipt) => format!("ok {receipt}"),
        Err(ChargeError::TimedOut) => "error timed-out".to_owned(),
        Err(ChargeError::Ledger(error)) => format!("error ledger: {error}"),
        Err(ChargeError::Idempotency(error)) => match error {
            Error::InFlight { .. } => "error in-flight".to_owned(),
            Error::Interrupted => "error interrupted".to_owned(),
            Error::LeaseLost => "error lease-lost".to_owned(),
            Error::Store(error) if error.is_retryable() => format!("outage {error:?}"),
            other => format!("unexpected {other:?}"),
        },
    }
}

/// Retries until the store can be opened: the server may be down now.
pub(crate) async fn until_it_answers<T, F>(open: impl Fn() -> F) -> T
where
    F: Future<Output = anyhow::Result<T>>,
{
    loop {
        match open().await {
            Ok(opened) => return opened,
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}
