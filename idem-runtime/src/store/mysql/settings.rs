//! Settings of the sessions under which an acknowledgement of the store would mean nothing.

use sqlx::MySqlPool;

use super::run;
use crate::store::sql::{Placeholders, Readable as _, Statement};

/// Settings of a session.
#[derive(Debug, Default)]
pub(super) struct Settings {
    autocommit: bool,
    completion_type: String,
    isolation: String,
    sql_mode: String,
    safe_updates: bool,
}

/// Setting that the store cannot work with.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("{problem}")]
pub(super) struct Unusable {
    /// Check of the doctor that it belongs to.
    pub(super) check: &'static str,
    pub(super) problem: &'static str,
    pub(super) remedy: &'static str,
}

/// Check of how statements are committed.
pub(super) const COMMIT: &str = "autocommit";
/// Check of what statements see of others.
pub(super) const ISOLATION: &str = "isolation";
/// Check of what statements mean.
pub(super) const MEANING: &str = "sql_mode";

impl Settings {
    /// Reads the settings of a connection of the pool.
    pub(super) async fn of(pool: &MySqlPool) -> Result<Self, sqlx::Error> {
        // Unlike a variable itself, this is no error on a server without it.
        let query = Statement::new(
            "SHOW VARIABLES WHERE Variable_name IN ('autocommit', 'completion_type', 'tx_isolation', \
             'transaction_isolation', 'sql_mode', 'sql_safe_updates')",
            Placeholders::InOrder,
        );
        let answer = run(pool, &query.query()).await?;
        let mut settings = Self::default();
        for row in &answer.rows {
            let value = row.text_or_null(1)?.unwrap_or_default();
            match row.text(0)? {
                "autocommit" => settings.autocommit = value == "ON",
                "completion_type" => value.clone_into(&mut settings.completion_type),
                "sql_mode" => value.clone_into(&mut settings.sql_mode),
                "sql_safe_updates" => settings.safe_updates = value == "ON",
                // MariaDB before 11.1 has the older name only.
                _ => value.clone_into(&mut settings.isolation),
            }
        }
        Ok(settings)
    }

    pub(super) fn isolation(&self) -> &str {
        &self.isolation
    }

    /// The first setting that voids what the store says.
    pub(super) fn unusable(&self) -> Option<Unusable> {
        if !self.autocommit {
            return Some(Unusable {
                check: COMMIT,
                problem: "autocommit is off on the connections of the pool, so nothing that the store writes would ever \
                          be committed",
                remedy: "turn it on (look at `autocommit`, at `init_connect` and at the pool's `after_connect`)",
            });
        }
        if self.completion_type != "NO_CHAIN" {
            return Some(Unusable {
                check: COMMIT,
                problem: "`completion_type` makes each COMMIT of the application begin another transaction, in which \
                          nothing that the store writes would ever be committed",
                remedy: "set it to NO_CHAIN",
            });
        }
        if self.isolation == "READ-UNCOMMITTED" {
            return Some(Unusable {
                check: ISOLATION,
                problem: "the isolation level is READ-UNCOMMITTED, so calls would replay outcomes that are never committed",
                remedy: "choose any other level for the connections of the pool",
            });
        }
        if self.sql_mode.contains("EMPTY_STRING_IS_NULL") {
            return Some(Unusable {
                check: MEANING,
                problem: "the `sql_mode` EMPTY_STRING_IS_NULL changes scopes and results that are empty",
                remedy: "take it out of `sql_mode` for the connections of the pool",
            });
        }
        if self.sql_mode.split(',').any(|mode| mode == "ORACLE") {
            return Some(Unusable {
                check: MEANING,
                problem: "under the `sql_mode` ORACLE, statements have another syntax",
                remedy: "take it out of `sql_mode` for the connections of the pool",
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

    /// True if the server refuses the statements of a purge.
    pub(super) fn has_safe_updates(&self) -> bool {
        self.safe_updates
    }
}
