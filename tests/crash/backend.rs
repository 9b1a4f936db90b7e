//! The store under test, by its address, and the private server that it needs.

use std::fmt;
use std::path::Path;

use anyhow::{Context, bail};
use idem_runtime::{Idem, MySqlStore, PostgresStore, RedisStore, SqliteStore};
use idem_servers::{Options, Server};

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
pub(crate) fn named(word: &str) -> anyhow::Result<Vec<Name>> {
    if word == "all" {
        return Ok(Name::ALL.to_vec());
    }
    let found = Name::ALL.into_iter().find(|it| it.to_string() == word);
    match found {
        Some(name) => Ok(vec![name]),
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
            Name::MariaDb => Server::maria_db(&options)?,
            Name::Redis => Server::redis(&options)?,
        };
        Ok(Self {
            address: server.url(),
            server: Some(server),
        })
    }
}

/// Opens the store at this address, migrated.
pub(crate) async fn open(address: &str) -> anyhow::Result<Idem> {
    let (scheme, rest) = address
        .split_once("://")
        .with_context(|| format!("{address} is not the address of a store"))?;
    Ok(match scheme {
        "sqlite" => Idem::new(SqliteStore::open(rest).await?).erased(),
        "postgres" => {
            let store = PostgresStore::open(address).await?;
            store.migrate().await?;
            Idem::new(store).erased()
        }
        "mysql" => {
            let store = MySqlStore::open(address).await?;
            store.migrate().await?;
            Idem::new(store).erased()
        }
        "redis" => Idem::new(RedisStore::open(address).await?).erased(),
        _ => bail!("there is no store for {address}"),
    })
}
