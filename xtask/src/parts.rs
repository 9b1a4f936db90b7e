//! Parts of `cargo xtask test`, and names of stores and areas that select tests from them.

mod areas;

use anyhow::{Context as _, bail};
use serde_json::Value as Json;

use self::areas::AREAS;

/// One part of the test run.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) work: Work,
    pub(crate) needs: &'static [Need],
    /// Lane in a run of all parts. The parts of a lane run in order, and the lanes run concurrently, because most parts
    /// wait more than they compute. The first lane takes longest, so its last parts run without the other lanes. The
    /// consumers of brokers run there, because they have time limits. The lane [`ALONE`] runs after all others.
    pub(crate) lane: usize,
}

/// Lane of parts that need a quiet machine.
pub(crate) const ALONE: usize = 3;

/// Command that runs a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// Unit tests in the libraries and programs of every package.
    Units,
    /// The named test targets of a package, or all of them if the list is empty.
    Targets {
        package: &'static str,
        targets: &'static [&'static str],
    },
    /// Examples in the documentation of every library.
    Documentation,
    /// The program `crash` of `idem-tests`, filtered by the names of stores.
    Crash,
    /// The program `failover` of `idem-tests`, filtered by the names of engines.
    Failover,
    /// The conformance table on the newest release of each server.
    Newest,
    /// Tests, the conformance table and failovers on several servers that accept writes.
    Primaries,
}

/// Server or program that tests need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    Postgres,
    MariaDb,
    MySql,
    /// Three primaries of Group Replication, in the place of a MySQL.
    MySqlGroup,
    Redis,
    RedisCluster,
    /// Three nodes.
    Etcd,
    /// In the place of a Redis.
    Valkey,
    RabbitMq,
    Nats,
    /// The newest release of each server, installed.
    Newest,
    /// Python's HTTP clients, which pip installs.
    Python,
    /// The rules of accessibility, which npm installs.
    Axe,
    /// Emulators of DynamoDB, which npm and pip install.
    DynamoDb,
    /// The installed programs of all servers, for tests that start their own.
    Programs,
}

impl Need {
    /// Servers by the names that `cargo xtask servers --only` accepts.
    pub(crate) const SERVERS: [(&'static str, Self); 10] = [
        ("postgres", Self::Postgres),
        ("mariadb", Self::MariaDb),
        ("mysql", Self::MySql),
        ("mysql-group", Self::MySqlGroup),
        ("redis", Self::Redis),
        ("redis-cluster", Self::RedisCluster),
        ("etcd", Self::Etcd),
        ("valkey", Self::Valkey),
        ("rabbitmq", Self::RabbitMq),
        ("nats", Self::Nats),
    ];

    /// Debian packages that provide it; `None` for all packages of the tests.
    pub(crate) fn packages(self) -> Option<&'static [&'static str]> {
        match self {
            Self::Postgres => Some(&["postgresql", "pgbouncer", "patroni", "etcd-server"]),
            Self::MariaDb => Some(&["mariadb-server", "galera-4", "rsync"]),
            Self::Redis | Self::RedisCluster => Some(&["redis-server"]),
            Self::Etcd => Some(&["etcd-server"]),
            Self::RabbitMq => Some(&["rabbitmq-server"]),
            Self::Nats => Some(&["nats-server"]),
            // Python's and npm's packages and newest releases are no packages of the machine.
            Self::Python
            | Self::Axe
            | Self::DynamoDb
            | Self::MySql
            | Self::MySqlGroup
            | Self::Valkey
            | Self::Newest => Some(&[]),
            Self::Programs => None,
        }
    }
}

use self::Need::{
    Axe, DynamoDb, Etcd, MariaDb, MySql, Nats, Newest, Postgres, Programs, Python, RabbitMq, Redis,
    RedisCluster,
};

/// All parts, in the order in which they run.
pub(crate) const PARTS: &[Part] = &[
    Part {
        name: "units",
        about: "unit tests of every package",
        work: Work::Units,
        needs: &[Postgres, MariaDb, MySql, Programs],
        lane: 0,
    },
    Part {
        name: "tidy",
        about: "import directions, manifests and texts, and a server that cannot be installed",
        work: package("xtask"),
        needs: &[],
        lane: 0,
    },
    Part {
        name: "ui",
        about: "code that the macros accept, and compiler messages for code that they refuse",
        work: package("idem-ui"),
        needs: &[],
        lane: 1,
    },
    Part {
        name: "integration",
        about: "integration tests of the engine, the stores, the outbox and HTTP",
        work: target(&["it"]),
        needs: &[Postgres, MariaDb, MySql, Redis, RedisCluster, Programs],
        lane: 0,
    },
    Part {
        name: "events",
        about: "spans and events",
        work: target(&["events"]),
        needs: &[],
        lane: 0,
    },
    Part {
        name: "costs",
        about: "allocations of a call",
        work: target(&["costs"]),
        needs: &[],
        lane: 0,
    },
    Part {
        name: "conformance",
        about: "the case table on every store, and a faulty store that fails each case",
        work: target(&["conformance"]),
        needs: &[Postgres, MariaDb, MySql, Redis, RedisCluster, Etcd],
        lane: 0,
    },
    Part {
        name: "settings",
        about: "calls and the case table under settings of each server, and defects that must be found",
        work: target(&["settings"]),
        needs: &[MySql, Programs],
        lane: 2,
    },
    Part {
        name: "drops",
        about: "futures dropped at each poll, on every store",
        work: target(&["drops"]),
        needs: &[Postgres, MariaDb, MySql, Redis, RedisCluster],
        lane: 0,
    },
    Part {
        name: "sim",
        about: "the engine under simulated faults: 200 seeds, and defects that must be found",
        work: package("idem-sim"),
        needs: &[],
        lane: 1,
    },
    Part {
        name: "cli",
        about: "the command for operators, on every store",
        work: package("idem-cli"),
        needs: &[Postgres, MariaDb, MySql, Redis, RedisCluster],
        lane: 1,
    },
    Part {
        name: "testing",
        about: "the checks of users' functions: wrong functions that must be found, and right ones without a finding",
        work: package("idem-testing"),
        needs: &[Postgres, MariaDb, MySql],
        lane: 1,
    },
    Part {
        name: "lambda",
        about: "batches of AWS Lambda: keys, order, partial failures and deadlines",
        work: package("idem-lambda"),
        needs: &[],
        lane: 1,
    },
    Part {
        name: "histories",
        about: "every store against the reference: sequences, contended histories, and defects that must be found",
        work: package("idem-histories"),
        needs: &[Postgres, MariaDb, MySql, Redis, RedisCluster, Programs],
        lane: 1,
    },
    Part {
        name: "explore",
        about: "every state that the protocol can reach with few faults, and defects that must be found",
        work: package("idem-explore"),
        needs: &[],
        lane: 1,
    },
    Part {
        name: "fuzz",
        about: "fuzz targets: their corpus, and a short round of mutations",
        work: package("idem-fuzz"),
        needs: &[],
        lane: 1,
    },
    Part {
        name: "clients",
        about: "HTTP clients over a network that loses requests and replies",
        work: target(&["clients"]),
        needs: &[Postgres, Python],
        lane: 1,
    },
    Part {
        name: "dynamodb",
        about: "the store on DynamoDB: the case table, costs, rights and time, on two emulators",
        work: package("idem-dynamodb"),
        needs: &[DynamoDb],
        lane: 1,
    },
    Part {
        name: "brokers",
        about: "consumers of RabbitMQ, NATS and Kafka",
        work: target(&["brokers"]),
        needs: &[RabbitMq, Nats],
        lane: 0,
    },
    Part {
        name: "servers",
        about: "the private servers of the tests",
        work: package("idem-servers"),
        needs: &[Newest, Programs],
        lane: 1,
    },
    Part {
        name: "examples",
        about: "every example, the page of `payments -- serve` in a headless Chromium, and its metrics in a Prometheus",
        work: package("idem-examples"),
        needs: &[Programs, Axe],
        lane: 0,
    },
    Part {
        name: "docs",
        about: "examples in the documentation",
        work: Work::Documentation,
        needs: &[],
        lane: 1,
    },
    Part {
        name: "crash",
        about: "processes and servers killed while they work, on every store",
        work: Work::Crash,
        needs: &[MySql, Programs],
        lane: 2,
    },
    Part {
        name: "failover",
        about: "servers that fail over while a service works on them",
        work: Work::Failover,
        needs: &[MySql, Programs],
        lane: 2,
    },
    Part {
        name: "newest",
        about: "the case table on the newest release of each server",
        work: Work::Newest,
        needs: &[Newest],
        lane: 2,
    },
    // On a busy machine, a node may expel another one, and its tests fail.
    Part {
        name: "primaries",
        about: "Galera and Group Replication: tests, the case table, drops, kills and failovers; only by name, or on the \
                newest servers",
        work: Work::Primaries,
        needs: &[MariaDb, MySql],
        lane: ALONE,
    },
];

const fn package(package: &'static str) -> Work {
    Work::Targets {
        package,
        targets: &[],
    }
}

const fn target(targets: &'static [&'static str]) -> Work {
    Work::Targets {
        package: "idem-tests",
        targets,
    }
}

/// Part, with the arguments that select its tests. Without arguments all its tests run.
pub(crate) type Chosen = (&'static Part, &'static [&'static str]);

/// Looks up names. Returns the parts in the order of the names, and everything they need. Without names, returns all
/// parts.
pub(crate) fn chosen<S: AsRef<str>>(names: &[S]) -> anyhow::Result<(Vec<Chosen>, Vec<Need>)> {
    if names.is_empty() {
        let needs = PARTS.iter().flat_map(|it| it.needs).copied().collect();
        return Ok((PARTS.iter().map(|it| (it, NO_FILTER)).collect(), needs));
    }
    let (mut chosen, mut needs) = (Vec::new(), Vec::new());
    for name in names.iter().map(AsRef::as_ref) {
        if let Some(part) = part(name) {
            chosen.push((part, NO_FILTER));
            needs.extend_from_slice(part.needs);
        } else if let Some(area) = AREAS.iter().find(|it| it.name == name) {
            for (name, arguments) in area.runs {
                chosen.push((
                    part(name).context("an area names an unknown part")?,
                    *arguments,
                ));
            }
            needs.extend_from_slice(area.needs);
        } else {
            bail!(
                "unknown part, store or area {name:?}; known names: {}",
                self::names().collect::<Vec<_>>().join(", ")
            );
        }
    }
    Ok((chosen, needs))
}

const NO_FILTER: &[&str] = &[];

fn part(name: &str) -> Option<&'static Part> {
    PARTS.iter().find(|it| it.name == name)
}

fn names() -> impl Iterator<Item = &'static str> {
    let parts = PARTS.iter().map(|it| it.name);
    parts.chain(AREAS.iter().map(|it| it.name))
}

/// Lists the names, each with a description.
pub(crate) fn list() -> String {
    let line = |(name, about)| format!("  {name:<14} {about}\n");
    let parts = PARTS.iter().map(|it| line((it.name, it.about)));
    let areas = AREAS.iter().map(|it| line((it.name, it.about)));
    format!(
        "Parts:\n{}\nStores and areas, which select tests from these parts:\n{}",
        parts.collect::<String>(),
        areas.collect::<String>()
    )
}

/// Cargo target that has tests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) package: String,
    /// `lib`, `proc-macro`, `bin` or `test`.
    pub(crate) kind: String,
    pub(crate) name: String,
}

/// Reads the targets that `cargo test` runs from cargo's metadata.
pub(crate) fn targets(metadata: &str) -> anyhow::Result<Vec<Target>> {
    let metadata: Json = serde_json::from_str(metadata).context("invalid metadata from cargo")?;
    let text = |value: &Json| value.as_str().map(str::to_owned);
    let mut found = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        for target in package["targets"].as_array().into_iter().flatten() {
            if let (true, Some(package), Some(kind), Some(name)) = (
                target["test"] == true,
                text(&package["name"]),
                text(&target["kind"][0]),
                text(&target["name"]),
            ) {
                found.push(Target {
                    package,
                    kind,
                    name,
                });
            }
        }
    }
    Ok(found)
}

impl Work {
    /// Returns true if the tests of a target belong to this part.
    pub(crate) fn has(self, target: &Target) -> bool {
        let is_test = target.kind == "test";
        match self {
            Self::Units => !is_test,
            Self::Targets { package, targets } => {
                is_test
                    && package == target.package
                    && (targets.is_empty() || targets.contains(&&*target.name))
            }
            Self::Documentation | Self::Crash | Self::Failover | Self::Newest | Self::Primaries => {
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;
    use std::process::Command;

    use super::*;

    fn workspace() -> &'static Path {
        let own = Path::new(env!("CARGO_MANIFEST_DIR"));
        own.parent().expect("xtask is in the workspace")
    }

    #[test]
    fn each_test_target_is_in_one_part() {
        let output = Command::new(env!("CARGO"))
            .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
            .current_dir(workspace())
            .output()
            .expect("cargo runs");
        let targets =
            targets(&String::from_utf8_lossy(&output.stdout)).expect("the metadata is JSON");
        assert!(targets.len() > 10, "{targets:?}");
        let mut seen = BTreeSet::new();
        for target in &targets {
            let parts = PARTS.iter().filter(|it| it.work.has(target));
            let parts: Vec<_> = parts.map(|it| it.name).collect();
            assert_eq!(parts.len(), 1, "{target:?} is in {parts:?}");
            // `--test NAME` selects all targets of this name in the workspace.
            let Target { kind, name, .. } = target;
            assert!(
                seen.insert((kind, name)),
                "two targets have the name of {target:?}"
            );
        }
        for part in PARTS {
            if let Work::Targets { targets: named, .. } = part.work {
                let found = targets.iter().filter(|it| part.work.has(it)).count();
                assert!(found > 0 && found >= named.len(), "{part:?} has {found}");
            }
        }
        for work in [
            Work::Units,
            Work::Documentation,
            Work::Crash,
            Work::Failover,
            Work::Newest,
            Work::Primaries,
        ] {
            assert_eq!(PARTS.iter().filter(|it| it.work == work).count(), 1);
        }
    }

    #[test]
    fn without_names_every_part_runs_unfiltered() {
        let (whole, needs) = chosen::<&str>(&[]).expect("no name is unknown");
        let names: Vec<_> = whole.iter().map(|(part, _)| part.name).collect();
        assert_eq!(names, PARTS.iter().map(|it| it.name).collect::<Vec<_>>());
        assert!(whole.iter().all(|(_, filter)| filter.is_empty()));
        let servers = [Postgres, MariaDb, MySql, Redis, RedisCluster, Etcd];
        let others = [RabbitMq, Nats, Python, DynamoDb, Programs];
        assert!(servers.iter().chain(&others).all(|it| needs.contains(it)));
    }

    #[test]
    fn each_module_of_the_integration_tests_is_in_an_area() {
        let main =
            fs::read_to_string(workspace().join("tests/it/main.rs")).expect("the file is readable");
        let filters: Vec<_> = AREAS
            .iter()
            .flat_map(|it| it.runs)
            .filter(|(part, _)| *part == "integration")
            .flat_map(|(_, filters)| *filters)
            .collect();
        let modules: Vec<_> = main
            .lines()
            .filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';'))
            .collect();
        assert!(modules.len() > 20, "{modules:?}");
        for module in modules {
            let path = format!("{module}::");
            assert!(
                filters.iter().any(|it| path.contains(**it)),
                "no area runs `{module}`"
            );
        }
    }

    #[test]
    fn known_names_are_found_and_unknown_ones_refused() {
        let unique: BTreeSet<_> = names().collect();
        assert_eq!(unique.len(), PARTS.len() + AREAS.len());
        for name in names() {
            let (runs, _) = chosen(&[name]).expect("each name of the list is known");
            assert!(!runs.is_empty(), "{name}");
        }
        let (runs, needs) = chosen(&["redis", "docs"]).expect("both are known");
        let names: Vec<_> = runs.iter().map(|(part, _)| part.name).collect();
        assert_eq!(
            names,
            [
                "integration",
                "conformance",
                "histories",
                "drops",
                "crash",
                "docs"
            ]
        );
        assert_eq!(needs, [Redis]);
        let error = chosen(&["redis", "reddis"]).expect_err("a typing error");
        let error = error.to_string();
        assert!(
            error.contains("\"reddis\"") && error.contains("redis-cluster"),
            "{error}"
        );
        assert!(list().contains("redis-cluster"));
    }
}
