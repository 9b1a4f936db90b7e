//! An idempotent function must be async.

use idem_runtime::{Error, idempotent};

#[idempotent(key = key, ttl = "24h")]
fn charge(key: &str, amount: u64) -> Result<u64, Error> {
    let _ = key;
    Ok(amount)
}

#[idempotent(key = key, ttl = "24h")]
fn future(key: &str) -> impl Future<Output = Result<usize, Error>> {
    async move { Ok(key.len()) }
}

struct Runtime;

impl Runtime {
    fn block_on<T>(&self, _: impl Future<Output = T>) -> T {
        loop {}
    }
}

// `#[tokio::test]` and `#[tokio::main]` above the attribute expand to this.
#[idempotent(key = constant("q"), ttl = "24h")]
fn blocks() -> Result<u64, Error> {
    let body = async { Ok(1) };
    Runtime.block_on(body)
}

fn main() {}
