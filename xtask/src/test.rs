//! `cargo xtask test`: the whole run, or some of its parts.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use serde_json::Value as Json;
use xshell::cmd;

use crate::clients;
use crate::parts::{self, Chosen, Need, Part, Target, Work};
use crate::run::{Job, Run};
use crate::servers::Servers;

/// Runs the parts and areas of these names, or everything where there is none.
///
/// Cargo builds for the whole workspace with all features, whatever is chosen: it would build a package that is named
/// alone with other features, and its dependencies once more.
pub(crate) fn test(run: &mut Run, embedded: bool, names: &[String]) -> anyhow::Result<()> {
    let (chosen, needs) = parts::chosen(names)?;
    let _fixtures = match embedded {
        true => None,
        false => Some(Fixtures::of(run, &needs)?),
    };
    let metadata = run.metadata()?;
    let targets = parts::targets(&metadata)?;
    let selected = match names.is_empty() {
        true => vec!["--tests".to_owned()],
        false => chosen
            .iter()
            .flat_map(|(part, _)| selection(part, &targets))
            // Several parts may have the same target, and cargo refuses a repeated `--lib`.
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect(),
    };
    let cargo = run.cargo();
    let built = run.step("build", |sh| {
        if selected.is_empty() {
            return Ok(Vec::new());
        }
        let messages = cmd!(
            sh,
            "{cargo} test --workspace --all-features {selected...} --no-run --message-format=json-render-diagnostics"
        )
        .read()?;
        programs(&messages)
    })?;
    let mut lanes: Vec<Vec<Job>> = Vec::new();
    for (part, filter) in chosen {
        // The choice of a caller is run in its order, and its output seen at once.
        let lane = if names.is_empty() { part.lane } else { 0 };
        lanes.resize_with(lanes.len().max(lane + 1), Vec::new);
        lanes[lane].extend(jobs(run, (part, filter), &built, embedded)?);
    }
    run.lanes(lanes)
}

/// What cargo is told to build for a part.
fn selection(part: &Part, targets: &[Target]) -> Vec<String> {
    match part.work {
        // Cargo builds the programs of a package with its tests; this is the smallest of them.
        Work::Crash => vec!["--test=costs".to_owned()],
        // Cargo cannot build these without running them.
        Work::Documentation => Vec::new(),
        Work::Units | Work::Targets { .. } => targets
            .iter()
            .filter(|it| part.work.has(it))
            .map(|it| match &*it.kind {
                "bin" | "test" => format!("--{}={}", it.kind, it.name),
                _ => "--lib".to_owned(),
            })
            .collect(),
    }
}

/// What is run for a part: one job, but for each round of crashes one.
fn jobs(
    run: &Run,
    (part, filter): Chosen,
    built: &[Program],
    embedded: bool,
) -> anyhow::Result<Vec<Job>> {
    let ignored = includes_ignored((part, filter), embedded);
    let arguments = ignored.iter().chain(filter);
    let commands = match part.work {
        Work::Crash => return crash_rounds(run, built, embedded, filter),
        Work::Documentation => {
            let mut command = run.command(run.cargo(), Path::new("."));
            // By itself: an example that is marked `ignore` is not meant to be compiled.
            command.args(["test", "--workspace", "--all-features", "--doc"]);
            vec![command]
        }
        Work::Units | Work::Targets { .. } => built
            .iter()
            .filter(|it| it.is_test && part.work.has(&it.target))
            .map(|program| {
                let mut command = program.command(run);
                command.args(arguments.clone());
                command
            })
            .collect(),
    };
    let name = [&[part.name], filter].concat().join(" ");
    anyhow::ensure!(!commands.is_empty(), "cargo built nothing for {name}");
    Ok(vec![Job { name, commands }])
}

/// Whether tests run that are marked as ignored because they need a server. Those of a table of stores leave out by
/// themselves what has no server, and an area starts the servers of its own stores alone.
fn includes_ignored((part, filter): Chosen, embedded: bool) -> Option<&'static str> {
    let is_table = ["conformance", "drops"].contains(&part.name);
    (!embedded && (filter.is_empty() || !is_table)).then_some("--include-ignored")
}

/// What the tests need of the machine: the servers and the clients.
pub(crate) struct Fixtures {
    servers: Servers,
    python: Option<String>,
}

impl Fixtures {
    /// Installs and starts them, and tells the steps from here on where they are.
    pub(crate) fn of(run: &mut Run, needs: &[Need]) -> anyhow::Result<Self> {
        let python = match needs.contains(&Need::Python) {
            true => Some(run.step("clients", clients::python)?),
            false => None,
        };
        let servers = match needs.iter().any(|it| *it != Need::Python) {
            true => run.step("servers", |sh| Servers::start(sh, needs))?,
            false => Servers::none(),
        };
        let all = Self { servers, python };
        for (name, value) in all.variables() {
            run.set_var(name, value);
        }
        Ok(all)
    }

    pub(crate) fn variables(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let python = self.python.as_deref().map(|it| (clients::PYTHON, it));
        self.servers.variables().chain(python)
    }
}

/// A round of the program `crash`: its arguments, and the stores that it is for.
struct Round {
    name: &'static str,
    arguments: &'static str,
    stores: &'static [&'static str],
}

/// Kills processes while they charge, and the servers under them: with leases, in transactions, and with callers that
/// leave and one pool for all kinds of calls.
/// `cargo run -p idem-tests --bin crash -- --help` tells how to do it for longer.
const ROUNDS: &[Round] = &[
    Round {
        name: "leased",
        arguments: "--kills 250 --server-kills 15 --seconds 240",
        stores: &["sqlite", "postgres", "mariadb", "redis"],
    },
    Round {
        name: "tx",
        arguments: "--mode tx --kills 150 --server-kills 8 --seconds 240",
        stores: &["sqlite", "postgres", "mariadb"],
    },
    Round {
        name: "mixed",
        arguments: "--mode mixed --kills 8 --server-kills 1 --stops 1 --drops 500 --seconds 120",
        stores: &[
            "sqlite",
            "memory",
            "postgres",
            "mariadb",
            "redis",
            "redis-cluster",
        ],
    },
];

/// The stores that have no server.
const EMBEDDED: &[&str] = &["sqlite", "memory"];

fn crash_rounds(
    run: &Run,
    built: &[Program],
    embedded: bool,
    stores: &[&str],
) -> anyhow::Result<Vec<Job>> {
    let mut jobs = Vec::new();
    let crash = built
        .iter()
        .find(|it| !it.is_test && it.target.name == "crash")
        .context("cargo built no program `crash`")?;
    for round in ROUNDS {
        for store in round.stores {
            let is_wanted = stores.is_empty() || stores.contains(store);
            if is_wanted && (!embedded || EMBEDDED.contains(store)) {
                let mut command = run.command(&crash.path, Path::new("."));
                command.args(round.arguments.split(' '));
                command.args(["--store", store]);
                jobs.push(Job {
                    name: format!("crash {} {store}", round.name),
                    commands: vec![command],
                });
            }
        }
    }
    Ok(jobs)
}

/// A program that cargo built.
#[derive(Debug, PartialEq)]
struct Program {
    target: Target,
    /// Whether it runs the tests of the target.
    is_test: bool,
    path: String,
    /// Where its package lies.
    folder: PathBuf,
}

impl Program {
    /// Runs it as `cargo test` does.
    fn command(&self, run: &Run) -> Command {
        let mut command = run.command(&self.path, &self.folder);
        command.env("CARGO_MANIFEST_DIR", &self.folder);
        command.env("CARGO", run.cargo());
        command
    }
}

/// The programs in cargo's messages about what it built.
fn programs(messages: &str) -> anyhow::Result<Vec<Program>> {
    let mut programs = Vec::new();
    for line in messages.lines() {
        let message: Json = serde_json::from_str(line)
            .with_context(|| format!("cargo said something that is not JSON: {line}"))?;
        let text = |value: &Json| value.as_str().map(str::to_owned);
        let target = &message["target"];
        if let (Some(path), Some(manifest), Some(kind), Some(name)) = (
            text(&message["executable"]),
            text(&message["manifest_path"]),
            text(&target["kind"][0]),
            text(&target["name"]),
        ) {
            // Such as `path+file:///…/examples#idem-examples@0.1.0`, or `…/idem-runtime#0.1.0`.
            let id = message["package_id"].as_str().unwrap_or_default();
            let package = id.rsplit(['/', '#']).map(|it| it.split('@').next());
            let package = package
                .flatten()
                .find(|it| it.starts_with(char::is_alphabetic));
            let folder = Path::new(&manifest).parent();
            programs.push(Program {
                target: Target {
                    package: package.context("a package id has a name")?.to_owned(),
                    kind,
                    name,
                },
                is_test: message["profile"]["test"] == true,
                path,
                folder: folder.context("a manifest is in a folder")?.to_owned(),
            });
        }
    }
    Ok(programs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_among_what_was_built() {
        let built = |id: &str, kind: &str, name: &str, test: bool, executable: Option<&str>| {
            serde_json::json!({
                "reason": "compiler-artifact",
                "package_id": format!("path+file:///x/{id}"),
                "manifest_path": "/x/a/Cargo.toml",
                "target": { "kind": [kind], "name": name },
                "profile": { "test": test },
                "executable": executable,
            })
            .to_string()
        };
        let finished = r#"{"reason":"build-finished","success":true}"#;
        let messages = [
            built("a#idem-examples@0.1.0", "bin", "b", false, Some("target/b")),
            built("idem-runtime#0.1.0", "lib", "c", true, Some("target/c")),
            built("idem-runtime#0.1.0", "lib", "c", false, None),
            finished.to_owned(),
        ];
        let found = programs(&messages.join("\n")).expect("it is JSON");
        let program = |package: &str, kind: &str, name: &str, is_test| Program {
            target: Target {
                package: package.to_owned(),
                kind: kind.to_owned(),
                name: name.to_owned(),
            },
            is_test,
            path: format!("target/{name}"),
            folder: "/x/a".into(),
        };
        assert_eq!(
            found,
            [
                program("idem-examples", "bin", "b", false),
                program("idem-runtime", "lib", "c", true)
            ]
        );
        assert!(programs("error").is_err());
    }

    #[test]
    fn each_store_has_its_rounds_of_crashes() {
        for store in [
            "sqlite",
            "memory",
            "postgres",
            "mariadb",
            "redis",
            "redis-cluster",
        ] {
            assert!(
                ROUNDS.iter().any(|it| it.stores.contains(&store)),
                "{store}"
            );
        }
    }
}
