//! `cargo xtask prove`: seeds of the simulator, states of the protocol, histories of stores, settings of servers, mutants,
//! fuzz targets, the checks of `idem-testing`, or an earlier build beside the current one.

mod beside;
mod fuzz;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail, ensure};
use toml::Value;
use xshell::cmd;

pub(crate) use self::fuzz::Fuzz;
use crate::copy::copy;
use crate::mutation::{Mutation, mutation};
use crate::run::Run;

/// What to prove.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Prove {
    /// First seed.
    pub(crate) seed: u64,
    /// Time for which seeds run.
    pub(crate) hours: f64,
    /// True to run the seeds on each defect of the engine instead.
    pub(crate) mutants: bool,
    /// Mutation testing instead.
    pub(crate) mutation: Option<Mutation>,
    /// True to compare the stores with the reference instead: sequences, and contended histories.
    pub(crate) histories: bool,
    /// True to search the states of the protocol instead.
    pub(crate) explore: bool,
    /// Fuzz targets to run instead.
    pub(crate) fuzz: Option<Fuzz>,
    /// Settings to try instead.
    pub(crate) settings: Option<Settings>,
    /// True to check the functions of `idem-testing` under many seeds instead.
    pub(crate) testing: bool,
    /// True to run processes of an earlier build beside those of the current one instead.
    pub(crate) formats: bool,
}

impl Default for Prove {
    fn default() -> Self {
        Self {
            seed: 0,
            hours: 0.05,
            mutants: false,
            mutation: None,
            histories: false,
            explore: false,
            fuzz: None,
            settings: None,
            testing: false,
            formats: false,
        }
    }
}

/// Settings under which the stores are tried. Without names, all of them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Settings {
    /// Name of an engine, such as `postgres`.
    pub(crate) engine: Option<String>,
    /// Name of a setting.
    pub(crate) name: Option<String>,
}

impl Settings {
    /// Engines that have settings.
    pub(crate) const ENGINES: [&str; 4] = ["postgres", "mariadb", "mysql", "redis"];

    /// Adds a word of the command line: an engine, and then a setting.
    pub(crate) fn add(&mut self, word: String) -> anyhow::Result<()> {
        match (&self.engine, &self.name) {
            (None, _) => {
                let engines = Self::ENGINES;
                ensure!(
                    engines.contains(&&*word),
                    "unknown engine {word:?}; use one of {}",
                    engines.join(", ")
                );
                self.engine = Some(word);
            }
            (Some(_), None) => self.name = Some(word),
            (Some(_), Some(_)) => bail!("`--settings` takes an engine and one setting"),
        }
        Ok(())
    }

    /// Arguments of the trials.
    fn filter(&self) -> Vec<String> {
        match (&self.engine, &self.name) {
            (Some(engine), Some(name)) => vec!["--exact".to_owned(), format!("{engine}::{name}")],
            (Some(engine), None) => vec![format!("{engine}::")],
            (None, _) => Vec::new(),
        }
    }
}

/// File with the defects of the engine.
const MUTANTS: &str = "tests/sim/mutants.toml";
/// Number of seeds after which a defect counts as not found.
const SEEDS: u64 = 100_000;

/// Runs seeds on all cores, and shows a progress bar. Fails if a seed breaks a promise.
pub(crate) fn prove(run: &mut Run, what: &Prove) -> anyhow::Result<()> {
    if what.mutants {
        return mutants(run);
    }
    if let Some(what) = &what.mutation {
        return mutation(run, what);
    }
    if what.histories {
        return histories(run, what.seed);
    }
    if what.explore {
        return explore(run);
    }
    if let Some(what) = &what.fuzz {
        return fuzz::fuzz(run, what);
    }
    if let Some(what) = &what.settings {
        return settings(run, what);
    }
    if what.testing {
        return testing(run);
    }
    if what.formats {
        return beside::beside(run);
    }
    let (cargo, seed, hours) = (run.cargo(), what.seed.to_string(), what.hours.to_string());
    run.step("simulation", |sh| {
        let seeds = cmd!(
            sh,
            "{cargo} run -q --profile simulation -p idem-sim -- --first {seed} --hours {hours}"
        );
        Ok(seeds.run()?)
    })
}

/// Compares every store with the reference, on private servers, and shows a progress bar.
fn histories(run: &mut Run, seed: u64) -> anyhow::Result<()> {
    let (cargo, seed) = (run.cargo(), seed.to_string());
    run.step("histories", |sh| {
        Ok(cmd!(sh, "{cargo} run -q -p idem-histories -- --seed {seed}").run()?)
    })
}

/// Tries the stores under settings, on private servers, and prints a table.
fn settings(run: &mut Run, what: &Settings) -> anyhow::Result<()> {
    let (cargo, filter) = (run.cargo(), what.filter());
    run.step("settings", |sh| {
        let trials = cmd!(
            sh,
            "{cargo} test -q --workspace --all-features --test settings -- --include-ignored {filter...}"
        );
        Ok(trials.run()?)
    })
}

/// Checks wrong functions, each of which must be found, and right ones, in which nothing may be found, under 1,000 seeds.
fn testing(run: &mut Run) -> anyhow::Result<()> {
    let cargo = run.cargo();
    run.step("checks of functions", |sh| {
        let checks = cmd!(
            sh,
            "{cargo} test -q -p idem-testing --all-features --test right --test wrong"
        );
        Ok(checks.env("IDEM_TESTING_SEEDS", "1000").run()?)
    })
}

/// Searches the states of the large setups, and shows how each defect of the transitions and decisions is found.
fn explore(run: &mut Run) -> anyhow::Result<()> {
    let cargo = run.cargo();
    for (name, option) in [("states", "--large"), ("defects", "--defects")] {
        run.step(name, |sh| {
            let search = cmd!(sh, "{cargo} run -q --release -p idem-explore -- {option}");
            Ok(search.run()?)
        })?;
    }
    Ok(())
}

/// A defect of the engine: a replacement in one file.
#[derive(Debug)]
struct Mutant {
    name: String,
    file: PathBuf,
    find: String,
    replace: String,
}

/// Applies each defect to a copy of the repository, and runs seeds until one fails.
fn mutants(run: &mut Run) -> anyhow::Result<()> {
    let (cargo, folder) = (run.cargo(), run.target().join("mutants"));
    let sources = folder.join("sources");
    run.step("a copy of the sources", |sh| {
        let files = cmd!(sh, "git ls-files -z --cached --others --exclude-standard").read()?;
        copy(&sh.current_dir(), &sources, &files)
    })?;
    let mutants = read(&sources.join(MUTANTS))?;
    let simulate = |arguments: &[&str]| {
        let mut command = Command::new(&cargo);
        command
            .args(["run", "-q", "--profile", "simulation"])
            .args(["-p", "idem-sim", "--"])
            .args(arguments);
        command.current_dir(&sources);
        command.env("CARGO_TARGET_DIR", folder.join("target"));
        command
    };
    let mut found = BTreeMap::new();
    for mutant in &mutants {
        run.step(&mutant.name, |_| {
            let path = sources.join(&mutant.file);
            let text = fs::read_to_string(&path)?;
            fs::write(&path, mutant.apply(&text)?)?;
            let seeds = SEEDS.to_string();
            let output = simulate(&["--seeds", &seeds, "--terse"]).output();
            fs::write(&path, text)?;
            let output = output?;
            let printed = String::from_utf8_lossy(&output.stdout);
            let first = printed.lines().next().unwrap_or_default().to_owned();
            let built = first.starts_with("seed ") || output.status.success();
            ensure!(built, "{}", String::from_utf8_lossy(&output.stderr));
            println!("{first}");
            found.insert(mutant.name.clone(), first);
            Ok(())
        })?;
    }
    let survivors: Vec<_> = found
        .iter()
        .filter(|(_, first)| !first.starts_with("seed "))
        .map(|(name, _)| name.as_str())
        .collect();
    println!(
        "\n{} of {} defects found",
        found.len() - survivors.len(),
        found.len()
    );
    if !survivors.is_empty() {
        bail!("not found in {SEEDS} seeds: {}", survivors.join(", "));
    }
    Ok(())
}

fn read(path: &Path) -> anyhow::Result<Vec<Mutant>> {
    let table: toml::Table = fs::read_to_string(path)?.parse()?;
    let mutants = table.get("mutant").and_then(Value::as_array);
    let mutants = mutants.context("no `[[mutant]]`")?;
    let text = |mutant: &Value, field: &str| {
        let value = mutant.get(field).and_then(Value::as_str);
        value
            .map(str::to_owned)
            .with_context(|| format!("a mutant has no `{field}`"))
    };
    mutants
        .iter()
        .map(|mutant| {
            Ok(Mutant {
                name: text(mutant, "name")?,
                file: text(mutant, "file")?.into(),
                find: text(mutant, "find")?,
                replace: text(mutant, "replace")?,
            })
        })
        .collect()
}

impl Mutant {
    /// Replaces the text, which must occur once.
    fn apply(&self, text: &str) -> anyhow::Result<String> {
        let count = text.matches(&self.find).count();
        let (name, file) = (&self.name, self.file.display());
        ensure!(count == 1, "{name}: `find` occurs {count} times in {file}");
        Ok(text.replace(&self.find, &self.replace))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_defect_fits_the_sources() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mutants = read(&root.join(MUTANTS)).expect("the file is valid");
        assert!(mutants.len() >= 15, "{} mutants", mutants.len());
        for mutant in &mutants {
            let text = fs::read_to_string(root.join(&mutant.file)).expect("the file exists");
            let changed = mutant.apply(&text).expect("the text occurs once");
            assert_ne!(changed, text, "{}", mutant.name);
        }
    }
}
