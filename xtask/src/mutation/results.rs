//! What became of the mutants of an area.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

pub(super) const TABLE: &str = "\
| area | mutants | do not compile | caught | caught by a time limit | accepted | missed | caught of those that compile |
| --- | --: | --: | --: | --: | --: | --: | --: |
";

/// Names of the mutants of an area, by what became of them.
#[derive(Debug, Default)]
pub(super) struct Results {
    pub(super) caught: BTreeSet<String>,
    pub(super) timed_out: BTreeSet<String>,
    pub(super) unviable: BTreeSet<String>,
    pub(super) missed: BTreeSet<String>,
}

/// Files of cargo-mutants with the names of the mutants that were caught, took too long, did not compile, or survived.
const FILES: [&str; 4] = ["caught.txt", "timeout.txt", "unviable.txt", "missed.txt"];

impl Results {
    pub(super) fn read(folder: &Path) -> anyhow::Result<Self> {
        let names = |file: &str| {
            let text = fs::read_to_string(folder.join(file))?;
            anyhow::Ok(text.lines().map(str::to_owned).collect())
        };
        let [caught, timed_out, unviable, missed] = FILES.map(names);
        Ok(Self {
            caught: caught?,
            timed_out: timed_out?,
            unviable: unviable?,
            missed: missed?,
        })
    }

    /// Adds a mutant: whether the tests passed, or `None` if they took too long.
    pub(super) fn insert(&mut self, name: &str, passed: Option<bool>) {
        let names = match passed {
            Some(true) => &mut self.missed,
            Some(false) => &mut self.caught,
            None => &mut self.timed_out,
        };
        names.insert(name.to_owned());
    }

    /// Adds the results of the mutants that earlier tests have missed.
    pub(super) fn add(&mut self, later: Self) {
        self.missed.clear();
        self.merge(later);
    }

    /// Adds the results of other mutants.
    pub(super) fn merge(&mut self, others: Self) {
        self.caught.extend(others.caught);
        self.timed_out.extend(others.timed_out);
        self.unviable.extend(others.unviable);
        self.missed.extend(others.missed);
    }

    /// Writes the names into files.
    pub(super) fn write(&self, folder: &Path) -> anyhow::Result<()> {
        fs::create_dir_all(folder)?;
        let results = [&self.caught, &self.timed_out, &self.unviable, &self.missed];
        for (file, names) in FILES.iter().zip(results) {
            let lines = names.iter().map(|name| format!("{name}\n"));
            fs::write(folder.join(file), lines.collect::<String>())?;
        }
        Ok(())
    }

    /// A row of the table, in Markdown. `open` is the number of survivors that are not accepted.
    pub(super) fn row(&self, area: &str, open: usize) -> String {
        let missed = self.missed.len();
        let (caught, slow) = (self.caught.len(), self.timed_out.len());
        let viable = caught + slow + missed;
        let all = viable + self.unviable.len();
        let share = 100.0 * (caught + slow) as f64 / viable.max(1) as f64;
        format!(
            "| {area} | {all} | {} | {caught} | {slow} | {} | {open} | {share:.1} % |\n",
            self.unviable.len(),
            missed - open,
        )
    }
}

pub(super) fn counted(names: impl Iterator<Item = String>) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for name in names {
        *counts.entry(name).or_default() += 1;
    }
    counts
}

/// Name of a mutant without the line and the column of its place: `FILE: WHAT` from `FILE:LINE:COLUMN: WHAT`.
pub(super) fn without_place(name: &str) -> String {
    let Some((place, what)) = name.split_once(": ") else {
        return name.to_owned();
    };
    let file = place.split(':').next().unwrap_or(place);
    format!("{file}: {what}")
}
