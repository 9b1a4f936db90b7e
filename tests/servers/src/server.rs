//! One server process: preparation, start and readiness of each kind.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use crate::binaries::{self, User};
use crate::guardian::Guardian;
use crate::port::free_port;
use crate::{galera_node, pg_bouncer, rabbit_mq, sentinel_node};

/// Time limit for a server's start, including crash recovery.
const START_LIMIT: Duration = Duration::from_secs(60);

/// Options of a server.
#[derive(Debug, Clone)]
pub struct Options {
    durable: bool,
    settings: Vec<(String, String)>,
}

impl Options {
    /// As fast as possible: a crash of the machine would lose data, and `kill -9` of the server may lose data that
    /// Redis, or an asynchronous commit, has not yet written.
    pub fn fast() -> Self {
        Self {
            durable: false,
            settings: Vec::new(),
        }
    }

    /// Acknowledged data is on disk: PostgreSQL and InnoDB flush at each commit, Redis has `appendfsync always`.
    pub fn durable() -> Self {
        Self {
            durable: true,
            ..Self::fast()
        }
    }

    /// Adds a setting of the server's own configuration, such as `shared_preload_libraries`, `maxmemory-policy`, a line
    /// of `rabbitmq.conf` or a flag of `nats-server`. It overrides the value that this library sets.
    #[must_use]
    pub fn set(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Adds a default for a setting that the caller has not set.
    pub(crate) fn or_else(self, name: &str, value: &str) -> Self {
        if self.settings.iter().any(|(chosen, _)| chosen == name) {
            return self;
        }
        self.set(name, value)
    }
}

/// A private server on 127.0.0.1, stopped on drop.
///
/// The server runs under a small shell. The shell waits for the end of this process by a return, a panic, Ctrl-C or
/// `kill -9`. It then stops exactly this server and removes its directory. [`Drop`] waits until that is done.
///
/// A server that refuses to run as root runs as the user of its package: `postgres`, `mysql` or `rabbitmq`.
pub struct Server {
    kind: Kind,
    port: u16,
    directory: PathBuf,
    command: Vec<OsString>,
    guardian: Mutex<Guardian>,
}

impl Server {
    /// Starts PostgreSQL, with a superuser `postgres` that has no password.
    ///
    /// # Errors
    ///
    /// PostgreSQL is not installed, or did not start; the end of its log is part of the error.
    pub fn postgres(options: &Options) -> anyhow::Result<Self> {
        Self::new(Kind::Postgres, options)
    }

    /// Starts a PostgreSQL that follows this one by streaming replication, under the name `standby`. It accepts reads.
    /// `SELECT pg_promote()` makes it a primary.
    ///
    /// # Errors
    ///
    /// The primary is not PostgreSQL or does not run, or the standby did not start; the end of its log is part of the
    /// error.
    pub fn postgres_standby(primary: &Self, options: &Options) -> anyhow::Result<Self> {
        let primary = primary.port;
        Self::new(Kind::PostgresStandby { primary }, options)
    }

    /// Starts PgBouncer in front of the PostgreSQL on this port of 127.0.0.1, in transaction mode. It lets everybody in,
    /// as the superuser `postgres`. Settings are those of the section `[pgbouncer]` of its configuration.
    ///
    /// # Errors
    ///
    /// PgBouncer is not installed, or did not start; the end of its log is part of the error.
    pub fn pg_bouncer(postgres: u16, options: &Options) -> anyhow::Result<Self> {
        Self::new(Kind::PgBouncer { postgres }, options)
    }

    /// Starts MariaDB, with a superuser `root` that has no password.
    ///
    /// # Errors
    ///
    /// MariaDB is not installed, or did not start; the end of its log is part of the error.
    pub fn maria_db(options: &Options) -> anyhow::Result<Self> {
        Self::new(Kind::MariaDb, options)
    }

    /// Starts Redis.
    ///
    /// # Errors
    ///
    /// Redis is not installed, or did not start; the end of its log is part of the error.
    pub fn redis(options: &Options) -> anyhow::Result<Self> {
        Self::new(Kind::Redis, options)
    }

    /// Starts a node of Galera. The options must have its addresses, see [`GaleraCluster`](crate::GaleraCluster).
    pub(crate) fn galera_node(options: &Options) -> anyhow::Result<Self> {
        Self::new(Kind::GaleraNode, options)
    }

    /// Starts a Redis Sentinel. The options are lines of its configuration.
    pub(crate) fn redis_sentinel(options: &Options) -> anyhow::Result<Self> {
        Self::new(Kind::Sentinel, options)
    }

    /// Starts RabbitMQ without plugins, with an administrator `guest` whose password is `guest`. Its Erlang node has a
    /// unique name and a separate `epmd`, so that it cannot reach any other node.
    ///
    /// # Errors
    ///
    /// RabbitMQ is not installed, or did not start; the end of its log is part of the error.
    pub fn rabbit_mq(options: &Options) -> anyhow::Result<Self> {
        Self::new(Kind::RabbitMq, options)
    }

    /// Starts NATS with JetStream, which keeps its streams on disk.
    ///
    /// # Errors
    ///
    /// NATS is not installed, or did not start; the end of its log is part of the error.
    pub fn nats(options: &Options) -> anyhow::Result<Self> {
        Self::new(Kind::Nats, options)
    }

    /// Starts ChromeDriver, which controls Chromium with the WebDriver protocol. A session that must end with the
    /// driver in all cases passes Chromium the argument `--remote-debugging-pipe`. Chromium's data is in the directory.
    ///
    /// # Errors
    ///
    /// ChromeDriver or Chromium is not installed, or ChromeDriver did not start; the end of its log is part of the
    /// error.
    pub fn chrome_driver(options: &Options) -> anyhow::Result<Self> {
        binaries::CHROMIUM.find()?;
        Self::new(Kind::ChromeDriver, options)
    }

    /// Starts Prometheus with this configuration file, which must have an absolute path.
    ///
    /// # Errors
    ///
    /// Prometheus is not installed, or did not start; the end of its log is part of the error.
    pub fn prometheus(options: &Options, configuration: &Path) -> anyhow::Result<Self> {
        let file = configuration.display().to_string();
        let options = options.clone().set("config.file", &file);
        Self::new(Kind::Prometheus, &options)
    }

    /// URL of the server, in the form that its clients expect.
    pub fn url(&self) -> String {
        let port = self.port;
        match self.kind {
            Kind::Postgres | Kind::PostgresStandby { .. } | Kind::PgBouncer { .. } => {
                format!("postgres://postgres@127.0.0.1:{port}/postgres")
            }
            Kind::MariaDb | Kind::GaleraNode => format!("mysql://root@127.0.0.1:{port}/mysql"),
            Kind::Redis | Kind::Sentinel => format!("redis://127.0.0.1:{port}/"),
            Kind::RabbitMq => format!("amqp://guest:guest@127.0.0.1:{port}/%2f"),
            Kind::Nats => format!("nats://127.0.0.1:{port}"),
            Kind::ChromeDriver | Kind::Prometheus => format!("http://127.0.0.1:{port}"),
        }
    }

    /// Port on 127.0.0.1, unchanged by a restart.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Id of the server's process; `None` after [`kill`](Self::kill).
    pub fn pid(&self) -> Option<u32> {
        self.guardian().pid()
    }

    /// Directory of its data and its log.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Kills the server with `SIGKILL`, and waits until it has ended. It stays down until [`restart`](Self::restart).
    ///
    /// # Errors
    ///
    /// The server's guardian has been killed.
    pub fn kill(&self) -> anyhow::Result<()> {
        self.guardian().kill()
    }

    /// Starts the server on the same port with the same data, after killing it if it still runs, and waits until it is
    /// ready.
    ///
    /// # Errors
    ///
    /// The server did not start; the end of its log is part of the error.
    pub fn restart(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + self.kind.start_limit();
        let mut guardian = self.guardian();
        loop {
            guardian.kill()?;
            guardian.start(&self.command)?;
            match self.wait_until_ready(&mut guardian, deadline) {
                Ok(()) => return Ok(()),
                // The child processes of a killed PostgreSQL live for a moment, and a new server refuses to start
                // during that time.
                Err(error) if is_temporary(&error) && Instant::now() < deadline => {
                    sleep(Duration::from_millis(50));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Stops all of the server's processes with `SIGSTOP`: connections stay open and nothing answers.
    ///
    /// # Errors
    ///
    /// The server has been killed, by this library or otherwise.
    pub fn pause(&self) -> anyhow::Result<()> {
        self.guardian().pause()
    }

    /// Ends a [`pause`](Self::pause).
    ///
    /// # Errors
    ///
    /// The server has been killed, by this library or otherwise.
    pub fn resume(&self) -> anyhow::Result<()> {
        self.guardian().resume()
    }

    /// Sends a text, SQL or the words of a Redis command, through the server's own client program and the socket in its
    /// directory, and returns the client's output.
    ///
    /// # Errors
    ///
    /// The client could not connect, or the server refused; the client's output is the error. A broker has no such
    /// client, nor have ChromeDriver and Prometheus.
    pub fn query(&self, text: &str) -> anyhow::Result<String> {
        let mut client = self.kind.client(&self.directory, self.port)?;
        match self.kind {
            Kind::Redis | Kind::Sentinel => client.args(text.split_whitespace()),
            _ => client.arg(text),
        };
        let output = client.stdin(Stdio::null()).output()?;
        if !output.status.success() {
            bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    fn new(kind: Kind, options: &Options) -> anyhow::Result<Self> {
        // Two concurrent starts may find the same free port; the one whose server comes second chooses another.
        const ATTEMPTS: usize = 5;
        let mut attempt = 1;
        loop {
            match Self::on_port(kind, free_port()?, options) {
                Err(error) if attempt < ATTEMPTS && error.is::<Died>() => attempt += 1,
                done => return done.with_context(|| format!("{kind:?} did not start")),
            }
        }
    }

    fn on_port(kind: Kind, port: u16, options: &Options) -> anyhow::Result<Self> {
        let user = match kind {
            Kind::Postgres | Kind::PostgresStandby { .. } | Kind::PgBouncer { .. } => {
                User::instead_of_root("postgres")?
            }
            Kind::MariaDb | Kind::GaleraNode => User::instead_of_root("mysql")?,
            Kind::RabbitMq => User::instead_of_root("rabbitmq")?,
            Kind::Redis | Kind::Sentinel | Kind::Nats | Kind::ChromeDriver | Kind::Prometheus => {
                None
            }
        };
        let binary = kind.binary().find()?;
        let temporary = tempfile::Builder::new().prefix("idem-server-").tempdir()?;
        let directory = temporary.path().to_owned();
        if let Some(User { uid, gid }) = user {
            std::os::unix::fs::chown(&directory, Some(uid), Some(gid))?;
        }
        let mut guardian = Guardian::new(&directory, kind.stop(), user)?;
        // From here on the guardian removes the directory.
        let _ = temporary.keep();
        let environment = kind
            .prepare(&directory, port, options, &mut guardian)
            .with_context(|| guardian.log())?;

        let arguments = kind.arguments(&directory, port, options);
        let command: Vec<OsString> = std::iter::once("env".into())
            .chain(environment)
            .chain(kind.launcher(&directory))
            .chain(std::iter::once(binary.into()))
            .chain(arguments.into_iter().map(Into::into))
            .collect();
        guardian.start(&command)?;
        let server = Self {
            kind,
            port,
            directory,
            command,
            guardian: Mutex::new(guardian),
        };
        let deadline = Instant::now() + kind.start_limit();
        server.wait_until_ready(&mut server.guardian(), deadline)?;
        Ok(server)
    }

    /// Queries the socket in the server's own directory, or reads its log, because another server may have the port.
    /// Each kind of server opens its port before its socket.
    fn wait_until_ready(&self, guardian: &mut Guardian, deadline: Instant) -> anyhow::Result<()> {
        loop {
            let refused = match self.kind.ready() {
                Ready::Answers(probe, expected) => match self.query(probe) {
                    Ok(answer) if answer == expected => return Ok(()),
                    Ok(answer) => answer,
                    Err(error) => error.to_string(),
                },
                Ready::Logs(text) if guardian.has_logged(text) => return Ok(()),
                Ready::Logs(text) => format!("its log does not contain {text:?}"),
            };
            if guardian.has_died()? {
                return Err(Died(guardian.log()).into());
            }
            if Instant::now() > deadline {
                bail!(
                    "the server was not ready in time ({refused}):\n{}",
                    guardian.log()
                );
            }
            sleep(Duration::from_millis(20));
        }
    }

    fn guardian(&self) -> MutexGuard<'_, Guardian> {
        // A test that panicked elsewhere must still be able to stop its servers.
        self.guardian.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("kind", &self.kind)
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}

/// Error of a server that ended before it was ready, with its log.
#[derive(Debug)]
struct Died(String);

impl fmt::Display for Died {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the server ended:\n{}", self.0)
    }
}

impl std::error::Error for Died {}

/// Returns true if the server ended because of remains of the previous server, which disappear soon. Any other error is
/// permanent.
fn is_temporary(error: &anyhow::Error) -> bool {
    let is_leftover = |died: &Died| {
        ["still in use", "already in use", "already exists"]
            .iter()
            .any(|it| died.0.contains(it))
    };
    error.downcast_ref::<Died>().is_some_and(is_leftover)
}

#[derive(Debug, Clone, Copy)]
enum Kind {
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
    Redis,
    Sentinel,
    RabbitMq,
    Nats,
    ChromeDriver,
    Prometheus,
}

/// Sign that a server is ready.
enum Ready {
    /// A query that only a ready server answers, and the answer.
    Answers(&'static str, &'static str),
    /// Text in its log.
    Logs(&'static str),
}

impl Kind {
    fn binary(self) -> binaries::Binary {
        match self {
            Self::Postgres | Self::PostgresStandby { .. } => binaries::POSTGRES,
            Self::PgBouncer { .. } => binaries::PGBOUNCER,
            Self::MariaDb | Self::GaleraNode => binaries::MARIADBD,
            Self::Redis | Self::Sentinel => binaries::REDIS_SERVER,
            Self::RabbitMq => binaries::RABBITMQ_SERVER,
            Self::Nats => binaries::NATS_SERVER,
            Self::ChromeDriver => binaries::CHROMEDRIVER,
            Self::Prometheus => binaries::PROMETHEUS,
        }
    }

    /// Signal that ends the server. PostgreSQL has many processes: at `SIGQUIT` the first one ends the others
    /// immediately.
    fn stop(self) -> &'static str {
        match self {
            Self::Postgres | Self::PostgresStandby { .. } => "QUIT",
            Self::PgBouncer { .. }
            | Self::MariaDb
            | Self::GaleraNode
            | Self::Redis
            | Self::Sentinel
            | Self::RabbitMq
            | Self::Nats
            | Self::ChromeDriver
            | Self::Prometheus => "KILL",
        }
    }

    fn start_limit(self) -> Duration {
        match self {
            // Nodes that join get their data one after the other.
            Self::GaleraNode => 4 * START_LIMIT,
            _ => START_LIMIT,
        }
    }

    /// Program that prepares each start of the server and then becomes it.
    fn launcher(self, directory: &Path) -> Vec<OsString> {
        match self {
            Self::GaleraNode => galera_node::launcher(directory),
            _ => Vec::new(),
        }
    }

    /// Creates the files that the server needs at its start, and returns its environment variables.
    fn prepare(
        self,
        directory: &Path,
        port: u16,
        options: &Options,
        guardian: &mut Guardian,
    ) -> anyhow::Result<Vec<OsString>> {
        match self {
            Self::RabbitMq => {
                return rabbit_mq::prepare(directory, port, &options.settings, guardian);
            }
            Self::PgBouncer { postgres } => {
                pg_bouncer::configure(directory, port, postgres, &options.settings)?;
            }
            Self::GaleraNode => galera_node::configure(directory)?,
            Self::Sentinel => sentinel_node::configure(directory, port, &options.settings)?,
            _ => {}
        }
        let directory = directory.display();
        match self {
            Self::Postgres => guardian.run(&[
                binaries::INITDB.find()?.into_os_string(),
                format!("--pgdata={directory}/data").into(),
                "--username=postgres".into(),
                "--auth=trust".into(),
                "--encoding=UTF8".into(),
                "--locale=C".into(),
                "--no-sync".into(),
            ]),
            Self::PostgresStandby { primary } => guardian.run(&[
                binaries::PG_BASEBACKUP.find()?.into_os_string(),
                format!("--pgdata={directory}/data").into(),
                format!(
                    "--dbname=host=127.0.0.1 port={primary} user=postgres application_name=standby"
                )
                .into(),
                "--write-recovery-conf".into(),
                "--wal-method=stream".into(),
                "--checkpoint=fast".into(),
                "--no-sync".into(),
            ]),
            Self::GaleraNode if !galera_node::is_first(&options.settings) => {
                // Another node copies its data here.
                binaries::RSYNC.find()?;
                guardian.run(&["mkdir".to_owned(), format!("{directory}/data")])
            }
            Self::MariaDb | Self::GaleraNode => guardian.run(&[
                binaries::MARIADB_INSTALL_DB.find()?.into_os_string(),
                "--no-defaults".into(),
                format!("--datadir={directory}/data").into(),
                "--auth-root-authentication-method=normal".into(),
                "--skip-test-db".into(),
            ]),
            Self::PgBouncer { .. }
            | Self::Redis
            | Self::Sentinel
            | Self::RabbitMq
            | Self::Nats
            | Self::ChromeDriver
            | Self::Prometheus => Ok(()),
        }?;
        Ok(Vec::new())
    }

    fn arguments(self, directory: &Path, port: u16, options: &Options) -> Vec<String> {
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
            Self::RabbitMq => return Vec::new(),
        };
        let own = options.settings.iter();
        settings.extend(own.map(|(name, value)| (name.as_str(), value.clone())));
        for (name, value) in settings {
            match self {
                Self::Postgres | Self::PostgresStandby { .. } => {
                    arguments.extend(["-c".to_owned(), format!("{name}={value}")]);
                }
                Self::MariaDb | Self::GaleraNode | Self::ChromeDriver | Self::Prometheus => {
                    arguments.push(format!("--{name}={value}"));
                }
                _ => arguments.extend([format!("--{name}"), value]),
            }
        }
        arguments
    }

    fn client(self, directory: &Path, port: u16) -> anyhow::Result<Command> {
        let socket = directory.join("socket");
        let port = port.to_string();
        let mut client;
        match self {
            Self::Postgres | Self::PostgresStandby { .. } | Self::PgBouncer { .. } => {
                client = Command::new(binaries::PSQL.find()?);
                client.arg("--host").arg(directory);
                client.args(["--port", &port, "--username=postgres", "--dbname=postgres"]);
                client.args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align"]);
                client.args(["--set=ON_ERROR_STOP=1", "--command"]);
            }
            Self::MariaDb | Self::GaleraNode => {
                client = Command::new(binaries::MARIADB.find()?);
                client.arg("--no-defaults").arg("--socket").arg(socket);
                client.args(["--user=root", "--batch", "--skip-column-names", "--execute"]);
            }
            Self::Redis | Self::Sentinel => {
                client = Command::new(binaries::REDIS_CLI.find()?);
                client.arg("-e").arg("-s").arg(socket);
            }
            Self::RabbitMq | Self::Nats | Self::ChromeDriver | Self::Prometheus => {
                bail!("{self:?} has no client program for queries")
            }
        }
        Ok(client)
    }

    fn ready(self) -> Ready {
        match self {
            Self::Postgres | Self::PostgresStandby { .. } | Self::MariaDb => {
                Ready::Answers("SELECT 1", "1")
            }
            Self::PgBouncer { .. } => Ready::Logs("process up"),
            Self::GaleraNode => Ready::Answers(galera_node::PROBE, "Synced"),
            Self::Redis | Self::Sentinel => Ready::Answers("PING", "PONG"),
            Self::RabbitMq => Ready::Logs("Server startup complete"),
            Self::Nats => Ready::Logs("Server is ready"),
            Self::ChromeDriver => Ready::Logs("ChromeDriver was started successfully"),
            Self::Prometheus => Ready::Logs("Server is ready to receive web requests"),
        }
    }
}
