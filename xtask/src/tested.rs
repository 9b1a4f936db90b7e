//! Versions of the servers that the tests ran on: `docs/tested-with.json`, and the table that is written from it.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use crate::tables::Table;

/// File with the versions, from the root of the repository.
pub(crate) const FILE: &str = "docs/tested-with.json";

/// Pages that contain the table, from the root of the repository.
const PAGES: [&str; 2] = ["README.md", "docs/book/src/stores.md"];

/// Tests that a version passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Tests {
    /// All tests.
    All,
    /// The conformance table.
    Conformance,
}

/// Versions by set and server: the last one of each set.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Tested(BTreeMap<String, BTreeMap<String, Row>>);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Row {
    version: String,
    tests: Tests,
}

impl Tested {
    /// Reads the file in a repository.
    pub(crate) fn read(root: &Path) -> anyhow::Result<Self> {
        let path = root.join(FILE);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Self::default());
            }
            Err(error) => return Err(error).with_context(|| format!("cannot read {FILE}")),
        };
        serde_json::from_str(&text).with_context(|| format!("{FILE} is not a table of versions"))
    }

    /// Contents of the file.
    pub(crate) fn json(&self) -> anyhow::Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// Notes the tests that a version passed. A run of all tests of a version counts more than a later run of the
    /// conformance table of the same version.
    pub(crate) fn note(&mut self, set: &str, server: &str, version: &str, tests: Tests) {
        // The rest is the revision of a package.
        let version = version.split('-').next().unwrap_or(version).to_owned();
        let row = Row { version, tests };
        let rows = self.0.entry(set.to_owned()).or_default();
        match rows.get(server) {
            Some(old)
                if old.version == row.version
                    && old.tests == Tests::All
                    && tests == Tests::Conformance => {}
            _ => {
                rows.insert(server.to_owned(), row);
            }
        }
    }

    fn table(&self) -> String {
        const SERVERS: [&str; 6] = [
            "PostgreSQL",
            "PgBouncer",
            "MySQL",
            "MariaDB",
            "Redis",
            "Valkey",
        ];
        let head =
            "| server | passed all tests | passed the conformance table |\n| --- | --- | --- |\n";
        let mut table = head.to_owned();
        for server in SERVERS {
            let rows: Vec<_> = self
                .0
                .values()
                .filter_map(|rows| rows.get(server))
                .collect();
            let of = |tests: Tests| {
                let rows = rows.iter().filter(|it| it.tests == tests);
                let mut versions: Vec<_> = rows.map(|it| it.version.as_str()).collect();
                versions.sort_by_key(|it| numbers(it));
                versions.dedup();
                match versions.is_empty() {
                    true => "–".to_owned(),
                    false => versions.join(", "),
                }
            };
            if !rows.is_empty() {
                let [all, conformance] = [Tests::All, Tests::Conformance].map(of);
                table.push_str(&format!("| {server} | {all} | {conformance} |\n"));
            }
        }
        table
    }
}

/// The table of versions, for each of its pages.
pub(crate) fn tables(root: &Path) -> anyhow::Result<Vec<Table>> {
    let text = Tested::read(root)?.table();
    let tables = PAGES.map(|page| Table {
        name: "versions".to_owned(),
        source: FILE.to_owned(),
        page: page.to_owned(),
        text: text.clone(),
    });
    Ok(tables.into())
}

/// Numbers of a version, which sort as versions do.
fn numbers(version: &str) -> Vec<u32> {
    version
        .split('.')
        .map(|it| it.parse().unwrap_or(0))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_the_last_version_of_each_set() {
        let mut tested = Tested::default();
        tested.note("newest", "MariaDB", "11.8.8-MariaDB-1", Tests::Conformance);
        tested.note("newest", "MariaDB", "11.8.9-MariaDB-4", Tests::Conformance);
        tested.note("debian12", "MariaDB", "10.11.14", Tests::All);
        tested.note("postgres-13", "PostgreSQL", "13.23", Tests::All);
        // The same version, with fewer tests.
        tested.note("postgres-13", "PostgreSQL", "13.23", Tests::Conformance);
        tested.note("postgres-14", "PostgreSQL", "14.9", Tests::All);
        let table = tested.table();
        let rows: Vec<_> = table.lines().skip(2).collect();
        assert_eq!(
            rows,
            [
                "| PostgreSQL | 13.23, 14.9 | – |",
                "| MariaDB | 10.11.14 | 11.8.9 |",
            ]
        );
    }
}
