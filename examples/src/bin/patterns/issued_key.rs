//! Issued key: the service issues a key with the form, accepts only issued keys, and executes each once.
//!
//! Most services refuse a used key, which leaves a caller whose reply was lost without an answer. Here a repeated
//! key gets the stored answer.

use std::time::Duration;

use anyhow::ensure;
use idem_runtime::fingerprint::Secret;
use idem_runtime::{Error, Idem, Key, SqliteStore, idempotent};
use sqlx::SqlitePool;

use super::Proof;
use super::fifty::fifty;

/// The operation that the keys are for.
const TRANSFER: &str = "transfers.make";

#[derive(Debug, thiserror::Error)]
enum TransferError {
    #[error("the database failed")]
    Database(#[from] sqlx::Error),
    #[error(transparent)]
    Idempotency(#[from] Error),
}

#[derive(Clone)]
struct Bank {
    idem: Idem<SqliteStore>,
    db: SqlitePool,
}

impl Bank {
    /// Issues the key for a user's form. Nothing is stored before the key is used.
    async fn form(&self, user: &str) -> Result<Key, Error> {
        let ttl = Duration::from_secs(15 * 60);
        self.idem.issue(TRANSFER, user, ttl).await
    }

    #[idempotent(
        key = key,
        scope = user,
        ttl = "24h",
        wait = "1m",
        name = TRANSFER,
        store = self.idem,
        tx = tx,
        issued,
    )]
    async fn transfer(&self, user: &str, key: &Key, cents: u32) -> Result<i64, TransferError> {
        let row = sqlx::query("INSERT INTO transfers (user, cents) VALUES (?, ?)")
            .bind(user)
            .bind(cents)
            .execute(&mut *tx)
            .await?;
        Ok(row.last_insert_rowid())
    }
}

const TABLES: &str = "CREATE TABLE transfers (user TEXT, cents INTEGER)";

pub(crate) async fn run(db: SqlitePool) -> anyhow::Result<Proof> {
    sqlx::raw_sql(TABLES).execute(&db).await?;
    let store = SqliteStore::new(db.clone());
    store.migrate().await?;
    // All processes of the service need this secret. It must stay secret, because it allows its owner to issue keys.
    let secret = Secret::new("thirty-two bytes of the service's")?;
    let bank = Bank {
        idem: Idem::builder(store).fingerprint_secret(secret).build(),
        db: db.clone(),
    };

    let key = bank.form("ann").await?;
    let answers = fifty(|_| {
        let (bank, key) = (bank.clone(), key.clone());
        async move { Ok(bank.transfer("ann", &key, 500).await?) }
    })
    .await?;
    ensure!(answers.iter().all(|it| *it == answers[0]));

    // A self-made key is refused, and so is another user's key.
    let made_up = Key::generate();
    for (user, key) in [("ann", &made_up), ("eve", &key)] {
        let refused = bank.transfer(user, key, 500).await;
        ensure!(matches!(
            refused,
            Err(TransferError::Idempotency(Error::InvalidKey(_)))
        ));
    }

    let effects = sqlx::query_scalar("SELECT count(*) FROM transfers")
        .fetch_one(&bank.db)
        .await?;
    ensure!(effects == 1);
    Ok(Proof {
        effects,
        answers: "50 × the number of the transfer; an invented key: refused".to_owned(),
    })
}

#[cfg(test)]
mod checked {
    use idem_testing::{Sqlite, check_on};

    use super::*;

    #[test]
    fn a_transfer_with_an_issued_key_is_made_exactly_once() {
        let secret = || Secret::new("thirty-two bytes of the service's").unwrap();
        // A key is signed and not stored, so one form serves all schedules.
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let key = runtime.block_on(async {
            let store = SqliteStore::in_memory().await?;
            let db = store.pool().clone();
            let idem = Idem::builder(store).fingerprint_secret(secret()).build();
            Bank { idem, db }.form("ann").await
        });
        let key = key.unwrap();
        let transfer = async |idem: Idem<SqliteStore>, cents| {
            let db = idem.store().pool().clone();
            Bank { idem, db }.transfer("ann", &key, cents).await
        };
        let database = Sqlite::new(TABLES).effects("SELECT count(*) FROM transfers");
        check_on(database, async |idem| transfer(idem, 500).await)
            .other_request(async |idem| transfer(idem, 900).await)
            .configure(|idem| idem.fingerprint_secret(secret()))
            .assert_exactly_once();
    }
}
