//! `cargo xtask test`: runs all tests, or the tests of some names.

mod rounds;

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use idem_servers::Release;
use serde_json::Value as Json;
use xshell::cmd;

use crate::clients;
use crate::parts::{self, Chosen, Need, Part, Target, Work};
use crate::passed::Mark;
use crate::run::{Job, Run};
use crate::servers::{self, MYSQL, POSTGRES_VERSIONS, Servers, Set};
use crate::tested::{self, Tested, Tests};

/// Runs the named parts, stores and areas, or all parts if there is no name, on a set of servers. If it resumes, it leaves
/// out what passed in an earlier run.
///
/// Cargo builds for the whole workspace with all features, even for a single part. With `--package` it would use other
/// features, and build the dependencies again.
pub(crate) fn test(
    run: &mut Run,
    embedded: bool,
    set: Set,
    resumes: bool,
    names: &[String],
) -> anyhow::Result<()> {
    let (mut chosen, needs) = parts::chosen(names)?;
    if names.is_empty() {
        chosen.retain(|(part, _)| is_in(set, part.work));
    }
    let fixtures = match embedded {
        true => None,
        false => Some(Fixtures::of(run, &needs, set)?),
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
    let sources = sources(run)?;
    let mut lanes: Vec<Vec<Job>> = Vec::new();
    for (part, filter) in chosen {
        // Named parts run in the order of their names, in one lane, so that their output appears immediately.
        let lane = if names.is_empty() { part.lane } else { 0 };
        lanes.resize_with(lanes.len().max(lane + 1), Vec::new);
        let mut jobs = jobs(run, (part, filter), &built, embedded, set)?;
        if let Some(fixtures) = &fixtures {
            for job in &mut jobs {
                job.mark = Some(mark(run, part, job, &built, set, fixtures, &sources));
            }
        }
        if resumes {
            let has_passed = |it: &Job| it.mark.as_ref().is_some_and(Mark::is_there);
            for job in jobs.extract_if(.., |it| has_passed(it)) {
                eprintln!("---- {} has passed in an earlier run", job.name);
            }
        }
        lanes[lane].extend(jobs);
    }
    let alone = lanes.split_off(parts::ALONE.min(lanes.len()));
    let beside = run.lanes(lanes);
    let all = beside.and(run.lanes(alone));
    let Some(fixtures) = fixtures else { return all };
    let mut tested = Tested::read(run.root())?;
    for newest in NEWEST {
        let (server, version) = (newest.release.server, newest.release.version());
        if let (Some(true), Ok(version)) = (run.has_passed(&newest.name()), version) {
            tested.note("newest", server, &version, Tests::Conformance);
        }
    }
    if all.is_ok() && names.is_empty() {
        for (server, version, set) in fixtures.servers.versions() {
            tested.note(&set.name(), server, version, Tests::All);
        }
    }
    write(run, &tested)?;
    all
}

/// Returns true if a run of all tests on this set has the part.
fn is_in(set: Set, work: Work) -> bool {
    work != Work::Primaries || set == Set::Newest
}

/// Mark of a job. What passed on a server counts as long as its programs and the servers are the same. Other tests also
/// read files of the repository.
fn mark(
    run: &Run,
    part: &Part,
    job: &Job,
    built: &[Program],
    set: Set,
    fixtures: &Fixtures,
    sources: &str,
) -> Mark {
    // The programs with jobs of their own are named in these.
    let started = |it: &&Program| !it.is_test && !["crash", "failover"].contains(&&*it.target.name);
    let mut started: Vec<_> = built.iter().filter(started).map(|it| &*it.path).collect();
    // Cargo names them in another order each time.
    started.sort_unstable();
    let versions = fixtures.servers.versions().iter();
    let versions: Vec<_> = versions
        .map(|(server, version, set)| format!("{server} {version} ({})", set.name()))
        .collect();
    let mut other: Vec<_> = versions.iter().map(String::as_str).collect();
    let is_of_server = |it: &Need| {
        !matches!(
            it,
            Need::Python | Need::Axe | Need::DynamoDb | Need::Programs
        )
    };
    if !part.needs.iter().any(is_of_server) {
        other.push(sources);
    }
    let folder = run.target().join("passed").join(set.name());
    Mark::new(&folder, &job.name, &job.commands, &started, &other)
}

/// Text that differs if a file of the repository differs.
fn sources(run: &Run) -> anyhow::Result<String> {
    let sh = run.shell();
    let commit = cmd!(sh, "git rev-parse HEAD").quiet().read()?;
    let changes = cmd!(sh, "git diff HEAD").quiet().read()?;
    let others = cmd!(sh, "git status --porcelain").quiet().read()?;
    let mut hasher = DefaultHasher::new();
    (changes, others).hash(&mut hasher);
    Ok(format!("{commit} {:016x}", hasher.finish()))
}

/// Runs the conformance table on each major version of PostgreSQL.
pub(crate) fn postgres_versions(run: &mut Run) -> anyhow::Result<()> {
    let cargo = run.cargo();
    let built = run.step("build", |sh| {
        let messages = cmd!(
            sh,
            "{cargo} test --workspace --all-features --test=conformance --no-run --message-format=json-render-diagnostics"
        );
        programs(&messages.read()?)
    })?;
    let (mut jobs, mut versions) = (Vec::new(), Vec::new());
    for (major, _) in POSTGRES_VERSIONS {
        let set = Set::Postgres(*major);
        let installed = servers::postgres_of(run.shell(), *major);
        match installed.and_then(|it| it.postgres_version()) {
            Ok(version) => {
                let name = set.name();
                let job = conformance(run, &built, &name, set, "postgres", "postgres")?;
                jobs.push(job);
                versions.push((name, version));
            }
            Err(error) => run.not_run(&format!("PostgreSQL {major}: {error:#}")),
        }
    }
    let all = run.lanes(vec![jobs]);
    let mut tested = Tested::read(run.root())?;
    for (set, version) in versions {
        if run.has_passed(&set) == Some(true) {
            tested.note(&set, "PostgreSQL", &version, Tests::Conformance);
        }
    }
    write(run, &tested)?;
    all
}

fn write(run: &Run, tested: &Tested) -> anyhow::Result<()> {
    let file = tested::FILE;
    std::fs::write(run.root().join(file), tested.json()?)
        .with_context(|| format!("cannot write {file}"))
}

/// Run of the conformance table on a newest release.
struct Newest {
    release: Release,
    /// Name of the server that is started.
    server: &'static str,
    /// Part of the names of its cases.
    filter: &'static str,
}

/// The newest releases, except MySQL, on which all tests run.
const NEWEST: &[Newest] = &[
    Newest {
        release: Release::POSTGRES,
        server: "postgres",
        filter: "postgres",
    },
    Newest {
        release: Release::PG_BOUNCER,
        server: "postgres",
        filter: "pg_bouncer",
    },
    Newest {
        release: Release::MARIA_DB,
        server: "mariadb",
        filter: "mariadb::",
    },
    Newest {
        release: Release::REDIS,
        server: "redis",
        filter: "redis::",
    },
    Newest {
        release: Release::VALKEY,
        server: "valkey",
        filter: "redis::",
    },
];

impl Newest {
    fn name(&self) -> String {
        format!("newest {}", self.release.server)
    }
}

/// Runs of the conformance table on the newest releases that are installed.
fn newest(run: &Run, built: &[Program], embedded: bool, set: Set) -> anyhow::Result<Vec<Job>> {
    let jobs = NEWEST
        .iter()
        .filter(|it| !embedded && it.release.programs().is_ok())
        // All tests run on the others.
        .filter(|it| set != Set::Newest || it.release == Release::VALKEY);
    jobs.map(|it| conformance(run, built, &it.name(), Set::Newest, it.server, it.filter))
        .collect()
}

/// Run of the conformance table on one server of a set, which lives as long as the run.
fn conformance(
    run: &Run,
    built: &[Program],
    name: &str,
    set: Set,
    server: &str,
    filter: &str,
) -> anyhow::Result<Job> {
    let program = program(built, "conformance", true)?;
    let mut list = run.command(&program.path, Path::new("."));
    let listed = list.args(["--list", filter]).output()?;
    let has_cases = String::from_utf8_lossy(&listed.stdout).contains(": test");
    anyhow::ensure!(
        has_cases,
        "no case of the conformance table has {filter:?} in its name"
    );
    let mut command = run.command(own_path()?, Path::new("."));
    for variable in servers::variables() {
        command.env_remove(variable);
    }
    command.args(["servers", "--servers", &set.name(), "--only", server, "--"]);
    command.arg(&program.path).arg(filter);
    Ok(Job {
        name: name.to_owned(),
        commands: vec![command],
        mark: None,
    })
}

/// Path of this program. The build of the tests may have replaced its file, and Linux then marks the path.
fn own_path() -> anyhow::Result<PathBuf> {
    let path = std::env::current_exe()?;
    let replaced = path.to_str().and_then(|it| it.strip_suffix(" (deleted)"));
    Ok(replaced.map(PathBuf::from).unwrap_or(path))
}

/// Arguments with which cargo builds a part.
fn selection(part: &Part, targets: &[Target]) -> Vec<String> {
    match part.work {
        // Cargo builds the programs of a package together with any test of it. `costs` is the smallest test.
        Work::Crash | Work::Failover => vec!["--test=costs".to_owned()],
        Work::Newest => vec!["--test=conformance".to_owned()],
        Work::Primaries => ["conformance", "it", "drops"]
            .map(|it| format!("--test={it}"))
            .into(),
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

/// Jobs of a part: one, or one for each round of `crash`, each engine of `failover`, and each program of `primaries`.
fn jobs(
    run: &Run,
    (part, filter): Chosen,
    built: &[Program],
    embedded: bool,
    set: Set,
) -> anyhow::Result<Vec<Job>> {
    let commands = match part.work {
        Work::Crash => return rounds::crash(run, built, embedded, filter),
        Work::Failover | Work::Primaries if embedded => return Ok(Vec::new()),
        Work::Failover => return rounds::failovers(run, built, filter),
        Work::Primaries => return rounds::primaries(run, built),
        Work::Newest => return newest(run, built, embedded, set),
        Work::Documentation => {
            let mut command = run.command(run.cargo(), Path::new("."));
            // Without `--include-ignored`, because an example marked `ignore` must not be compiled.
            command.args(["test", "--workspace", "--all-features", "--doc"]);
            vec![command]
        }
        Work::Units | Work::Targets { .. } => {
            let programs = built
                .iter()
                .filter(|it| it.is_test && part.work.has(&it.target));
            let runs = programs.flat_map(|program| {
                filters(part, filter)
                    .into_iter()
                    .map(move |it| (program, it))
            });
            let commands = runs.map(|(program, filter)| {
                let mut command = program.command(run);
                command
                    .args(includes_ignored(part, embedded))
                    .args(threads(part))
                    .args(filter)
                    .args(skipped(run));
                command
            });
            commands.collect()
        }
    };
    let name = [&[part.name], filter].concat().join(" ");
    anyhow::ensure!(!commands.is_empty(), "cargo built nothing for {name}");
    Ok(vec![Job {
        name,
        commands,
        mark: None,
    }])
}

/// Arguments of each run of a part's program. A program with a test runner of its own accepts one filter.
fn filters<'a>(part: &Part, filter: &'a [&'a str]) -> Vec<&'a [&'a str]> {
    match has_own_runner(part) && !filter.is_empty() {
        true => filter.chunks(1).collect(),
        false => vec![filter],
    }
}

/// Returns true if the tests of a part are the rows of a table, which is made at run time.
fn has_own_runner(part: &Part) -> bool {
    ["conformance", "drops", "settings"].contains(&part.name)
}

/// Argument that also runs the tests that need a server, which are marked as ignored.
///
/// `conformance` and `drops` mark a test as ignored only if its server was not started. An area starts the servers of
/// its own stores only, and a MySQL may be missing, so these tests must stay ignored. `settings` marks those that only
/// `prove --settings` tries.
fn includes_ignored(part: &Part, embedded: bool) -> Option<&'static str> {
    (!embedded && !has_own_runner(part)).then_some("--include-ignored")
}

/// Argument that lets more tests run at the same time than there are cores. Most integration tests wait for a server.
fn threads(part: &Part) -> Option<String> {
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    (part.name == "integration").then(|| format!("--test-threads={}", 2 * cores))
}

/// Arguments that leave out the tests of the part `primaries`; the tests in the place `mysql`, and those with a private
/// MySQL, without one; and the tests of the newest servers, unless all of them are installed.
fn skipped(run: &Run) -> Vec<&'static str> {
    let are_installed = Release::ALL.iter().all(|it| it.programs().is_ok());
    let optional = [
        (run.has_var(MYSQL), "::mysql::"),
        (Release::MY_SQL.programs().is_ok(), "on_mysql"),
        (are_installed, "newest::"),
    ];
    let left_out = optional.into_iter().filter(|(is_there, _)| !is_there);
    let left_out = left_out.map(|(_, tests)| tests);
    let all = left_out.chain([rounds::PRIMARIES, rounds::ON_GALERA, rounds::ON_GROUP]);
    all.flat_map(|tests| ["--skip", tests]).collect()
}

/// Servers, HTTP clients and emulators for the tests.
pub(crate) struct Fixtures {
    servers: Servers,
    /// Variables that name installed packages of other languages.
    packages: Vec<(&'static str, String)>,
}

impl Fixtures {
    /// Installs and starts what is needed, and sets its variables for all later steps.
    pub(crate) fn of(run: &mut Run, needs: &[Need], set: Set) -> anyhow::Result<Self> {
        let mut packages = Vec::new();
        if needs.contains(&Need::Python) {
            let python = run.step("clients", |sh| clients::python(sh, &clients::CLIENTS))?;
            packages.push((clients::CLIENTS.variable, python));
        }
        if needs.contains(&Need::DynamoDb) {
            let (moto, dynalite) = run.step("emulators", |sh| {
                let moto = clients::python(sh, &clients::MOTO)?;
                Ok((moto, clients::npm(sh, &clients::DYNALITE)?))
            })?;
            packages.push((clients::MOTO.variable, moto));
            packages.push((clients::DYNALITE.variable, dynalite));
        }
        if needs.contains(&Need::Axe) {
            let axe = run.step("axe", |sh| clients::npm(sh, &clients::AXE))?;
            packages.push((clients::AXE.variable, axe));
        }
        let is_installed = |it: &Need| [Need::Python, Need::DynamoDb, Need::Axe].contains(it);
        let servers = match needs.iter().any(|it| !is_installed(it)) {
            true => run.step("servers", |sh| Servers::start(sh, needs, set))?,
            false => Servers::none(),
        };
        let all = Self { servers, packages };
        for (name, value) in all.variables() {
            run.set_var(name, value);
        }
        for missing in all.servers.missing() {
            run.not_run(missing);
        }
        Ok(all)
    }

    /// Newest releases that could not be installed, each with the reason.
    pub(crate) fn missing(&self) -> &[String] {
        self.servers.missing()
    }

    pub(crate) fn variables(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let packages = self.packages.iter().map(|(name, value)| (*name, &**value));
        self.servers.variables().chain(packages)
    }
}

/// Finds a program that tests are run with, or one that runs tests.
fn program<'a>(built: &'a [Program], name: &str, is_test: bool) -> anyhow::Result<&'a Program> {
    built
        .iter()
        .find(|it| it.is_test == is_test && it.target.name == name)
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
    fn several_primaries_are_in_the_newest_set_only() {
        assert!(is_in(Set::Newest, Work::Primaries));
        for set in [Set::Debian12, Set::Postgres(18)] {
            assert!(!is_in(set, Work::Primaries) && is_in(set, Work::Failover));
        }
        let (chosen, _) = parts::chosen::<&str>(&[]).expect("no name is unknown");
        let alone = chosen.iter().filter(|(it, _)| it.lane == parts::ALONE);
        let alone: Vec<_> = alone.map(|(it, _)| it.work).collect();
        assert_eq!(alone, [Work::Primaries]);
    }

    #[test]
    fn a_program_with_its_own_runner_runs_once_for_each_filter() {
        let (chosen, _) = parts::chosen(&["postgres"]).expect("the name is known");
        let runs = |name: &str| {
            let found = chosen.iter().find(|(part, _)| part.name == name);
            let (part, filter) = found.expect("the area has the part");
            filters(part, filter).len()
        };
        assert_eq!(runs("conformance"), 2);
        assert_eq!(runs("integration"), 1);
        let (all, _) = parts::chosen::<&str>(&[]).expect("no name is unknown");
        assert!(
            all.iter()
                .all(|(part, filter)| filters(part, filter).len() == 1)
        );
    }
}
