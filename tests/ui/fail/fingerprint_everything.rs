//! All errors of a derive are reported together, and uses of the type cause no further errors.

use idem_runtime::Fingerprint;
use idem_runtime::fingerprint::digest;

#[derive(Fingerprint)]
#[fingerprint(nam = "charge")]
struct Charge {
    rate: f64,
    #[fingerprint(skip, rename = "sum")]
    amount: u64,
    #[fingerprint(rename = "currency")]
    unit: String,
    currency: String,
}

fn main() {
    let _ = |charge: Charge| digest(&charge);
}
