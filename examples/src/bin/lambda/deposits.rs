//! The function that Lambda invokes with batches of a queue.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::anyhow;
use aws_lambda_events::sqs::{SqsBatchResponse, SqsEvent, SqsMessage};
use idem_lambda::{Batch, Invocation, Record};
use idem_runtime::advanced::Deadline;
use idem_runtime::{Error, Fingerprint, Idem, Key, SqliteStore, idempotent};
use lambda_runtime::{LambdaEvent, service_fn};
use serde::{Deserialize, Serialize};
use sqlx::SqlitePool;
use sqlx::sqlite::SqlitePoolOptions;

/// Body of a message.
#[derive(Debug, Clone, Serialize, Deserialize, Fingerprint)]
pub(crate) struct Deposit {
    pub(crate) account: String,
    pub(crate) cents: u32,
}

/// Reason why a deposit was not booked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DepositError {
    #[error("the ledger failed")]
    Ledger(#[from] sqlx::Error),
    #[error(transparent)]
    Idempotency(#[from] Error),
}

/// Table of the bank. It has no constraint against a second row for a message, so its row count proves that there was none.
const LEDGER: &str =
    "CREATE TABLE IF NOT EXISTS ledger (message TEXT NOT NULL, cents INTEGER NOT NULL)";

/// The bank of the deposits, in one database with the records.
#[derive(Debug, Clone)]
pub(crate) struct Bank {
    idem: Idem<SqliteStore>,
    partner: Partner,
}

impl Bank {
    /// Opens the bank in this folder, once per process.
    pub(crate) async fn open(folder: &Path) -> anyhow::Result<Self> {
        let options = SqliteStore::connect_options(folder.join("bank.sqlite"));
        let pool = SqlitePoolOptions::new().max_connections(2);
        let store = SqliteStore::new(pool.connect_with(options).await?);
        store.migrate().await?;
        sqlx::raw_sql(LEDGER).execute(store.pool()).await?;
        Ok(Self {
            idem: Idem::new(store),
            partner: Partner::new(folder),
        })
    }

    pub(crate) fn idem(&self) -> &Idem<SqliteStore> {
        &self.idem
    }

    fn db(&self) -> &SqlitePool {
        self.idem.store().pool()
    }

    /// Asks the partner, and books the deposit. An attempt that is dropped or killed while it asks is a crash: the next
    /// delivery asks again. If it comes before the earlier invocation is over, it waits for that.
    #[idempotent(
        key = key,
        ttl = "14d",
        name = "deposits.handle",
        store = self.idem,
        deadline = deadline,
        wait = "5s",
    )]
    async fn handle(
        &self,
        key: &Key,
        deadline: Deadline,
        deposit: &Deposit,
    ) -> Result<(), DepositError> {
        self.partner.ask(&deposit.account).await;
        self.book(key, deadline, deposit).await
    }

    /// Writes the row and its record in one transaction: a kill at any point leaves both or neither.
    #[idempotent(
        key = key,
        ttl = "14d",
        name = "deposits.book",
        store = self.idem,
        deadline = deadline,
        tx = tx,
    )]
    async fn book(
        &self,
        key: &Key,
        deadline: Deadline,
        deposit: &Deposit,
    ) -> Result<(), DepositError> {
        sqlx::query("INSERT INTO ledger (message, cents) VALUES (?, ?)")
            .bind(key.as_str())
            .bind(deposit.cents)
            .execute(&mut *tx)
            .await?;
        Ok(())
    }

    /// Returns the number of rows in the ledger, and the number of messages that have a row.
    pub(crate) async fn booked(&self) -> anyhow::Result<(i64, i64)> {
        let counts = "SELECT count(*), count(DISTINCT message) FROM ledger";
        Ok(sqlx::query_as(counts).fetch_one(self.db()).await?)
    }
}

/// Another bank that each deposit has to ask. It is simulated: a file says whether it answers.
#[derive(Debug, Clone)]
pub(crate) struct Partner {
    is_down: PathBuf,
}

impl Partner {
    pub(crate) fn new(folder: &Path) -> Self {
        Self {
            is_down: folder.join("partner-is-down"),
        }
    }

    pub(crate) fn set_down(&self, is_down: bool) -> std::io::Result<()> {
        match is_down {
            true => std::fs::write(&self.is_down, ""),
            false => std::fs::remove_file(&self.is_down),
        }
    }

    async fn ask(&self, account: &str) {
        if !self.is_down.exists() {
            return;
        }
        match account {
            // A call without a time limit: the body is dropped at the margin.
            "slow" => std::future::pending().await,
            // A call that blocks its thread: nothing in the process runs any more, and Lambda kills it.
            "stuck" => std::thread::sleep(Duration::from_secs(3600)),
            _ => {}
        }
    }
}

/// Main function of the program that Lambda starts.
pub(crate) async fn run(folder: &Path) -> anyhow::Result<()> {
    let bank = &Bank::open(folder).await?;
    let handler = |event: LambdaEvent<SqsEvent>| async move {
        Ok::<_, lambda_runtime::Error>(handle_batch(bank, event).await)
    };
    let served = lambda_runtime::run(service_fn(handler)).await;
    served.map_err(|error| anyhow!(error))
}

async fn handle_batch(bank: &Bank, event: LambdaEvent<SqsEvent>) -> SqsBatchResponse {
    let invocation = Invocation::until(event.context.deadline());
    Batch::new(event.payload, invocation)
        .concurrency(3)
        .run(async |message| handle(bank, &message).await)
        .await
}

/// Handles a message. What returns an error is delivered again, and goes to the dead letters of the queue in the end.
async fn handle(bank: &Bank, message: &Record<SqsMessage>) -> anyhow::Result<()> {
    let deposit = serde_json::from_str(message.body.as_deref().unwrap_or_default())?;
    match bank
        .handle(message.key(), message.deadline(), &deposit)
        .await
    {
        // The work was done, and only its result is unknown.
        Err(DepositError::Idempotency(Error::Unrecorded)) => Ok(()),
        handled => Ok(handled?),
    }
}
