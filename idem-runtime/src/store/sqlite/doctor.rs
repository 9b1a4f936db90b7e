//! Checks of a SQLite file.

use sqlx::{AssertSqlSafe, Row as _};

use super::{SqliteStore, error};
use crate::error::{StoreError, StoreErrorKind};
use crate::store::operator::Finding;

impl SqliteStore {
    pub(super) async fn examine(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        findings.push(Finding::or_failed("rights", self.check_rights().await));
        findings.push(Finding::or_failed("journal", self.check_journal().await));
        findings.push(Finding::or_failed("indexes", self.check_indexes().await));
        findings.push(Finding::ok(
            "loss of the server",
            "with `synchronous = FULL`, which the store sets, a power loss loses no acknowledged outcome; with NORMAL it \
             may lose the last ones, and their calls run again. The setting belongs to each connection of the service. \
             A lost disk loses all records",
        ));
        findings
    }

    async fn text(&self, sql: String) -> Result<Vec<String>, StoreError> {
        let rows = sqlx::query(AssertSqlSafe(sql)).fetch_all(&self.pool).await;
        let rows = rows.map_err(error)?;
        rows.iter()
            .map(|row| row.try_get::<String, _>(row.len() - 1).map_err(error))
            .collect()
    }

    /// Takes the write lock, and releases it.
    async fn check_rights(&self) -> Result<Finding, StoreError> {
        const CHECK: &str = "rights";
        let _turn = self.writer.turn().await;
        let begun = async {
            let mut transaction = self.pool.begin_with("BEGIN IMMEDIATE").await?;
            // In a file that cannot be written, the transaction begins as one that reads. Only a write is refused.
            let table = self.statements.table.quoted('"', "");
            let write = format!("UPDATE {table} SET attempt = attempt WHERE false");
            sqlx::query(AssertSqlSafe(write))
                .execute(&mut *transaction)
                .await?;
            transaction.rollback().await
        };
        match begun.await.map_err(error) {
            Ok(()) => Ok(Finding::ok(CHECK, "the file can be written")),
            Err(error) if error.kind() == StoreErrorKind::ReadOnly => Ok(Finding::problem(
                CHECK,
                "the file cannot be written, so every claim fails",
                "check the permissions of the file and its directory for this user",
            )),
            Err(error) if error.kind() == StoreErrorKind::Conflict => Ok(Finding::warning(
                CHECK,
                "another process held the write lock for the whole `busy_timeout`, so writing could not be tried",
                "find the process with the long transaction, and run this check again",
            )),
            Err(error) => Err(error),
        }
    }

    async fn check_journal(&self) -> Result<Finding, StoreError> {
        const CHECK: &str = "journal";
        let mode = self.text("PRAGMA journal_mode".into()).await?.concat();
        if mode == "wal" {
            return Ok(Finding::ok(
                CHECK,
                "the file has a write-ahead log, so a replay never waits for a writer",
            ));
        }
        Ok(Finding::warning(
            CHECK,
            format!("the journal mode is `{mode}`, so a replay waits for each writer"),
            "open the file with `SqliteStore::open` or `connect`, or run PRAGMA journal_mode = WAL once",
        ))
    }

    async fn check_indexes(&self) -> Result<Finding, StoreError> {
        let table = self.statements.table.quoted('"', "");
        let name = &self.statements.table.name;
        let mut unused = Vec::new();
        for (condition, index) in [
            ("id = x''".to_owned(), format!("sqlite_autoindex_{name}_1")),
            ("purge_after <= 0".to_owned(), format!("{name}_purge")),
        ] {
            let plan = format!("EXPLAIN QUERY PLAN SELECT state FROM {table} WHERE {condition}");
            let plan = self.text(plan).await?;
            if !plan.iter().any(|line| line.contains(&index)) {
                unused.push(index);
            }
        }
        Ok(Finding::of_indexes(&unused))
    }
}
