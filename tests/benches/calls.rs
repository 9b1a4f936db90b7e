//! What a call costs on the memory store, against the least that any implementation of it must do.

mod ratio;

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::Mutex;
use std::time::Duration;

use futures_util::FutureExt;
use idem_runtime::{Call, Error, Idem, MemoryStore};
use ratio::{Effort, Limits, Table};
use sha2::{Digest as _, Sha256};

const TTL: Duration = Duration::from_secs(24 * 60 * 60);

/// Calls an idempotent function with an empty body; the memory store answers at once, so no executor is needed.
fn call(idem: &Idem<MemoryStore>, key: &str, request: &str) -> u64 {
    let call = Call::new("bench.operation", key, request, TTL);
    let run = idem.run(call, async || Ok::<_, Error>(7));
    match run.now_or_never() {
        Some(Ok(value)) => value,
        other => panic!("the memory store answers at once and never fails, got {other:?}"),
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

    // Each contestant replaces what it holds before it grows past what caches hold in service.
    let mut number = 0_u64;
    let mut by_hand = Mutex::new(HashMap::new());
    let mut first = Idem::new(MemoryStore::new());
    let mut first_number = 0_u64;
    let replay = Idem::new(MemoryStore::new());
    Table::against(
        "one call on the memory store, empty body",
        "two SHA-256 and a map insert, by hand",
        || {
            number += 1;
            if number.is_multiple_of(10_000) {
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
    .with(
        "first call (3 µs at most, 1 µs is the aim)",
        Some(Limits {
            bound: 3.0 / 0.55,
            aim: 1.0 / 0.55,
        }),
        || {
            first_number += 1;
            if first_number.is_multiple_of(10_000) {
                first = Idem::new(MemoryStore::new());
            }
            let key = format!("0190f3c2-8f6a-7000-8000-{first_number:012}");
            call(&first, &key, request)
        },
    )
    .with("replay", None, || {
        call(&replay, "0190f3c2-8f6a-7000-8000-000000000000", request)
    })
    .print(effort);
}
