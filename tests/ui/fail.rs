//! Compiler messages for code that the macros refuse.
//!
//! trybuild runs one `cargo check` for all cases of `fail`. A case of `pass` must be linked. If trybuild ran such a
//! case, it would compile every dependency again, so each case of `pass` is a separate test target in the manifest.

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
    let manifest =
        fs::read_to_string(package.join("Cargo.toml")).expect("the manifest is readable");
    let mut cases = 0;
    for case in fs::read_dir(package.join("pass")).expect("the folder of the cases is readable") {
        let case = case.expect("the entry is readable").file_name();
        let path = format!("path = \"pass/{}\"", case.display());
        assert!(manifest.contains(&path), "no target has `{path}`");
        cases += 1;
    }
    assert_eq!(cases, manifest.matches("harness = false").count());
}
