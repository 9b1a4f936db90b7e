//! Deduplication table (inbox): the consumer records each handled message in the database of its effects. The row of
//! the message and its effect are committed in one transaction.
//!
//! Two transactions would leave a gap. If the consumer crashes in that gap, a row that was committed first loses the
//! message, and an effect that was committed first happens twice.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use idem_runtime::{Error, Fingerprint, Idem, SqliteStore, idempotent};
use sqlx::SqlitePool;
use tokio::sync::Notify;

use super::Proof;
use super::fifty::fifty;

/// Message that a broker delivers at least once.
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
    /// Notified when the first delivery has reached the point where it is aborted.
    grave: Arc<Notify>,
}

impl Consumer {
    /// Handles one delivery, which is acknowledged when this returns `Ok`. The `ttl` is longer than the time during
    /// which the broker may redeliver.
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
            // The balance is updated, and the transaction is not committed.
            self.grave.notify_one();
            std::future::pending::<()>().await;
        }
        Ok(())
    }
}

const TABLES: &str = "CREATE TABLE accounts (account TEXT PRIMARY KEY, cents INTEGER);
         INSERT INTO accounts VALUES ('ann', 0);";

pub(crate) async fn run(db: SqlitePool) -> anyhow::Result<Proof> {
    sqlx::raw_sql(TABLES).execute(&db).await?;
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

    // The consumer crashes between the effect and its record.
    let first = tokio::spawn({
        let (consumer, message) = (consumer.clone(), message.clone());
        async move { consumer.handle(message, true).await }
    });
    let died = tokio::time::timeout(Duration::from_secs(30), consumer.grave.notified()).await;
    died.context("the first delivery did not reach the account")?;
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
        answers: "50 × done, although the first delivery crashed".to_owned(),
    })
}

#[cfg(test)]
mod checked {
    use idem_testing::{Sqlite, check_consumer_on};

    use super::*;

    #[test]
    fn each_deposit_is_made_exactly_once() {
        let message = |id: &str, cents| Message {
            id: id.to_owned(),
            account: "ann".to_owned(),
            cents,
        };
        let messages = [
            message("message-1", 500),
            message("message-2", 700),
            message("message-3", 500),
        ];
        let handle = async |idem, message| {
            let consumer = Consumer {
                idem,
                grave: Arc::default(),
            };
            consumer.handle(message, false).await
        };
        let database = Sqlite::new(TABLES).effects("SELECT cents FROM accounts");
        check_consumer_on(database, handle, messages).assert_exactly_once();
    }
}
