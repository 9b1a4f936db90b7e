//! A field of a tuple has a place: no name to change, and no way to be left out while it equals its default.

use idem_runtime::Fingerprint;

#[derive(Fingerprint)]
struct Point(
    #[fingerprint(rename = "x")] i64,
    #[fingerprint(default)] i64,
);

fn main() {}
