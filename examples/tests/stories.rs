//! Tells every story to its end. A story fails by itself where a count is not what it must be.

#![expect(clippy::unwrap_used, reason = "a test that cannot run a story fails")]

use std::collections::BTreeSet;
use std::process::{Command, Stdio};

const STORIES: [(&str, &str); 4] = [
    ("custom_store", env!("CARGO_BIN_EXE_custom_store")),
    ("nightly_mail", env!("CARGO_BIN_EXE_nightly_mail")),
    ("payments", env!("CARGO_BIN_EXE_payments")),
    ("webhook", env!("CARGO_BIN_EXE_webhook")),
];

#[test]
fn custom_store() {
    assert!(tell("custom_store").contains("rules are kept."));
}

#[test]
fn nightly_mail() {
    assert!(tell("nightly_mail").contains("Each mail once a night"));
}

#[test]
fn payments() {
    assert!(tell("payments").contains("moved money 6 times, for 6 rows"));
}

#[test]
fn webhook() {
    assert!(tell("webhook").contains("One parcel for each of the orders"));
}

#[test]
fn no_story_is_left_out() {
    let folder = format!("{}/src/bin", std::env::var("CARGO_MANIFEST_DIR").unwrap());
    let files: BTreeSet<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    let told = STORIES.map(|(name, _)| format!("{name}.rs"));
    assert_eq!(files, BTreeSet::from(told));
}

/// Runs a story, and gives what it said.
fn tell(name: &str) -> String {
    let (_, program) = STORIES.iter().find(|(it, _)| *it == name).unwrap();
    let output = Command::new(program).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success(),
        "{name}: {}\n{said}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    said
}
