//! `cargo xtask test`: runs all tests, or the tests of some names.

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

/// Runs the named parts, stores and areas, or all parts if there is no name.
///
/// Cargo builds for the whole workspace with all features, even for a single part. With `--package` it would use other
/// features, and build the dependencies again.
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
            // Several parts may select one target, and cargo refuses a repeated `--lib`.
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
        // Named parts run in the order of their names, in one lane, so that their output appears immediately.
        let lane = if names.is_empty() { part.lane } else { 0 };
        lanes.resize_with(lanes.len().max(lane + 1), Vec::new);
        lanes[lane].extend(jobs(run, (part, filter), &built, embedded)?);
    }
    run.lanes(lanes)
}

/// Arguments with which cargo builds a part.
fn selection(part: &Part, targets: &[Target]) -> Vec<String> {
    match part.work {
        // Cargo builds the programs of a package together with any test of it. `costs` is the smallest test.
        Work::Crash | Work::Failover => vec!["--test=costs".to_owned()],
        // Cargo cannot build the examples without running them.
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

/// Jobs of a part: one, or one for each round of `crash` and each engine of `failover`.
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
        Work::Failover => return failovers(run, built, embedded, filter),
        Work::Documentation => {
            let mut command = run.command(run.cargo(), Path::new("."));
            // Without `--include-ignored`, because an example marked `ignore` must not be compiled.
            command.args(["test", "--workspace", "--all-features", "--doc"]);
            vec![command]
        }
        Work::Units | Work::Targets { .. } => built
            .iter()
            .filter(|it| it.is_test && part.work.has(&it.target))
            .map(|program| {
                let mut command = program.command(run);
                command.args(arguments.clone()).args(skipped());
                command
            })
            .collect(),
    };
    let name = [&[part.name], filter].concat().join(" ");
    anyhow::ensure!(!commands.is_empty(), "cargo built nothing for {name}");
    Ok(vec![Job { name, commands }])
}

/// Argument that also runs the tests that need a server, which are marked as ignored.
///
/// `conformance` and `drops` mark a test as ignored only if its server was not started. An area starts the servers of
/// its own stores only, so the tests of other stores must stay ignored.
fn includes_ignored((part, filter): Chosen, embedded: bool) -> Option<&'static str> {
    let is_table = ["conformance", "drops"].contains(&part.name);
    (!embedded && (filter.is_empty() || !is_table)).then_some("--include-ignored")
}

/// Arguments that leave out the tests on three nodes of Galera, unless `IDEM_TEST_GALERA` is set: on a busy machine a node
/// may expel another one, and the tests fail.
fn skipped() -> &'static [&'static str] {
    match std::env::var_os("IDEM_TEST_GALERA") {
        Some(_) => &[],
        None => &["--skip", "galera::"],
    }
}

/// Servers and HTTP clients for the tests.
pub(crate) struct Fixtures {
    servers: Servers,
    python: Option<String>,
}

impl Fixtures {
    /// Installs and starts what is needed, and sets its variables for all later steps.
    pub(crate) fn of(run: &mut Run, needs: &[Need]) -> anyhow::Result<Self> {
        let python = match needs.contains(&Need::Python) {
            true => Some(run.step("clients", |sh| clients::python(sh, &clients::CLIENTS))?),
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
        let python = self
            .python
            .as_deref()
            .map(|it| (clients::CLIENTS.variable, it));
        self.servers.variables().chain(python)
    }
}

/// Round of the program `crash`: its arguments and its stores.
struct Round {
    name: &'static str,
    arguments: &'static str,
    stores: &'static [&'static str],
}

/// Rounds that kill worker processes and their servers. Calls use leases (`leased`), transactions (`tx`), or both on
/// one pool while callers leave (`mixed`). For longer rounds see `cargo run -p idem-tests --bin crash -- --help`.
const ROUNDS: &[Round] = &[
    Round {
        name: "leased",
        arguments: "--kills 250 --server-kills 15 --seconds 240",
        stores: &["sqlite", "postgres", "pgbouncer", "mariadb", "redis"],
    },
    Round {
        name: "tx",
        arguments: "--mode tx --kills 150 --server-kills 8 --seconds 240",
        stores: &["sqlite", "postgres", "pgbouncer", "mariadb"],
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

/// Stores that have no server.
const EMBEDDED: &[&str] = &["sqlite", "memory"];

fn crash_rounds(
    run: &Run,
    built: &[Program],
    embedded: bool,
    stores: &[&str],
) -> anyhow::Result<Vec<Job>> {
    let mut jobs = Vec::new();
    let crash = program(built, "crash")?;
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

/// Engines of the program `failover`, and the arguments of a round of about fifteen seconds. For longer rounds see
/// `cargo run -p idem-tests --bin failover -- --help`.
const ENGINES: &[(&str, &str)] = &[
    ("postgres-sync", "--rounds 2 --keys 40"),
    ("postgres-async", "--rounds 2 --keys 40"),
];

fn failovers(
    run: &Run,
    built: &[Program],
    embedded: bool,
    engines: &[&str],
) -> anyhow::Result<Vec<Job>> {
    let mut jobs = Vec::new();
    let failover = program(built, "failover")?;
    for (engine, arguments) in ENGINES {
        if !embedded && (engines.is_empty() || engines.contains(engine)) {
            let mut command = run.command(&failover.path, Path::new("."));
            command.args(arguments.split(' '));
            command.args(["--engine", engine]);
            jobs.push(Job {
                name: format!("failover {engine}"),
                commands: vec![command],
            });
        }
    }
    Ok(jobs)
}

/// Finds a program that tests are run with.
fn program<'a>(built: &'a [Program], name: &str) -> anyhow::Result<&'a Program> {
    built
        .iter()
        .find(|it| !it.is_test && it.target.name == name)
        .with_context(|| format!("cargo built no program `{name}`"))
}

/// A program that cargo built.
#[derive(Debug, PartialEq)]
struct Program {
    target: Target,
    /// True if the program runs the tests of the target.
    is_test: bool,
    path: String,
    /// Folder of its package.
    folder: PathBuf,
}

impl Program {
    /// Command with the folder and variables that `cargo test` sets.
    fn command(&self, run: &Run) -> Command {
        let mut command = run.command(&self.path, &self.folder);
        command.env("CARGO_MANIFEST_DIR", &self.folder);
        command.env("CARGO", run.cargo());
        command
    }
}

/// Reads the built programs from cargo's messages.
fn programs(messages: &str) -> anyhow::Result<Vec<Program>> {
    let mut programs = Vec::new();
    for line in messages.lines() {
        let message: Json = serde_json::from_str(line)
            .with_context(|| format!("cargo printed a line that is not JSON: {line}"))?;
        let text = |value: &Json| value.as_str().map(str::to_owned);
        let target = &message["target"];
        if let (Some(path), Some(manifest), Some(kind), Some(name)) = (
            text(&message["executable"]),
            text(&message["manifest_path"]),
            text(&target["kind"][0]),
            text(&target["name"]),
        ) {
            // Examples: `path+file:///…/examples#idem-examples@0.1.0`, `…/idem-runtime#0.1.0`.
            let id = message["package_id"].as_str().unwrap_or_default();
            let package = id.rsplit(['/', '#']).map(|it| it.split('@').next());
            let package = package
                .flatten()
                .find(|it| it.starts_with(char::is_alphabetic));
            let folder = Path::new(&manifest).parent();
            programs.push(Program {
                target: Target {
                    package: package.context("a package id has no name")?.to_owned(),
                    kind,
                    name,
                },
                // `--lib` builds tests of each library, also of one whose manifest says `test = false`.
                is_test: message["profile"]["test"] == true && target["test"] != false,
                path,
                folder: folder
                    .context("the path of a manifest has no folder")?
                    .to_owned(),
            });
        }
    }
    Ok(programs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_in_messages_of_cargo() {
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
        let mut untested: Json = serde_json::from_str(&built(
            "idem-fuzz#0.1.0",
            "lib",
            "d",
            true,
            Some("target/d"),
        ))
        .expect("it is JSON");
        untested["target"]["test"] = false.into();
        let finished = r#"{"reason":"build-finished","success":true}"#;
        let messages = [
            built("a#idem-examples@0.1.0", "bin", "b", false, Some("target/b")),
            built("idem-runtime#0.1.0", "lib", "c", true, Some("target/c")),
            built("idem-runtime#0.1.0", "lib", "c", false, None),
            untested.to_string(),
            finished.to_owned(),
        ];
        let found = programs(&messages.join("\n")).expect("each line is JSON");
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
                program("idem-runtime", "lib", "c", true),
                program("idem-fuzz", "lib", "d", false)
            ]
        );
        assert!(programs("error").is_err());
    }

    #[test]
    fn each_store_has_a_crash_round() {
        for store in [
            "sqlite",
            "memory",
            "postgres",
            "pgbouncer",
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
