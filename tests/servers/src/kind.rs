//! Particulars of each kind of server: programs, preparation, arguments, client and sign of readiness.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::bail;

use crate::certificates::{AUTHORITY, SERVER};
use crate::guardian::Guardian;
use crate::http_proxy::{self, Backend};
use crate::options::Options;
use crate::programs::Programs;
use crate::release::Release;
use crate::{binaries, galera_node, my_sql, patroni_node, pg_bouncer, rabbit_mq, sentinel_node};

/// Time limit for a server's start, including crash recovery.
const START_LIMIT: Duration = Duration::from_secs(60);

/// Rules of PostgreSQL for logins. Its own client uses the socket. The user `app` needs a certificate with this name, and
/// his password.
const LOGIN_RULES: [&str; 2] = [
    "logins.conf",
    "local all all trust\n\
     hostssl all app 127.0.0.1/32 scram-sha-256 clientcert=verify-full\n\
     hostssl all all 127.0.0.1/32 scram-sha-256\n",
];

/// Programs of a server, and its directory.
pub(crate) struct Place {
    pub(crate) programs: Programs,
    /// Words in front of each command.
    pub(crate) launcher: Vec<OsString>,
    /// The directory as this process sees it.
    pub(crate) outside: PathBuf,
    /// The directory as the server sees it.
    pub(crate) inside: PathBuf,
}

impl Place {
    /// Runs a program that prepares the directory.
    fn run(
        &self,
        guardian: &mut Guardian,
        binary: binaries::Binary,
        arguments: &[String],
    ) -> anyhow::Result<()> {
        let program = self.programs.find(binary)?;
        let arguments = arguments.iter().map(OsString::from);
        let command: Vec<_> = self
            .launcher
            .iter()
            .cloned()
            .chain(std::iter::once(program.into()))
            .chain(arguments)
            .collect();
        guardian.run(&command)
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    Postgres,
    /// Standby of the PostgreSQL on this port.
    PostgresStandby {
        primary: u16,
    },
    /// Pooler in front of the PostgreSQL on this port.
    PgBouncer {
        postgres: u16,
    },
    MariaDb,
    GaleraNode,
    MySql,
    Redis,
    Sentinel,
    RabbitMq,
    Nats,
    Etcd,
    PatroniNode,
    ChromeDriver,
    Prometheus,
    Nghttpx(Backend),
    HaProxy(Backend),
}

/// Sign that a server is ready.
pub(crate) enum Ready {
    /// A query that only a ready server answers, and the answer.
    Answers(&'static str, &'static str),
    /// Text in its log.
    Logs(&'static str),
}

impl Kind {
    pub(crate) fn binary(self) -> binaries::Binary {
        match self {
            Self::Postgres | Self::PostgresStandby { .. } => binaries::POSTGRES,
            Self::PgBouncer { .. } => binaries::PGBOUNCER,
            Self::MariaDb | Self::GaleraNode => binaries::MARIADBD,
            Self::MySql => binaries::MYSQLD,
            Self::Redis | Self::Sentinel => binaries::REDIS_SERVER,
            Self::RabbitMq => binaries::RABBITMQ_SERVER,
            Self::Nats => binaries::NATS_SERVER,
            Self::Etcd => binaries::ETCD,
            Self::PatroniNode => binaries::PATRONI,
            Self::ChromeDriver => binaries::CHROMEDRIVER,
            Self::Prometheus => binaries::PROMETHEUS,
            Self::Nghttpx(_) => binaries::NGHTTPX,
            Self::HaProxy(_) => binaries::HAPROXY,
        }
    }

    /// Programs of a server whose options name none.
    pub(crate) fn programs(self) -> anyhow::Result<Programs> {
        let release = match self {
            // Debian 12 has no MySQL.
            Self::MySql => return Release::MY_SQL.programs(),
            Self::Postgres | Self::PostgresStandby { .. } => Release::POSTGRES,
            Self::PgBouncer { .. } => Release::PG_BOUNCER,
            Self::MariaDb => Release::MARIA_DB,
            Self::Redis | Self::Sentinel => Release::REDIS,
            // Galera and Patroni need more programs than their servers', and the others are no stores.
            Self::GaleraNode
            | Self::PatroniNode
            | Self::Etcd
            | Self::RabbitMq
            | Self::Nats
            | Self::ChromeDriver
            | Self::Prometheus
            | Self::Nghttpx(_)
            | Self::HaProxy(_) => return Ok(Programs::Machine),
        };
        match release.is_chosen() {
            true => release.programs(),
            false => Ok(Programs::Machine),
        }
    }

    /// Signal that ends the server. PostgreSQL has many processes: at `SIGQUIT` the first one ends the others
    /// immediately. Patroni ends its PostgreSQL, and HAProxy its worker, only if they may.
    pub(crate) fn stop(self) -> &'static str {
        match self {
            Self::Postgres | Self::PostgresStandby { .. } => "QUIT",
            Self::PatroniNode | Self::HaProxy(_) => "TERM",
            Self::PgBouncer { .. }
            | Self::MariaDb
            | Self::GaleraNode
            | Self::MySql
            | Self::Redis
            | Self::Sentinel
            | Self::RabbitMq
            | Self::Nats
            | Self::Etcd
            | Self::ChromeDriver
            | Self::Prometheus
            | Self::Nghttpx(_) => "KILL",
        }
    }

    pub(crate) fn start_limit(self) -> Duration {
        match self {
            // Nodes that join get their data one after the other.
            Self::GaleraNode | Self::PatroniNode => 4 * START_LIMIT,
            _ => START_LIMIT,
        }
    }

    /// Program that prepares each start of the server and then becomes it.
    pub(crate) fn launcher(self, directory: &Path) -> Vec<OsString> {
        match self {
            Self::GaleraNode => galera_node::launcher(directory),
            _ => Vec::new(),
        }
    }

    /// Creates the files that the server needs at its start, and returns its environment variables.
    pub(crate) fn prepare(
        self,
        place: &Place,
        port: u16,
        options: &Options,
        guardian: &mut Guardian,
    ) -> anyhow::Result<Vec<OsString>> {
        let outside = &*place.outside;
        let inside = place.inside.display();
        match self {
            Self::RabbitMq => {
                return rabbit_mq::prepare(outside, port, &options.settings, guardian);
            }
            Self::PgBouncer { postgres } => {
                let version = place.programs.version(binaries::PGBOUNCER)?;
                let (inside, settings) = (&place.inside, &options.settings);
                let text = pg_bouncer::configuration(inside, port, postgres, &version, settings);
                std::fs::write(outside.join("pgbouncer.ini"), text)?;
            }
            Self::GaleraNode => galera_node::configure(outside)?,
            Self::Postgres if options.certificates.is_some() => {
                let [name, rules] = LOGIN_RULES;
                std::fs::write(outside.join(name), rules)?;
            }
            Self::Sentinel => {
                let directory = place.inside.display().to_string();
                let tls = self.tls_settings(&directory, port, options);
                let tls = tls
                    .into_iter()
                    .map(|(name, value)| (name.to_owned(), value));
                let settings: Vec<_> = tls.chain(options.settings.iter().cloned()).collect();
                let text = sentinel_node::configuration(&place.inside, port, &settings);
                std::fs::write(outside.join("sentinel.conf"), text)?;
            }
            Self::MySql => std::fs::write(outside.join("init.sql"), my_sql::INIT)?,
            Self::HaProxy(backend) => {
                let text = http_proxy::haproxy(port, backend);
                std::fs::write(outside.join("haproxy.cfg"), text)?;
            }
            Self::PatroniNode => {
                let text = patroni_node::configuration(outside, port, options)?;
                std::fs::write(outside.join(patroni_node::CONFIGURATION), text)?;
            }
            _ => {}
        }
        match self {
            Self::Postgres => place.run(
                guardian,
                binaries::INITDB,
                &[
                    format!("--pgdata={inside}/data"),
                    "--username=postgres".into(),
                    "--auth=trust".into(),
                    "--encoding=UTF8".into(),
                    "--locale=C".into(),
                    "--no-sync".into(),
                ],
            ),
            Self::PostgresStandby { primary } => place.run(
                guardian,
                binaries::PG_BASEBACKUP,
                &[
                    format!("--pgdata={inside}/data"),
                    format!(
                        "--dbname=host=127.0.0.1 port={primary} user=postgres application_name=standby"
                    ),
                    "--write-recovery-conf".into(),
                    "--wal-method=stream".into(),
                    "--checkpoint=fast".into(),
                    "--no-sync".into(),
                ],
            ),
            Self::GaleraNode if !galera_node::is_first(&options.settings) => {
                // Another node copies its data here.
                binaries::RSYNC.find()?;
                guardian.run(&["mkdir".to_owned(), format!("{inside}/data")])
            }
            Self::MariaDb | Self::GaleraNode => place.run(
                guardian,
                binaries::MARIADB_INSTALL_DB,
                &[
                    "--no-defaults".into(),
                    format!("--datadir={inside}/data"),
                    "--auth-root-authentication-method=normal".into(),
                    "--skip-test-db".into(),
                    // Otherwise it looks up the name of the machine, which a root does not know.
                    "--force".into(),
                ],
            ),
            Self::MySql => place.run(
                guardian,
                binaries::MYSQLD,
                &my_sql::initialize(&inside.to_string()),
            ),
            Self::PgBouncer { .. }
            | Self::Redis
            | Self::Sentinel
            | Self::RabbitMq
            | Self::Nats
            | Self::Etcd
            | Self::PatroniNode
            | Self::ChromeDriver
            | Self::Prometheus
            | Self::Nghttpx(_)
            | Self::HaProxy(_) => Ok(()),
        }?;
        Ok(Vec::new())
    }

    /// Settings of a server that accepts encrypted connections only; none for others. The socket in its directory stays open.
    /// Redis and sentinels require a certificate of each client.
    fn tls_settings(
        self,
        directory: &str,
        port: u16,
        options: &Options,
    ) -> Vec<(&'static str, String)> {
        if options.certificates.is_none() {
            return Vec::new();
        }
        let path = |name: &str| format!("{directory}/{name}");
        let [authority, certificate, key] = [AUTHORITY, SERVER[0], SERVER[1]].map(path);
        let (on, yes) = (|| "on".to_owned(), || "yes".to_owned());
        match self {
            Self::Postgres => vec![
                ("ssl", on()),
                ("ssl_ca_file", authority),
                ("ssl_cert_file", certificate),
                ("ssl_key_file", key),
                ("hba_file", path(LOGIN_RULES[0])),
            ],
            Self::MariaDb | Self::MySql => vec![
                ("ssl-ca", authority),
                ("ssl-cert", certificate),
                ("ssl-key", key),
                ("require-secure-transport", on()),
            ],
            Self::Redis | Self::Sentinel => vec![
                ("port", "0".to_owned()),
                ("tls-port", port.to_string()),
                ("tls-ca-cert-file", authority),
                ("tls-cert-file", certificate),
                ("tls-key-file", key),
                ("tls-auth-clients", yes()),
                ("tls-replication", yes()),
                ("tls-cluster", yes()),
            ],
            _ => Vec::new(),
        }
    }

    pub(crate) fn arguments(self, directory: &Path, port: u16, options: &Options) -> Vec<String> {
        let durable = options.durable;
        let directory = directory.display();
        let on = |value: bool| if value { "on" } else { "off" }.to_owned();
        let (mut arguments, mut settings) = match self {
            Self::Postgres | Self::PostgresStandby { .. } => (
                vec!["-D".to_owned(), format!("{directory}/data")],
                vec![
                    ("listen_addresses", "127.0.0.1".to_owned()),
                    ("port", port.to_string()),
                    ("unix_socket_directories", directory.to_string()),
                    ("max_connections", "300".to_owned()),
                    ("fsync", on(durable)),
                    ("synchronous_commit", on(durable)),
                    ("full_page_writes", on(durable)),
                ],
            ),
            Self::MariaDb | Self::GaleraNode => (
                vec!["--no-defaults".to_owned()],
                vec![
                    ("datadir", format!("{directory}/data")),
                    ("bind-address", "127.0.0.1".to_owned()),
                    ("port", port.to_string()),
                    ("socket", format!("{directory}/socket")),
                    ("pid-file", format!("{directory}/pid")),
                    ("max-connections", "300".to_owned()),
                    (
                        "innodb-flush-log-at-trx-commit",
                        if durable { "1" } else { "0" }.to_owned(),
                    ),
                ],
            ),
            Self::MySql => (
                vec!["--no-defaults".to_owned()],
                my_sql::settings(&directory.to_string(), port, durable),
            ),
            Self::Redis => (
                Vec::new(),
                vec![
                    ("dir", directory.to_string()),
                    ("bind", "127.0.0.1".to_owned()),
                    ("port", port.to_string()),
                    ("unixsocket", format!("{directory}/socket")),
                    ("save", String::new()),
                    ("appendonly", if durable { "yes" } else { "no" }.to_owned()),
                    ("appendfsync", "always".to_owned()),
                ],
            ),
            Self::Nats => (
                vec!["--jetstream".to_owned()],
                vec![
                    ("addr", "127.0.0.1".to_owned()),
                    ("port", port.to_string()),
                    ("store_dir", format!("{directory}/data")),
                ],
            ),
            Self::Etcd => (
                Vec::new(),
                vec![
                    ("data-dir", format!("{directory}/data")),
                    ("listen-client-urls", format!("http://127.0.0.1:{port}")),
                    ("advertise-client-urls", format!("http://127.0.0.1:{port}")),
                ],
            ),
            Self::ChromeDriver => (Vec::new(), vec![("port", port.to_string())]),
            Self::Prometheus => (
                Vec::new(),
                vec![
                    ("web.listen-address", format!("127.0.0.1:{port}")),
                    ("storage.tsdb.path", format!("{directory}/data")),
                ],
            ),
            // The settings of these are in a file.
            Self::PgBouncer { .. } => return vec![format!("{directory}/pgbouncer.ini")],
            Self::Sentinel => return sentinel_node::arguments(&directory.to_string()),
            Self::PatroniNode => {
                return vec![format!("{directory}/{}", patroni_node::CONFIGURATION)];
            }
            Self::HaProxy(_) => {
                // With a master, because only that says when it is ready.
                let file = format!("{directory}/haproxy.cfg");
                return vec!["-W".to_owned(), "-f".to_owned(), file];
            }
            Self::Nghttpx(backend) => return http_proxy::nghttpx(port, backend),
            Self::RabbitMq => return Vec::new(),
        };
        settings.extend(self.tls_settings(&directory.to_string(), port, options));
        let own = options.settings.iter();
        settings.extend(own.map(|(name, value)| (name.as_str(), value.clone())));
        for (name, value) in settings {
            match self {
                Self::Postgres | Self::PostgresStandby { .. } => {
                    arguments.extend(["-c".to_owned(), format!("{name}={value}")]);
                }
                Self::MariaDb
                | Self::GaleraNode
                | Self::MySql
                | Self::ChromeDriver
                | Self::Prometheus => arguments.push(format!("--{name}={value}")),
                // Two words, which Redis takes as two arguments.
                _ if name == "rename-command" => {
                    arguments.push(format!("--{name}"));
                    arguments.extend(value.split(' ').map(str::to_owned));
                }
                _ => arguments.extend([format!("--{name}"), value]),
            }
        }
        arguments
    }

    pub(crate) fn client(
        self,
        programs: &Programs,
        directory: &Path,
        port: u16,
    ) -> anyhow::Result<Command> {
        let socket = directory.join("socket");
        let port = port.to_string();
        let program = |binary| {
            let path = programs.find(binary)?;
            let mut words = programs.launcher(directory, None).into_iter();
            anyhow::Ok(match words.next() {
                None => Command::new(path),
                Some(first) => {
                    let mut command = Command::new(first);
                    command.args(words).arg(path);
                    command
                }
            })
        };
        let mut client;
        match self {
            Self::Postgres
            | Self::PostgresStandby { .. }
            | Self::PatroniNode
            | Self::PgBouncer { .. } => {
                client = program(binaries::PSQL)?;
                client.arg("--host").arg(directory);
                client.args(["--port", &port, "--username=postgres", "--dbname=postgres"]);
                client.args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align"]);
                client.args(["--set=ON_ERROR_STOP=1", "--command"]);
            }
            Self::MariaDb | Self::GaleraNode | Self::MySql => {
                client = program(match self {
                    Self::MySql => binaries::MYSQL,
                    _ => binaries::MARIADB,
                })?;
                client.arg("--no-defaults").arg("--socket").arg(socket);
                client.args(["--user=root", "--batch", "--skip-column-names", "--execute"]);
            }
            Self::Redis | Self::Sentinel => {
                client = program(binaries::REDIS_CLI)?;
                client.arg("-e").arg("-s").arg(socket);
            }
            Self::RabbitMq
            | Self::Nats
            | Self::Etcd
            | Self::ChromeDriver
            | Self::Prometheus
            | Self::Nghttpx(_)
            | Self::HaProxy(_) => {
                bail!("{self:?} has no client program for queries")
            }
        }
        Ok(client)
    }

    pub(crate) fn ready(self) -> Ready {
        match self {
            Self::Postgres
            | Self::PostgresStandby { .. }
            | Self::PatroniNode
            | Self::MariaDb
            | Self::MySql => Ready::Answers("SELECT 1", "1"),
            Self::Etcd => Ready::Logs("ready to serve client requests"),
            Self::PgBouncer { .. } => Ready::Logs("process up"),
            Self::GaleraNode => Ready::Answers(galera_node::PROBE, "Synced"),
            Self::Redis | Self::Sentinel => Ready::Answers("PING", "PONG"),
            Self::RabbitMq => Ready::Logs("Server startup complete"),
            Self::Nats => Ready::Logs("Server is ready"),
            Self::ChromeDriver => Ready::Logs("ChromeDriver was started successfully"),
            Self::Prometheus => Ready::Logs("Server is ready to receive web requests"),
            Self::Nghttpx(_) => Ready::Logs("Created worker thread"),
            Self::HaProxy(_) => Ready::Logs("Loading success"),
        }
    }
}
