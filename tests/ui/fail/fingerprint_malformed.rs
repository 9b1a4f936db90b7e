//! Options with a syntax error.

use idem_runtime::Fingerprint;

#[derive(Fingerprint)]
#[fingerprint]
struct Charge {
    #[fingerprint = "skip"]
    amount: u64,
    #[fingerprint(rename)]
    fee: u64,
    #[fingerprint(rename = sum)]
    sum: u64,
    #[fingerprint(with = "cents")]
    cents: u64,
    #[fingerprint(with)]
    percent: u64,
    #[fingerprint(skip = true)]
    trace: u64,
    #[fingerprint(rename = "x" default)]
    x: u64,
    #[fingerprint("skip")]
    y: u64,
}

#[derive(Fingerprint)]
#[fingerprint(bound = "T is good")]
struct Wrapper<T>(T);

#[derive(Fingerprint)]
#[fingerprint(crate = "idem_runtime")]
struct Elsewhere;

fn main() {}
