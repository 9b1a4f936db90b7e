//! Commands for contributors: `cargo xtask test`, `servers`, `lint`, `bench`, `ci`.

mod clients;
mod packages;
mod run;
mod servers;

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use lexopt::prelude::{Long, Short, Value};
use serde_json::Value as Json;
use xshell::cmd;

use crate::run::Run;
use crate::servers::Servers;

const USAGE: &str = "\
Usage: cargo xtask <command>

  test [--embedded]   every test: unit, integration, documentation and compile-time ones, the conformance table on
                      every store, each example run to its end, its page clicked in a headless Chromium, and short rounds
                      of killing processes and dropping calls. Starts private servers first, see below. --embedded starts none, and lists
                      what needs one as ignored
  servers [-- COMMAND...]
                      starts a private PostgreSQL, MariaDB, Redis, Redis Cluster, RabbitMQ and NATS, and COMMAND with
                      variables that tell where they are; without a COMMAND prints the variables, and runs until Ctrl-C.
                      The variables are IDEM_TEST_POSTGRES_URL, IDEM_TEST_MYSQL_URL, IDEM_TEST_REDIS_URL,
                      IDEM_TEST_REDIS_CLUSTER_URLS (separated by commas), IDEM_TEST_AMQP_URL and IDEM_TEST_NATS_URL;
                      for one that is already set, nothing is started. IDEM_TEST_PYTHON is the interpreter of an
                      environment in the target directory into which pip has installed the clients of the tests. On
                      Debian, root gets what is missing installed
  lint                formatting, clippy and rustdoc without a warning, idem-runtime with each feature alone
                      and with some in pairs
  bench               the benchmarks, as ratios to their baselines
  ci                  lint, then test
";

#[derive(Debug, Clone, PartialEq, Eq)]
enum Command {
    Test { embedded: bool },
    Servers { command: Vec<OsString> },
    Lint,
    Bench,
    Ci,
    Help,
}

fn main() -> ExitCode {
    match parse(std::env::args_os().skip(1)).and_then(execute) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn parse(args: impl Iterator<Item = OsString>) -> anyhow::Result<Command> {
    let mut args = lexopt::Parser::from_args(args);
    let mut command = None;
    let mut embedded = false;
    let mut rest = Vec::new();
    while let Some(arg) = args.next()? {
        match arg {
            Long("help") | Short('h') => return Ok(Command::Help),
            Long("embedded") => embedded = true,
            Value(name) if command.is_none() => {
                command = Some(match name.to_str() {
                    Some("test") => Command::Test { embedded: false },
                    Some("servers") => Command::Servers {
                        command: Vec::new(),
                    },
                    Some("lint") => Command::Lint,
                    Some("bench") => Command::Bench,
                    Some("ci") => Command::Ci,
                    Some("help") => Command::Help,
                    _ => bail!("there is no command {name:?}\n\n{USAGE}"),
                });
            }
            Value(word) if matches!(command, Some(Command::Servers { .. })) => {
                rest.push(word);
                rest.extend(args.raw_args()?);
            }
            other => return Err(other.unexpected().into()),
        }
    }
    match command.with_context(|| format!("name a command\n\n{USAGE}"))? {
        Command::Test { .. } => Ok(Command::Test { embedded }),
        _ if embedded => bail!("`--embedded` belongs to `test`\n\n{USAGE}"),
        Command::Servers { .. } => Ok(Command::Servers { command: rest }),
        other => Ok(other),
    }
}

fn execute(command: Command) -> anyhow::Result<()> {
    let mut run = Run::new()?;
    match command {
        Command::Help => print!("{USAGE}"),
        Command::Test { embedded } => test(&mut run, embedded)?,
        Command::Servers { command } => return servers(&mut run, &command),
        Command::Lint => lint(&mut run)?,
        Command::Bench => bench(&mut run)?,
        Command::Ci => {
            lint(&mut run)?;
            test(&mut run, false)?;
        }
    }
    run.total();
    Ok(())
}

/// Runs all tests. Everything is built once, with one set of features and profiles. If cargo is given a single package,
/// or runs a program, it selects other features and rebuilds. The paths of the programs are therefore taken from the
/// output of the tests' own build.
fn test(run: &mut Run, embedded: bool) -> anyhow::Result<()> {
    let cargo = run.cargo();
    let _fixtures = match embedded {
        true => None,
        false => Some(Fixtures::of(run)?),
    };
    let programs = run.step("build", |sh| {
        let built = cmd!(
            sh,
            "{cargo} test --workspace --all-features --no-run --message-format=json-render-diagnostics"
        )
        .read()?;
        programs(&built)
    })?;
    let ignored = if embedded {
        None
    } else {
        Some("--include-ignored")
    };
    run.step("tests", |sh| {
        Ok(cmd!(
            sh,
            "{cargo} test --workspace --all-features --lib --bins --tests -- {ignored...}"
        )
        .run()?)
    })?;
    // A separate step, because examples marked `ignore` are not meant to be compiled, and `--include-ignored` would
    // compile them.
    run.step("documentation's tests", |sh| {
        Ok(cmd!(sh, "{cargo} test --workspace --all-features --doc").run()?)
    })?;
    crash_round(run, &programs, embedded)
}

/// The machine's resources that the tests need: the servers and the clients.
struct Fixtures {
    servers: Servers,
    python: String,
}

impl Fixtures {
    /// Installs and starts them, and sets the variables by which later steps find them.
    fn of(run: &mut Run) -> anyhow::Result<Self> {
        let all = Self {
            python: run.step("clients", clients::python)?,
            servers: run.step("servers", Servers::start)?,
        };
        for (name, value) in all.variables() {
            run.set_var(name, value);
        }
        Ok(all)
    }

    fn variables(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let python = (clients::PYTHON, self.python.as_str());
        self.servers.variables().chain([python])
    }
}

/// Runs the command while the servers run, or waits for Ctrl-C. The servers end with this process.
fn servers(run: &mut Run, command: &[OsString]) -> anyhow::Result<()> {
    let fixtures = Fixtures::of(run)?;
    if let [program, arguments @ ..] = command {
        return Ok(cmd!(run.shell(), "{program} {arguments...}")
            .quiet()
            .run()?);
    }
    for (name, value) in fixtures.variables() {
        println!("export {name}='{value}'");
    }
    eprintln!("Ctrl-C stops them");
    loop {
        std::thread::park();
    }
}

/// Crash test: kills charging processes and their servers, in three modes. The modes are claims with leases, claims in
/// transactions, and a mix of all kinds of calls with dropped callers and a shared pool. `cargo run -p idem-tests --bin
/// crash -- --help` lists the options for longer runs.
fn crash_round(run: &mut Run, programs: &[Program], embedded: bool) -> anyhow::Result<()> {
    let crash = programs
        .iter()
        .find(|it| it.is_of("idem-tests") && it.name == "crash")
        .context("idem-tests has no program `crash`")?;
    run.step("crash", |sh| {
        let path = &crash.path;
        let stores = if embedded { "sqlite" } else { "all" };
        cmd!(
            sh,
            "{path} --store {stores} --kills 250 --server-kills 15 --seconds 240"
        )
        .run()?;
        cmd!(
            sh,
            "{path} --mode tx --store {stores} --kills 150 --server-kills 8 --seconds 240"
        )
        .run()?;
        let servers = ["postgres", "mariadb", "redis", "redis-cluster"];
        let stores = ["sqlite", "memory"]
            .into_iter()
            .chain(servers.into_iter().filter(|_| !embedded))
            .flat_map(|store| ["--store", store]);
        cmd!(
            sh,
            "{path} --mode mixed {stores...} --kills 8 --server-kills 1 --stops 1 --drops 500 --seconds 120"
        )
        .run()?;
        Ok(())
    })
}

fn lint(run: &mut Run) -> anyhow::Result<()> {
    let cargo = run.cargo();
    run.step("formatting", |sh| {
        Ok(cmd!(sh, "{cargo} fmt --all --check").run()?)
    })?;
    run.step("clippy", |sh| {
        Ok(cmd!(
            sh,
            "{cargo} clippy --workspace --all-targets --all-features -- -D warnings"
        )
        .run()?)
    })?;
    run.step("clippy, no features", |sh| {
        Ok(cmd!(
            sh,
            "{cargo} clippy -p idem-runtime --no-default-features -- -D warnings"
        )
        .run()?)
    })?;
    let metadata = cmd!(
        run.shell(),
        "{cargo} metadata --format-version 1 --no-deps --offline"
    )
    .quiet()
    .read()?;
    // Features with code that is compiled only in combination.
    let pairs = [
        "outbox,sqlite",
        "outbox,postgres",
        "outbox,mysql",
        "cache,redis",
    ];
    let alone = features(&metadata, "idem-runtime")?;
    for features in alone.into_iter().chain(pairs.map(String::from)) {
        run.step(&format!("clippy, {features} alone"), |sh| {
            Ok(cmd!(
                sh,
                "{cargo} clippy -p idem-runtime --no-default-features --features {features} -- -D warnings"
            )
            .run()?)
        })?;
    }
    run.step("documentation", |sh| {
        Ok(cmd!(sh, "{cargo} doc --workspace --all-features --no-deps")
            .env("RUSTDOCFLAGS", "-D warnings")
            .run()?)
    })
}

fn bench(run: &mut Run) -> anyhow::Result<()> {
    let cargo = run.cargo();
    run.step("benchmarks", |sh| {
        Ok(cmd!(sh, "{cargo} bench -p idem-benches").run()?)
    })
}

/// A program that cargo built.
struct Program {
    package: String,
    name: String,
    path: String,
}

impl Program {
    /// True if the program belongs to this package of the workspace.
    fn is_of(&self, package: &str) -> bool {
        // For example `path+file:///…/examples#idem-examples@0.1.0`.
        self.package
            .split(['#', '@', '/'])
            .any(|part| part == package)
    }
}

/// Extracts the programs, sorted by name, from cargo's build messages.
fn programs(messages: &str) -> anyhow::Result<Vec<Program>> {
    let mut programs = Vec::new();
    for line in messages.lines() {
        let message: Json = serde_json::from_str(line)
            .with_context(|| format!("cargo said something that is not JSON: {line}"))?;
        let target = &message["target"];
        // A program's unit tests are built from the same target.
        let is_program = message["reason"] == "compiler-artifact"
            && target["kind"][0] == "bin"
            && message["profile"]["test"] == false;
        if let (true, Some(package), Some(name), Some(path)) = (
            is_program,
            message["package_id"].as_str(),
            target["name"].as_str(),
            message["executable"].as_str(),
        ) {
            programs.push(Program {
                package: package.to_owned(),
                name: name.to_owned(),
                path: path.to_owned(),
            });
        }
    }
    programs.sort_by(|a, b| a.name.cmp(&b.name));
    if programs.is_empty() {
        bail!("cargo built no program");
    }
    Ok(programs)
}

/// The features of a package, except `default`.
fn features(metadata: &str, package: &str) -> anyhow::Result<Vec<String>> {
    let metadata: Json = serde_json::from_str(metadata).context("cargo's metadata")?;
    metadata["packages"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|it| it["name"] == package)
        .and_then(|it| it["features"].as_object())
        .map(|features| features.keys().filter(|it| *it != "default").cloned())
        .map(Iterator::collect)
        .with_context(|| format!("there is no package {package}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(args: &[&str]) -> Result<Command, String> {
        parse(args.iter().map(Into::into)).map_err(|error| error.to_string())
    }

    #[test]
    fn commands_are_found_by_name() {
        let test = |embedded| Ok(Command::Test { embedded });
        assert_eq!(parsed(&["test"]), test(false));
        assert_eq!(parsed(&["test", "--embedded"]), test(true));
        let servers = |command: &[&str]| {
            let command = command.iter().map(OsString::from).collect();
            Ok(Command::Servers { command })
        };
        assert_eq!(parsed(&["servers"]), servers(&[]));
        assert_eq!(
            parsed(&["servers", "--", "ls", "-l", "--help"]),
            servers(&["ls", "-l", "--help"])
        );
        assert_eq!(parsed(&["ci"]), Ok(Command::Ci));
        assert_eq!(parsed(&["lint", "--help"]), Ok(Command::Help));
    }

    #[test]
    fn anything_else_is_refused() {
        for args in [
            &["tset"][..],
            &[],
            &["test", "--embeded"],
            &["lint", "--embedded"],
            &["lint", "test"],
            &["lint", "--", "test"],
            &["servers", "--embedded"],
        ] {
            assert!(parsed(args).is_err(), "{args:?}");
        }
        assert!(parsed(&["tset"]).unwrap_err().contains("tset"));
    }

    #[test]
    fn programs_are_found_among_what_was_built() {
        let bin = |name: &str, test: bool| {
            serde_json::json!({
                "reason": "compiler-artifact",
                "package_id": "path+file:///x/examples#idem-examples@0.1.0",
                "target": { "kind": ["bin"], "name": name },
                "profile": { "test": test },
                "executable": format!("target/{name}"),
            })
            .to_string()
        };
        let finished = r#"{"reason":"build-finished","success":true}"#;
        let messages = [
            bin("b", false),
            bin("b", true),
            bin("a", false),
            finished.to_owned(),
        ];
        let built = programs(&messages.join("\n")).unwrap();
        let found: Vec<_> = built
            .iter()
            .map(|it| (it.name.as_str(), it.path.as_str()))
            .collect();
        assert_eq!(found, [("a", "target/a"), ("b", "target/b")]);
        assert!(built[0].is_of("idem-examples") && !built[0].is_of("idem-tests"));
        assert!(programs(finished).is_err());
    }

    #[test]
    fn features_are_read_from_the_metadata() {
        let metadata = r#"{"packages":[{"name":"x","features":{"default":["a"],"a":[],"b":[]}}]}"#;
        assert_eq!(features(metadata, "x").unwrap(), ["a", "b"]);
        assert!(features(metadata, "y").is_err());
    }
}
