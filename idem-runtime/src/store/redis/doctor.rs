//! Checks of Redis servers.

use redis::{Value, cmd};

use super::RedisStore;
use super::connection::Primary;
use super::errors::unreadable;
use super::scripts::{self, ScriptCall};
use crate::error::{StoreError, StoreErrorKind};
use crate::key::RecordId;
use crate::store::operator::Finding;

/// Commands of the store that a script runs, with arguments that make them valid. The key comes after the name.
const WRITES: [&[&str]; 8] = [
    &["SET", "a"],
    &["GETRANGE", "0", "1"],
    &["SETRANGE", "0", "a"],
    &["APPEND", "a"],
    &["DEL"],
    &["EXISTS"],
    &["PEXPIREAT", "1"],
    &["PERSIST"],
];

/// Facts about one server.
struct Server {
    /// Sections of `INFO`; `None` if the user may not ask.
    info: Option<String>,
    /// Value of `appendfsync`; `None` if the user may not ask.
    fsync: Option<String>,
    /// Value of `min-replicas-to-write`; `None` if the user may not ask.
    min_replicas: Option<String>,
}

impl Server {
    fn fact(&self, name: &str) -> Option<&str> {
        let mut lines = self.info.as_deref()?.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::trim))
    }

    fn number(&self, name: &str) -> u64 {
        self.fact(name).and_then(|it| it.parse().ok()).unwrap_or(0)
    }

    /// Returns true if the server refuses writes that need memory, instead of evicting keys.
    fn is_full(&self) -> bool {
        let limit = self.number("maxmemory");
        let evicts = self.fact("maxmemory_policy") != Some("noeviction");
        limit > 0 && !evicts && self.number("used_memory") >= limit
    }

    /// Number of replicas that a write needs, if there are fewer.
    fn missing_replicas(&self) -> Option<u64> {
        let needed = self.min_replicas.as_ref()?.parse().ok()?;
        // The server says this only if the setting is used.
        let connected = self.fact("min_slaves_good_slaves")?.parse::<u64>().ok()?;
        (connected < needed).then_some(needed)
    }
}

impl RedisStore {
    pub(super) async fn examine(&self) -> Vec<Finding> {
        let primaries = match self.connection.primaries(self.timeout).await {
            Ok(primaries) => primaries,
            Err(error) => return vec![Finding::failed("connection", &error)],
        };
        let mut findings = vec![Finding::or_failed(
            "rights",
            self.check_rights(&primaries).await,
        )];
        let mut servers = Vec::new();
        for primary in &primaries {
            match self.server(primary).await {
                Ok(server) => servers.push(server),
                Err(error) => findings.push(Finding::failed("server", &error)),
            }
        }
        if servers.iter().any(|server| server.info.is_none()) {
            findings.push(Finding::warning(
                "server",
                "the user may not run INFO, so eviction, persistence and replication were not checked",
                "grant `+info` to the user, or run this check as another one",
            ));
            return findings;
        }
        findings.push(check_version(&servers));
        findings.push(check_writable(&servers));
        findings.push(check_eviction(&servers));
        findings.push(check_durability(&servers));
        findings.push(check_loss(&servers));
        findings
    }

    async fn server(&self, primary: &Primary) -> Result<Server, StoreError> {
        let allowed = |answer: Result<[Value; 1], StoreError>| match answer {
            Err(error) if error.kind() == StoreErrorKind::Denied => Ok(None),
            answer => answer.map(|[value]| Some(value)),
        };
        let info = self
            .connection
            .ask(primary, [cmd("INFO")], self.timeout)
            .await;
        Ok(Server {
            info: match allowed(info)? {
                None => None,
                Some(Value::BulkString(bytes)) => {
                    Some(String::from_utf8_lossy(&bytes).into_owned())
                }
                Some(Value::VerbatimString { text, .. }) => Some(text),
                Some(_) => return Err(unreadable()),
            },
            fsync: self.setting(primary, "appendfsync").await,
            min_replicas: self.setting(primary, "min-replicas-to-write").await,
        })
    }

    /// Value of a setting. `None` if the user may not ask, or the server does not know CONFIG, as one of a cloud provider.
    async fn setting(&self, primary: &Primary, name: &str) -> Option<String> {
        let mut config = cmd("CONFIG");
        config.arg("GET").arg(name);
        let answer = self.connection.ask(primary, [config], self.timeout).await;
        let [value] = answer.ok()?;
        let pair = redis::from_redis_value::<Vec<String>>(value).ok()?;
        pair.into_iter().nth(1)
    }

    /// Runs what only reads. What writes is only asked for, with `ACL DRYRUN` of Redis 7.
    async fn check_rights(&self, primaries: &[Primary]) -> Result<Finding, StoreError> {
        const CHECK: &str = "rights";
        const REMEDY: &str = "grant the commands that the documentation of `RedisStore` lists, for the keys of the prefix";
        let key = self.key(&RecordId::from_bytes([0; 32]));
        let call = ScriptCall::new(&scripts::READ, &key);
        let mut missing = Vec::new();
        let mut tried = vec![(
            "EVALSHA",
            self.connection.run(&call, self.timeout).await.map(|_| ()),
        )];
        for primary in primaries {
            tried.push(("SCAN", self.scan(primary, b"0").await.map(|_| ())));
        }
        for (command, answer) in tried {
            match answer {
                Err(error) if error.kind() == StoreErrorKind::Denied => missing.push(command),
                answer => answer?,
            }
        }
        let (mut who, mut is_known) = (cmd("ACL"), true);
        who.arg("WHOAMI");
        let primary = primaries.first().ok_or_else(unreadable)?;
        let user = self.connection.ask(primary, [who], self.timeout).await;
        match user.map(|[user]| redis::from_redis_value::<String>(user)) {
            Ok(Ok(user)) => {
                for write in WRITES {
                    let (mut dry_run, (name, arguments)) = (cmd("ACL"), write.split_at(1));
                    dry_run
                        .arg("DRYRUN")
                        .arg(&user)
                        .arg(name)
                        .arg(&key)
                        .arg(arguments);
                    match self.connection.ask(primary, [dry_run], self.timeout).await {
                        Ok([Value::Okay]) => {}
                        Ok(_) => missing.extend(name),
                        Err(_) => is_known = false,
                    }
                }
            }
            _ => is_known = false,
        }
        missing.dedup();
        if !missing.is_empty() {
            let missing = missing.join(", ");
            return Ok(Finding::problem(
                CHECK,
                format!("the user may not run {missing}"),
                REMEDY,
            ));
        }
        if !is_known {
            return Ok(Finding::warning(
                CHECK,
                "the user may read; its rights to write were not checked, because it may not run ACL, or the server is \
                 older than Redis 7",
                "run this check as an administrator",
            ));
        }
        Ok(Finding::ok(
            CHECK,
            "the user may run the commands of the store on the keys of the prefix",
        ))
    }
}

fn check_version(servers: &[Server]) -> Finding {
    const CHECK: &str = "version";
    // Valkey says the version of Redis that it is compatible with.
    let versions = servers.iter().filter_map(|it| it.fact("redis_version"));
    let is_old = |version: &&str| {
        let major = version
            .split('.')
            .next()
            .and_then(|it| it.parse::<u32>().ok());
        major.is_some_and(|major| major < 7)
    };
    match versions.into_iter().find(is_old) {
        None => Finding::ok(CHECK, "the servers have the commands of the store"),
        Some(version) => Finding::problem(
            CHECK,
            format!("a server is Redis {version}, and the store needs 7.0"),
            "run Redis 7.0 or later, or Valkey",
        ),
    }
}

fn check_writable(servers: &[Server]) -> Finding {
    const CHECK: &str = "writable";
    if servers.iter().any(Server::is_full) {
        return Finding::problem(
            CHECK,
            "the memory of a server is full (`maxmemory`), so it refuses claims",
            "raise `maxmemory`, or remove keys of other applications",
        );
    }
    if let Some(needed) = servers.iter().find_map(Server::missing_replicas) {
        return Finding::problem(
            CHECK,
            format!(
                "a server accepts writes only with {needed} replicas (`min-replicas-to-write`) and has fewer, so every claim \
                 fails"
            ),
            "connect the replicas again, or lower `min-replicas-to-write`",
        );
    }
    Finding::ok(CHECK, "the servers accept writes")
}

fn check_eviction(servers: &[Server]) -> Finding {
    const CHECK: &str = "eviction";
    let policies = servers.iter().filter_map(|it| it.fact("maxmemory_policy"));
    match policies.into_iter().find(|it| *it != "noeviction") {
        None => Finding::ok(
            CHECK,
            "`maxmemory-policy` is noeviction: a full server refuses claims, and loses no record",
        ),
        Some(policy) => Finding::problem(
            CHECK,
            format!(
                "`maxmemory-policy` is {policy}: a full server removes records, and their calls run again, even under \
                     `refuse`"
            ),
            "set `maxmemory-policy noeviction`",
        ),
    }
}

fn check_durability(servers: &[Server]) -> Finding {
    const CHECK: &str = "durability";
    if servers.iter().any(|it| it.fact("aof_enabled") != Some("1")) {
        return Finding::warning(
            CHECK,
            "`appendonly` is off: a crash or restart of the server loses all records since its last snapshot, and their \
             calls run again",
            "set `appendonly yes` and `appendfsync always`, or store the records in SQL",
        );
    }
    let fsync: Vec<_> = servers.iter().map(|it| it.fsync.as_deref()).collect();
    if fsync.iter().all(|it| *it == Some("always")) {
        return Finding::ok(
            CHECK,
            "`appendfsync` is always: an acknowledged outcome survives a crash of the machine",
        );
    }
    if fsync.contains(&None) {
        return Finding::warning(
            CHECK,
            "`appendonly` is on; `appendfsync` is unknown, because the user may not run CONFIG GET. Unless it is always, a \
             crash of the machine loses the last outcomes",
            "run this check as an administrator",
        );
    }
    Finding::warning(
        CHECK,
        "`appendfsync` is not always: a crash of the machine loses the transitions of the last seconds, a kill of Redis may \
         lose the last ones, and their calls run again",
        "set `appendfsync always` if no outcome may be lost",
    )
}

fn check_loss(servers: &[Server]) -> Finding {
    const CHECK: &str = "loss of the server";
    if servers.iter().any(|it| it.fact("role") != Some("master")) {
        return Finding::problem(
            CHECK,
            "the server is a replica, so every claim fails",
            "connect to the primary",
        );
    }
    if servers
        .iter()
        .all(|it| it.fact("connected_slaves") == Some("0"))
    {
        return Finding::warning(
            CHECK,
            "there are no replicas: if the disk is lost, all records are lost, and their calls run again",
            "add a replica, or store the records in SQL",
        );
    }
    Finding::warning(
        CHECK,
        "replication is asynchronous: a failover loses what the promoted replica had not received, and the calls of these \
         records run again",
        "use `wait_for_replicas`, which makes this less likely, or store the records in SQL",
    )
}
