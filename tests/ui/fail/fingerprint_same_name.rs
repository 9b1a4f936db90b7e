//! Two fields or variants of one name would let different requests look the same.

use idem_runtime::Fingerprint;

#[derive(Fingerprint)]
struct Charge {
    amount: u64,
    #[fingerprint(rename = "amount")]
    fee: u64,
}

#[derive(Fingerprint)]
enum Event {
    #[fingerprint(rename = "Refunded")]
    Charged,
    Refunded,
}

fn main() {}
