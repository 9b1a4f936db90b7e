//! Counts of the drops and the checks, and the problems that were found.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use libtest_mimic::Failed;

/// Counts of one entry's cases on one store.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    /// Futures that were dropped before they completed.
    pub(crate) drops: u64,
    /// Polls of all futures that were to be dropped.
    pub(crate) polls: u64,
    /// The most polls that one of them took to complete.
    pub(crate) most_polls: u32,
    /// Number of times that a pooled connection was acquired and queried.
    pub(crate) connections: u64,
    /// Records, effects and messages that another session read.
    pub(crate) records: u64,
    /// Concurrent calls that were not dropped.
    pub(crate) traffic: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, other: &Self) {
        self.drops += other.drops;
        self.polls += other.polls;
        self.most_polls = self.most_polls.max(other.most_polls);
        self.connections += other.connections;
        self.records += other.records;
        self.traffic += other.traffic;
    }
}

/// Counts of all cases that ran, by store and entry.
static TABLE: Mutex<BTreeMap<(String, String), Counts>> = Mutex::new(BTreeMap::new());

/// A case while it runs: its counts, and its problems.
#[derive(Debug, Default)]
pub(crate) struct Case {
    pub(crate) counts: Counts,
    problems: Vec<String>,
}

impl Case {
    pub(crate) fn problem(&mut self, problem: impl fmt::Display) {
        self.problems.push(problem.to_string());
    }

    /// Returns true if the case has so many problems that it may stop.
    pub(crate) fn is_hopeless(&self) -> bool {
        self.problems.len() >= 25
    }

    /// Adds the counts to the table, and fails if there were problems.
    pub(crate) fn end(self, store: &str, entry: &str) -> Result<(), Failed> {
        let key = (store.to_owned(), entry.to_owned());
        let mut table = TABLE.lock().unwrap_or_else(PoisonError::into_inner);
        table.entry(key).or_default().add(&self.counts);
        drop(table);
        let Some(first) = self.problems.first() else {
            return Ok(());
        };
        let mut text = format!(
            "{store}, {entry}: {} problems in {} drops, beginning with:\n  {first}",
            self.problems.len(),
            self.counts.drops
        );
        for problem in self.problems.iter().skip(1).take(9) {
            text.push_str("\n  ");
            text.push_str(problem);
        }
        // Printed immediately: the test runner reports failures only when all cases have ended.
        eprintln!("{text}");
        Err(text.into())
    }
}

/// Prints the counts of all cases that ran.
pub(crate) fn print_table() {
    let table = TABLE.lock().unwrap_or_else(PoisonError::into_inner);
    if table.is_empty() {
        return;
    }
    let mut sums: BTreeMap<&str, Counts> = BTreeMap::new();
    println!(
        "| store | entry | drops | polls | most polls of one call | connections inspected | records inspected | calls of the traffic |"
    );
    println!("| --- | --- | --: | --: | --: | --: | --: | --: |");
    for ((store, entry), counts) in table.iter() {
        print_row(store, entry, counts);
        sums.entry(store).or_default().add(counts);
    }
    for (store, counts) in sums {
        print_row(store, "all", &counts);
    }
}

fn print_row(store: &str, entry: &str, counts: &Counts) {
    let Counts {
        drops,
        polls,
        most_polls,
        connections,
        records,
        traffic,
    } = counts;
    println!(
        "| {store} | {entry} | {drops} | {polls} | {most_polls} | {connections} | {records} | {traffic} |"
    );
}
