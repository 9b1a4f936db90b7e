//! A detached body may outlive its caller: it must not borrow from it, and must be `Send`.

use std::rc::Rc;

use idem_runtime::{Error, Idem, Key, SqliteStore, idempotent};

struct Bank;

impl Bank {
    async fn pay(&self, cents: u64) -> Result<u64, Error> {
        Ok(cents)
    }

    #[idempotent(key = key, ttl = "24h", name = "bank.charge", detached)]
    async fn charge(&self, key: &Key, cents: u64) -> Result<u64, Error> {
        self.pay(cents).await
    }
}

#[idempotent(key = key, ttl = "24h", detached)]
async fn borrows(key: &Key, cents: u64) -> Result<u64, Error> {
    Ok(cents + key.as_str().len() as u64)
}

#[idempotent(key = key, ttl = "24h", detached)]
async fn not_send(key: &Key, cents: u64) -> Result<u64, Error> {
    let cents = Rc::new(cents);
    std::future::ready(()).await;
    Ok(*cents)
}

#[idempotent(key = key, ttl = "24h", detached = true)]
async fn with_a_value(key: &Key) -> Result<u64, Error> {
    Ok(1)
}

#[idempotent(key = key, ttl = "24h", store = idem, tx = tx, detached)]
async fn in_a_transaction(idem: &Idem<SqliteStore>, key: &Key) -> Result<u64, Error> {
    let _ = tx;
    Ok(1)
}

fn main() {}
