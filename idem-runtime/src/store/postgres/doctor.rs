//! Checks of a PostgreSQL server.
//!
//! All statements are sent as text: behind a pooler that shares connections between transactions, a prepared statement
//! may be missing on the next connection. Each connection is taken out of the pool, and closed at the end, so that a
//! check that is dropped half way leaves no transaction open on a connection of the pool.

use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Row as _};

use super::connections::{Protocol, text};
use super::form::PostgresForm;
use super::pooling::{self, Pooling};
use super::settings::Settings;
use super::statements::DIALECT;
use super::{PostgresStore, error};
use crate::error::StoreError;
use crate::store::operator::Finding;
use crate::store::sql;

/// Name of the check of the settings that the store cannot work with.
const SETTINGS: &str = "settings";
/// Name of the check of the form.
const FORM: &str = "form of the tables";
/// Privileges that the store needs on each of its tables.
const PRIVILEGES: [&str; 4] = ["SELECT", "INSERT", "UPDATE", "DELETE"];
/// Privileges that a manual change needs on the audit.
const AUDIT_PRIVILEGES: [&str; 2] = ["SELECT", "INSERT"];
/// Endings of the names of the tables that every call needs.
const TABLES: [&str; 4] = ["", "_steps", "_recovery", "_fencing_floor"];
/// Endings of the names of the functions that claims call.
const FUNCTIONS: [&str; 3] = ["_alone", "_begin", "_reserve"];

impl PostgresStore {
    pub(super) async fn examine(&self) -> Vec<Finding> {
        let mut connection = match self.pool().acquire().await {
            Ok(connection) => connection.detach(),
            Err(failed) => return vec![Finding::failed("connection", &error(failed))],
        };
        let mut findings = Vec::new();
        // The other checks depend on the form.
        let form = self.check_form(&mut connection).await;
        findings.push(Finding::or_failed(
            SETTINGS,
            self.check_settings(&mut connection).await,
        ));
        findings.push(Finding::or_failed("pooling", self.check_pooling().await));
        findings.push(Finding::or_failed(
            "isolation",
            check_isolation(&mut connection).await,
        ));
        findings.push(Finding::or_failed(
            "writable",
            check_writable(&mut connection).await,
        ));
        findings.push(Finding::or_failed(
            "rights",
            self.check_rights(&mut connection).await,
        ));
        findings.push(Finding::or_failed(
            "manual changes",
            self.check_audit(&mut connection).await,
        ));
        findings.push(Finding::or_failed(
            "indexes",
            self.check_indexes(&mut connection).await,
        ));
        findings.push(Finding::or_failed(FORM, form));
        if !self.forms.is_portable() {
            findings.push(Finding::or_failed(
                "trigger",
                self.check_trigger(&mut connection).await,
            ));
        }
        findings.push(Finding::or_failed(
            "transactions",
            check_transactions(&mut connection).await,
        ));
        findings.push(Finding::or_failed(
            "durability",
            check_durability(&mut connection).await,
        ));
        findings.push(Finding::or_failed(
            "loss of the server",
            check_loss(&mut connection).await,
        ));
        let _ = connection.close().await;
        findings
    }

    async fn check_form(&self, connection: &mut PgConnection) -> Result<Finding, StoreError> {
        self.forms.prepare_on(connection).await?;
        Ok(match self.forms.known() {
            Some(PostgresForm::Portable) => Finding::ok(
                FORM,
                "the tables have the portable form: each call has statements of its own, and deleting records by hand does \
                 not raise the fencing floor",
            ),
            Some(PostgresForm::Standard) => Finding::ok(FORM, "the tables have the standard form"),
            None => Finding::ok(FORM, "there are no tables, so they have no form"),
        })
    }

    async fn check_settings(&self, connection: &mut PgConnection) -> Result<Finding, StoreError> {
        let settings = Settings::on(connection).await.map_err(error)?;
        let unusable = settings.unusable(&self.pool, &self.forms.table).await;
        Ok(match unusable {
            Some(it) => Finding::problem(SETTINGS, it.problem, it.remedy),
            None => Finding::ok(
                SETTINGS,
                "the store can work with the settings of the user and its number of connections",
            ),
        })
    }

    async fn check_pooling(&self) -> Result<Finding, StoreError> {
        const CHECK: &str = "pooling";
        let pooling = pooling::detect(&self.pool.connect_options()).await?;
        Ok(match pooling {
            Pooling::None => Finding::ok(
                CHECK,
                "each client has a connection of the server to itself: there is no pooler, or one in session mode",
            ),
            Pooling::Tracked => Finding::ok(
                CHECK,
                "a pooler in front of the server shares connections between transactions, and tracks prepared statements",
            ),
            Pooling::Untracked if self.protocol == Protocol::Simple => Finding::warning(
                CHECK,
                "a pooler in front of the server shares connections between transactions, and does not track prepared \
                 statements: a client that prepares them fails, or runs the statement of another client. This client \
                 prepares none",
                "see that every service uses `PostgresStore::without_prepared_statements` and `persistent(false)`, or set \
                 `max_prepared_statements` of PgBouncer 1.21 or later",
            ),
            Pooling::Untracked => Finding::problem(
                CHECK,
                "a pooler in front of the server shares connections between transactions, and does not track prepared \
                 statements: a call fails, or runs the statement of another client",
                "use `PostgresStore::without_prepared_statements`, or set `max_prepared_statements` of PgBouncer 1.21 or \
                 later",
            ),
            Pooling::Statements => Finding::problem(
                CHECK,
                "a pooler in front of the server shares connections between statements, so no transaction can be opened",
                "set the pooler's mode to `transaction` or `session`",
            ),
        })
    }

    async fn check_rights(&self, connection: &mut PgConnection) -> Result<Finding, StoreError> {
        const CHECK: &str = "rights";
        let mut missing = Vec::new();
        for suffix in TABLES {
            missing.extend(self.missing(connection, suffix, &PRIVILEGES).await?);
        }
        if !self.forms.is_portable() {
            for suffix in FUNCTIONS {
                missing.extend(self.missing_function(connection, suffix).await?);
            }
        }
        if missing.is_empty() {
            return Ok(Finding::ok(
                CHECK,
                "the user may do all that the store does with its tables",
            ));
        }
        Ok(Finding::problem(
            CHECK,
            format!("the user has not the right to {}", missing.join(", ")),
            "GRANT these privileges to the user of the service",
        ))
    }

    /// The right to call a function of the claims, if the user lacks it.
    async fn missing_function(
        &self,
        connection: &mut PgConnection,
        suffix: &str,
    ) -> Result<Option<String>, StoreError> {
        let function = self.forms.table.quoted(DIALECT.quote, suffix);
        let query = format!(
            "SELECT coalesce(bool_and(has_function_privilege(current_user, oid, 'EXECUTE')), false)::text
             FROM pg_proc WHERE oid = to_regproc('{function}')"
        );
        let may = text(connection, &query).await? == "true";
        Ok((!may).then(|| format!("EXECUTE on {function}")))
    }

    async fn check_audit(&self, connection: &mut PgConnection) -> Result<Finding, StoreError> {
        let missing = self
            .missing(connection, "_audit", &AUDIT_PRIVILEGES)
            .await?;
        Ok(sql::manual_changes(&missing))
    }

    /// Privileges that the user lacks on the table with this ending of its name.
    async fn missing(
        &self,
        connection: &mut PgConnection,
        suffix: &str,
        privileges: &[&str],
    ) -> Result<Vec<String>, StoreError> {
        let table = self.forms.table.quoted(DIALECT.quote, suffix);
        let has = privileges.iter().map(|privilege| {
            format!("has_table_privilege(current_user, '{table}', '{privilege}')::text")
        });
        let has = has.collect::<Vec<_>>().join(" || ' ' || ");
        let has = text(connection, &format!("SELECT {has}")).await?;
        let missing = privileges
            .iter()
            .zip(has.split(' '))
            .filter(|(_, has)| *has != "true")
            .map(|(privilege, _)| format!("{privilege} on {table}"));
        Ok(missing.collect())
    }

    /// Asks the planner for the plans of a replay and a purge, with sequential scans ruled out: of a small table they
    /// would be the better plan.
    async fn check_indexes(&self, connection: &mut PgConnection) -> Result<Finding, StoreError> {
        let table = self.forms.table.quoted(DIALECT.quote, "");
        let name = &self.forms.table.name;
        let mut transaction = connection.begin().await.map_err(error)?;
        // The session may have ruled other plans out, and not every server that speaks PostgreSQL has each setting.
        let setting = "SELECT set_config(name, CASE name WHEN 'enable_seqscan' THEN 'off' ELSE 'on' END, true) \
             FROM pg_catalog.pg_settings WHERE name IN ('enable_seqscan', 'enable_indexscan', \
             'enable_indexonlyscan', 'enable_bitmapscan')";
        let set = sqlx::raw_sql(setting).execute(&mut *transaction).await;
        set.map_err(error)?;
        let mut unused = Vec::new();
        for (condition, index) in [
            ("id = ''::bytea", format!("{name}_pkey")),
            ("purge_after <= 0", format!("{name}_purge")),
        ] {
            let plan = format!("EXPLAIN SELECT state FROM {table} WHERE {condition} LIMIT 1");
            let rows = sqlx::raw_sql(AssertSqlSafe(plan))
                .fetch_all(&mut *transaction)
                .await;
            let uses = rows.map_err(error)?.iter().any(|row| {
                let line = row.try_get::<String, _>(0);
                line.is_ok_and(|line| line.contains(&index))
            });
            if !uses {
                unused.push(index);
            }
        }
        transaction.rollback().await.map_err(error)?;
        Ok(Finding::of_indexes(&unused))
    }

    async fn check_trigger(&self, connection: &mut PgConnection) -> Result<Finding, StoreError> {
        const CHECK: &str = "trigger";
        let table = self.forms.table.quoted(DIALECT.quote, "");
        let query = format!(
            "SELECT count(*)::text FROM pg_trigger
             WHERE tgrelid = to_regclass('{table}') AND tgname = '{}_deleted' AND tgenabled IN ('O', 'A')",
            self.forms.table.name
        );
        if text(connection, &query).await? == "1" {
            return Ok(Finding::ok(
                CHECK,
                "the trigger that keeps fencing tokens of deleted records is enabled",
            ));
        }
        Ok(Finding::problem(
            CHECK,
            "the trigger that keeps fencing tokens of deleted records is missing or disabled: a paused owner of a deleted \
             record may be taken for the owner of its successor",
            "ALTER TABLE ... ENABLE TRIGGER, or create it again from the SQL of the migrations",
        ))
    }
}

async fn setting(connection: &mut PgConnection, name: &str) -> Result<String, StoreError> {
    text(connection, &format!("SELECT current_setting('{name}')")).await
}

async fn check_isolation(connection: &mut PgConnection) -> Result<Finding, StoreError> {
    const CHECK: &str = "isolation";
    let level = setting(connection, "default_transaction_isolation").await?;
    if level == "read committed" {
        return Ok(Finding::ok(
            CHECK,
            "the default isolation level is read committed",
        ));
    }
    Ok(Finding::warning(
        CHECK,
        format!(
            "the default isolation level is {level}: concurrent calls of one key fail with serialization failures, which \
             the store retries"
        ),
        "leave `default_transaction_isolation` at read committed for the user of the service",
    ))
}

async fn check_writable(connection: &mut PgConnection) -> Result<Finding, StoreError> {
    const CHECK: &str = "writable";
    if text(connection, "SELECT pg_is_in_recovery()::text").await? == "true" {
        return Ok(Finding::problem(
            CHECK,
            "the server is a standby, so every claim fails",
            "let the address of the store lead to the primary: sqlx connects to one host, and does not choose among several",
        ));
    }
    if setting(connection, "default_transaction_read_only").await? == "on" {
        return Ok(Finding::problem(
            CHECK,
            "transactions of this user are read-only, so every claim fails",
            "turn `default_transaction_read_only` off for this user",
        ));
    }
    Ok(Finding::ok(
        CHECK,
        "the server is a primary, and accepts writes",
    ))
}

/// A user sees the state of the sessions of its own role, and with the role `pg_read_all_stats` that of all.
async fn check_transactions(connection: &mut PgConnection) -> Result<Finding, StoreError> {
    let idle = "SELECT count(*)::text FROM pg_stat_activity \
         WHERE datname = current_database() AND state LIKE 'idle in transaction%' \
         AND state_change < now() - interval '1 minute'";
    let count = text(connection, idle).await?;
    Ok(Finding::of_idle_transactions(count.parse().unwrap_or(0)))
}

async fn check_durability(connection: &mut PgConnection) -> Result<Finding, StoreError> {
    const CHECK: &str = "durability";
    for name in ["fsync", "full_page_writes"] {
        if setting(connection, name).await? == "off" {
            return Ok(Finding::problem(
                CHECK,
                format!("`{name}` is off: a crash of the machine may damage all tables"),
                format!("turn `{name}` on, and restart or reload the server"),
            ));
        }
    }
    let level = setting(connection, "synchronous_commit").await?;
    if level == "off" {
        return Ok(Finding::warning(
            CHECK,
            "`synchronous_commit` is off: a crash of the server loses the outcomes of its last moments (three times \
             `wal_writer_delay`), and their calls run again",
            "set `synchronous_commit` to on for the user of the service",
        ));
    }
    Ok(Finding::ok(
        CHECK,
        format!(
            "`synchronous_commit` is {level}: an acknowledged outcome survives a crash of the server"
        ),
    ))
}

/// Says what a failover would lose. Without the right to see other sessions, standbys are not counted.
async fn check_loss(connection: &mut PgConnection) -> Result<Finding, StoreError> {
    const CHECK: &str = "loss of the server";
    let names = setting(connection, "synchronous_standby_names").await?;
    let level = setting(connection, "synchronous_commit").await?;
    let standbys = text(connection, "SELECT count(*)::text FROM pg_stat_replication").await?;
    let waits = !names.is_empty() && !matches!(&*level, "off" | "local");
    if waits {
        return Ok(Finding::ok(
            CHECK,
            format!(
                "a commit waits for synchronous standbys ({standbys} are connected): a failover to one of them loses \
                     no acknowledged outcome"
            ),
        ));
    }
    if standbys == "0" {
        return Ok(Finding::warning(
            CHECK,
            "no standby is connected: if the disk is lost, all records since the last backup are lost, and their calls \
             run again",
            "add a standby, with `synchronous_standby_names` if no outcome may be lost",
        ));
    }
    Ok(Finding::warning(
        CHECK,
        format!(
            "replication to {standbys} standbys is asynchronous: a failover loses what a standby had not received, and \
             the calls of these records run again"
        ),
        "set `synchronous_standby_names` if no outcome may be lost",
    ))
}
