//! One server process: start, kill, restart, pause and queries.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use crate::binaries::{self, User};
use crate::guardian::Guardian;
use crate::http_proxy::{Backend, HttpVersion};
use crate::kind::{Kind, Place, Ready};
use crate::my_sql;
use crate::options::Options;
use crate::port::free_port;
use crate::programs::Programs;
use crate::release::Release;

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
    programs: Programs,
    is_encrypted: bool,
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

    /// Starts MySQL, the newest release, with TLS as it comes, and a user `idem` with the password `secret` and all
    /// rights. The user has the default authentication, `caching_sha2_password`.
    ///
    /// # Errors
    ///
    /// MySQL is not [installed](Release::install), or did not start; the end of its log is part of the error.
    pub fn my_sql(options: &Options) -> anyhow::Result<Self> {
        Self::new(Kind::MySql, options)
    }

    /// Starts MySQL like [`my_sql`](Self::my_sql). Returns `None` if it is not installed.
    ///
    /// # Errors
    ///
    /// MySQL did not start; the end of its log is part of the error.
    pub fn installed_my_sql(options: &Options) -> anyhow::Result<Option<Self>> {
        let installed = Release::MY_SQL.programs().is_ok();
        installed.then(|| Self::my_sql(options)).transpose()
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

    /// Starts etcd. The options must have the addresses for its peers.
    pub(crate) fn etcd(options: &Options) -> anyhow::Result<Self> {
        Self::new(Kind::Etcd, options)
    }

    /// Starts a Patroni, which starts a PostgreSQL. The options are those of its [configuration](crate::patroni_node).
    pub(crate) fn patroni_node(options: &Options) -> anyhow::Result<Self> {
        Self::new(Kind::PatroniNode, options)
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

    /// Starts nghttpx in front of the HTTP server on this port. It accepts HTTP/1.1 and HTTP/2.
    ///
    /// # Errors
    ///
    /// nghttpx is not installed, or did not start; the end of its log is part of the error.
    pub fn nghttpx(backend: u16, version: HttpVersion) -> anyhow::Result<Self> {
        let backend = Backend {
            port: backend,
            version,
        };
        Self::new(Kind::Nghttpx(backend), &Options::fast())
    }

    /// Starts HAProxy in front of the HTTP server on this port. It accepts HTTP/1.1 and HTTP/2.
    ///
    /// # Errors
    ///
    /// HAProxy is not installed, or did not start; the end of its log is part of the error.
    pub fn haproxy(backend: u16, version: HttpVersion) -> anyhow::Result<Self> {
        let backend = Backend {
            port: backend,
            version,
        };
        Self::new(Kind::HaProxy(backend), &Options::fast())
    }

    /// URL of the server, in the form that its clients expect.
    pub fn url(&self) -> String {
        let port = self.port;
        match self.kind {
            Kind::Postgres
            | Kind::PostgresStandby { .. }
            | Kind::PatroniNode
            | Kind::PgBouncer { .. } => {
                format!("postgres://postgres@127.0.0.1:{port}/postgres")
            }
            Kind::MariaDb | Kind::GaleraNode => format!("mysql://root@127.0.0.1:{port}/mysql"),
            Kind::MySql => format!("mysql://{}@127.0.0.1:{port}/mysql", my_sql::CREDENTIALS),
            Kind::Redis | Kind::Sentinel if self.is_encrypted => {
                format!("rediss://127.0.0.1:{port}/")
            }
            Kind::Redis | Kind::Sentinel => format!("redis://127.0.0.1:{port}/"),
            Kind::RabbitMq => format!("amqp://guest:guest@127.0.0.1:{port}/%2f"),
            Kind::Nats => format!("nats://127.0.0.1:{port}"),
            Kind::Etcd
            | Kind::ChromeDriver
            | Kind::Prometheus
            | Kind::Nghttpx(_)
            | Kind::HaProxy(_) => {
                format!("http://127.0.0.1:{port}")
            }
        }
    }

    /// Port on 127.0.0.1, unchanged by a restart.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Version that the server's program prints.
    ///
    /// # Errors
    ///
    /// The program does not print its version, as some that are no databases.
    pub fn version(&self) -> anyhow::Result<String> {
        self.programs.version(self.kind.binary())
    }

    /// Id of the server's process; `None` after [`kill`](Self::kill).
    pub fn pid(&self) -> Option<u32> {
        self.guardian().pid()
    }

    /// Directory of its data and its log.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// A path in this directory as the server sees it, because its programs may be in a root of their own.
    pub fn inside(&self, path: &Path) -> PathBuf {
        self.programs.inside(path)
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
    /// client, nor have ChromeDriver, Prometheus and the proxies.
    pub fn query(&self, text: &str) -> anyhow::Result<String> {
        let directory = self.programs.inside(&self.directory);
        let mut client = self.kind.client(&self.programs, &directory, self.port)?;
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
        let programs = match &options.programs {
            Some(chosen) => chosen.clone(),
            None => kind.programs()?,
        };
        let user = match kind {
            Kind::Postgres
            | Kind::PostgresStandby { .. }
            | Kind::PatroniNode
            | Kind::PgBouncer { .. } => programs.user("postgres")?,
            Kind::MariaDb | Kind::GaleraNode | Kind::MySql => programs.user("mysql")?,
            Kind::RabbitMq => programs.user("rabbitmq")?,
            Kind::Redis
            | Kind::Sentinel
            | Kind::Nats
            | Kind::Etcd
            | Kind::ChromeDriver
            | Kind::Prometheus
            | Kind::Nghttpx(_)
            | Kind::HaProxy(_) => None,
        };
        let binary = programs.find(kind.binary())?;
        let temporary = programs.directory()?;
        let directory = temporary.path().to_owned();
        if let Some(User { uid, gid }) = user {
            std::os::unix::fs::chown(&directory, Some(uid), Some(gid))?;
        }
        // `chroot` needs root, and then becomes the user.
        let of_guardian = user.filter(|_| !matches!(programs, Programs::Root(_)));
        let mut guardian = Guardian::new(&directory, kind.stop(), of_guardian)?;
        // From here on the guardian removes the directory.
        let _ = temporary.keep();
        let place = Place {
            launcher: programs.launcher(&directory, user),
            inside: programs.inside(&directory),
            outside: directory.clone(),
            programs: programs.clone(),
        };
        if let Some(certificates) = &options.certificates {
            certificates.copy_to(&directory, user)?;
        }
        let environment = kind
            .prepare(&place, port, options, &mut guardian)
            .with_context(|| guardian.log())?;

        let arguments = kind.arguments(&place.inside, port, options);
        let command: Vec<OsString> = std::iter::once("env".into())
            .chain(environment)
            .chain(place.launcher)
            .chain(kind.launcher(&directory))
            .chain(std::iter::once(binary.into()))
            .chain(arguments.into_iter().map(Into::into))
            .collect();
        guardian.start(&command)?;
        let server = Self {
            kind,
            port,
            directory,
            programs,
            is_encrypted: options.certificates.is_some(),
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
        // The last one is said by each old connection of PostgreSQL. Of many, they push the reason out of the end of the log.
        [
            "still in use",
            "already in use",
            "already exists",
            "unexpected postmaster exit",
        ]
        .iter()
        .any(|it| died.0.contains(it))
    };
    error.downcast_ref::<Died>().is_some_and(is_leftover)
}
