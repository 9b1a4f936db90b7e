//! `skip` on a variant of an enum.

use idem_runtime::Fingerprint;

#[derive(Fingerprint)]
enum Event {
    Charged,
    #[fingerprint(skip)]
    Refunded,
}

fn main() {}
