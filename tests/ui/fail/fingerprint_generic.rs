//! A generic type has a canonical form only if its parameters have one.

use idem_runtime::Fingerprint;
use idem_runtime::fingerprint::digest;

struct Opaque;

#[derive(Fingerprint)]
struct Envelope<T> {
    content: T,
}

fn main() {
    let _ = digest(&Envelope { content: Opaque });
    let _ = digest(&1.5_f64);
}
