//! The function of `with` must take the field and the encoder.

use idem_runtime::Fingerprint;

fn rounded(amount: &u64) -> u64 {
    amount / 100
}

#[derive(Fingerprint)]
struct Charge {
    #[fingerprint(with = rounded)]
    amount: u64,
}

fn main() {}
