//! `cargo xtask bench`: runs benchmarks, and writes their results and plots to `docs/bench`.

pub(crate) mod figures;
mod machine;
mod plot;

use std::fs;
use std::io::{BufRead as _, BufReader, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use idem_report::{Report, VARIABLE};
use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use time::OffsetDateTime;

use crate::bench::machine::Machine;
use crate::clients;
use crate::run::Run;

/// Manifests of the packages with benchmarks. The second one is outside of the workspace.
const MANIFESTS: [&str; 2] = ["Cargo.toml", PEERS];
const PEERS: &str = "tests/peers/Cargo.toml";
/// Folder of the results.
const RESULTS: &str = "docs/bench";

/// Arguments of `cargo xtask bench`.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Bench {
    /// Prints the names of the parts.
    pub(crate) list: bool,
    /// Draws the plots of results that exist.
    pub(crate) plots: bool,
    /// Time by which each flush of a file is delayed, as in `1ms`.
    pub(crate) fsync: Option<String>,
    /// Circumstances of the measurement.
    pub(crate) note: Option<String>,
    /// Names of parts; all of them if it is empty.
    pub(crate) parts: Vec<String>,
}

/// A program with benchmarks.
#[derive(Debug, PartialEq)]
struct Part {
    name: String,
    package: String,
    manifest: &'static str,
    source: PathBuf,
}

/// Contents of a file with results.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Results {
    part: String,
    /// First sentence of the program's documentation.
    about: String,
    command: String,
    date: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    machine: Machine,
    tables: Vec<Report>,
}

pub(crate) fn bench(run: &mut Run, what: &Bench) -> anyhow::Result<()> {
    let mut parts = Vec::new();
    for manifest in MANIFESTS {
        parts.extend(parts_of(&run.metadata_of(manifest)?, manifest)?);
    }
    parts.sort_by(|a, b| a.name.cmp(&b.name));
    let chosen = chosen(&parts, &what.parts)?;
    let results = run.root().join(RESULTS);
    if what.list {
        for part in chosen {
            println!("{:<14} {}", part.name, about(part)?);
        }
        return Ok(());
    }
    if what.plots {
        return chosen
            .iter()
            .filter(|part| !what.parts.is_empty() || file(&results, part, "json").exists())
            .try_for_each(|part| plot(&results, part));
    }
    build(run, &chosen)?;
    fs::create_dir_all(&results)?;
    let progress = progress(chosen.len());
    let mut failed = Vec::new();
    for (number, part) in (1..).zip(&chosen) {
        progress.set_message(part.name.clone());
        let headline = format!("{} (part {number} of {})", part.name, chosen.len());
        // The other parts may take half an hour, and do not depend on this one.
        if let Err(error) = measure(run, &headline, part, what, &progress) {
            progress.suspend(|| eprintln!("{}: {error:#}", part.name));
            failed.push(&*part.name);
        }
        progress.inc(1);
    }
    progress.finish_and_clear();
    ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    Ok(())
}

/// Checks the value of `--fsync`, so that a mistake is reported before anything is built.
pub(crate) fn delay(value: &str) -> anyhow::Result<String> {
    let milliseconds = value.strip_suffix("ms").and_then(|it| it.parse().ok());
    match milliseconds {
        Some(1..1000_u32) => Ok(value.to_owned()),
        _ => bail!("--fsync takes a number of milliseconds below 1000, such as 1ms, not `{value}`"),
    }
}

/// Benchmarks in cargo's description of packages.
fn parts_of(metadata: &str, manifest: &'static str) -> anyhow::Result<Vec<Part>> {
    let metadata: Json = serde_json::from_str(metadata).context("invalid metadata from cargo")?;
    let mut parts = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        for target in package["targets"].as_array().into_iter().flatten() {
            let kinds = target["kind"].as_array().into_iter().flatten();
            if kinds.clone().any(|kind| kind == "bench") {
                let text = |value: &Json| {
                    let text = value.as_str().map(str::to_owned);
                    text.context("a target without a name or path in the metadata from cargo")
                };
                parts.push(Part {
                    name: text(&target["name"])?,
                    package: text(&package["name"])?,
                    manifest,
                    source: text(&target["src_path"])?.into(),
                });
            }
        }
    }
    Ok(parts)
}

/// The named parts, or all.
fn chosen<'a>(parts: &'a [Part], names: &[String]) -> anyhow::Result<Vec<&'a Part>> {
    for name in names {
        if !parts.iter().any(|part| part.name == *name) {
            let known: Vec<_> = parts.iter().map(|part| &*part.name).collect();
            bail!(
                "no benchmark is called `{name}`; there are: {}",
                known.join(", ")
            );
        }
    }
    let is_chosen = |part: &&Part| names.is_empty() || names.contains(&part.name);
    Ok(parts.iter().filter(is_chosen).collect())
}

/// First sentence of a program's documentation.
fn about(part: &Part) -> anyhow::Result<String> {
    let source = fs::read_to_string(&part.source)
        .with_context(|| format!("cannot read {}", part.source.display()))?;
    Ok(first_sentence(&source))
}

fn first_sentence(source: &str) -> String {
    let lines = source
        .lines()
        .map_while(|line| Some(line.strip_prefix("//! ")?.trim()));
    let text = lines.collect::<Vec<_>>().join(" ");
    match text.split_once(". ") {
        Some((sentence, _)) => sentence.to_owned(),
        None => text.trim_end_matches('.').to_owned(),
    }
}

fn file(results: &Path, part: &Part, extension: &str) -> PathBuf {
    results.join(&part.name).with_extension(extension)
}

/// Command that repeats the measurement.
fn command_line(part: &str, what: &Bench) -> String {
    let fsync = what.fsync.iter().map(|it| format!(" --fsync={it}"));
    format!("cargo xtask bench {part}{}", fsync.collect::<String>())
}

/// Builds all programs before the first measurement, so that no compiler runs beside one.
fn build(run: &mut Run, chosen: &[&Part]) -> anyhow::Result<()> {
    for manifest in MANIFESTS {
        let parts = chosen.iter().filter(|part| part.manifest == manifest);
        let selected: Vec<_> = parts
            .flat_map(|part| ["--package", &part.package, "--bench", &part.name])
            .collect();
        if selected.is_empty() {
            continue;
        }
        let mut command = run.command(run.cargo(), Path::new("."));
        command.args(["bench", "--no-run", "--manifest-path", manifest]);
        command.args(selected);
        run.step(&format!("build of {manifest}"), |_| {
            let status = command.status().context("cannot start cargo")?;
            ensure!(status.success(), "cargo: {status}");
            Ok(())
        })?;
    }
    Ok(())
}

/// Bar with the number of finished parts. It is hidden where standard error is not a terminal.
fn progress(parts: usize) -> ProgressBar {
    let bar = ProgressBar::new(parts as u64);
    let style = ProgressStyle::with_template("[{elapsed_precise}] {bar:30} {pos} of {len}: {msg}");
    if let Ok(style) = style {
        bar.set_style(style);
    }
    if std::io::stderr().is_terminal() {
        bar.enable_steady_tick(Duration::from_secs(1));
    }
    bar
}

/// Runs a part, and writes its results and its plot.
fn measure(
    run: &mut Run,
    headline: &str,
    part: &Part,
    what: &Bench,
    progress: &ProgressBar,
) -> anyhow::Result<()> {
    let folder = run.target().join("bench-reports");
    fs::create_dir_all(&folder)?;
    let report = folder.join(&part.name).with_extension("jsonl");
    if report.exists() {
        fs::remove_file(&report)?;
    }
    let mut command = run.command(run.cargo(), Path::new("."));
    command.args(["bench", "--manifest-path", part.manifest]);
    command.args(["--package", &part.package, "--bench", &part.name, "--"]);
    command.args(what.fsync.iter().map(|it| format!("--fsync={it}")));
    command.env(VARIABLE, &report);
    if part.manifest == PEERS {
        let python = clients::python(run.shell(), &clients::PYTHON_PEERS)?;
        command.env(clients::PYTHON_PEERS.variable, python);
        let packages = clients::npm(run.shell(), &clients::NPM_PEERS)?;
        command.env(clients::NPM_PEERS.variable, packages);
    }
    run.step(headline, |_| stream(command, progress))?;
    ensure!(report.exists(), "it has published no report");
    let tables = Report::read(&report)?;
    let results = run.root().join(RESULTS);
    let measured = Results {
        part: part.name.clone(),
        about: about(part)?,
        command: command_line(&part.name, what),
        date: OffsetDateTime::now_utc().date().to_string(),
        note: what.note.clone(),
        machine: Machine::describe(run, what.fsync.as_deref())?,
        tables,
    };
    let text = serde_json::to_string_pretty(&measured)? + "\n";
    fs::write(file(&results, part, "json"), text)?;
    progress.suspend(|| plot(&results, part))
}

/// Runs a command, and prints its output above the progress bar.
fn stream(mut command: Command, progress: &ProgressBar) -> anyhow::Result<()> {
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start cargo")?;
    if let Some(output) = child.stdout.take() {
        for line in BufReader::new(output).lines() {
            let line = line?;
            progress.suspend(|| println!("{line}"));
        }
    }
    let status = child.wait()?;
    ensure!(status.success(), "cargo: {status}");
    Ok(())
}

/// Draws the plot of a part from its results.
fn plot(results: &Path, part: &Part) -> anyhow::Result<()> {
    let source = file(results, part, "json");
    let about = || format!("cannot draw {}", source.display());
    let text = fs::read_to_string(&source).with_context(about)?;
    let read: Results = serde_json::from_str(&text).with_context(about)?;
    let svg = plot::draw(&read).with_context(about)?;
    fs::write(file(results, part, "svg"), svg)?;
    eprintln!("{RESULTS}/{0}.json, {RESULTS}/{0}.svg", part.name);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const METADATA: &str = r#"{"packages": [
        {"name": "a", "targets": [{"name": "a", "kind": ["lib"], "src_path": "a.rs"}]},
        {"name": "b", "targets": [
            {"name": "load", "kind": ["bench"], "src_path": "b/load.rs"},
            {"name": "calls", "kind": ["bench"], "src_path": "b/calls.rs"}
        ]}
    ]}"#;

    #[test]
    fn benchmarks_are_found_in_the_metadata() {
        let parts = parts_of(METADATA, PEERS).unwrap();
        let expected = Part {
            name: "load".to_owned(),
            package: "b".to_owned(),
            manifest: PEERS,
            source: "b/load.rs".into(),
        };
        assert_eq!(parts.len(), 2);
        assert_eq!(parts[0], expected);
        assert!(parts_of("{", PEERS).is_err());
    }

    #[test]
    fn an_unknown_part_is_refused_with_the_names_of_all() {
        let parts = parts_of(METADATA, PEERS).unwrap();
        let names = |names: &[&str]| {
            let names: Vec<_> = names.iter().map(|it| (*it).to_owned()).collect();
            let chosen = chosen(&parts, &names).map_err(|error| error.to_string())?;
            Ok::<_, String>(chosen.iter().map(|it| it.name.clone()).collect::<Vec<_>>())
        };
        assert_eq!(names(&[]).unwrap(), ["load", "calls"]);
        assert_eq!(names(&["calls"]).unwrap(), ["calls"]);
        let error = names(&["calls", "laod"]).unwrap_err();
        assert_eq!(
            error,
            "no benchmark is called `laod`; there are: load, calls"
        );
    }

    #[test]
    fn the_first_sentence_describes_a_part() {
        let source = "//! Load, in slices\n//! of time. More of it.\n//!\n//! Not this.\nuse a;\n";
        assert_eq!(first_sentence(source), "Load, in slices of time");
        assert_eq!(first_sentence("//! One.\nfn main() {}\n"), "One");
        assert_eq!(first_sentence("fn main() {}\n"), "");
    }

    #[test]
    fn a_delay_is_a_number_of_milliseconds() {
        assert_eq!(delay("1ms").unwrap(), "1ms");
        for wrong in ["", "1", "0ms", "1000ms", "1s", "-1ms", "1.5ms"] {
            assert!(delay(wrong).unwrap_err().to_string().contains("--fsync"));
        }
    }

    #[test]
    fn the_command_repeats_the_measurement() {
        let mut what = Bench::default();
        assert_eq!(command_line("load", &what), "cargo xtask bench load");
        what.fsync = Some("1ms".to_owned());
        assert_eq!(
            command_line("load", &what),
            "cargo xtask bench load --fsync=1ms"
        );
    }
}
