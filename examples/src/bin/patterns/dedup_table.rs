//! A consumer remembers the messages that it has handled, in the database that its effects are in: a message's row in
//! that table and what the message does are one transaction.
//!
//! Two would leave a gap between them. Whoever dies in it, with the row first, has lost the message; with the effect
//! first, does it twice.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use idem_runtime::{Error, Fingerprint, Idem, SqliteStore, idempotent};
use sqlx::SqlitePool;
use tokio::sync::Notify;

use crate::Proof;
use crate::fifty::fifty;

/// What a broker delivers, at least once.
#[derive(Clone, Fingerprint)]
struct Message {
    id: String,
    account: String,
    cents: u32,
}

#[derive(Debug, thiserror::Error)]
enum DepositError {
    #[error("the database failed")]
    Database(#[from] sqlx::Error),
    #[error(transparent)]
    Idempotency(#[from] Error),
}

#[derive(Clone)]
struct Consumer {
    idem: Idem<SqliteStore>,
    /// Where the first delivery dies, and who is told that it got there.
    grave: Arc<Notify>,
}

impl Consumer {
    /// Handles one delivery, which is acknowledged when this returns `Ok`. The retention is longer than the broker may
    /// deliver again.
    #[idempotent(
        key = message.id,
        scope = "deposits",
        ttl = "14d",
        wait = "1m",
        name = "deposits.handle",
        store = self.idem,
        tx = tx,
        skip(dies),
    )]
    async fn handle(&self, message: Message, dies: bool) -> Result<(), DepositError> {
        sqlx::query("UPDATE accounts SET cents = cents + ? WHERE account = ?")
            .bind(message.cents)
            .bind(message.account)
            .execute(&mut *tx)
            .await?;
        if dies {
            // The money is on the account, and nothing says so yet.
            self.grave.notify_one();
            std::future::pending::<()>().await;
        }
        Ok(())
    }
}

pub(crate) async fn run(db: SqlitePool) -> anyhow::Result<Proof> {
    sqlx::raw_sql(
        "CREATE TABLE accounts (account TEXT PRIMARY KEY, cents INTEGER);
         INSERT INTO accounts VALUES ('ann', 0);",
    )
    .execute(&db)
    .await?;
    let store = SqliteStore::new(db.clone());
    store.migrate().await?;
    let consumer = Consumer {
        idem: Idem::new(store),
        grave: Arc::default(),
    };
    let message = Message {
        id: "message-1".to_owned(),
        account: "ann".to_owned(),
        cents: 500,
    };

    // The consumer dies between the effect and its record.
    let first = tokio::spawn({
        let (consumer, message) = (consumer.clone(), message.clone());
        async move { consumer.handle(message, true).await }
    });
    let died = tokio::time::timeout(Duration::from_secs(30), consumer.grave.notified()).await;
    died.context("the first delivery never got to the account")?;
    first.abort();
    ensure!(first.await.is_err());

    fifty(|_| {
        let (consumer, message) = (consumer.clone(), message.clone());
        async move { Ok(consumer.handle(message, false).await?) }
    })
    .await?;

    let cents: u64 = sqlx::query_scalar("SELECT cents FROM accounts")
        .fetch_one(&db)
        .await?;
    ensure!(cents == 500);
    Ok(Proof {
        effects: cents / 500,
        told: "all of them that it is done, after a crash in the middle".to_owned(),
    })
}
