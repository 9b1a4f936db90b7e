//! Every place from which a handle may come.
#![deny(warnings)]

use std::sync::{Arc, LazyLock, OnceLock};

use idem_runtime::{Error, Idem, Store, idempotent};

static LAZY: LazyLock<Idem> = LazyLock::new(|| unreachable!());
static ONCE: OnceLock<Arc<Idem>> = OnceLock::new();

fn installed() -> &'static Idem {
    ONCE.get_or_init(|| unreachable!())
}

#[idempotent(key = key, ttl = "24h", store = LAZY)]
async fn lazy(key: &str) -> Result<usize, Error> {
    Ok(key.len())
}

#[idempotent(key = key, ttl = "24h", store = installed())]
async fn by_function(key: &str) -> Result<usize, Error> {
    Ok(key.len())
}

#[idempotent(key = key, ttl = "24h", store = ONCE.get().ok_or(Error::NotInstalled)?)]
async fn fallible(key: &str) -> Result<usize, Error> {
    Ok(key.len())
}

#[idempotent(key = key, ttl = "24h", store = if key.is_empty() { installed() } else { &LAZY })]
async fn either(key: &str) -> Result<usize, Error> {
    Ok(key.len())
}

async fn connected() -> Arc<Idem> {
    unreachable!("only its type counts here")
}

#[idempotent(key = key, ttl = "24h", store = connected().await)]
async fn awaited(key: &str) -> Result<usize, Error> {
    Ok(key.len())
}

#[idempotent(key = key, ttl = "24h", store = idem, name = "by_value")]
async fn by_value<S: Store>(idem: Idem<S>, key: &str) -> Result<usize, Error> {
    drop(idem);
    Ok(key.len())
}

#[idempotent(key = key, ttl = "24h", store = idem)]
async fn by_reference(idem: &Idem, key: &str) -> Result<usize, Error> {
    let _ = idem;
    Ok(key.len())
}

#[idempotent(key = key, ttl = "24h", store = &idem, name = "any_store")]
async fn any_store<S: Store + ?Sized>(idem: &&Idem<S>, key: &str) -> Result<usize, Error> {
    let _ = idem;
    Ok(key.len())
}

#[idempotent(key = key, ttl = "24h", store = idem)]
async fn shared(idem: Arc<Idem>, key: &str) -> Result<usize, Error> {
    drop(idem);
    Ok(key.len())
}

struct State {
    idem: Arc<Idem>,
}

#[idempotent(key = key, ttl = "24h", store = state.idem, skip(state))]
async fn field(state: &State, key: &str) -> Result<usize, Error> {
    let _ = state;
    Ok(key.len())
}

fn is_send<T: Send>(_: T) {}

fn given<S: Store>(idem: Idem<S>, any: &Idem, state: &State) {
    is_send(lazy("key"));
    is_send(by_function("key"));
    is_send(fallible("key"));
    is_send(either("key"));
    is_send(awaited("key"));
    is_send(by_value(idem, "key"));
    is_send(by_reference(any, "key"));
    is_send(any_store(&any, "key"));
    is_send(shared(Arc::clone(&state.idem), "key"));
    is_send(field(state, "key"));
}

fn main() {
    let _ = given::<Arc<dyn Store>>;
}
