//! `float` on a field that is not a float.

use idem_runtime::Fingerprint;

#[derive(Fingerprint)]
struct Reading {
    #[fingerprint(float)]
    unit: String,
}

fn main() {}
