//! Rounds of the programs that kill servers, and tests of several servers that accept writes.

use std::path::Path;
use std::process::Command;

use idem_servers::Release;

use super::{Program, program};
use crate::run::{Job, Run};
use crate::servers::MYSQL;

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
        stores: &[
            "sqlite",
            "postgres",
            "pgbouncer",
            "mariadb",
            "mysql",
            "redis",
        ],
    },
    Round {
        name: "tx",
        arguments: "--mode tx --kills 150 --server-kills 8 --seconds 240",
        stores: &["sqlite", "postgres", "pgbouncer", "mariadb", "mysql"],
    },
    Round {
        name: "mixed",
        arguments: "--mode mixed --kills 8 --server-kills 1 --stops 1 --drops 500 --seconds 120",
        stores: &[
            "sqlite",
            "memory",
            "postgres",
            "mariadb",
            "mysql",
            "redis",
            "redis-cluster",
        ],
    },
];

/// Stores that have no server.
const EMBEDDED: &[&str] = &["sqlite", "memory"];

pub(super) fn crash(
    run: &Run,
    built: &[Program],
    embedded: bool,
    stores: &[&str],
) -> anyhow::Result<Vec<Job>> {
    let mut jobs = Vec::new();
    let crash = program(built, "crash", false)?;
    for round in ROUNDS {
        for store in round.stores {
            let is_there = *store != "mysql" || Release::MY_SQL.programs().is_ok();
            let is_wanted = is_there && (stores.is_empty() || stores.contains(store));
            if is_wanted && (!embedded || EMBEDDED.contains(store)) {
                let mut command = run.command(&crash.path, Path::new("."));
                command.args(round.arguments.split(' '));
                command.args(["--store", store]);
                jobs.push(Job {
                    name: format!("crash {} {store}", round.name),
                    commands: vec![command],
                    mark: None,
                });
            }
        }
    }
    Ok(jobs)
}

/// Engines of the program `failover`, and the arguments of a round of about fifteen seconds. For longer rounds see
/// `cargo run -p idem-tests --bin failover -- --help`.
const ENGINES: &[Engine] = &[
    ("postgres-sync", "--rounds 2 --keys 40"),
    ("postgres-async", "--rounds 2 --keys 40"),
    ("patroni", "--rounds 2 --keys 40"),
    ("etcd", "--rounds 3 --keys 40"),
];

/// Engines of the part `primaries`. A group takes longer, because it expels a killed member only after twenty seconds.
const ENGINES_OF_PRIMARIES: &[Engine] = &[
    ("galera", "--rounds 2 --keys 40"),
    ("group", "--rounds 2 --keys 40"),
    ("group-all", "--rounds 2 --keys 60"),
];

type Engine = (&'static str, &'static str);

pub(super) fn failovers(
    run: &Run,
    built: &[Program],
    engines: &[&str],
) -> anyhow::Result<Vec<Job>> {
    let is_wanted = |(name, _): &&Engine| engines.is_empty() || engines.contains(name);
    let wanted = ENGINES.iter().filter(is_wanted);
    wanted.map(|it| failover(run, built, *it)).collect()
}

fn failover(run: &Run, built: &[Program], (engine, arguments): Engine) -> anyhow::Result<Job> {
    let mut command = run.command(&program(built, "failover", false)?.path, Path::new("."));
    command.args(arguments.split(' '));
    command.args(["--engine", engine]);
    Ok(Job {
        name: format!("failover {engine}"),
        commands: vec![command],
        mark: None,
    })
}

/// Tests of the part `primaries`: a module of integration tests, and two suites of the conformance table. The other parts
/// skip them.
pub(super) const PRIMARIES: &str = "primaries::";
pub(super) const ON_GALERA: &str = "on_galera::";
pub(super) const ON_GROUP: &str = "on_group::";
/// The tests in that module that start a group.
const PRIMARIES_OF_A_GROUP: &str = "primaries::group";

/// Kills of processes, and of members, while calls work on a group.
const CRASHES_ON_A_GROUP: &[&str] = &[
    "--store mysql-group --kills 100 --server-kills 2 --seconds 240",
    "--store mysql-group --mode tx --kills 60 --server-kills 1 --seconds 240",
];

/// Tests of several servers that accept writes, the conformance table on them, their failovers, and of a group also drops
/// and kills. Without MySQL, the jobs of a group are left out, and the end of the run says that MySQL is missing.
pub(super) fn primaries(run: &Run, built: &[Program]) -> anyhow::Result<Vec<Job>> {
    let has_my_sql = Release::MY_SQL.programs().is_ok();
    let mut tests = program(built, "it", true)?.command(run);
    tests.args([PRIMARIES, "--include-ignored"]);
    if !has_my_sql {
        tests.args(["--skip", PRIMARIES_OF_A_GROUP]);
    }
    let suites = [ON_GALERA, ON_GROUP];
    let suites = suites.iter().filter(|it| has_my_sql || **it != ON_GROUP);
    let conformance = program(built, "conformance", true)?;
    let tables = suites.map(|suite| {
        let mut table = conformance.command(run);
        table.arg(suite);
        table
    });
    let mut all = vec![
        ("integration", vec![tests]),
        ("conformance", tables.collect()),
    ];
    if has_my_sql {
        all.extend(on_a_group(run, built)?);
    }
    let job = |(name, commands)| Job {
        name: format!("primaries {name}"),
        commands,
        mark: None,
    };
    let mut jobs: Vec<_> = all.into_iter().map(job).collect();
    for engine in ENGINES_OF_PRIMARIES {
        if has_my_sql || engine.0 == "galera" {
            jobs.push(failover(run, built, *engine)?);
        }
    }
    Ok(jobs)
}

type Commands = (&'static str, Vec<Command>);

fn on_a_group(run: &Run, built: &[Program]) -> anyhow::Result<[Commands; 2]> {
    // The place `mysql`, on a group.
    let mut drops = run.command(std::env::current_exe()?, Path::new("."));
    drops.env_remove(MYSQL);
    drops.args(["servers", "--only", "mysql-group", "--"]);
    drops.arg(&program(built, "drops", true)?.path);
    drops.args(["mysql::", "--include-ignored"]);

    let crash = program(built, "crash", false)?;
    let crashes = CRASHES_ON_A_GROUP.iter().map(|arguments| {
        let mut command = run.command(&crash.path, Path::new("."));
        command.args(arguments.split(' '));
        command
    });

    Ok([("drops", vec![drops]), ("crash", crashes.collect())])
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A filter without a test would pass.
    #[test]
    fn the_tests_of_primaries_exist() {
        let read = |file: &str| {
            let path = Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("../tests")
                .join(file);
            fs::read_to_string(path).expect("the file is readable")
        };
        let (modules, suites) = (read("it/mysql.rs"), read("places.rs"));
        let module = PRIMARIES.trim_end_matches(':');
        assert!(modules.contains(&format!("mod {module};")), "{module}");
        for suite in [ON_GALERA, ON_GROUP] {
            let suite = suite.trim_end_matches(':');
            assert!(suites.contains(&format!("Suite::new({suite:?}")), "{suite}");
        }
        let (_, group) = PRIMARIES_OF_A_GROUP.split_once("::").expect("a path");
        let tests = read("it/mysql/primaries.rs");
        let mut of_a_group = 0;
        for test in tests.split("needs MySQL").skip(1) {
            let (_, name) = test.split_once("async fn ").expect("a test has a name");
            // The first one is in the module `group`.
            assert!(
                name.starts_with(group) || name.starts_with("$case"),
                "{name}"
            );
            of_a_group += 1;
        }
        assert!(of_a_group > 1 && tests.contains(&format!("mod {group} ")));
    }

    #[test]
    fn each_store_has_a_crash_round() {
        for store in [
            "sqlite",
            "memory",
            "postgres",
            "pgbouncer",
            "mariadb",
            "mysql",
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
