//! Options that make each other ineffective.

use idem_runtime::Fingerprint;
use idem_runtime::fingerprint::Encoder;

fn cents(amount: &f64, encoder: &mut Encoder) {
    encoder.i64((amount * 100.0) as i64);
}

#[derive(Fingerprint)]
struct Charge {
    #[fingerprint(skip, rename = "sum")]
    amount: u64,
    #[fingerprint(with = cents, float)]
    fee: f64,
}

#[derive(Fingerprint)]
struct Empty {
    #[fingerprint(skip)]
    trace: String,
    #[fingerprint(skip)]
    note: String,
}

fn main() {}
