//! Downstream key: a service that calls another service sends a key derived from the key of its own request. The chain
//! is then idempotent if each of its services is.
//!
//! The dangerous moment is between the other service's effect and our record of it. A crash there leaves a payment that
//! our database does not know. The next attempt sends the same downstream key, and gets the answer to the first
//! request.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use idem_runtime::{Error, Idem, SqliteStore, idempotent};
use sqlx::SqlitePool;
use tokio::sync::Notify;

use super::Proof;
use super::fifty::{FIFTY, fifty};
use super::server::Server;

// ----------------------------------------------------------------------------------------------- the external service

/// Takes a payment once per key, as payment services do.
#[derive(Default)]
struct Processor {
    payments: Mutex<HashMap<String, u64>>,
    requests: Mutex<u64>,
}

async fn take(
    State(processor): State<Arc<Processor>>,
    headers: HeaderMap,
) -> Result<String, StatusCode> {
    let key = headers
        .get("idempotency-key")
        .and_then(|key| key.to_str().ok())
        .ok_or(StatusCode::BAD_REQUEST)?;
    *processor
        .requests
        .lock()
        .unwrap_or_else(PoisonError::into_inner) += 1;
    let mut payments = processor
        .payments
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let next = payments.len() as u64 + 1;
    let payment = *payments.entry(key.to_owned()).or_insert(next);
    Ok(payment.to_string())
}

// -------------------------------------------------------------------------------------------------------- our service

#[derive(Debug, thiserror::Error)]
enum PayError {
    #[error("the processor failed")]
    Processor(#[from] reqwest::Error),
    #[error("the database failed")]
    Database(#[from] sqlx::Error),
    #[error(transparent)]
    Idempotency(#[from] Error),
}

#[derive(Clone)]
struct Payments {
    idem: Idem<SqliteStore>,
    db: SqlitePool,
    http: reqwest::Client,
    processor: String,
    /// Notified when the first attempt has reached the point where it is aborted.
    grave: Arc<Notify>,
}

impl Payments {
    #[idempotent(
        key = key,
        ttl = "24h",
        lease = "1s",
        wait = "1m",
        name = "payments.take",
        store = self.idem,
        attempt = attempt,
        skip(dies),
    )]
    async fn pay(&self, key: &str, dies: bool) -> Result<String, PayError> {
        let payment = self
            .http
            .post(&self.processor)
            .header(
                "idempotency-key",
                attempt.downstream_key("processor").as_str(),
            )
            .send()
            .await?
            .error_for_status()?
            .text()
            .await?;
        if dies {
            // The payment is taken, and our database has no record of it.
            self.grave.notify_one();
            std::future::pending::<()>().await;
        }
        // An earlier attempt may have died after it wrote its row.
        let insert = "INSERT INTO ledger (payment) VALUES (?) ON CONFLICT (payment) DO NOTHING";
        sqlx::query(insert).bind(&payment).execute(&self.db).await?;
        Ok(payment)
    }
}

const TABLES: &str = "CREATE TABLE ledger (payment TEXT PRIMARY KEY)";

pub(crate) async fn run(db: SqlitePool) -> anyhow::Result<Proof> {
    sqlx::raw_sql(TABLES).execute(&db).await?;
    let store = SqliteStore::new(db.clone());
    store.migrate().await?;
    let processor = Arc::new(Processor::default());
    let router = Router::new()
        .route("/payments", post(take))
        .with_state(Arc::clone(&processor));
    let server = Server::start(router).await?;
    let payments = Payments {
        idem: Idem::new(store),
        db: db.clone(),
        http: reqwest::Client::new(),
        processor: format!("{}/payments", server.url()),
        grave: Arc::default(),
    };

    // The task is aborted between the charge and the commit, and sends nothing to the store.
    let first = tokio::spawn({
        let payments = payments.clone();
        async move { payments.pay("order-1", true).await }
    });
    let died = tokio::time::timeout(Duration::from_secs(30), payments.grave.notified()).await;
    died.context("the first attempt did not reach the processor")?;
    first.abort();
    ensure!(first.await.is_err());

    let answers = fifty(|_| {
        let payments = payments.clone();
        async move { Ok(payments.pay("order-1", false).await?) }
    })
    .await?;
    ensure!(answers.iter().all(|it| it == "1"));
    server.stop().await?;

    let rows: u64 = sqlx::query_scalar("SELECT count(*) FROM ledger")
        .fetch_one(&db)
        .await?;
    let taken = processor
        .payments
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .len() as u64;
    let requests = *processor
        .requests
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    ensure!(rows == 1 && taken == 1 && requests == 2);
    Ok(Proof {
        effects: taken,
        answers: format!("{FIFTY} × payment 1, after a crash between charge and commit"),
    })
}

#[cfg(test)]
mod checked {
    use idem_testing::{Sqlite, check_on};

    use super::*;

    #[test]
    fn a_payment_is_taken_and_entered_once() {
        let processor = Arc::new(Processor::default());
        let router = Router::new()
            .route("/payments", post(take))
            .with_state(Arc::clone(&processor));
        // The processor is another machine: it has a runtime of its own.
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let server = runtime.block_on(Server::start(router)).unwrap();
        let pay = async |idem: Idem<SqliteStore>, key| {
            let payments = Payments {
                db: idem.store().pool().clone(),
                idem,
                http: reqwest::Client::new(),
                processor: format!("{}/payments", server.url()),
                grave: Arc::default(),
            };
            payments.pay(key, false).await
        };
        let payments = || {
            let payments = processor.payments.lock();
            payments.unwrap_or_else(PoisonError::into_inner)
        };
        let ledger = Sqlite::new(TABLES).effects("SELECT count(*) FROM ledger");
        check_on(ledger, async |idem| pay(idem, "order-1").await)
            .other_call(async |idem| pay(idem, "order-2").await)
            .effects(|| payments().len() as u64)
            .before_each(|| payments().clear())
            .assert_at_least_once_with_downstream_key();
    }
}
