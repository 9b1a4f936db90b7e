//! Options on a field of a tuple that need a name or would shift its position.

use idem_runtime::Fingerprint;

#[derive(Fingerprint)]
struct Point(
    #[fingerprint(rename = "x")] i64,
    #[fingerprint(default)] i64,
);

fn main() {}
