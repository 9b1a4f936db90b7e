//! The service: an annotated `charge`, and behind it a ledger and a processor of credit cards. All of it is in one
//! SQLite file, the records that make charges idempotent included.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use idem_runtime::{Error, Fingerprint, Idem, SqliteStore, idempotent};
use serde::{Deserialize, Serialize};
use sqlx::SqlitePool;

/// What a caller wants. A retry must ask for the same; its fingerprint tells whether it does.
#[derive(Clone, Fingerprint, Deserialize)]
pub(crate) struct Charge {
    pub(crate) card: String,
    pub(crate) cents: u64,
    /// Every request has another one, so it does not count.
    #[fingerprint(skip)]
    pub(crate) trace_id: u64,
}

/// What a caller gets. It is stored, so that a retry gets the very same.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Receipt {
    pub(crate) number: i64,
    pub(crate) cents: u64,
}

/// What may go wrong. Some of it is an answer for good, and is stored like a receipt; most of it is not.
#[derive(Debug, thiserror::Error, Serialize, Deserialize)]
pub(crate) enum ChargeError {
    #[error("the card was declined: {reason}")]
    Declined { reason: String },
    #[error("the processor timed out")]
    TimedOut,
    #[error("the database failed")]
    #[serde(skip)]
    Database(#[from] sqlx::Error),
    /// What the toolkit itself has to say: the key is in flight, or was used for something else.
    #[error(transparent)]
    #[serde(skip)]
    Idempotency(#[from] Error),
}

pub(crate) struct Payments {
    pub(crate) idem: Idem<SqliteStore>,
    /// How long a retry gets its receipt back.
    keep: Duration,
    pub(crate) ledger: SqlitePool,
    pub(crate) processor: Processor,
}

impl Payments {
    /// Charges a card once per tenant and key.
    #[idempotent(
        key = key,
        scope = tenant,
        ttl = self.keep,
        name = "charges.create",
        store = self.idem,
        attempt = attempt,
        replay_err = ChargeError::Declined { .. },
    )]
    pub(crate) async fn charge(
        &self,
        tenant: &str,
        key: &str,
        charge: Charge,
    ) -> Result<Receipt, ChargeError> {
        // Should this process die after the money moved, the next attempt sends the same key, and no money moves.
        let payment = self
            .processor
            .take(&attempt.downstream_key("cards"), &charge)
            .await?;
        let row =
            sqlx::query("INSERT INTO ledger (tenant, key, payment, cents) VALUES (?, ?, ?, ?)")
                .bind(tenant)
                .bind(key)
                .bind(payment)
                .bind(charge.cents as i64)
                .execute(&self.ledger)
                .await?;
        Ok(Receipt {
            number: row.last_insert_rowid(),
            cents: charge.cents,
        })
    }

    pub(crate) async fn open(file: &Path, keep: Duration) -> anyhow::Result<Self> {
        let db = SqlitePool::connect_with(SqliteStore::connect_options(file)).await?;
        sqlx::raw_sql(
            "CREATE TABLE IF NOT EXISTS ledger (tenant TEXT, key TEXT, payment INTEGER, cents INTEGER);
             CREATE TABLE IF NOT EXISTS processor_requests (key TEXT, trace_id INTEGER);
             CREATE TABLE IF NOT EXISTS processor_payments (key TEXT, cents INTEGER, at REAL);",
        )
        .execute(&db)
        .await?;
        let store = SqliteStore::new(db.clone());
        store.migrate().await?;
        Ok(Self {
            idem: Idem::builder(store)
                // How long an owner is believed that says nothing: that much later somebody else may go on.
                .lease(Duration::from_secs(2))
                // How long a duplicate waits for the one that is running, before it is told to come back.
                .wait(Duration::from_secs(30))
                .build(),
            keep,
            processor: Processor {
                db: db.clone(),
                keep,
                pause: Duration::ZERO,
                down: AtomicBool::new(false),
                mute: AtomicBool::new(false),
            },
            ledger: db,
        })
    }
}

/// Somebody else's service that moves the money. As the real ones do, it takes a key with each request, moves the
/// money once a key, and forgets the key after a while. It keeps its own tables, for it outlives our processes.
pub(crate) struct Processor {
    db: SqlitePool,
    keep: Duration,
    /// How long it takes for each request.
    pub(crate) pause: Duration,
    /// It does not answer, having done nothing.
    pub(crate) down: AtomicBool,
    /// It does what it is asked, but its answer never arrives.
    pub(crate) mute: AtomicBool,
}

/// What it says when it has done what it was asked, and its answer does not arrive.
pub(crate) const MONEY_MOVED: &str = "the money has moved";

tokio::task_local! {
    /// Set around a call that is to end this process once the money has moved, without a last word.
    pub(crate) static DOOMED: ();
}

impl Processor {
    async fn take(&self, key: &str, charge: &Charge) -> Result<i64, ChargeError> {
        sqlx::query("INSERT INTO processor_requests VALUES (?, ?)")
            .bind(key)
            .bind(charge.trace_id as i64)
            .execute(&self.db)
            .await?;
        if self.down.load(Ordering::Relaxed) {
            return Err(ChargeError::TimedOut);
        }
        tokio::time::sleep(self.pause).await;
        if charge.card == "empty" {
            let reason = "no funds".to_owned();
            return Err(ChargeError::Declined { reason });
        }
        let payment = self.move_money_once(key, charge).await?;
        if self.mute.load(Ordering::Relaxed) {
            println!("{MONEY_MOVED}");
            std::future::pending::<()>().await;
        }
        Ok(payment)
    }

    async fn move_money_once(&self, key: &str, charge: &Charge) -> Result<i64, ChargeError> {
        let known = sqlx::query_scalar(
            "SELECT rowid FROM processor_payments WHERE key = ? AND at > unixepoch('subsec') - ?",
        )
        .bind(key)
        .bind(self.keep.as_secs_f64())
        .fetch_optional(&self.db)
        .await?;
        if let Some(payment) = known {
            return Ok(payment);
        }
        let insert = "INSERT INTO processor_payments VALUES (?, ?, unixepoch('subsec'))";
        let row = sqlx::query(insert)
            .bind(key)
            .bind(charge.cents as i64)
            .execute(&self.db)
            .await?;
        if DOOMED.try_with(|()| ()).is_ok() {
            std::process::exit(1);
        }
        Ok(row.last_insert_rowid())
    }
}
