//! Compiler messages for code that the macros or the compiler refuse.
//!
//! trybuild runs one `cargo check` for all cases of `fail`. A case of `pass` must be linked. If trybuild ran such a
//! case, it would compile every dependency again, so each case of `pass` is a separate test target in the manifest.

use std::path::Path;
use std::process::Command;
use std::{env, fs};

/// Variable with flags of the compiler, which cargo prefers to those of trybuild.
const FLAGS: &str = "CARGO_ENCODED_RUSTFLAGS";

/// Flags with which trybuild compiles the cases.
const OF_CASES: [&str; 6] = [
    "--cfg",
    "trybuild",
    "--verbose",
    "-A",
    "dead_code",
    "--diagnostic-width=140",
];

/// trybuild compiles the dependencies with other flags than the cases. Cargo then compiles every dependency twice, because
/// the flags are part of its identity. So this test runs itself with a variable that makes all flags equal.
#[test]
fn each_misuse_has_its_message() {
    if env::var_os(FLAGS).is_none() {
        let own = env::current_exe().expect("the test has a program");
        let status = Command::new(own)
            .args(["--exact", "each_misuse_has_its_message", "--nocapture"])
            .env(FLAGS, OF_CASES.join("\u{1f}"))
            .status()
            .expect("the program starts");
        assert!(status.success(), "a case has another message");
        return;
    }
    let cases = trybuild::TestCases::new();
    cases.compile_fail("fail/*.rs");
}

/// The questions and answers quote the compiler where a user searches for its words. Another compiler may have others.
#[test]
fn the_book_quotes_the_compiler() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut messages = String::new();
    for case in fs::read_dir(package.join("fail")).expect("the folder of the cases is readable") {
        let path = case.expect("the entry is readable").path();
        if path.extension().is_some_and(|it| it == "stderr") {
            messages += &fs::read_to_string(path).expect("the messages are readable");
        }
    }
    let page = package.join("../../docs/book/src/faq.md");
    let page = fs::read_to_string(page).expect("the page is readable");
    let questions = page.lines().filter(|line| line.starts_with("**\""));
    let quoted = questions.flat_map(|line| line.split('"').skip(1).step_by(2));
    let quoted: Vec<_> = quoted.collect();
    assert!(quoted.len() > 7, "{quoted:?}");
    for words in quoted {
        assert!(messages.contains(words), "no case has these words: {words}");
    }
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
