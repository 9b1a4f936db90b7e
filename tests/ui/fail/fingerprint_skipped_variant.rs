//! Which variant it is cannot be left out.

use idem_runtime::Fingerprint;

#[derive(Fingerprint)]
enum Event {
    Charged,
    #[fingerprint(skip)]
    Refunded,
}

fn main() {}
