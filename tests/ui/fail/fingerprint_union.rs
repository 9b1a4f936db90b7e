//! A union, whose valid field is unknown.

use idem_runtime::Fingerprint;

#[derive(Fingerprint)]
union Bits {
    number: u32,
    bytes: [u8; 4],
}

fn main() {}
