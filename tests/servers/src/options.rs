//! Options of a server.

use crate::certificates::Certificates;
use crate::programs::Programs;

/// Options of a server.
#[derive(Debug, Clone)]
pub struct Options {
    pub(crate) durable: bool,
    pub(crate) programs: Option<Programs>,
    pub(crate) certificates: Option<Certificates>,
    pub(crate) settings: Vec<(String, String)>,
}

impl Options {
    /// As fast as possible: a crash of the machine would lose data, and `kill -9` of the server may lose data that
    /// Redis, or an asynchronous commit, has not yet written.
    pub fn fast() -> Self {
        Self {
            durable: false,
            programs: None,
            certificates: None,
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

    /// Accepts encrypted connections only, with the server's certificate among these. Redis and sentinels require a
    /// certificate of each client, PostgreSQL that of the user `app`. The server's own client uses its socket.
    ///
    /// PostgreSQL, MySQL, MariaDB, Redis and sentinels do so.
    #[must_use]
    pub fn encrypted_with(mut self, certificates: &Certificates) -> Self {
        self.certificates = Some(certificates.clone());
        self
    }

    /// Takes the server's programs from this place. Without this, they are those of the machine, or with the variable
    /// [`NEWEST`](crate::NEWEST) those of the newest release.
    #[must_use]
    pub fn with(mut self, programs: Programs) -> Self {
        self.programs = Some(programs);
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
