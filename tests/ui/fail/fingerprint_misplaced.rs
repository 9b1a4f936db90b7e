//! Words that belong elsewhere say where.

use idem_runtime::Fingerprint;

#[derive(Fingerprint)]
#[fingerprint(rename = "charge", skip)]
struct Charge {
    #[fingerprint(name = "sum")]
    amount: u64,
    #[fingerprint(crate = idem_runtime)]
    fee: u64,
}

#[derive(Fingerprint)]
enum Event {
    #[fingerprint(name = "charged", default)]
    Charged,
}

fn main() {}
