//! `cargo xtask prove --mutation`: changes one place of the sources at a time, and runs the tests that should notice.
//!
//! cargo-mutants lists the mutants. They run in a copy of the sources, most of them in one program. `tests/mutation.toml`
//! has the areas of the code, the tests of each, and the accepted survivors: mutants that no test needs to notice, with
//! the reason.

mod harness;
mod lab;
mod plan;
mod results;
mod switch;

use std::process::Command;
use std::str::FromStr;

use anyhow::{Context as _, bail, ensure};
use xshell::cmd;

use self::lab::Lab;
use self::plan::{PLAN, Plan};
use self::results::{TABLE, without_place};
use crate::copy::copy;
use crate::run::Run;

const INSTALL: &str =
    "cargo-mutants is not installed: install it with `cargo install --locked cargo-mutants`";

/// Which mutants to test.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Mutation {
    /// Names of areas; all of them if empty.
    pub(crate) areas: Vec<String>,
    pub(crate) shard: Option<Shard>,
}

/// A part of the mutants of each area: every `of`-th, from the `first`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shard {
    first: usize,
    of: usize,
}

impl FromStr for Shard {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (first, of) = text
            .split_once('/')
            .context("a shard is written as `0/4`")?;
        let (first, of): (usize, usize) = (first.parse()?, of.parse()?);
        ensure!(
            first < of,
            "the shards of {of} are 0 to {}",
            of.saturating_sub(1)
        );
        Ok(Self { first, of })
    }
}

impl Shard {
    fn of<T>(self, all: Vec<T>) -> Vec<T> {
        all.into_iter().skip(self.first).step_by(self.of).collect()
    }
}

/// Tests the mutants of each area. Fails if one survives that is not accepted, or if the list of accepted ones is stale.
pub(crate) fn mutation(run: &mut Run, what: &Mutation) -> anyhow::Result<()> {
    let plan = Plan::read(&run.shell().current_dir().join(PLAN))?;
    let areas = plan.chosen(&what.areas)?;
    let cargo = run.cargo();
    let version = Command::new(&cargo).args(["mutants", "--version"]).output();
    ensure!(version.is_ok_and(|it| it.status.success()), INSTALL);
    let folder = run.target().join("mutation");
    let sources = folder.join("sources");
    run.step("a copy of the sources", |sh| {
        let files = cmd!(sh, "git ls-files -z --cached --others --exclude-standard").read()?;
        copy(&sh.current_dir(), &sources, &files)
    })?;
    let (mut table, mut survivors) = (String::from(TABLE), String::new());
    let mut complaints = Vec::new();
    for area in areas {
        let lab = Lab {
            cargo: cargo.clone(),
            sources: &sources,
            folder: &folder,
            area,
        };
        let all = lab.list()?;
        let existing: Vec<_> = all.iter().map(|it| without_place(&it.name)).collect();
        let mutants = match what.shard {
            None => all,
            Some(shard) => shard.of(all),
        };
        let results = run.step(&format!("mutants of {}", area.name), |_| lab.test(&mutants))?;
        results.write(&folder.join(&area.name))?;
        complaints.extend(plan.compare(&results, &existing, what.shard.is_none()));
        table += &results.row(&area.name, plan.open(&results).values().sum());
        survivors += &plan.accepted(&results);
    }
    println!("\n{table}\n{survivors}");
    if !complaints.is_empty() {
        bail!("{}", complaints.join("\n"));
    }
    Ok(())
}
