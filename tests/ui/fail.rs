//! What the compiler says of what the macros refuse.
//!
//! trybuild runs one `cargo check` over all cases of `fail`. A case of `pass` needs a link, and with one of them among
//! the cases every dependency would be compiled again: so each of those is a test target of its own in the manifest.

use std::fs;
use std::path::Path;

#[test]
fn each_misuse_has_its_message() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("fail/*.rs");
}

#[test]
fn each_accepted_case_is_a_target() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let manifest = fs::read_to_string(package.join("Cargo.toml")).expect("the manifest is there");
    let mut cases = 0;
    for case in fs::read_dir(package.join("pass")).expect("the cases are there") {
        let case = case.expect("the folder can be read").file_name();
        let path = format!("path = \"pass/{}\"", case.display());
        assert!(manifest.contains(&path), "no target has `{path}`");
        cases += 1;
    }
    assert_eq!(cases, manifest.matches("harness = false").count());
}
