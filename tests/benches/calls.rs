//! Cost of a call on the memory store, compared with the minimum work of any implementation.

use std::collections::HashMap;
use std::future::Future;
use std::hint::black_box;
use std::sync::Mutex;
use std::time::Duration;

use futures_util::FutureExt;
use idem_runtime::{Call, Error, Idem, MemoryStore, idempotent};
use idem_tests::ratio::{Effort, Limits, Table};
use sha2::{Digest as _, Sha256};

const TTL: Duration = Duration::from_secs(24 * 60 * 60);
const LIMITS: Limits = Limits::nanoseconds(3000.0, 1000.0);

/// Number of keys for which a store is used before an empty one replaces it: a number that stays in the CPU caches of a
/// service with other work.
const KEYS: usize = 10_000;

#[idempotent(key = key, ttl = "24h", name = "bench.operation", store = idem)]
async fn annotated(idem: &Idem<MemoryStore>, key: &str, request: &str) -> Result<u64, Error> {
    Ok(black_box(request).len() as u64)
}

async fn run(idem: &Idem<MemoryStore>, key: &str, request: &str) -> Result<u64, Error> {
    let call = Call::new("bench.operation", key, request, TTL);
    idem.run(call, async || Ok(black_box(request).len() as u64))
        .await
}

/// Result of a call. The memory store is always ready, so no executor is needed.
fn now(call: impl Future<Output = Result<u64, Error>>) -> u64 {
    match call.now_or_never() {
        Some(Ok(value)) => value,
        other => panic!("the memory store answers at once and never fails, got {other:?}"),
    }
}

/// Generator of unused keys.
struct Fresh<'a> {
    keys: &'a [String],
    used: usize,
    idem: Idem<MemoryStore>,
}

impl<'a> Fresh<'a> {
    fn new(keys: &'a [String]) -> Self {
        Self {
            keys,
            used: 0,
            idem: Idem::new(MemoryStore::new()),
        }
    }

    fn next(&mut self) -> (&Idem<MemoryStore>, &'a str) {
        if self.used == self.keys.len() {
            *self = Self::new(self.keys);
        }
        let key = &self.keys[self.used];
        self.used += 1;
        (&self.idem, key)
    }
}

fn main() {
    let effort = Effort::from_arguments();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime of one thread");
    let _entered = runtime.enter();
    let request = "a request of some thirty-odd bytes";
    let identity = "bench.operation, and a key like 0190f3c2-8f6a-7000-8000-000000000000";
    let keys: Vec<String> = (0..KEYS)
        .map(|number| format!("0190f3c2-8f6a-7000-8000-{number:012}"))
        .collect();

    let mut number = 0;
    let mut by_hand = Mutex::new(HashMap::new());
    let mut to_annotated = Fresh::new(&keys);
    let mut to_run = Fresh::new(&keys);
    let done = Idem::new(MemoryStore::new());
    Table::against(
        "one call on the memory store, empty body",
        "two SHA-256 and a map insert, by hand",
        || {
            number += 1;
            if number % KEYS == 0 {
                by_hand = Mutex::new(HashMap::new());
            }
            let fingerprint: [u8; 32] = Sha256::digest(black_box(request)).into();
            let mut id: [u8; 32] = Sha256::digest(black_box(identity)).into();
            id[..8].copy_from_slice(&number.to_le_bytes());
            by_hand
                .lock()
                .expect("nobody panics with it")
                .insert(id, fingerprint);
        },
    )
    .with("first call, annotated", Some(LIMITS), || {
        let (idem, key) = to_annotated.next();
        now(annotated(idem, key, request))
    })
    .with("first call, run", Some(LIMITS), || {
        let (idem, key) = to_run.next();
        now(run(idem, key, request))
    })
    .with("replay, annotated", Some(LIMITS), || {
        now(annotated(&done, &keys[0], request))
    })
    .with("replay, run", Some(LIMITS), || {
        now(run(&done, &keys[1], request))
    })
    .print(effort);
}
