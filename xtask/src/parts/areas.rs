//! Names of stores and areas that select tests from several parts.

use super::Need::{self, Etcd, MariaDb, MySql, Postgres, Programs, Python, Redis, RedisCluster};

/// Store or area: a selection of tests from several parts.
#[derive(Debug)]
pub(super) struct Area {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    /// Names of parts, each with the arguments that select its tests.
    pub(super) runs: &'static [(&'static str, &'static [&'static str])],
    pub(super) needs: &'static [Need],
}

pub(super) const AREAS: &[Area] = &[
    Area {
        name: "memory",
        about: "the memory store",
        runs: &[
            ("integration", &["memory"]),
            ("conformance", &["memory::"]),
            ("histories", &["memory"]),
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
            ("histories", &["sqlite"]),
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
            ("conformance", &["postgres", "pg_bouncer"]),
            ("histories", &["postgres"]),
            ("drops", &["postgres"]),
            ("clients", &["postgres"]),
            ("crash", &["postgres", "pgbouncer"]),
            ("failover", &["postgres-sync", "postgres-async", "patroni"]),
        ],
        needs: &[Postgres, Python],
    },
    Area {
        name: "mysql",
        about: "the MySQL and MariaDB store",
        runs: &[
            ("integration", &["mysql", "maria_db", "mariadb"]),
            ("conformance", &["mysql::", "mariadb::"]),
            ("histories", &["mysql", "mariadb"]),
            ("drops", &["mysql::", "mariadb::"]),
            ("crash", &["mariadb", "mysql"]),
        ],
        needs: &[MariaDb, MySql],
    },
    Area {
        name: "redis",
        about: "the Redis store, on one server",
        runs: &[
            (
                "integration",
                &["redis", "--skip", "cluster", "--skip", "postgres"],
            ),
            ("conformance", &["redis::", "redis_sentinel::"]),
            ("histories", &["redis", "--skip", "cluster"]),
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
            ("histories", &["cluster"]),
            ("drops", &["redis_cluster::"]),
            ("crash", &["redis-cluster"]),
        ],
        needs: &[Redis, RedisCluster],
    },
    Area {
        name: "etcd",
        about: "stores by compare-and-swap, and the example on etcd",
        runs: &[
            ("units", &["cas::", "clock::"]),
            ("conformance", &["etcd::", "cas"]),
            ("histories", &["etcd", "clock"]),
            ("failover", &["etcd"]),
        ],
        needs: &[Etcd],
    },
    Area {
        name: "engine",
        about: "the protocol, its keys and records",
        runs: &[(
            "integration",
            &[
                "attempts::",
                "engine::",
                "batches::",
                "formats::",
                "connect::",
                "corrections::",
                "imposter::",
                "issued::",
                "keys::",
                "records::",
                "replay::",
                "deploys::",
                "outcome::",
                "remember::",
                "scopes::",
                "tls::",
                "rotation::",
                "unreadable::",
                "runtimes::",
            ],
        )],
        needs: &[Postgres, MariaDb, MySql, Redis, RedisCluster],
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
        needs: &[Postgres, MariaDb, MySql],
    },
    Area {
        name: "recovery",
        about: "steps, and calls that are retried after a crash",
        runs: &[("integration", &["recovery::", "steps::"])],
        needs: &[Postgres, MariaDb, MySql],
    },
    Area {
        name: "outbox",
        about: "the outbox, on every database",
        runs: &[("integration", &["outbox::"])],
        needs: &[Postgres, MariaDb, MySql],
    },
    Area {
        name: "cache",
        about: "`Cached`, in process and in Redis",
        runs: &[("integration", &["cached::"]), ("conformance", &["cached"])],
        needs: &[Postgres, Redis, RedisCluster],
    },
    Area {
        name: "moving",
        about: "`Moving`, from one store to another",
        runs: &[("integration", &["moving::"]), ("conformance", &["moving"])],
        needs: &[Postgres, Redis],
    },
    Area {
        name: "http",
        about: "the HTTP layer and extractor",
        runs: &[("units", &["http::"]), ("integration", &["http::"])],
        needs: &[Postgres, MariaDb, MySql],
    },
    Area {
        name: "console",
        about: "the page for operators",
        runs: &[
            (
                "units",
                &[
                    "access::",
                    "counts::",
                    "guard::",
                    "origin::",
                    "timeline::",
                    "token::",
                ],
            ),
            ("integration", &["console::"]),
        ],
        needs: &[Postgres, MariaDb, MySql, Redis],
    },
    Area {
        name: "scale",
        about: "what operators read of a large table",
        runs: &[("integration", &["scale::"])],
        needs: &[Postgres, MariaDb, MySql, Redis, RedisCluster],
    },
    Area {
        name: "client",
        about: "the crate's own HTTP client",
        runs: &[
            ("units", &["wire::"]),
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
                "silence::",
            ],
        )],
        needs: &[Postgres, MariaDb, MySql, Redis, RedisCluster, Programs],
    },
];
