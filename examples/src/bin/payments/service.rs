//! The service: an annotated `charge`, a ledger and a simulated credit card processor. One SQLite file holds all their
//! data and the records of the calls.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use idem_runtime::{Error, Fingerprint, Idem, SqliteStore, idempotent};
use serde::{Deserialize, Serialize};
use sqlx::SqlitePool;

/// Request for a charge. A retry must send an equal request, which is checked by the fingerprint.
#[derive(Clone, Fingerprint, Deserialize)]
pub(crate) struct Charge {
    pub(crate) card: String,
    pub(crate) cents: u64,
    /// Differs in each request, so it is not part of the fingerprint.
    #[fingerprint(skip)]
    pub(crate) trace_id: u64,
}

/// Result of a charge. It is stored, so that a retry gets an identical receipt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Receipt {
    pub(crate) number: i64,
    pub(crate) cents: u64,
}

/// Errors of a charge. A final error is stored like a receipt; the others are not.
#[derive(Debug, thiserror::Error, Serialize, Deserialize)]
pub(crate) enum ChargeError {
    #[error("the card was declined: {reason}")]
    Declined { reason: String },
    #[error("the processor timed out")]
    TimedOut,
    #[error("the database failed")]
    #[serde(skip)]
    Database(#[from] sqlx::Error),
    /// Error of the toolkit, for example that the key is in flight or was used with another request.
    #[error(transparent)]
    #[serde(skip)]
    Idempotency(#[from] Error),
}

pub(crate) struct Payments {
    pub(crate) idem: Idem<SqliteStore>,
    /// Retention of a receipt: how long a retry gets the stored receipt.
    ttl: Duration,
    pub(crate) ledger: SqlitePool,
    pub(crate) processor: Processor,
}

impl Payments {
    /// Charges a card once per tenant and key.
    #[idempotent(
        key = key,
        scope = tenant,
        ttl = self.ttl,
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
        // If this process dies after the payment, the next attempt sends the same key, and no second payment happens.
        let payment = self
            .processor
            .take(attempt.downstream_key("cards").as_str(), &charge)
            .await?;
        // An earlier attempt may have died after it wrote its row.
        let insert = "INSERT INTO ledger (tenant, key, payment, cents) SELECT ?1, ?2, ?3, ?4
                      WHERE NOT EXISTS (SELECT * FROM ledger WHERE payment = ?3)";
        sqlx::query(insert)
            .bind(tenant)
            .bind(key)
            .bind(payment)
            .bind(charge.cents as i64)
            .execute(&self.ledger)
            .await?;
        let number = sqlx::query_scalar("SELECT rowid FROM ledger WHERE payment = ?");
        Ok(Receipt {
            number: number.bind(payment).fetch_one(&self.ledger).await?,
            cents: charge.cents,
        })
    }

    pub(crate) async fn open(file: &Path, ttl: Duration) -> anyhow::Result<Self> {
        let db = SqlitePool::connect_with(SqliteStore::connect_options(file)).await?;
        sqlx::raw_sql(TABLES).execute(&db).await?;
        let store = SqliteStore::new(db);
        store.migrate().await?;
        let idem = Idem::builder(store)
            // Lease: after a crash, another process may take over this much later.
            .lease(Duration::from_secs(2))
            // How long a concurrent duplicate waits for the running call before it gets `InFlight`.
            .wait(Duration::from_secs(30))
            .build();
        Ok(Self::on(idem, ttl))
    }

    /// The service on this handle, whose database has the [`TABLES`].
    pub(crate) fn on(idem: Idem<SqliteStore>, ttl: Duration) -> Self {
        let db = idem.store().pool().clone();
        Self {
            idem,
            ttl,
            processor: Processor {
                db: db.clone(),
                ttl,
                pause: Duration::ZERO,
                down: AtomicBool::new(false),
                mute: AtomicBool::new(false),
            },
            ledger: db,
        }
    }
}

/// Tables of the service and of the processor.
pub(crate) const TABLES: &str =
    "CREATE TABLE IF NOT EXISTS ledger (tenant TEXT, key TEXT, payment INTEGER, cents INTEGER);
     CREATE TABLE IF NOT EXISTS processor_requests (key TEXT, trace_id INTEGER);
     CREATE TABLE IF NOT EXISTS processor_payments (key TEXT, cents INTEGER, at REAL);";

/// Simulated external payment service. Like real ones, it takes a key with each request, pays once per key, and forgets
/// the key after a while. It has its own tables, because it outlives our processes.
pub(crate) struct Processor {
    db: SqlitePool,
    ttl: Duration,
    /// Duration of each request.
    pub(crate) pause: Duration,
    /// If set, requests time out without an effect.
    pub(crate) down: AtomicBool,
    /// If set, requests have their effect, but their answers are lost.
    pub(crate) mute: AtomicBool,
}

/// Printed by the processor after a payment whose answer is lost.
pub(crate) const MONEY_MOVED: &str = "the payment was made";

tokio::task_local! {
    /// Set around a call that must exit this process right after the payment.
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
        .bind(self.ttl.as_secs_f64())
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

#[cfg(test)]
mod checked {
    use idem_testing::{Sqlite, check_on};

    use super::*;

    #[test]
    fn a_card_is_charged_once_and_entered_once() {
        let day = Duration::from_secs(24 * 3600);
        let charge = async |idem, tenant, cents| {
            let charge = Charge {
                card: "visa".to_owned(),
                cents,
                trace_id: 7,
            };
            Payments::on(idem, day)
                .charge(tenant, "order-1", charge)
                .await
        };
        for effects in [
            "SELECT count(*) FROM ledger",
            "SELECT count(*) FROM processor_payments",
        ] {
            let database = Sqlite::new(TABLES).effects(effects);
            check_on(database, async |idem| charge(idem, "ann", 500).await)
                .other_request(async |idem| charge(idem, "ann", 900).await)
                .other_call(async |idem| charge(idem, "bob", 500).await)
                .assert_at_least_once_with_downstream_key();
        }
    }
}
