//! A detached body may outlive its caller: it must not borrow from it, and must be `Send`. The compiler reports what the
//! macro cannot see.

use std::rc::Rc;

use idem_runtime::{Error, Idem, Key, SqliteStore, idempotent};

// The closure has a variable of the name, so the macro does not know which of them is used.
#[idempotent(key = key, ttl = "24h", detached)]
async fn borrows(key: &Key, to: &str) -> Result<usize, Error> {
    let lengths = ["ann", "bob"].map(|to| to.len());
    Ok(to.len() + lengths[0])
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
