//! Other ways to write the value of `on_crash`.

use idem_runtime::{Error, Reconciled, idempotent};

async fn ask(key: &str) -> Result<Reconciled<usize>, Error> {
    Ok(Reconciled::Done(key.len()))
}

#[idempotent(key = key, ttl = "24h", on_crash = "refuse")]
async fn quoted(key: &str) -> Result<usize, Error> {
    Ok(key.len())
}

#[idempotent(key = key, ttl = "24h", on_crash = OnCrash::Refuse)]
async fn path(key: &str) -> Result<usize, Error> {
    Ok(key.len())
}

#[idempotent(key = key, ttl = "24h", on_crash = retry)]
async fn other_word(key: &str) -> Result<usize, Error> {
    Ok(key.len())
}

#[idempotent(key = key, ttl = "24h", on_crash = ask(key))]
async fn question(key: &str) -> Result<usize, Error> {
    Ok(key.len())
}

#[idempotent(key = key, ttl = "24h", reconcile = ask(key))]
async fn option(key: &str) -> Result<usize, Error> {
    Ok(key.len())
}

#[idempotent(key = key, ttl = "24h", on_crash = reconcile(ask(key), ask(key)))]
async fn two_questions(key: &str) -> Result<usize, Error> {
    Ok(key.len())
}

fn main() {
    let _ = ask("key");
}
