//! `float` is for floats.

use idem_runtime::Fingerprint;

#[derive(Fingerprint)]
struct Reading {
    #[fingerprint(float)]
    unit: String,
}

fn main() {}
