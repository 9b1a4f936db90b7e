//! An option that is given twice in one place.

use idem_runtime::Fingerprint;

#[derive(Fingerprint)]
#[fingerprint(name = "charge")]
#[fingerprint(name = "charges")]
struct Charge {
    #[fingerprint(rename = "sum", rename = "total")]
    amount: u64,
    #[fingerprint(skip, skip)]
    trace: String,
}

fn main() {}
