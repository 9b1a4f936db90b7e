//! Commands for contributors: `cargo xtask help` lists them.

mod archive;
mod bench;
mod book;
mod clients;
mod copy;
mod crates;
mod formats;
mod lint;
mod mutation;
mod notices;
mod packages;
mod parts;
mod passed;
mod prove;
mod run;
mod sbom;
mod servers;
mod tables;
mod test;
mod tested;

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt as _;
use std::process::{self, ExitCode};

use anyhow::{Context as _, anyhow, bail};
use lexopt::prelude::{Long, Short, Value, ValueExt as _};
use xshell::cmd;

use crate::archive::archive;
use crate::bench::{Bench, bench};
use crate::crates::package;
use crate::formats::{Formats, formats};
use crate::lint::lint;
use crate::parts::Need;
use crate::prove::{Fuzz, Prove, Settings, prove};
use crate::run::Run;
use crate::servers::Set;
use crate::test::{Fixtures, test};

const USAGE: &str = "\
Usage: cargo xtask <command>

  test [--embedded] [--servers SET] [--resume] [NAME...]
                      Runs every test, or only those of the named parts, stores and areas. Starts the private servers
                      that these tests need, see `servers`. --embedded starts no server, and ignores tests that need
                      one. Without a NAME, three lanes of parts run concurrently, and the output of each part is in
                      test-logs in the target directory. Prints the time of each part at the end, and what could not
                      run. A run without a NAME writes the versions of the servers to docs/tested-with.json.
                      SET is debian12 (the machine's own servers, the default), newest, which adds the part
                      `primaries`, or postgres-versions, which runs the conformance table on PostgreSQL 12 to 18, from
                      npm. --resume leaves out what passed in an earlier run with the same programs on the same
                      servers, so that a run that failed because the machine was busy can be completed
  test --list         Lists the names: parts such as `ui` and `docs`, stores such as `postgres`, areas such as `http`
  servers [--servers SET] [--only NAME]... [-- COMMAND...]
                      Starts private servers (PostgreSQL, MariaDB, MySQL, Redis, Redis Cluster, RabbitMQ, NATS), and
                      runs COMMAND with their addresses in variables. Without a COMMAND, prints the variables and waits
                      for Ctrl-C. The variables are IDEM_TEST_POSTGRES_URL, IDEM_TEST_MARIADB_URL, IDEM_TEST_MYSQL_URL,
                      IDEM_TEST_REDIS_URL, IDEM_TEST_REDIS_CLUSTER_URLS (separated by commas), IDEM_TEST_AMQP_URL and
                      IDEM_TEST_NATS_URL. If a variable is already set, its server is not started. IDEM_TEST_PYTHON is
                      a Python in which pip has installed the HTTP clients of the tests, and IDEM_TEST_AXE the folder
                      in which npm has installed axe-core. As root on Debian, installs missing packages. SET is debian12
                      (the machine's own servers, the default), newest, or postgres-12 to postgres-18. MySQL is always
                      the newest release.
                      Newest releases are installed into the target directory, as root on Debian, and kept. --only
                      starts the servers of these names only: postgres, mariadb, mysql, mysql-group,
                      redis, redis-cluster, valkey, rabbitmq, nats, etcd
  tables [--check]    Writes the tables of versions and of figures in the README, the book and other pages, from
                      docs/tested-with.json and docs/bench. docs/bench/tables.toml describes the tables of figures.
                      --check writes nothing, and fails if a page has another table
  lint                Checks formatting, and runs clippy and rustdoc with warnings as errors. Runs clippy on
                      idem-runtime with each single feature, and with some pairs of features
  docs                Builds the book into `book` in the target directory. If the machine does not have mdBook in the
                      right version, compiles it into `tools` there. `test docs` compiles the code of the book, and
                      `test tidy` checks its links
  bench [--fsync=1ms] [--note TEXT] [PART...]
                      Runs the benchmarks, or only the named ones. They print times and ratios to their baselines. Writes
                      docs/bench/PART.json with the figures and the machine, and docs/bench/PART.svg with a plot.
                      --fsync delays each flush of a file by this time. --note adds circumstances to the results
  bench --list        Lists the benchmarks
  bench --plots [PART...]
                      Draws the plots again from the files that exist
  prove [--seed N] [--hours H] [--mutants | --histories]
                      Runs seeds of the simulator from N on all cores, for H hours, by default from 0 for three minutes.
                      --mutants instead applies each deliberate defect of the engine to a copy of the sources, and
                      runs seeds until one fails. --histories instead compares every store with the reference:
                      sequences of commands, and 10,000 contended histories. docs/proof.md has the results
  prove --mutation [AREA...] [--shard K/N]
                      Changes one place of the sources at a time with cargo-mutants, in a copy, and runs the tests that
                      should notice: in the areas of tests/mutation.toml, or only those named. --shard tests every N-th
                      mutant of each area, from the K-th. Fails if a mutant survives that is not accepted there
  prove --explore     Searches every state that two callers of one key can reach, and shows how each deliberate defect of
                      the transitions and decisions is found
  prove --fuzz [--minutes M] [--target NAME]... [--keep]
                      Runs the fuzz targets, or those named, under libFuzzer: M minutes each, by default ten. --keep
                      adds inputs that reach more code to tests/fuzz/corpus. Needs a compiler of C++
  prove --settings [ENGINE [SETTING]]
                      Makes all kinds of calls, and runs the case table, under each of some 40 settings of PostgreSQL,
                      MariaDB, MySQL and Redis, on private servers, and compares what happens with what is expected.
                      Prints a table. ENGINE is postgres, mariadb, mysql or redis. MySQL is left out if it is not
                      installed, see `servers`
  prove --testing     Checks functions with idem-testing: wrong ones, each of which must be found, and right ones, in which
                      1,000 seeds each must find nothing. Takes some minutes
  prove --formats     Runs processes of an earlier commit beside those of the current sources, on one database of each
                      store. Each build takes over calls of the other's killed processes, and replays its results
  formats [--check | --force] [NAME]
                      Writes what the current code stores into tests/formats/NAME, by default the current version.
                      --check compares it with the folder instead. --force replaces a folder that exists
  package [--minimal] Packages the published crates from a clean clone, and builds each of them from its package, with its
                      default features and with all. Checks the files of the packages. --minimal also checks them with
                      the oldest versions of their dependencies that their manifests allow; needs a nightly Rust
  archive             Builds the command `idem` without a library of the system, and writes an archive with it, its
                      manual page, completions and licences, and its bill of materials, into `archive` in the target
                      directory. Needs `musl-gcc` and the target x86_64-unknown-linux-musl
  ci                  Runs lint, then package, then test
";

#[derive(Debug, Clone, PartialEq)]
enum Command {
    Test {
        embedded: bool,
        resumes: bool,
        set: Set,
        names: Vec<String>,
    },
    PostgresVersions,
    List,
    Servers {
        set: Set,
        only: Vec<Need>,
        command: Vec<OsString>,
    },
    Tables {
        checks: bool,
    },
    Lint,
    Docs,
    Bench(Bench),
    Prove(Prove),
    Package {
        minimal: bool,
    },
    Archive,
    Formats(Formats),
    Ci,
    Help,
}

fn main() -> ExitCode {
    if let Some(folder) = std::env::var_os("CARGO_MANIFEST_DIR") {
        let names = std::env::vars_os().map(|(name, _)| name);
        let error = without_variables_of_cargo(&folder, names).exec();
        eprintln!("xtask: cannot run itself: {error}");
        return ExitCode::FAILURE;
    }
    match parse(std::env::args_os().skip(1)).and_then(execute) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Command that is this one without the variables that `cargo run` sets. Build scripts of some dependencies read these
/// variables, so cargo would compile the dependencies again whenever a contributor changes between `cargo xtask test` and
/// `cargo test`.
fn without_variables_of_cargo(
    folder: &OsStr,
    names: impl Iterator<Item = OsString>,
) -> process::Command {
    let own = std::env::current_exe().unwrap_or_else(|_| "xtask".into());
    let mut command = process::Command::new(own);
    command
        .args(std::env::args_os().skip(1))
        .env(run::FOLDER, folder);
    for name in names {
        let of_cargo = ["CARGO_MANIFEST_", "CARGO_PKG_"];
        if name
            .to_str()
            .is_some_and(|it| of_cargo.iter().any(|of| it.starts_with(of)))
        {
            command.env_remove(name);
        }
    }
    command
}

fn parse(args: impl Iterator<Item = OsString>) -> anyhow::Result<Command> {
    let mut args = lexopt::Parser::from_args(args);
    let mut command = None;
    let (mut embedded, mut list, mut resumes) = (false, false, false);
    let mut names = Vec::new();
    let mut rest = Vec::new();
    let (mut set_name, mut only) = (None, Vec::new());
    while let Some(arg) = args.next()? {
        if let Some(Command::Prove(prove)) = &mut command {
            match arg {
                Long("seed") => prove.seed = args.value()?.parse()?,
                Long("hours") => prove.hours = args.value()?.parse()?,
                Long("mutants") => prove.mutants = true,
                Long("mutation") => {
                    prove.mutation.get_or_insert_default();
                }
                Long("shard") if prove.mutation.is_some() => {
                    let shard = args.value()?.parse()?;
                    prove.mutation.get_or_insert_default().shard = Some(shard);
                }
                Value(area) if prove.mutation.is_some() => {
                    let area = area.string()?;
                    prove.mutation.get_or_insert_default().areas.push(area);
                }
                Long("settings") => {
                    prove.settings.get_or_insert_default();
                }
                Value(word) if prove.settings.is_some() => {
                    let word = word.string()?;
                    let settings: &mut Settings = prove.settings.get_or_insert_default();
                    settings
                        .add(word)
                        .map_err(|error| anyhow!("{error}\n\n{USAGE}"))?;
                }
                Long("histories") => prove.histories = true,
                Long("explore") => prove.explore = true,
                Long("testing") => prove.testing = true,
                Long("formats") => prove.formats = true,
                Long("fuzz") => prove.fuzz = Some(Fuzz::default()),
                Long("minutes") => of_fuzz(prove)?.minutes = args.value()?.parse()?,
                Long("target") => of_fuzz(prove)?.targets.push(args.value()?.string()?),
                Long("keep") => of_fuzz(prove)?.keeps = true,
                Long("help") | Short('h') => return Ok(Command::Help),
                other => return Err(other.unexpected().into()),
            }
            continue;
        }
        if let Some(Command::Bench(bench)) = &mut command {
            match arg {
                Long("list") => bench.list = true,
                Long("plots") => bench.plots = true,
                Long("fsync") => bench.fsync = Some(bench::delay(&args.value()?.string()?)?),
                Long("note") => bench.note = Some(args.value()?.string()?),
                Value(part) => bench.parts.push(part.string()?),
                Long("help") | Short('h') => return Ok(Command::Help),
                other => return Err(other.unexpected().into()),
            }
            continue;
        }
        if let Some(Command::Formats(formats)) = &mut command {
            match arg {
                Long("check") => formats.checks = true,
                Long("force") => formats.force = true,
                Value(name) if formats.name.is_none() => formats.add(name.string()?)?,
                Long("help") | Short('h') => return Ok(Command::Help),
                other => return Err(other.unexpected().into()),
            }
            continue;
        }
        match arg {
            Long("help") | Short('h') => return Ok(Command::Help),
            Long("embedded") => embedded = true,
            Long("list") => list = true,
            Long("resume") => resumes = true,
            Long("minimal") if matches!(command, Some(Command::Package { .. })) => {
                command = Some(Command::Package { minimal: true });
            }
            Long("check") if matches!(command, Some(Command::Tables { .. })) => {
                command = Some(Command::Tables { checks: true });
            }
            Long("servers") => set_name = Some(args.value()?.string()?),
            Long("only") if matches!(command, Some(Command::Servers { .. })) => {
                let name = args.value()?.string()?;
                let found = Need::SERVERS.iter().find(|(it, _)| *it == name);
                let (_, need) =
                    found.with_context(|| format!("unknown server {name:?}\n\n{USAGE}"))?;
                only.push(*need);
            }
            Value(name) if command.is_none() => {
                command = Some(match name.to_str() {
                    Some("test") => Command::Test {
                        embedded: false,
                        resumes: false,
                        set: Set::default(),
                        names: Vec::new(),
                    },
                    Some("servers") => Command::Servers {
                        set: Set::default(),
                        only: Vec::new(),
                        command: Vec::new(),
                    },
                    Some("tables") => Command::Tables { checks: false },
                    Some("lint") => Command::Lint,
                    Some("docs") => Command::Docs,
                    Some("bench") => Command::Bench(Bench::default()),
                    Some("prove") => Command::Prove(Prove::default()),
                    Some("package") => Command::Package { minimal: false },
                    Some("archive") => Command::Archive,
                    Some("formats") => Command::Formats(Formats::default()),
                    Some("ci") => Command::Ci,
                    Some("help") => Command::Help,
                    _ => bail!("unknown command {name:?}\n\n{USAGE}"),
                });
            }
            Value(name) if matches!(command, Some(Command::Test { .. })) => {
                names.push(name.string()?);
            }
            Value(word) if matches!(command, Some(Command::Servers { .. })) => {
                rest.push(word);
                rest.extend(args.raw_args()?);
            }
            other => return Err(other.unexpected().into()),
        }
    }
    let command = command.with_context(|| format!("a command is missing\n\n{USAGE}"))?;
    if set_name.is_some() && !matches!(command, Command::Test { .. } | Command::Servers { .. }) {
        bail!("only `test` and `servers` accept `--servers`\n\n{USAGE}");
    }
    if let (Command::Test { .. }, Some("postgres-versions")) = (&command, set_name.as_deref()) {
        if embedded || list || !names.is_empty() {
            bail!("`--servers postgres-versions` accepts no other argument\n\n{USAGE}");
        }
        return Ok(Command::PostgresVersions);
    }
    let set = set_name.map_or(Ok(Set::default()), |it| it.parse())?;
    match command {
        Command::Test { .. } if list => Ok(Command::List),
        Command::Test { .. } => {
            parts::chosen(&names)?;
            if resumes && (embedded || !names.is_empty()) {
                bail!("`--resume` runs all tests: leave out `--embedded` and names\n\n{USAGE}");
            }
            Ok(Command::Test {
                embedded,
                resumes,
                set,
                names,
            })
        }
        _ if resumes => bail!("only `test` accepts `--resume`\n\n{USAGE}"),
        Command::Formats(formats) if formats.checks && formats.force => {
            bail!("`--check` and `--force` exclude each other\n\n{USAGE}")
        }
        Command::Bench(bench) if bench.list && bench.plots => {
            bail!("`--list` and `--plots` exclude each other\n\n{USAGE}")
        }
        Command::Bench(bench)
            if (bench.list || bench.plots) && (bench.fsync.is_some() || bench.note.is_some()) =>
        {
            bail!(
                "`--list` and `--plots` measure nothing: leave out `--fsync` and `--note`\n\n{USAGE}"
            )
        }
        _ if embedded || list => bail!("only `test` accepts `--embedded` and `--list`\n\n{USAGE}"),
        Command::Servers { .. } => Ok(Command::Servers {
            set,
            only,
            command: rest,
        }),
        other => Ok(other),
    }
}

/// Options that only `prove --fuzz` has.
fn of_fuzz(prove: &mut Prove) -> anyhow::Result<&mut Fuzz> {
    let fuzz = prove.fuzz.as_mut();
    fuzz.with_context(|| {
        format!("`--minutes`, `--target` and `--keep` come after `--fuzz`\n\n{USAGE}")
    })
}

fn execute(command: Command) -> anyhow::Result<()> {
    let mut run = Run::new()?;
    match command {
        Command::Help => print!("{USAGE}"),
        Command::Test {
            embedded,
            resumes,
            set,
            names,
        } => test(&mut run, embedded, set, resumes, &names)?,
        Command::PostgresVersions => test::postgres_versions(&mut run)?,
        Command::List => print!("{}", parts::list()),
        Command::Servers { set, only, command } => {
            return servers(&mut run, set, &only, &command);
        }
        Command::Tables { checks } => {
            let mut all = tested::tables(run.root())?;
            all.extend(bench::figures::tables(run.root())?);
            return tables::write(run.root(), &all, checks);
        }
        Command::Lint => lint(&mut run)?,
        Command::Docs => book::build(&mut run)?,
        Command::Bench(what) => bench(&mut run, &what)?,
        Command::Prove(what) => prove(&mut run, &what)?,
        Command::Package { minimal } => package(&mut run, minimal)?,
        Command::Archive => archive(&mut run)?,
        Command::Formats(what) => formats(&mut run, &what)?,
        Command::Ci => {
            lint(&mut run)?;
            package(&mut run, false)?;
            test(&mut run, false, Set::default(), false, &[])?;
        }
    }
    run.total();
    Ok(())
}

/// Starts the servers, and runs the command or waits for Ctrl-C. The servers stop when this process ends.
fn servers(run: &mut Run, set: Set, only: &[Need], command: &[OsString]) -> anyhow::Result<()> {
    let needs = match only {
        // `Newest` starts nothing.
        [] => {
            let (_, mut needs) = parts::chosen::<&str>(&[])?;
            needs.retain(|it| *it != Need::Newest);
            needs
        }
        _ => only.to_vec(),
    };
    let fixtures = Fixtures::of(run, &needs, set)?;
    for missing in fixtures.missing() {
        eprintln!("NOT STARTED: {missing}");
    }
    if let [program, arguments @ ..] = command {
        return Ok(cmd!(run.shell(), "{program} {arguments...}")
            .quiet()
            .run()?);
    }
    for (name, value) in fixtures.variables() {
        println!("export {name}='{value}'");
    }
    eprintln!("press Ctrl-C to stop the servers");
    loop {
        std::thread::park();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutation::Mutation;

    fn parsed(args: &[&str]) -> Result<Command, String> {
        parse(args.iter().map(Into::into)).map_err(|error| error.to_string())
    }

    #[test]
    fn no_variable_of_cargo_reaches_the_steps() {
        const OF_CARGO: [&str; 3] = ["CARGO_MANIFEST_DIR", "CARGO_PKG_NAME", "CARGO_PKG_VERSION"];
        let names = OF_CARGO.into_iter().chain(["PATH"]).map(OsString::from);
        let command = without_variables_of_cargo(OsStr::new("/x/xtask"), names);
        let set: Vec<_> = command.get_envs().collect();
        for name in OF_CARGO {
            assert!(set.contains(&(OsStr::new(name), None)), "{name}: {set:?}");
        }
        let folder = (OsStr::new(run::FOLDER), Some(OsStr::new("/x/xtask")));
        assert!(set.contains(&folder), "{set:?}");
        assert!(!set.iter().any(|(name, _)| *name == "PATH"));
    }

    #[test]
    fn commands_are_found_by_name() {
        let on = |set, embedded, names: &[&str]| {
            let names = names.iter().map(|it| (*it).to_owned()).collect();
            Ok(Command::Test {
                embedded,
                resumes: false,
                set,
                names,
            })
        };
        let test = |embedded, names: &[&str]| on(Set::Debian12, embedded, names);
        assert_eq!(
            parsed(&["test", "--servers", "newest", "redis"]),
            on(Set::Newest, false, &["redis"])
        );
        assert_eq!(
            parsed(&["test", "--servers", "postgres-versions"]),
            Ok(Command::PostgresVersions)
        );
        for (args, checks) in [(&["tables"][..], false), (&["tables", "--check"], true)] {
            assert_eq!(parsed(args), Ok(Command::Tables { checks }));
        }
        assert_eq!(parsed(&["test"]), test(false, &[]));
        assert_eq!(parsed(&["test", "--embedded"]), test(true, &[]));
        assert_eq!(
            parsed(&["test", "redis", "--embedded", "ui"]),
            test(true, &["redis", "ui"])
        );
        assert_eq!(
            parsed(&["test", "--resume", "--servers", "newest"]),
            Ok(Command::Test {
                embedded: false,
                resumes: true,
                set: Set::Newest,
                names: Vec::new(),
            })
        );
        assert_eq!(parsed(&["test", "--list"]), Ok(Command::List));
        let servers = |command: &[&str]| {
            let command = command.iter().map(OsString::from).collect();
            Ok(Command::Servers {
                set: Set::Debian12,
                only: Vec::new(),
                command,
            })
        };
        assert_eq!(
            parsed(&[
                "servers",
                "--servers",
                "postgres-14",
                "--only",
                "postgres",
                "--",
                "ls"
            ]),
            Ok(Command::Servers {
                set: Set::Postgres(14),
                only: vec![Need::Postgres],
                command: vec!["ls".into()],
            })
        );
        assert_eq!(parsed(&["servers"]), servers(&[]));
        assert_eq!(
            parsed(&["servers", "--", "ls", "-l", "--help"]),
            servers(&["ls", "-l", "--help"])
        );
        assert_eq!(parsed(&["ci"]), Ok(Command::Ci));
        assert_eq!(parsed(&["docs"]), Ok(Command::Docs));
        assert_eq!(parsed(&["archive"]), Ok(Command::Archive));
        for (args, minimal) in [(&["package"][..], false), (&["package", "--minimal"], true)] {
            assert_eq!(parsed(args), Ok(Command::Package { minimal }));
        }
        assert_eq!(parsed(&["prove"]), Ok(Command::Prove(Prove::default())));
        for (args, name, checks) in [
            (&["formats"][..], None, false),
            (&["formats", "next", "--check"], Some("next"), true),
        ] {
            let formats = Formats {
                name: name.map(str::to_owned),
                force: false,
                checks,
            };
            assert_eq!(parsed(args), Ok(Command::Formats(formats)));
        }
        let testing = Prove {
            testing: true,
            ..Prove::default()
        };
        assert_eq!(parsed(&["prove", "--testing"]), Ok(Command::Prove(testing)));
        assert_eq!(
            parsed(&["prove", "--seed", "7", "--hours", "0.5", "--mutants"]),
            Ok(Command::Prove(Prove {
                seed: 7,
                hours: 0.5,
                mutants: true,
                ..Prove::default()
            }))
        );
        assert_eq!(
            parsed(&["prove", "--histories"]),
            Ok(Command::Prove(Prove {
                histories: true,
                ..Prove::default()
            }))
        );
        let mutation = Mutation {
            areas: vec!["batcher".to_owned()],
            shard: Some("0/4".parse().expect("a shard")),
        };
        assert_eq!(
            parsed(&["prove", "--mutation", "batcher", "--shard", "0/4"]),
            Ok(Command::Prove(Prove {
                mutation: Some(mutation),
                ..Prove::default()
            }))
        );
        let fuzz = Fuzz {
            minutes: 0.5,
            targets: vec!["cursors".to_owned()],
            keeps: true,
        };
        assert_eq!(
            parsed(&[
                "prove",
                "--fuzz",
                "--minutes",
                "0.5",
                "--target",
                "cursors",
                "--keep"
            ]),
            Ok(Command::Prove(Prove {
                fuzz: Some(fuzz),
                ..Prove::default()
            }))
        );
        for (args, engine, name) in [
            (&["prove", "--settings"][..], None, None),
            (&["prove", "--settings", "redis"], Some("redis"), None),
            (
                &["prove", "--settings", "mysql", "chained"],
                Some("mysql"),
                Some("chained"),
            ),
        ] {
            let settings = Settings {
                engine: engine.map(str::to_owned),
                name: name.map(str::to_owned),
            };
            assert_eq!(
                parsed(args),
                Ok(Command::Prove(Prove {
                    settings: Some(settings),
                    ..Prove::default()
                }))
            );
        }
        assert_eq!(parsed(&["bench"]), Ok(Command::Bench(Bench::default())));
        let measuring = Bench {
            fsync: Some("1ms".to_owned()),
            note: Some("beside other work".to_owned()),
            parts: vec!["load".to_owned(), "calls".to_owned()],
            ..Bench::default()
        };
        assert_eq!(
            parsed(&[
                "bench",
                "load",
                "--fsync=1ms",
                "--note",
                "beside other work",
                "calls"
            ]),
            Ok(Command::Bench(measuring))
        );
        let plots = Bench {
            plots: true,
            parts: vec!["load".to_owned()],
            ..Bench::default()
        };
        assert_eq!(
            parsed(&["bench", "--plots", "load"]),
            Ok(Command::Bench(plots))
        );
        let list = Bench {
            list: true,
            ..Bench::default()
        };
        assert_eq!(parsed(&["bench", "--list"]), Ok(Command::Bench(list)));
        assert_eq!(parsed(&["lint", "--help"]), Ok(Command::Help));
    }

    #[test]
    fn unknown_commands_and_options_are_refused() {
        for args in [
            &["tset"][..],
            &[],
            &["test", "--embeded"],
            &["test", "reddis"],
            &["lint", "--embedded"],
            &["lint", "--list"],
            &["lint", "--resume"],
            &["lint", "--minimal"],
            &["lint", "--check"],
            &["--minimal", "package"],
            &["package", "--embedded"],
            &["test", "--resume", "ui"],
            &["test", "--resume", "--embedded"],
            &["lint", "test"],
            &["docs", "--list"],
            &["lint", "--", "test"],
            &["prove", "--hours"],
            &["formats", "--check", "--force"],
            &["formats", "a/b"],
            &["prove", "x"],
            &["prove", "--shard", "0/4"],
            &["prove", "--mutation", "--shard", "4/4"],
            &["prove", "x", "--mutation"],
            &["prove", "--minutes", "1"],
            &["prove", "--settings", "oracle"],
            &["prove", "redis", "--settings"],
            &["prove", "--settings", "redis", "full", "idle"],
            &["test", "--seed", "7"],
            &["servers", "--embedded"],
            &["bench", "--fsync"],
            &["bench", "--fsync=1"],
            &["bench", "--embedded"],
            &["bench", "--list", "--plots"],
            &["bench", "--plots", "--fsync=1ms"],
            &["test", "--fsync=1ms"],
        ] {
            assert!(parsed(args).is_err(), "{args:?}");
        }
        for args in [&["tset"][..], &["test", "tset"]] {
            assert!(parsed(args).unwrap_err().contains("tset"));
        }
    }
}
