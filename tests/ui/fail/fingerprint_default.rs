//! `default` needs a type that has a default and can be compared with it.

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
