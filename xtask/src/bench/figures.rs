//! Tables of the pages that have figures of benchmarks. `docs/bench/tables.toml` describes them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, bail, ensure};
use idem_report::{Contestant, duration, ratio};
use serde::Deserialize;

use crate::bench::{RESULTS, Results};
use crate::tables::Table;

/// File with the descriptions, beside the results.
const FILE: &str = "tables.toml";

/// Description of a table.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Described {
    page: String,
    /// Benchmark that has the figures.
    part: String,
    /// Figure of the rows that do not name another one.
    figure: String,
    heads: Vec<String>,
    /// Reports whose figures are in a column, after the column of labels.
    columns: Vec<Vec<String>>,
    rows: Vec<Row>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    label: String,
    figure: Option<String>,
    /// Names in the reports. Not every report has all of them. A headline has none.
    #[serde(default)]
    contestants: Vec<String>,
}

/// The tables, with the figures of the last results.
pub(crate) fn tables(root: &Path) -> anyhow::Result<Vec<Table>> {
    let folder = root.join(RESULTS);
    let read = |name: &str| {
        fs::read_to_string(folder.join(name))
            .with_context(|| format!("cannot read {RESULTS}/{name}"))
    };
    let described: BTreeMap<String, Described> =
        toml::from_str(&read(FILE)?).with_context(|| format!("{RESULTS}/{FILE} is invalid"))?;
    let tables = described.into_iter().map(|(name, it)| {
        let file = format!("{}.json", it.part);
        let source = format!("{RESULTS}/{file}");
        let results = serde_json::from_str(&read(&file)?)
            .with_context(|| format!("{source} has no results of a benchmark"))?;
        let text = it.text(&results);
        Ok(Table {
            text: text.with_context(|| format!("table `{name}` of {RESULTS}/{FILE}, {source}"))?,
            name,
            source,
            page: it.page,
        })
    });
    tables.collect()
}

impl Described {
    /// The table, and the circumstances of the measurement.
    fn text(&self, results: &Results) -> anyhow::Result<String> {
        ensure!(
            self.heads.len() == self.columns.len() + 1,
            "it needs one head for the labels and one for each column"
        );
        let right = " --: |".repeat(self.columns.len());
        let mut text = format!("| {} |\n| --- |{right}\n", self.heads.join(" | "));
        for row in &self.rows {
            let cells = self.cells(row, results)?;
            text += &format!("| {} | {} |\n", row.label, cells.join(" | "));
        }
        Ok(text + "\n" + &self.circumstances(results))
    }

    fn cells(&self, row: &Row, results: &Results) -> anyhow::Result<Vec<String>> {
        let mut found = Vec::new();
        let figure = row.figure.as_ref().unwrap_or(&self.figure);
        let mut cells = Vec::new();
        for titles in &self.columns {
            let mut figures = Vec::new();
            for title in titles {
                let report = results.tables.iter().find(|it| it.title == *title);
                let report =
                    report.with_context(|| format!("no report has the title `{title}`"))?;
                for it in &row.contestants {
                    let contestant = report.contestants.iter().find(|one| one.name == *it);
                    if let Some(contestant) = contestant {
                        figures.push(print(contestant, figure)?);
                        found.push(it);
                    }
                }
            }
            cells.push(figures.join(" / "));
        }
        match row.contestants.iter().find(|it| !found.contains(it)) {
            Some(missing) => bail!("no report has the contestant `{missing}`"),
            None => Ok(cells),
        }
    }

    /// The date, the command and the machine, as a sentence of two lines.
    fn circumstances(&self, results: &Results) -> String {
        let titles = || self.columns.iter().flatten();
        let servers = results.machine.servers.iter();
        let used = servers.filter(|(name, _)| titles().any(|it| it.contains(name.as_str())));
        let servers = used.map(|(name, version)| {
            format!(", {name} {}", version.split('-').next().unwrap_or(version))
        });
        let note = results.note.iter().map(|it| format!(", {it},"));
        let tables = results.tables.iter();
        let contestants = tables
            .filter(|it| titles().any(|title| *title == it.title))
            .flat_map(|it| &it.contestants);
        let rounds: Vec<_> = contestants.map(|it| it.rounds).collect();
        let (least, most) = (rounds.iter().min(), rounds.iter().max());
        format!(
            "Measured on {}{} with `{}`{}:\n{}; medians of {}{} rounds.\n",
            results.date,
            note.collect::<String>(),
            results.command,
            servers.collect::<String>(),
            results.machine.line(),
            if least == most { "" } else { "up to " },
            most.copied().unwrap_or_default()
        )
    }
}

/// A figure of a contestant: the ratio to the baseline, the time of a call, calls per second, or a counter.
fn print(contestant: &Contestant, figure: &str) -> anyhow::Result<String> {
    Ok(match figure {
        "ratio" => ratio(contestant.ratio.median).replace('x', ""),
        "time" => duration(contestant.nanoseconds),
        "calls/second" => thousands(1e9 / contestant.nanoseconds),
        counter => {
            let found = contestant.counters.get(counter);
            let about = || format!("`{}` has no figure `{counter}`", contestant.name);
            format!("{:.2}", found.with_context(about)?)
        }
    })
}

/// A whole number with commas between groups of three digits.
fn thousands(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (number, digit) in digits.chars().enumerate() {
        if number > 0 && (digits.len() - number) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const DESCRIBED: &str = r#"
        page = "a.md"
        part = "load"
        figure = "calls/second"
        heads = ["first / replay", "1 task", "both"]
        columns = [["PostgreSQL, 1"], ["PostgreSQL, 1", "2"]]
        rows = [
          { label = "**rates**" },
          { label = "idem", contestants = ["first", "replay"] },
          { label = "ratio", figure = "ratio", contestants = ["replay"] },
          { label = "commits", figure = "commits", contestants = ["replay"] },
        ]
    "#;

    fn results() -> Results {
        let contestant = |name, nanoseconds, ratio| {
            serde_json::json!({
                "name": name, "rounds": 9, "nanoseconds": nanoseconds, "counters": {"commits": 0.25},
                "ratio": {"lowest": 1, "lower_quartile": 1, "median": ratio, "upper_quartile": 1, "highest": 1},
            })
        };
        let first = contestant("first", 800.0, 1.0);
        let results = serde_json::json!({
            "part": "load", "about": "", "command": "cargo xtask bench load", "date": "2026-11-24",
            "note": "beside other work",
            "machine": {
                "cpu": "Acme", "cores": 2, "fsync_microseconds": 120.0, "rustc": "",
                "servers": {"PostgreSQL": "15.20-1", "Redis": "7"},
            },
            "tables": [
                {"title": "PostgreSQL, 1", "contestants": [first, contestant("replay", 1e8, 37.9)]},
                {"title": "2", "contestants": [contestant("replay", 5e4, 0.5)]},
            ],
        });
        serde_json::from_value(results).unwrap()
    }

    #[test]
    fn a_cell_has_the_figures_of_its_reports_and_contestants() {
        let described: Described = toml::from_str(DESCRIBED).unwrap();
        let text = described.text(&results()).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "| first / replay | 1 task | both |",
                "| --- | --: | --: |",
                "| **rates** |  |  |",
                "| idem | 1,250,000 / 10 | 1,250,000 / 10 / 20,000 |",
                "| ratio | 37.90 | 37.90 / 0.50 |",
                "| commits | 0.25 | 0.25 / 0.25 |",
                "",
                "Measured on 2026-11-24, beside other work, with `cargo xtask bench load`, PostgreSQL 15.20:",
                "Acme, 2 cores; a flush takes 120.00 µs; medians of 9 rounds.",
            ]
        );
    }

    #[test]
    fn a_name_that_the_results_do_not_have_is_refused() {
        for (old, new) in [
            ("\"2\"", "\"3\""),
            ("\"first\"", "\"frist\""),
            ("= \"commits\"", "= \"comits\""),
            ("\"both\"", "\"both\", \"more\""),
        ] {
            let described: Described = toml::from_str(&DESCRIBED.replace(old, new)).unwrap();
            assert!(described.text(&results()).is_err(), "{new}");
        }
        assert!(toml::from_str::<Described>(&DESCRIBED.replace("part", "prat")).is_err());
    }
}
