//! The parts of `cargo xtask test`, and the names that run some of them.

use anyhow::{Context as _, bail};
use serde_json::Value as Json;

/// One part of the whole run.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) work: Work,
    pub(crate) needs: &'static [Need],
    /// In a whole run the parts of a lane run one by one, beside those of the other lanes: most of them wait more than
    /// they compute. The first lane takes longest. At its end, when the others have ended, it runs what waits for brokers
    /// with time limits of their own.
    pub(crate) lane: usize,
}

/// How a part is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// The unit tests in the libraries and programs of every package.
    Units,
    /// Test targets of a package: those named, or all of them.
    Targets {
        package: &'static str,
        targets: &'static [&'static str],
    },
    /// The examples in the documentation of every library.
    Documentation,
    /// The program `crash` of `idem-tests`. A filter is the name of a store.
    Crash,
}

/// Something that tests ask the machine for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    Postgres,
    MySql,
    Redis,
    RedisCluster,
    RabbitMq,
    Nats,
    /// Python's clients, which pip installs.
    Python,
    /// The programs of all servers, which the tests start themselves.
    Programs,
}

impl Need {
    /// The Debian packages that it comes from; `None` for all that the tests use.
    pub(crate) fn packages(self) -> Option<&'static [&'static str]> {
        match self {
            Self::Postgres => Some(&["postgresql"]),
            Self::MySql => Some(&["mariadb-server"]),
            Self::Redis | Self::RedisCluster => Some(&["redis-server"]),
            Self::RabbitMq => Some(&["rabbitmq-server"]),
            Self::Nats => Some(&["nats-server"]),
            Self::Python => Some(&[]),
            Self::Programs => None,
        }
    }
}

use self::Need::{MySql, Nats, Postgres, Programs, Python, RabbitMq, Redis, RedisCluster};

/// The whole run, in this order.
pub(crate) const PARTS: &[Part] = &[
    Part {
        name: "units",
        about: "unit tests of every package",
        work: Work::Units,
        needs: &[Postgres, MySql, Programs],
        lane: 0,
    },
    Part {
        name: "tidy",
        about: "import directions, manifests and texts",
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
        needs: &[Postgres, MySql, Redis, RedisCluster, Programs],
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
        needs: &[Postgres, MySql, Redis, RedisCluster],
        lane: 0,
    },
    Part {
        name: "drops",
        about: "futures dropped at each poll, on every store",
        work: target(&["drops"]),
        needs: &[Postgres, MySql, Redis, RedisCluster],
        lane: 0,
    },
    Part {
        name: "clients",
        about: "HTTP clients over a network that loses requests and replies",
        work: target(&["clients"]),
        needs: &[Postgres, Python],
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
        needs: &[Programs],
        lane: 1,
    },
    Part {
        name: "examples",
        about: "each example run to its end, and its page in a headless Chromium",
        work: package("idem-examples"),
        needs: &[Programs],
        lane: 0,
    },
    Part {
        name: "docs",
        about: "the examples in the documentation",
        work: Work::Documentation,
        needs: &[],
        lane: 1,
    },
    Part {
        name: "crash",
        about: "processes and servers killed while they work, on every store",
        work: Work::Crash,
        needs: &[Programs],
        lane: 2,
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

/// A store, or an area that is no part of its own.
#[derive(Debug)]
pub(crate) struct Area {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// Parts by name, with the arguments that choose tests in them.
    runs: &'static [(&'static str, &'static [&'static str])],
    needs: &'static [Need],
}

pub(crate) const AREAS: &[Area] = &[
    Area {
        name: "memory",
        about: "the memory store",
        runs: &[
            ("integration", &["memory"]),
            ("conformance", &["memory::"]),
            ("drops", &["memory::"]),
            ("crash", &["memory"]),
        ],
        needs: &[],
    },
    Area {
        name: "sqlite",
        about: "the SQLite store",
        runs: &[
            ("integration", &["sqlite"]),
            ("conformance", &["sqlite"]),
            ("drops", &["sqlite::"]),
            ("clients", &["sqlite"]),
            ("crash", &["sqlite"]),
        ],
        needs: &[Python],
    },
    Area {
        name: "postgres",
        about: "the PostgreSQL store",
        runs: &[
            ("integration", &["postgres", "--skip", "redis"]),
            ("conformance", &["postgres::"]),
            ("drops", &["postgres::"]),
            ("clients", &["postgres"]),
            ("crash", &["postgres"]),
        ],
        needs: &[Postgres, Python],
    },
    Area {
        name: "mysql",
        about: "the MySQL and MariaDB store",
        runs: &[
            ("integration", &["mysql", "maria_db", "mariadb"]),
            ("conformance", &["mysql::"]),
            ("drops", &["mysql::"]),
            ("crash", &["mariadb"]),
        ],
        needs: &[MySql],
    },
    Area {
        name: "redis",
        about: "the Redis store, on one server",
        runs: &[
            (
                "integration",
                &["redis", "--skip", "cluster", "--skip", "postgres"],
            ),
            ("conformance", &["redis::"]),
            ("drops", &["redis::"]),
            ("crash", &["redis"]),
        ],
        needs: &[Redis],
    },
    Area {
        name: "redis-cluster",
        about: "the Redis store, on a cluster",
        runs: &[
            ("integration", &["cluster"]),
            ("conformance", &["redis_cluster::"]),
            ("drops", &["redis_cluster::"]),
            ("crash", &["redis-cluster"]),
        ],
        needs: &[Redis, RedisCluster],
    },
    Area {
        name: "engine",
        about: "the protocol, its keys and records",
        runs: &[(
            "integration",
            &[
                "engine::",
                "batches::",
                "imposter::",
                "issued::",
                "keys::",
                "records::",
                "replay::",
            ],
        )],
        needs: &[Postgres, MySql, Redis, RedisCluster],
    },
    Area {
        name: "macros",
        about: "#[idempotent] and #[derive(Fingerprint)]",
        runs: &[
            ("units", &["fingerprint", "idempotent"]),
            ("ui", &[]),
            (
                "integration",
                &["fingerprint::", "idempotent::", "outside::"],
            ),
        ],
        needs: &[],
    },
    Area {
        name: "transactions",
        about: "calls with `tx`, and steps with `step_tx`",
        runs: &[("integration", &["transaction::"])],
        needs: &[Postgres, MySql],
    },
    Area {
        name: "recovery",
        about: "steps, and calls that are retried after a crash",
        runs: &[("integration", &["recovery::", "steps::"])],
        needs: &[Postgres, MySql],
    },
    Area {
        name: "outbox",
        about: "the outbox, on every database",
        runs: &[("integration", &["outbox::"])],
        needs: &[Postgres, MySql],
    },
    Area {
        name: "cache",
        about: "`Cached`, in process and in Redis",
        runs: &[("integration", &["cached::"]), ("conformance", &["cached"])],
        needs: &[Postgres, Redis, RedisCluster],
    },
    Area {
        name: "http",
        about: "the HTTP layer and extractor",
        runs: &[("units", &["http::"]), ("integration", &["http::"])],
        needs: &[Postgres, MySql],
    },
    Area {
        name: "client",
        about: "the crate's own HTTP client",
        runs: &[
            ("units", &["client::"]),
            ("integration", &["client::"]),
            ("clients", &["idem_client::"]),
        ],
        needs: &[Postgres],
    },
    Area {
        name: "faults",
        about: "lost messages, full disks, paused processes, other clocks, large purges",
        runs: &[(
            "integration",
            &[
                "backends::",
                "disk::",
                "network::",
                "processes::",
                "purging::",
            ],
        )],
        needs: &[Postgres, MySql, Redis, RedisCluster, Programs],
    },
];

/// A part, and the arguments that choose tests in it; none for all of them.
pub(crate) type Chosen = (&'static Part, &'static [&'static str]);

/// What the names stand for, in their order, and what it needs; everything where there is no name.
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
                chosen.push((part(name).context("an area names parts")?, *arguments));
            }
            needs.extend_from_slice(area.needs);
        } else {
            bail!(
                "there is no part or area {name:?}, take some of {}",
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

/// The names, with what each is about.
pub(crate) fn list() -> String {
    let line = |(name, about)| format!("  {name:<14} {about}\n");
    let parts = PARTS.iter().map(|it| line((it.name, it.about)));
    let areas = AREAS.iter().map(|it| line((it.name, it.about)));
    format!(
        "Parts of the whole run:\n{}\nStores and areas, each a choice of tests from these parts:\n{}",
        parts.collect::<String>(),
        areas.collect::<String>()
    )
}

/// A target of the workspace that has tests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) package: String,
    /// `lib`, `proc-macro`, `bin` or `test`.
    pub(crate) kind: String,
    pub(crate) name: String,
}

/// The targets that `cargo test` runs, in cargo's metadata.
pub(crate) fn targets(metadata: &str) -> anyhow::Result<Vec<Target>> {
    let metadata: Json = serde_json::from_str(metadata).context("cargo's metadata")?;
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
    /// Whether the tests of a target belong to this part.
    pub(crate) fn has(self, target: &Target) -> bool {
        let is_test = target.kind == "test";
        match self {
            Self::Units => !is_test,
            Self::Targets { package, targets } => {
                is_test
                    && package == target.package
                    && (targets.is_empty() || targets.contains(&&*target.name))
            }
            Self::Documentation | Self::Crash => false,
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
        own.parent().expect("xtask lies in the workspace")
    }

    #[test]
    fn each_test_target_is_in_one_part() {
        let output = Command::new(env!("CARGO"))
            .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
            .current_dir(workspace())
            .output()
            .expect("cargo runs");
        let targets = targets(&String::from_utf8_lossy(&output.stdout)).expect("it is JSON");
        assert!(targets.len() > 10, "{targets:?}");
        let mut seen = BTreeSet::new();
        for target in &targets {
            let parts = PARTS.iter().filter(|it| it.work.has(target));
            let parts: Vec<_> = parts.map(|it| it.name).collect();
            assert_eq!(parts.len(), 1, "{target:?} is in {parts:?}");
            // `--test NAME` means all targets of this name in the workspace.
            let Target { kind, name, .. } = target;
            assert!(seen.insert((kind, name)), "two are like {target:?}");
        }
        for part in PARTS {
            if let Work::Targets { targets: named, .. } = part.work {
                let found = targets.iter().filter(|it| part.work.has(it)).count();
                assert!(found > 0 && found >= named.len(), "{part:?} has {found}");
            }
        }
        for work in [Work::Units, Work::Documentation, Work::Crash] {
            assert_eq!(PARTS.iter().filter(|it| it.work == work).count(), 1);
        }
    }

    #[test]
    fn the_whole_run_is_every_part_without_a_filter() {
        let (whole, needs) = chosen::<&str>(&[]).expect("no name is wrong");
        let names: Vec<_> = whole.iter().map(|(part, _)| part.name).collect();
        assert_eq!(names, PARTS.iter().map(|it| it.name).collect::<Vec<_>>());
        assert!(whole.iter().all(|(_, filter)| filter.is_empty()));
        assert!(
            [
                Postgres,
                MySql,
                Redis,
                RedisCluster,
                RabbitMq,
                Nats,
                Python,
                Programs
            ]
            .iter()
            .all(|it| needs.contains(it))
        );
    }

    #[test]
    fn each_module_of_the_integration_tests_is_in_an_area() {
        let main = fs::read_to_string(workspace().join("tests/it/main.rs")).expect("it is there");
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
                "no area has `{module}`"
            );
        }
    }

    #[test]
    fn names_are_looked_up_and_unknown_ones_refused() {
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
            ["integration", "conformance", "drops", "crash", "docs"]
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
