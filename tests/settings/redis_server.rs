//! Settings of Redis.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use idem_runtime::record::RecordState;
use idem_runtime::{Error, Idem, OnCrash, RedisStore, Store as _};
use idem_servers::{Options, Server};
use idem_tests::claims::{claim, own};

use crate::calls::{self, call, handle};
use crate::databases::chain;
use crate::setting::Expected::{Refused, Reported, Retried};
use crate::setting::{Change, Setting};

const EVICTS: &str = "`maxmemory-policy` is";

/// The settings.
pub(crate) const SETTINGS: &[Setting] = &[
    Setting::server("ordinary", &[]),
    Setting::server(
        "refuses_when_full",
        &[("maxmemory", "200mb"), ("maxmemory-policy", "noeviction")],
    ),
    Setting::server(
        "full",
        &[("maxmemory", "1"), ("maxmemory-policy", "noeviction")],
    )
    .but(Refused("memory", "memory"))
    .always(),
    Setting::server(
        "evicts_any_lru",
        &[("maxmemory", "200mb"), ("maxmemory-policy", "allkeys-lru")],
    )
    .but(Reported(EVICTS))
    .always(),
    Setting::server(
        "evicts_any_lfu",
        &[("maxmemory", "200mb"), ("maxmemory-policy", "allkeys-lfu")],
    )
    .but(Reported(EVICTS)),
    Setting::server(
        "evicts_any",
        &[
            ("maxmemory", "200mb"),
            ("maxmemory-policy", "allkeys-random"),
        ],
    )
    .but(Reported(EVICTS)),
    Setting::server(
        "evicts_volatile_lru",
        &[("maxmemory", "200mb"), ("maxmemory-policy", "volatile-lru")],
    )
    .but(Reported(EVICTS)),
    Setting::server(
        "evicts_volatile_lfu",
        &[("maxmemory", "200mb"), ("maxmemory-policy", "volatile-lfu")],
    )
    .but(Reported(EVICTS)),
    Setting::server(
        "evicts_volatile",
        &[
            ("maxmemory", "200mb"),
            ("maxmemory-policy", "volatile-random"),
        ],
    )
    .but(Reported(EVICTS)),
    Setting::server(
        "evicts_volatile_ttl",
        &[("maxmemory", "200mb"), ("maxmemory-policy", "volatile-ttl")],
    )
    .but(Reported(EVICTS)),
    Setting::server(
        "log_always",
        &[("appendonly", "yes"), ("appendfsync", "always")],
    ),
    Setting::server(
        "log_each_second",
        &[
            ("appendonly", "yes"),
            ("appendfsync", "everysec"),
            ("auto-aof-rewrite-min-size", "64kb"),
            ("auto-aof-rewrite-percentage", "10"),
        ],
    ),
    Setting::server("log_never", &[("appendonly", "yes"), ("appendfsync", "no")]),
    Setting::server(
        "log_without_preamble",
        &[
            ("appendonly", "yes"),
            ("aof-use-rdb-preamble", "no"),
            ("aof-timestamp-enabled", "yes"),
        ],
    ),
    Setting::server("snapshots", &[("save", "1 1")]),
    Setting::server(
        "lazy",
        &[
            ("lazyfree-lazy-eviction", "yes"),
            ("lazyfree-lazy-expire", "yes"),
            ("lazyfree-lazy-server-del", "yes"),
            ("lazyfree-lazy-user-del", "yes"),
            ("lazyfree-lazy-user-flush", "yes"),
        ],
    ),
    Setting::server(
        "small_encodings",
        &[
            ("hash-max-listpack-entries", "1"),
            ("hash-max-listpack-value", "1"),
            ("list-max-listpack-size", "1"),
            ("zset-max-listpack-entries", "0"),
            ("zset-max-listpack-value", "1"),
            ("set-max-intset-entries", "1"),
        ],
    )
    .always(),
    Setting::server(
        "large_encodings",
        &[
            ("hash-max-listpack-entries", "100000"),
            ("hash-max-listpack-value", "10000000"),
            ("list-compress-depth", "1"),
        ],
    ),
    Setting::server("short_scripts", &[("lua-time-limit", "1")]),
    Setting::server("notifications", &[("notify-keyspace-events", "KEA")]),
    Setting::server("idle", &[("timeout", "1")]).but(Retried),
    Setting::server("slow_clock", &[("hz", "1"), ("dynamic-hz", "no")]),
    Setting::server(
        "fast_clock",
        &[("hz", "500"), ("active-expire-effort", "10")],
    ),
    Setting::server("no_rehashing", &[("activerehashing", "no")]),
    Setting::admin("defragmentation", &["CONFIG SET activedefrag yes"]),
    Setting::server("small_arguments", &[("proto-max-bulk-len", "1mb")]).but(Retried),
    Setting::server("small_queries", &[("client-query-buffer-limit", "4mb")]),
    Setting::server(
        "small_output",
        &[("client-output-buffer-limit", "normal 8mb 4mb 10")],
    ),
    Setting::server("few_clients", &[("maxclients", "8")]),
    Setting::server("client_memory", &[("maxmemory-clients", "20mb")]),
    Setting::server("too_few_replicas", &[("min-replicas-to-write", "1")])
        .but(Refused("replicas", "replicas"))
        .always(),
    Setting::server(
        "renamed",
        &[
            ("rename-command", "CONFIG hidden-config"),
            ("rename-command", "FLUSHALL hidden-flushall"),
            ("rename-command", "KEYS hidden-keys"),
        ],
    ),
    Setting::admin(
        "documented_rights",
        &[
            "ACL SETUSER {user} on >secret ~idem:* +ping +eval +evalsha +set +get +getrange +setrange +append +del \
           +exists +time +pexpiretime +pttl +pexpireat +persist +scan +strlen +dbsize +rpush +ltrim +lrange +info",
        ],
    ),
    Setting::admin(
        "no_writes",
        &["ACL SETUSER {user} on >secret ~idem:* +@all -set"],
    )
    .but(Refused("may not", "SET")),
    Setting::admin(
        "no_scripts",
        &["ACL SETUSER {user} on >secret ~* +@all -eval -evalsha"],
    )
    .but(Refused("may not", "EVALSHA")),
    Setting::admin(
        "other_keys",
        &["ACL SETUSER {user} on >secret ~app:* +@all"],
    )
    .but(Refused("may not", "may not run")),
    Setting::server("tracking", &[("tracking-table-max-keys", "1")]),
    Setting::server("one_database", &[("databases", "1")]),
    Setting::admin(
        "goes_on_after_a_failed_snapshot",
        &["CONFIG SET stop-writes-on-bgsave-error no"],
    ),
    Setting::server(
        "slow_log",
        &[
            ("slowlog-log-slower-than", "0"),
            ("latency-monitor-threshold", "1"),
            ("latency-tracking", "yes"),
        ],
    ),
    Setting::server(
        "threads",
        &[("io-threads", "2"), ("io-threads-do-reads", "yes")],
    ),
];

/// A server under a setting, and two connections to it.
pub(crate) struct Redis {
    pub(crate) store: RedisStore,
    elsewhere: RedisStore,
    server: Server,
}

/// Starts a server under a setting.
pub(crate) async fn open(setting: &Setting) -> Result<Redis> {
    let options = match setting.change {
        Change::Server(settings) => crate::options(settings),
        _ => Options::fast(),
    };
    let server = tokio::task::block_in_place(|| Server::redis(&options))?;
    let mut url = server.url();
    if let Change::Admin(commands) = setting.change {
        for command in commands {
            if command.starts_with("ACL ") {
                url = url.replace("redis://", "redis://idem:secret@");
            }
            let command = crate::filled(command, "idem");
            match tokio::task::block_in_place(|| server.query(&command)) {
                // Debian builds it without.
                Err(error) if format!("{error:#}").contains("cannot be enabled") => {
                    eprintln!("NOT RUN: {}: {error:#}", setting.name);
                }
                done => drop(done?),
            }
        }
    }
    Ok(Redis {
        store: RedisStore::connect(&url).await?,
        elsewhere: RedisStore::connect(&server.url()).await?,
        server,
    })
}

impl Redis {
    /// Makes all kinds of calls, and fails if one does not do what it says.
    pub(crate) async fn work(&self) -> Result<()> {
        let idem = handle(self.store.clone());
        let elsewhere = handle(self.elsewhere.clone());
        calls::leased(&idem, &elsewhere).await.context("leased")?;
        calls::by_operators(&idem, &elsewhere)
            .await
            .context("operators")?;
        let mut lapsed = claim("lapsed");
        lapsed.lease = Duration::from_millis(1);
        lapsed.on_crash = OnCrash::Refuse;
        lapsed.retention = lapsed.lease;
        own(&self.store, &lapsed).await;
        // The purge finds that the owner is gone, and says so for others.
        idem_tests::until(async || {
            calls::purge(&self.store).await.expect("the server answers");
            let record = self.elsewhere.get(&lapsed.id).await;
            let record = record.expect("the server answers");
            record.is_some_and(|it| it.state == RecordState::Interrupted)
        })
        .await;
        Ok(())
    }

    /// Returns an error unless each use of a new handle fails with this text and leaves nothing.
    pub(crate) async fn refuse(&self, text: &str) -> Result<()> {
        let idem = Idem::new(self.store.clone());
        let leased: Result<i32, Error> = idem
            .run(call("refused"), async || panic!("a body runs"))
            .await;
        let error = leased.map_or_else(chain, |_| "it works".to_owned());
        ensure!(error.contains(text), "leased: another error: {error}");
        let record = calls::seen(&handle(self.elsewhere.clone()), "refused").await?;
        ensure!(record.is_none(), "refused, and there is {record:?}");
        Ok(())
    }

    /// Fills the memory of the server with keys of another application.
    pub(crate) fn fill(&self) -> Result<()> {
        for number in 0..40 {
            let key = format!("SETRANGE other:{number} 200000 x");
            tokio::task::block_in_place(|| self.server.query(&key))?;
        }
        Ok(())
    }
}
