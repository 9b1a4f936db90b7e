//! `reconcile` takes a future, and may evaluate it more than once.

use idem_runtime::{Error, Reconciled, idempotent};

async fn ask(reference: &str) -> Result<Reconciled<u64>, Error> {
    Ok(Reconciled::Done(reference.len() as u64))
}

async fn consume(reference: String) -> Result<Reconciled<u64>, Error> {
    ask(&reference).await
}

#[idempotent(key = reference, ttl = "7d", on_crash = reconcile(|| ask(&reference)))]
async fn closure(reference: String) -> Result<u64, Error> {
    Ok(reference.len() as u64)
}

#[idempotent(key = reference, ttl = "7d", on_crash = reconcile(async |_| { ask(&reference).await }))]
async fn block(reference: String) -> Result<u64, Error> {
    Ok(reference.len() as u64)
}

#[idempotent(key = reference, ttl = "7d", on_crash = reconcile(ask))]
async fn function(reference: String) -> Result<u64, Error> {
    Ok(reference.len() as u64)
}

#[idempotent(key = reference, ttl = "7d", on_crash = reconcile(ask(&reference).await))]
async fn awaited(reference: String) -> Result<u64, Error> {
    Ok(reference.len() as u64)
}

#[idempotent(key = reference, ttl = "7d", on_crash = reconcile(consume(reference)))]
async fn moved(reference: String) -> Result<u64, Error> {
    Ok(reference.len() as u64)
}

struct Order {
    id: String,
}

async fn take(order: Order) -> Result<Reconciled<u64>, Error> {
    ask(&order.id).await
}

#[idempotent(key = order.id, ttl = "7d", on_crash = reconcile(take(order)), fingerprint = order.id)]
async fn moved_struct(order: Order) -> Result<u64, Error> {
    Ok(order.id.len() as u64)
}

async fn guess(reference: &str) -> Result<Option<u64>, Error> {
    Ok(Some(reference.len() as u64))
}

#[idempotent(key = reference, ttl = "7d", on_crash = reconcile(guess(&reference)))]
async fn other_answer(reference: String) -> Result<u64, Error> {
    Ok(reference.len() as u64)
}

fn main() {}
