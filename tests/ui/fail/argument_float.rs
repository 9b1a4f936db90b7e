//! Floats are no part of a request unless asked for.

use std::collections::HashMap;

use idem_runtime::{Error, Fingerprint, idempotent};

#[idempotent(key = key, ttl = "24h")]
async fn charge(key: &str, rate: f64, more: &[Option<f32>]) -> Result<usize, Error> {
    let _ = rate;
    Ok(key.len() + more.len())
}

#[derive(Fingerprint)]
struct Rates {
    by_name: HashMap<String, f64>,
}

fn main() {}
