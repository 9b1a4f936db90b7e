//! Runs every example to its end. Each example fails if one of its counts is wrong.

#![expect(clippy::unwrap_used, reason = "a test that cannot run a story fails")]

use std::collections::BTreeSet;
use std::process::{Command, Stdio};

/// An example whose feature is disabled has no program.
const STORIES: [(&str, Option<&str>); 14] = [
    ("checkout", option_env!("CARGO_BIN_EXE_checkout")),
    ("custom_store", option_env!("CARGO_BIN_EXE_custom_store")),
    ("lambda", option_env!("CARGO_BIN_EXE_lambda")),
    ("nightly_mail", option_env!("CARGO_BIN_EXE_nightly_mail")),
    ("orders", option_env!("CARGO_BIN_EXE_orders")),
    ("outbox", option_env!("CARGO_BIN_EXE_outbox")),
    ("patterns", option_env!("CARGO_BIN_EXE_patterns")),
    ("payments", option_env!("CARGO_BIN_EXE_payments")),
    ("queue_kafka", option_env!("CARGO_BIN_EXE_queue_kafka")),
    ("queue_nats", option_env!("CARGO_BIN_EXE_queue_nats")),
    (
        "queue_rabbitmq",
        option_env!("CARGO_BIN_EXE_queue_rabbitmq"),
    ),
    (
        "rotating_password",
        option_env!("CARGO_BIN_EXE_rotating_password"),
    ),
    ("routes", option_env!("CARGO_BIN_EXE_routes")),
    ("webhook", option_env!("CARGO_BIN_EXE_webhook")),
];

#[test]
fn checkout() {
    assert!(output_of("checkout").contains("Each order was reserved, charged and mailed once."));
}

#[test]
fn custom_store() {
    assert!(output_of("custom_store").contains("rules are kept."));
}

#[test]
fn lambda() {
    let said = output_of("lambda");
    assert!(said.contains("39 deposits are booked, each of them once."));
    assert!(said.contains("8 deposits of 18 events."));
}

#[test]
fn nightly_mail() {
    assert!(output_of("nightly_mail").contains("Each mail once a night"));
}

#[test]
fn patterns() {
    let said = output_of("patterns");
    let page = include_str!("../../docs/patterns.md");
    let linked: BTreeSet<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("[`")?.split_once('`'))
        .map(|(scheme, _)| scheme)
        .collect();
    let proved: BTreeSet<&str> = said
        .lines()
        .skip(2)
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert!(linked.len() > 10);
    assert_eq!(linked, proved);
}

#[test]
fn outbox() {
    assert!(output_of("outbox").contains("for 9 parcels of 9 orders"));
}

#[test]
fn orders() {
    assert!(output_of("orders").contains("Every order once: of 10 pieces in stock 1 is left."));
}

#[test]
fn routes() {
    assert!(output_of("routes").contains("2 orders for 5 requests and 2 questions."));
}

#[test]
fn payments() {
    assert!(output_of("payments").contains("moved money 6 times, for 6 rows"));
}

#[cfg(feature = "kafka")]
#[test]
fn queue_kafka() {
    assert!(output_of("queue_kafka").contains("3 dead letters, 0 messages left"));
}

#[cfg(feature = "nats")]
#[test]
#[ignore = "needs NATS: cargo xtask test runs it"]
fn queue_nats() {
    assert!(output_of("queue_nats").contains("3 dead letters, 0 messages left"));
}

#[cfg(feature = "rabbitmq")]
#[test]
#[ignore = "needs RabbitMQ: cargo xtask test runs it"]
fn queue_rabbitmq() {
    assert!(output_of("queue_rabbitmq").contains("3 dead letters, 0 messages left"));
}

#[cfg(feature = "postgres")]
#[test]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
fn rotating_password() {
    assert!(output_of("rotating_password").contains("Every order was placed once."));
}

/// The page shows the function that the example runs.
#[test]
fn the_page_of_changing_passwords_shows_the_example() {
    let page = include_str!("../../docs/book/src/tls.md");
    let example = include_str!("../src/bin/rotating_password.rs");
    let begin = example
        .find("/// Gives the pool the current token")
        .unwrap();
    let shown = example[begin..].split_once("\n}\n").unwrap().0;
    assert!(page.contains(shown), "copy it into the page:\n{shown}");
}

#[test]
fn webhook() {
    assert!(output_of("webhook").contains("One parcel for each of the orders"));
}

#[test]
fn every_example_is_run() {
    let folder = format!("{}/src/bin", std::env::var("CARGO_MANIFEST_DIR").unwrap());
    let files: BTreeSet<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    let files: BTreeSet<&str> = files
        .iter()
        .map(|file| file.trim_end_matches(".rs"))
        .collect();
    assert_eq!(files, BTreeSet::from(STORIES.map(|(name, _)| name)));
}

/// Runs an example and returns what it printed.
fn output_of(name: &str) -> String {
    let (_, program) = STORIES.iter().find(|(it, _)| *it == name).unwrap();
    let program = program.expect("the feature of the example is enabled");
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
