//! Connects to the store that the command line names.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use idem_runtime::operator::OperatorStore;
use idem_runtime::outbox::Database;
use idem_runtime::{Idem, MySqlStore, PostgresStore, RedisStore, SqliteStore, Store};
use url::Url;

use crate::arguments::Target;

/// Time limit of a read. With Redis, a page of a listing scans all keys of the database.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// Handle on a store of any kind.
pub(crate) type Handle = Idem<Arc<dyn Store>>;

/// Connection to a store of any kind.
pub(crate) struct Connection {
    pub(crate) idem: Handle,
    pub(crate) store: Arc<dyn OperatorStore>,
    /// Connections to the database of a SQL store.
    pub(crate) database: Option<Database>,
    /// Schema of the tables, if one was given.
    pub(crate) schema: Option<String>,
}

/// Kind of a store, from its URL.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind<'a> {
    Sqlite,
    Postgres,
    MySql,
    Redis,
    /// URLs of nodes of a cluster.
    RedisCluster(Vec<&'a str>),
    /// URLs of sentinels.
    RedisSentinel(Vec<&'a str>),
}

impl Target {
    /// Connects to the store. Nothing is created: the store must be there.
    ///
    /// # Errors
    /// If no URL is given, if it is no URL of a store, has a password on the command line, or if the server does not
    /// answer.
    pub(crate) async fn connect(self) -> anyhow::Result<Connection> {
        let Some(url) = &self.url else {
            bail!(
                "no store is given: set IDEM_STORE_URL or pass --url, for example sqlite://service.db or \
                 postgres://service@localhost/service"
            );
        };
        refuse_password(url, "IDEM_STORE_URL")?;
        let mut kind = Kind::of(url)?;
        // An empty variable is as good as none.
        if let Some(sentinels) = self.sentinels.as_deref().filter(|it| !it.is_empty()) {
            refuse_password(sentinels, "IDEM_SENTINEL_URLS")?;
            ensure!(
                kind == Kind::Redis,
                "--sentinels is for one Redis: the URL of the store has the name of its primary, as in redis://mymaster/0"
            );
            kind = Kind::RedisSentinel(several(sentinels));
        }
        self.refuse_options_of_other_kinds(&kind)?;
        let (store, database): (Arc<dyn OperatorStore>, _) = match kind {
            Kind::Sqlite => {
                let store = self.sqlite(url).await?;
                let database = Database::from(&store);
                (Arc::new(store), Some(database))
            }
            Kind::Postgres => {
                let store = self.postgres(url).await?;
                let database = Database::from(&store);
                (Arc::new(store), Some(database))
            }
            Kind::MySql => {
                let store = self.mysql(url).await?;
                let database = Database::from(&store);
                (Arc::new(store), Some(database))
            }
            Kind::Redis => (Arc::new(self.redis(RedisStore::connect(url).await?)?), None),
            Kind::RedisCluster(urls) => {
                let store = RedisStore::connect_cluster(urls).await?;
                (Arc::new(self.redis(store)?), None)
            }
            Kind::RedisSentinel(sentinels) => {
                let store = RedisStore::connect_sentinel(sentinels, url).await?;
                (Arc::new(self.redis(store)?), None)
            }
        };
        let records: Arc<dyn Store> = store.clone();
        Ok(Connection {
            idem: Idem::builder(records).store_timeout(READ_TIMEOUT).build(),
            store,
            database,
            schema: self.schema,
        })
    }

    fn refuse_options_of_other_kinds(&self, kind: &Kind<'_>) -> anyhow::Result<()> {
        let is_redis = matches!(
            kind,
            Kind::Redis | Kind::RedisCluster(_) | Kind::RedisSentinel(_)
        );
        let has_schemas = matches!(kind, Kind::Postgres | Kind::MySql);
        ensure!(
            self.table.is_none() || !is_redis,
            "--table is for SQL stores: a Redis store has --prefix"
        );
        ensure!(
            self.schema.is_none() || has_schemas,
            "--schema is for PostgreSQL and MySQL: this store has none"
        );
        ensure!(
            self.prefix.is_none() || is_redis,
            "--prefix is for Redis: a SQL store has --table"
        );
        Ok(())
    }

    async fn sqlite(&self, url: &str) -> anyhow::Result<SqliteStore> {
        let mut store = SqliteStore::connect_as_is(url).await?;
        if let Some(table) = &self.table {
            store = store.with_table(table)?;
        }
        Ok(store)
    }

    async fn postgres(&self, url: &str) -> anyhow::Result<PostgresStore> {
        // The command then works behind any pooler.
        let mut store = PostgresStore::connect(url)
            .await?
            .without_prepared_statements();
        if let Some(table) = &self.table {
            store = store.with_table(table)?;
        }
        if let Some(schema) = &self.schema {
            store = store.with_schema(schema)?;
        }
        Ok(store)
    }

    async fn mysql(&self, url: &str) -> anyhow::Result<MySqlStore> {
        let mut store = MySqlStore::connect(url).await?;
        if let Some(table) = &self.table {
            store = store.with_table(table)?;
        }
        if let Some(schema) = &self.schema {
            store = store.with_schema(schema)?;
        }
        Ok(store)
    }

    fn redis(&self, store: RedisStore) -> anyhow::Result<RedisStore> {
        Ok(match &self.prefix {
            Some(prefix) => store.with_prefix(prefix)?,
            None => store,
        })
    }
}

impl<'a> Kind<'a> {
    fn of(url: &'a str) -> anyhow::Result<Self> {
        let scheme = url.split_once(':').map(|(scheme, _)| scheme).context(
            "the store's URL has no scheme: write sqlite://, postgres://, mysql:// or redis://",
        )?;
        Ok(match scheme {
            "sqlite" => Self::Sqlite,
            "postgres" | "postgresql" => Self::Postgres,
            "mysql" | "mariadb" => Self::MySql,
            "redis" | "rediss" if url.contains(',') => Self::RedisCluster(several(url)),
            "redis" | "rediss" => Self::Redis,
            // Only the scheme is repeated: the rest may be a password.
            other => bail!(
                "there is no store for `{}:`: write sqlite://, postgres://, mysql:// or redis://",
                other.escape_debug()
            ),
        })
    }
}

fn several(urls: &str) -> Vec<&str> {
    urls.split(',').map(str::trim).collect()
}

/// Refuses URLs with a password, unless they come from the environment.
fn refuse_password(urls: &str, variable: &str) -> anyhow::Result<()> {
    let from_environment = std::env::var(variable).is_ok_and(|it| it == urls);
    ensure!(
        from_environment || !has_password(urls),
        "the URL on the command line has a password, which other users of this machine can read: set {variable} instead"
    );
    Ok(())
}

fn has_password(urls: &str) -> bool {
    several(urls).iter().any(|url| {
        Url::parse(url).is_ok_and(|url| {
            url.password().is_some() || url.query_pairs().any(|(name, _)| name == "password")
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scheme_of_the_url_names_the_store() {
        for (url, kind) in [
            ("sqlite://a.db", Kind::Sqlite),
            ("postgresql://host/db", Kind::Postgres),
            ("mariadb://host/db", Kind::MySql),
            ("rediss://host", Kind::Redis),
            (
                "redis://a, redis://b",
                Kind::RedisCluster(vec!["redis://a", "redis://b"]),
            ),
        ] {
            assert_eq!(Kind::of(url).unwrap(), kind, "{url}");
        }
        let error = Kind::of("mongodb://user:secret@host").unwrap_err();
        assert!(!error.to_string().contains("secret"), "{error}");
        assert!(Kind::of("service.db").is_err());
    }

    #[test]
    fn a_password_in_any_url_is_seen() {
        assert!(has_password("postgres://user:secret@host/db"));
        assert!(has_password("postgres://host/db?user=ann&password=secret"));
        assert!(has_password("redis://a, redis://:secret@b"));
        assert!(!has_password("postgres://user@host/db"));
        assert!(!has_password("sqlite://a.db"));
    }
}
