//! Runs the mutants of an area against its tests.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use serde_json::Value as Json;

use super::plan::{Area, Tests};
use super::results::Results;
use super::switch::{self, Genre, Mutant, Switched, switched};

/// Time that a test run may take, in times of the run without a mutant, and at least.
const SLOWER: u32 = 4;
const LEAST: Duration = Duration::from_secs(20);

/// Runs the mutants of one area in a copy of the repository.
pub(super) struct Lab<'a> {
    pub(super) cargo: OsString,
    /// The copy.
    pub(super) sources: &'a Path,
    /// Folder for programs and results.
    pub(super) folder: &'a Path,
    pub(super) area: &'a Area,
}

/// Mutants by their numbers.
type Numbered<'m> = BTreeMap<usize, &'m Mutant>;

impl Lab<'_> {
    fn command(&self) -> Command {
        let mut command = Command::new(&self.cargo);
        command.current_dir(self.sources);
        // Not that of the repository: cargo would take the programs of the copy for those of the repository.
        command.env("CARGO_TARGET_DIR", self.folder.join("target"));
        // Each step changes a few files of one crate.
        command.env("CARGO_INCREMENTAL", "1");
        command.env("CARGO_PROFILE_DEV_DEBUG", "0");
        command
    }

    fn cargo_mutants(&self) -> Command {
        let mut command = self.command();
        command.args(["mutants", "--colors", "never"]);
        command.args(["--package", &self.area.package]);
        for file in &self.area.files {
            command.args(["--file", file]);
        }
        for file in &self.area.except {
            command.args(["--exclude", file]);
        }
        command
    }

    /// All mutants of the area.
    pub(super) fn list(&self) -> anyhow::Result<Vec<Mutant>> {
        let output = self.cargo_mutants().args(["--list", "--json"]).output()?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{errors}");
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    /// Runs the mutants against the tests of the area, one set of tests after the other.
    pub(super) fn test(&self, mutants: &[Mutant]) -> anyhow::Result<Results> {
        let mut results = Results::default();
        let mut left: Numbered<'_> = mutants.iter().enumerate().collect();
        for tests in &self.area.tests {
            if left.is_empty() {
                break;
            }
            if let Some(harness) = &tests.harness {
                harness.write(self.sources)?;
            }
            let found = self.round(tests, &left)?;
            left.retain(|_, mutant| found.missed.contains(&mutant.name));
            results.add(found);
        }
        Ok(results)
    }

    /// Runs mutants against one set of tests.
    fn round(&self, tests: &Tests, mutants: &Numbered<'_>) -> anyhow::Result<Results> {
        let mut results = Results::default();
        let files = Files::read(self.sources, &self.area.package, mutants)?;
        let built = self.build(tests, &files, mutants);
        let ran = built.and_then(|(programs, switched, refused)| {
            let name = |number: &usize| mutants[number].name.clone();
            results.unviable.extend(refused.iter().map(name));
            println!("{} mutants in one program", switched.len());
            self.run(tests, &programs, &switched, mutants, &mut results)?;
            Ok(switched.union(&refused).copied().collect())
        });
        files.restore(self.sources)?;
        let done: BTreeSet<usize> = ran?;
        let others = mutants.iter().filter(|(number, _)| !done.contains(number));
        let others: Vec<_> = others.map(|(_, mutant)| *mutant).collect();
        if !others.is_empty() {
            self.run_alone(tests, &others, &mut results)?;
        }
        Ok(results)
    }

    /// Builds the tests with all mutants. Returns the programs, the mutants in them, and those that do not compile.
    fn build(
        &self,
        tests: &Tests,
        files: &Files,
        mutants: &Numbered<'_>,
    ) -> anyhow::Result<(Vec<Program>, BTreeSet<usize>, BTreeSet<usize>)> {
        let libraries = libraries()?;
        let mut dropped = BTreeSet::new();
        loop {
            let written = files.write(self.sources, mutants, &dropped)?;
            let mut command = self.command();
            command.args(["test", "--no-run", "--quiet", "--message-format=json"]);
            command.args(["--package", &self.area.package]);
            let output = command.args(tests.cargo()).output()?;
            let messages = Messages::read(&output.stdout, &libraries)?;
            if output.status.success() {
                let refused = dropped.into_iter();
                // The value of a function is checked as in the mutant itself. Other mutants have another form here.
                let refused = refused.filter(|it| mutants[it].genre == Genre::FnValue);
                let switched = written.values().flat_map(|it| it.mutants.iter().copied());
                return Ok((messages.programs, switched.collect(), refused.collect()));
            }
            let before = dropped.len();
            for (file, place) in &messages.errors {
                let switched = written.get(file);
                dropped.extend(switched.into_iter().flat_map(|it| it.at(place)));
            }
            if dropped.len() == before {
                // A `match` that has lost an arm is reported at its value, which belongs to no mutant.
                let files: BTreeSet<_> = messages.errors.iter().map(|(file, _)| file).collect();
                let switched = files.into_iter().filter_map(|file| written.get(file));
                let switched = switched.flat_map(|it| it.mutants.iter().copied());
                dropped.extend(switched.filter(|it| mutants[it].genre == Genre::MatchArm));
            }
            println!("{} mutants do not compile", dropped.len());
            if dropped.len() == before {
                let errors = String::from_utf8_lossy(&output.stderr);
                bail!("{}{errors}", messages.rendered);
            }
        }
    }

    fn run(
        &self,
        tests: &Tests,
        programs: &[Program],
        switched: &BTreeSet<usize>,
        mutants: &Numbered<'_>,
        results: &mut Results,
    ) -> anyhow::Result<()> {
        let began = Instant::now();
        for program in programs {
            let status = program.run(&tests.names, None, Duration::MAX)?;
            ensure!(status == Some(true), "{program:?} fails without a mutant");
        }
        let limit = LEAST.max(began.elapsed() * SLOWER);
        let left = Mutex::new(switched.iter());
        let missed = AtomicUsize::new(0);
        let results = Mutex::new(results);
        let work = || -> anyhow::Result<()> {
            while let Some(&number) = next(&left) {
                let name = &mutants[&number].name;
                let ended = test(programs, &tests.names, number, limit)?;
                if ended == Some(true) {
                    let count = missed.fetch_add(1, Ordering::Relaxed) + 1;
                    println!("{count} of {} missed: {name}", switched.len());
                }
                lock(&results).insert(name, ended);
            }
            Ok(())
        };
        // Most tests wait for something, and many run on one thread.
        let workers = std::thread::available_parallelism()?.get();
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
            workers
                .into_iter()
                .try_for_each(|it| it.join().expect("a worker does not panic"))
        })
    }

    /// Runs the mutants that cannot be in one program with others.
    fn run_alone(
        &self,
        tests: &Tests,
        mutants: &[&Mutant],
        results: &mut Results,
    ) -> anyhow::Result<()> {
        let mut command = self.cargo_mutants();
        for mutant in mutants {
            command.args(["--re", &format!("^{}$", escape(&mutant.name))]);
        }
        let output = self.folder.join(&self.area.name);
        command.arg("--in-place").arg("--output").arg(&output);
        for argument in tests.cargo() {
            command.arg(format!("--cargo-arg={argument}"));
        }
        for argument in ["--"].into_iter().chain(tests.names.iter().map(|it| &**it)) {
            command.arg(format!("--cargo-test-arg={argument}"));
        }
        let status = command.status()?;
        // Success, mutants that were missed, and mutants whose tests took too long.
        ensure!(
            matches!(status.code(), Some(0 | 2 | 3)),
            "cargo-mutants failed: {status}"
        );
        results.merge(Results::read(&output.join("mutants.out"))?);
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The next one of an iterator that several threads share.
fn next<T: Iterator>(left: &Mutex<T>) -> Option<T::Item> {
    lock(left).next()
}

/// Runs the programs with a mutant until one fails. Returns whether all passed, and `None` if one took too long.
fn test(
    programs: &[Program],
    names: &[String],
    mutant: usize,
    limit: Duration,
) -> anyhow::Result<Option<bool>> {
    for program in programs {
        let ended = program.run(names, Some(mutant), limit)?;
        if ended != Some(true) {
            return Ok(ended);
        }
    }
    Ok(Some(true))
}

/// Folder with the libraries of the toolchain.
fn libraries() -> anyhow::Result<PathBuf> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc)
        .args(["--print", "target-libdir"])
        .output()?;
    ensure!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8(output.stdout)?.trim().into())
}

/// Escapes a text for a regular expression.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for letter in text.chars() {
        if r"\.+*?()|[]{}^$".contains(letter) {
            escaped.push('\\');
        }
        escaped.push(letter);
    }
    escaped
}

/// The files that mutants change, as they were.
struct Files {
    texts: BTreeMap<String, String>,
    root: String,
}

impl Files {
    fn read(sources: &Path, package: &str, mutants: &Numbered<'_>) -> anyhow::Result<Self> {
        let root = format!("{package}/src/lib.rs");
        let names = mutants.values().map(|it| it.file.clone());
        let texts = names.chain([root.clone()]).map(|name| {
            let text = fs::read_to_string(sources.join(&name)).with_context(|| name.clone())?;
            Ok((name, text))
        });
        Ok(Self {
            texts: texts.collect::<anyhow::Result<_>>()?,
            root,
        })
    }

    /// Writes the mutants into the files, without those that were dropped.
    fn write(
        &self,
        sources: &Path,
        mutants: &Numbered<'_>,
        dropped: &BTreeSet<usize>,
    ) -> anyhow::Result<BTreeMap<String, Switched>> {
        let mut written = BTreeMap::new();
        for (name, text) in &self.texts {
            let here = mutants
                .iter()
                .filter(|(number, mutant)| mutant.file == *name && !dropped.contains(number));
            let here: Vec<_> = here.map(|(number, mutant)| (*number, *mutant)).collect();
            let switched = switched(text, &here).with_context(|| name.clone())?;
            let module = if *name == self.root {
                switch::MODULE
            } else {
                ""
            };
            let text = format!("{}{module}", switched.text);
            let path = sources.join(name);
            if fs::read_to_string(&path)? != text {
                fs::write(path, text)?;
            }
            written.insert(name.clone(), switched);
        }
        Ok(written)
    }

    fn restore(&self, sources: &Path) -> anyhow::Result<()> {
        for (name, text) in &self.texts {
            fs::write(sources.join(name), text)?;
        }
        Ok(())
    }
}

/// A test program.
#[derive(Debug)]
struct Program {
    path: PathBuf,
    package: PathBuf,
    /// Folder with the libraries of the toolchain.
    libraries: PathBuf,
}

impl Program {
    /// Runs the tests, with or without a mutant. Returns whether they passed, and `None` if they took too long.
    fn run(
        &self,
        names: &[String],
        mutant: Option<usize>,
        limit: Duration,
    ) -> anyhow::Result<Option<bool>> {
        let mut command = Command::new(&self.path);
        command.args(names).current_dir(&self.package);
        command.env("CARGO_MANIFEST_DIR", &self.package);
        // The tests of a procedural macro load the compiler's own libraries, as `cargo test` arranges.
        for variable in ["LD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH"] {
            command.env(variable, &self.libraries);
        }
        if let Some(mutant) = mutant {
            command.env(switch::VARIABLE, mutant.to_string());
        }
        let mut child = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let began = Instant::now();
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(Some(status.success()));
            }
            if began.elapsed() > limit {
                child.kill()?;
                child.wait()?;
                return Ok(None);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// What cargo said of a build.
#[derive(Default)]
struct Messages {
    programs: Vec<Program>,
    /// Files and ranges of bytes.
    errors: Vec<(String, Range<usize>)>,
    rendered: String,
}

impl Messages {
    fn read(output: &[u8], libraries: &Path) -> anyhow::Result<Self> {
        let mut messages = Self::default();
        for line in output
            .split(|byte| *byte == b'\n')
            .filter(|it| !it.is_empty())
        {
            let Ok(message) = serde_json::from_slice::<Json>(line) else {
                continue;
            };
            // Programs without tests of their own are built for the tests as well.
            if message["profile"]["test"] == true
                && let Some(path) = message["executable"].as_str()
            {
                let manifest = message["manifest_path"].as_str().map(Path::new);
                let package = manifest.and_then(Path::parent).context("no manifest")?;
                messages.programs.push(Program {
                    path: path.into(),
                    package: package.to_owned(),
                    libraries: libraries.to_owned(),
                });
            }
            if message["message"]["level"] == "error" {
                messages.error(&message["message"]);
            }
        }
        Ok(messages)
    }

    fn error(&mut self, message: &Json) {
        self.rendered += message["rendered"].as_str().unwrap_or_default();
        for span in message["spans"].as_array().into_iter().flatten() {
            let offset = |name: &str| span[name].as_u64().and_then(|it| usize::try_from(it).ok());
            if span["is_primary"] == true
                && let (Some(start), Some(end)) = (offset("byte_start"), offset("byte_end"))
                && let Some(file) = span["file_name"].as_str()
            {
                self.errors.push((file.to_owned(), start..end));
            }
        }
    }
}
