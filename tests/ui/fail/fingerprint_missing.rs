//! A field whose type has no canonical form: the error at the type says what to do.

use std::collections::HashMap;

use idem_runtime::Fingerprint;

struct Trace;

#[derive(Fingerprint)]
struct Charge {
    amount: u64,
    trace: Trace,
    history: Vec<Trace>,
    by_name: HashMap<String, Option<Trace>>,
}

#[derive(Fingerprint)]
enum Event {
    Charged(Trace),
    Refunded { trace: Trace },
}

fn main() {}
