//! Two fields or variants with one name, which would give different requests the same form.

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
