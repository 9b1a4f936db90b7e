//! Settings of the sessions under which an acknowledgement of the store would mean nothing.

use std::borrow::Cow;

use sqlx::MySql;
use sqlx::mysql::{MySqlConnection, MySqlRow};

use super::{run, run_borrowed};
#[cfg(feature = "outbox")]
use crate::store::sql::Table;
use crate::store::sql::{Connections, Placeholders, Readable as _, Statement};

/// Settings of a session.
#[derive(Debug, Default)]
pub(super) struct Settings {
    autocommit: bool,
    completion_type: String,
    isolation: String,
    sql_mode: String,
    is_read_only: bool,
    /// A character set of the session other than the driver's.
    encoding: Option<String>,
    refuses_large_joins: bool,
    /// True if each result has a limited number of rows.
    cuts_results: bool,
    /// Lowest limit on connections, with the name of its variable; `None` without a limit.
    limit: Option<(u64, String)>,
}

/// Setting that the store cannot work with.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{problem}")]
pub(super) struct Unusable {
    /// Check of the doctor that it belongs to.
    pub(super) check: &'static str,
    pub(super) problem: Cow<'static, str>,
    pub(super) remedy: &'static str,
}

/// Settings that are read, of which no server has all. Unlike a variable itself, this is no error on a server without it.
const QUERY: &str = "SHOW VARIABLES WHERE Variable_name IN ('autocommit', 'completion_type', 'tx_isolation', \
     'transaction_isolation', 'tx_read_only', 'transaction_read_only', 'sql_mode', 'sql_big_selects', \
     'sql_select_limit', 'character_set_client', 'character_set_connection', 'character_set_results', 'max_connections', \
     'max_user_connections')";
/// Number of these settings that each server has.
const EVERYWHERE: usize = 12;
/// Value of `sql_select_limit` that limits nothing.
const NO_LIMIT: &str = "18446744073709551615";
/// Character set in which the driver sends and reads texts.
const ENCODING: &str = "utf8mb4";

/// Check of how statements are committed.
pub(super) const COMMIT: &str = "autocommit";
/// Check of what statements see of others.
pub(super) const ISOLATION: &str = "isolation";
/// Check of what statements mean.
pub(super) const MEANING: &str = "sql_mode";

fn statement() -> Statement {
    Statement::new(QUERY, Placeholders::InOrder)
}

impl Settings {
    /// Reads the settings of a connection of the pool.
    pub(super) async fn of(pool: &Connections<MySql>) -> Result<Self, sqlx::Error> {
        let answer = run(pool, &statement().query()).await?;
        Self::read(&answer.rows)
    }

    /// Reads the settings of the caller's connection.
    pub(super) async fn on(connection: &mut MySqlConnection) -> Result<Self, sqlx::Error> {
        let answer = run_borrowed(connection, &statement().query()).await?;
        Self::read(&answer.rows)
    }

    /// Reads the settings from the rows of their query.
    fn read(rows: &[MySqlRow]) -> Result<Self, sqlx::Error> {
        let mut settings = Self {
            cuts_results: rows.len() < EVERYWHERE,
            ..Self::default()
        };
        for row in rows {
            let value = row.text_or_null(1)?.unwrap_or_default();
            match row.text(0)? {
                "autocommit" => settings.autocommit = value == "ON",
                "completion_type" => value.clone_into(&mut settings.completion_type),
                "sql_mode" => value.clone_into(&mut settings.sql_mode),
                "tx_read_only" | "transaction_read_only" => settings.is_read_only = value == "ON",
                "sql_big_selects" => settings.refuses_large_joins = value == "OFF",
                "sql_select_limit" => settings.cuts_results |= value != NO_LIMIT,
                "tx_isolation" | "transaction_isolation" => {
                    // MariaDB before 11.1 has the older name only.
                    value.clone_into(&mut settings.isolation);
                }
                name if name.starts_with("character_set_") => {
                    if value != ENCODING {
                        settings.encoding = Some(format!("`{name}` is {value}"));
                    }
                }
                name => {
                    let limit = value.parse().unwrap_or(0);
                    let is_lowest = settings.limit.as_ref().is_none_or(|(it, _)| limit < *it);
                    // No connections at all is no limit.
                    if limit > 0 && is_lowest {
                        settings.limit = Some((limit, format!("`{name}`")));
                    }
                }
            }
        }
        Ok(settings)
    }

    pub(super) fn isolation(&self) -> &str {
        &self.isolation
    }

    /// Number of connections that the server allows, with the name of its variable, if a pool may open more. Calls of such
    /// a pool may have to wait, or to be repeated. It is no reason to refuse them: a pooler such as ProxySQL gives many
    /// clients the connections of a few, and there is no sign of it.
    pub(super) fn limit_below(&self, connections: u32) -> Option<(u64, &str)> {
        let (limit, name) = self.limit.as_ref()?;
        (*limit < u64::from(connections)).then_some((*limit, name))
    }

    /// The first setting that voids what the store says.
    pub(super) fn unusable(&self) -> Option<Unusable> {
        if self.cuts_results {
            return Some(Unusable {
                check: MEANING,
                problem: "`sql_select_limit` cuts off what the store reads".into(),
                remedy: "set it to its default for the connections of the pool",
            });
        }
        if !self.autocommit {
            return Some(Unusable {
                check: COMMIT,
                problem: "autocommit is off on the connections of the pool, so nothing that the store writes would ever \
                          be committed".into(),
                remedy: "turn it on (look at `autocommit`, at `init_connect` and at the pool's `after_connect`)",
            });
        }
        if self.completion_type != "NO_CHAIN" {
            return Some(Unusable {
                check: COMMIT,
                problem: "`completion_type` makes each COMMIT of the application begin another transaction, in which \
                          nothing that the store writes would ever be committed".into(),
                remedy: "set it to NO_CHAIN",
            });
        }
        if self.isolation == "READ-UNCOMMITTED" {
            return Some(Unusable {
                check: ISOLATION,
                problem: "the isolation level is READ-UNCOMMITTED, so calls would replay outcomes that are never committed".into(),
                remedy: "choose any other level for the connections of the pool",
            });
        }
        if self.sql_mode.contains("EMPTY_STRING_IS_NULL") {
            return Some(Unusable {
                check: MEANING,
                problem:
                    "the `sql_mode` EMPTY_STRING_IS_NULL changes scopes and results that are empty"
                        .into(),
                remedy: "take it out of `sql_mode` for the connections of the pool",
            });
        }
        if self.sql_mode.split(',').any(|mode| mode == "ORACLE") {
            return Some(Unusable {
                check: MEANING,
                problem: "under the `sql_mode` ORACLE, statements have another syntax".into(),
                remedy: "take it out of `sql_mode` for the connections of the pool",
            });
        }
        if let Some(encoding) = &self.encoding {
            return Some(Unusable {
                check: MEANING,
                problem: format!(
                    "{encoding} on the connections of the pool, and the driver sends and reads {ENCODING}, so texts would be \
                     changed"
                )
                .into(),
                remedy: "leave `character_set_client`, `_connection` and `_results` as the driver sets them",
            });
        }
        if self.refuses_large_joins {
            return Some(Unusable {
                check: MEANING,
                problem:
                    "`sql_big_selects` is off, so the server refuses statements by `max_join_size`"
                        .into(),
                remedy: "turn `sql_big_selects` on for the connections of the pool",
            });
        }
        None
    }

    /// Refuses settings that void what the store says.
    pub(super) fn require_usable(&self) -> Result<(), sqlx::Error> {
        match self.unusable() {
            None => Ok(()),
            Some(unusable) => Err(sqlx::Error::AnyDriverError(Box::new(unusable))),
        }
    }

    /// True if transactions are read-only by default.
    pub(super) fn is_read_only(&self) -> bool {
        self.is_read_only
    }
}

/// Refuses settings of the connections of a pool that an outbox cannot work with.
#[cfg(feature = "outbox")]
pub(in crate::store) async fn examine(
    pool: &Connections<MySql>,
    _table: &Table,
) -> Result<(), sqlx::Error> {
    Settings::of(pool).await?.require_usable()
}
