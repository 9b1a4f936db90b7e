//! `default` compares with the default, so the type must have one and be comparable.

use idem_runtime::Fingerprint;

#[derive(Fingerprint)]
enum Mode {
    Fast,
}

#[derive(Fingerprint)]
struct Job {
    #[fingerprint(default)]
    mode: Mode,
}

fn main() {}
