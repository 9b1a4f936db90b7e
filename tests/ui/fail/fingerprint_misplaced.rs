//! Options in the wrong place: the error names the right place.

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
