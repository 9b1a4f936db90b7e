//! The store under test, by its address, and the private server that it needs.

use std::fmt;
use std::path::Path;

use anyhow::bail;
use idem_servers::{Options, Server};

use crate::Mode;

/// Which store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Name {
    Sqlite,
    Postgres,
    MariaDb,
    Redis,
}

impl Name {
    const ALL: [Self; 4] = [Self::Sqlite, Self::Postgres, Self::MariaDb, Self::Redis];
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Sqlite => "sqlite",
            Self::Postgres => "postgres",
            Self::MariaDb => "mariadb",
            Self::Redis => "redis",
        })
    }
}

/// The stores that a word of the command line means.
pub(crate) fn named(word: &str, mode: Mode) -> anyhow::Result<Vec<Name>> {
    let has_mode = |it: &Name| mode == Mode::Leased || *it != Name::Redis;
    if word == "all" {
        return Ok(Name::ALL.into_iter().filter(has_mode).collect());
    }
    let found = Name::ALL.into_iter().find(|it| it.to_string() == word);
    match found {
        Some(name) if has_mode(&name) => Ok(vec![name]),
        Some(name) => {
            bail!("{name} has no transactions, leave out `--mode tx` or take another store")
        }
        None => bail!("there is no store {word:?}: sqlite, postgres, mariadb, redis, all"),
    }
}

/// Where the records are, and the server that keeps them, which ends with this.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) address: String,
    pub(crate) server: Option<Server>,
}

impl Place {
    /// A private server that flushes what it acknowledges, so that killing it loses nothing.
    pub(crate) fn start(name: Name, dir: &Path) -> anyhow::Result<Self> {
        let options = Options::durable();
        let server = match name {
            Name::Sqlite => {
                let file = dir.join("records.sqlite");
                return Ok(Self {
                    address: format!("sqlite://{}", file.display()),
                    server: None,
                });
            }
            Name::Postgres => Server::postgres(&options)?,
            // InnoDB by itself shows a commit to others before it is in its log, and a kill in between takes back what
            // they were told. Behind the binary log it does not.
            Name::MariaDb => {
                Server::maria_db(&options.set("log-bin", "binlog").set("sync-binlog", "1"))?
            }
            Name::Redis => Server::redis(&options)?,
        };
        Ok(Self {
            address: server.url(),
            server: Some(server),
        })
    }
}
