//! `tests/mutation.toml`: the areas, their tests, and the accepted survivors.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context as _, ensure};
use serde::Deserialize;

use super::harness::{self, Harness};
use super::results::{Results, counted, without_place};

/// Path from the root of the repository.
pub(super) const PLAN: &str = "tests/mutation.toml";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Plan {
    pub(super) area: Vec<Area>,
    #[serde(default)]
    pub(super) accepted: Vec<Accepted>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Area {
    pub(super) name: String,
    /// Package of the files.
    pub(super) package: String,
    /// Globs of files, from the root of the repository. A file belongs to the first area that names it.
    pub(super) files: Vec<String>,
    /// Files of the areas before this one.
    #[serde(skip)]
    pub(super) except: Vec<String>,
    /// Tests that mutants run against, in this order, until one of them fails.
    #[serde(default)]
    pub(super) tests: Vec<Tests>,
    /// Area whose tests this one has, in place of its own.
    tests_of: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Tests {
    /// Modules of the integration tests, compiled without the others.
    pub(super) harness: Option<Harness>,
    /// Arguments of cargo, for compiling and running.
    #[serde(default)]
    pub(super) cargo: Vec<String>,
    /// Arguments of the test program: parts of the names of tests to run.
    #[serde(default)]
    pub(super) names: Vec<String>,
}

/// A mutant that no test needs to notice.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Accepted {
    /// Name as cargo-mutants prints it, without line and column.
    pub(super) mutant: String,
    /// Number of mutants with this name.
    #[serde(default = "one")]
    pub(super) count: usize,
    pub(super) reason: String,
}

fn one() -> usize {
    1
}

impl Tests {
    /// Arguments of cargo that select the tests.
    pub(super) fn cargo(&self) -> impl Iterator<Item = &str> {
        let of_harness = self.harness.as_ref().map(|_| harness::ARGUMENTS);
        let arguments = self.cargo.iter().map(String::as_str);
        arguments.chain(of_harness.into_iter().flatten())
    }
}

impl Plan {
    pub(super) fn read(path: &Path) -> anyhow::Result<Self> {
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        Self::parse(&text).with_context(|| path.display().to_string())
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let mut plan: Self = toml::from_str(text)?;
        let own = plan
            .area
            .iter()
            .map(|it| (it.name.clone(), it.tests.clone()));
        let own: BTreeMap<_, _> = own.collect();
        let mut taken = Vec::new();
        for area in &mut plan.area {
            area.except.clone_from(&taken);
            taken.extend_from_slice(&area.files);
            if let Some(other) = &area.tests_of {
                ensure!(
                    area.tests.is_empty(),
                    "{:?} has tests and `tests_of`",
                    area.name
                );
                let tests = own.get(other);
                area.tests = tests.with_context(|| format!("no area {other:?}"))?.clone();
            }
            ensure!(!area.tests.is_empty(), "{:?} has no tests", area.name);
        }
        Ok(plan)
    }

    pub(super) fn chosen(&self, names: &[String]) -> anyhow::Result<Vec<&Area>> {
        let known = || self.area.iter().map(|it| &*it.name);
        for name in names {
            ensure!(
                known().any(|it| it == name),
                "unknown area {name:?}: choose from {}",
                known().collect::<Vec<_>>().join(", ")
            );
        }
        let chosen = |area: &&Area| names.is_empty() || names.contains(&area.name);
        Ok(self.area.iter().filter(chosen).collect())
    }

    /// Number of survivors that are not accepted, by name.
    pub(super) fn open(&self, results: &Results) -> BTreeMap<String, usize> {
        let mut open = counted(results.missed.iter().map(|it| without_place(it)));
        for accepted in &self.accepted {
            if let Some(count) = open.get_mut(&accepted.mutant) {
                *count = count.saturating_sub(accepted.count);
            }
        }
        open.retain(|_, count| *count > 0);
        open
    }

    /// The accepted survivors with their reasons, as a list in Markdown.
    pub(super) fn accepted(&self, results: &Results) -> String {
        let missed = counted(results.missed.iter().map(|it| without_place(it)));
        let survivors = self.accepted.iter();
        survivors
            .filter(|it| missed.contains_key(&it.mutant))
            .map(|it| format!("- `{}`: {}\n", it.mutant, it.reason))
            .collect()
    }

    /// Compares the survivors of an area with the accepted ones. `existing` are the area's mutants. If all of them were
    /// tested, an accepted one that was caught is stale as well.
    pub(super) fn compare(
        &self,
        results: &Results,
        existing: &[String],
        is_whole: bool,
    ) -> Vec<String> {
        let mut complaints = Vec::new();
        for (name, count) in self.open(results) {
            complaints.push(format!("missed, {count} of this name: {name}"));
        }
        let existing = counted(existing.iter().cloned());
        let missed = counted(results.missed.iter().map(|it| without_place(it)));
        let files: BTreeSet<_> = existing
            .keys()
            .filter_map(|it| it.split(": ").next())
            .collect();
        for Accepted { mutant, count, .. } in &self.accepted {
            let is_ours = mutant
                .split(": ")
                .next()
                .is_some_and(|it| files.contains(it));
            let survivors = if is_whole { &missed } else { &existing };
            if is_ours && survivors.get(mutant).is_none_or(|it| it < count) {
                complaints.push(format!(
                    "accepted in {PLAN}, but no survivor any more: {mutant}"
                ));
            }
        }
        complaints
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        let text = r#"
            [[area]]
            name = "a"
            package = "p"
            files = ["a.rs"]
            tests = [{ cargo = ["--lib"] }]
            [[accepted]]
            mutant = "a.rs: replace < with <= in f"
            reason = "the two are equal at no time"
            [[accepted]]
            mutant = "b.rs: replace g with ()"
            reason = "of another area"
        "#;
        Plan::parse(text).expect("the plan is valid")
    }

    #[test]
    fn an_area_may_have_the_tests_of_another_one() {
        let area = |name: &str, tests: &str| {
            format!("[[area]]\nname = \"{name}\"\npackage = \"p\"\nfiles = [\"a.rs\"]\n{tests}\n")
        };
        let own = area("a", "tests = [{ names = [\"t\"] }]");
        let with = |tests| Plan::parse(&format!("{}{own}", area("b", tests)));
        let plan = with("tests_of = \"a\"").expect("the plan is valid");
        assert_eq!(plan.area[0].tests[0].names, ["t"]);
        for (tests, complaint) in [
            ("", "\"b\" has no tests"),
            ("tests_of = \"b\"", "\"b\" has no tests"),
            ("tests_of = \"c\"", "no area \"c\""),
            (
                "tests_of = \"a\"\ntests = [{}]",
                "\"b\" has tests and `tests_of`",
            ),
        ] {
            let error = with(tests).expect_err(complaint);
            assert_eq!(error.to_string(), complaint);
        }
    }

    #[test]
    fn a_file_belongs_to_the_first_area_that_names_it() {
        let area = |name: &str, files: &str| {
            format!(
                "[[area]]\nname = \"{name}\"\npackage = \"p\"\nfiles = [{files}]\ntests = [{{}}]\n"
            )
        };
        let areas = [
            area("a", "\"a.rs\""),
            area("b", "\"b.rs\""),
            area("c", "\"*.rs\""),
        ];
        let plan = Plan::parse(&areas.concat()).expect("the plan is valid");
        assert!(plan.area[0].except.is_empty());
        assert_eq!(plan.area[2].except, ["a.rs", "b.rs"]);
    }

    fn missed(names: &[&str]) -> Results {
        Results {
            caught: ["a.rs:9:9: replace f with ()".to_owned()].into(),
            missed: names.iter().map(|it| (*it).to_owned()).collect(),
            ..Results::default()
        }
    }

    #[test]
    fn survivors_that_are_not_accepted_are_reported() {
        let existing = [
            "a.rs: replace < with <= in f",
            "a.rs: replace < with <= in f",
        ];
        let existing = existing.map(str::to_owned);
        let compare = |results: &Results, is_whole| plan().compare(results, &existing, is_whole);
        let accepted = missed(&["a.rs:3:4: replace < with <= in f"]);
        assert_eq!(compare(&accepted, true), Vec::<String>::new());
        let second = missed(&[
            "a.rs:3:4: replace < with <= in f",
            "a.rs:5:4: replace < with <= in f",
        ]);
        assert_eq!(
            compare(&second, true),
            ["missed, 1 of this name: a.rs: replace < with <= in f"]
        );
        assert!(
            second
                .row("a", 1)
                .starts_with("| a | 3 | 0 | 1 | 0 | 1 | 1 | 33.3 % |")
        );
    }

    #[test]
    fn accepted_mutants_that_survive_no_more_are_reported() {
        let existing = ["a.rs: replace < with <= in f".to_owned()];
        let stale = plan().compare(&missed(&[]), &existing, true);
        assert_eq!(stale.len(), 1, "{stale:?}");
        assert!(stale[0].contains("replace < with <= in f"));
        // A shard says nothing about the mutants that it leaves out.
        assert!(plan().compare(&missed(&[]), &existing, false).is_empty());
        let gone = ["a.rs: replace f with ()".to_owned()];
        assert_eq!(plan().compare(&missed(&[]), &gone, false).len(), 1);
    }

    #[test]
    fn each_area_has_files_and_each_accepted_mutant_a_reason_and_a_file() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let plan = Plan::read(&root.join(PLAN)).expect("the file is valid");
        for area in &plan.area {
            for file in &area.files {
                let folder = file.split('*').next().expect("a part before the star");
                assert!(root.join(folder).exists(), "{}: {file}", area.name);
            }
            assert!(!area.tests.is_empty(), "{}", area.name);
        }
        for Accepted { mutant, reason, .. } in &plan.accepted {
            let file = mutant.split(": ").next().expect("a name has a file");
            assert!(root.join(file).is_file(), "{mutant}");
            assert!(reason.split(' ').count() >= 4, "{mutant}: {reason}");
        }
        assert!(plan.chosen(&["batcher".to_owned()]).is_ok());
        assert!(plan.chosen(&["bacher".to_owned()]).is_err());
    }

    #[test]
    fn names_are_compared_without_their_place() {
        let name = "src/a.rs:12:5: replace A::f -> Result<(), E> with Ok(())";
        let plain = "src/a.rs: replace A::f -> Result<(), E> with Ok(())";
        assert_eq!(without_place(name), plain);
        assert_eq!(without_place(plain), plain);
        assert_eq!(
            crate::mutation::lab::escape("a.rs:1: <T> with ()"),
            r"a\.rs:1: <T> with \(\)"
        );
    }
}
