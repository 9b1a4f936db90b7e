//! Statements and syntax that only SQLite has.

use crate::store::sql::{
    self, Conditions, Dialect, GRANTED_COLUMNS, Placeholders, Statement, StepDialect,
    StepStatements, Table,
};

/// Database clock in microseconds, constant within one statement. It ticks in milliseconds. The rounding corrects the
/// error of a floating-point number of seconds.
const NOW: &str = "(CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000)";

/// Columns of [`text_row::record`](sql::text_row::record).
fn record() -> String {
    format!(
        "printf('%s %s %d %s %d %s %d %d %d\n%d\n%s\n%s\n', state, coalesce(ended_at, '-'), retention, on_crash, lease_until, \
           iif(claim_id IS NULL, '-', hex(claim_id)), fencing_token, attempt, first_claimed_at, \
           {NOW}, hex(id), coalesce(length(CAST(codec AS BLOB)), '-')) \
         || operation || '\n' || idempotency_key || '\n' || coalesce(codec, '') || scope, fingerprint, payload"
    )
}

/// Syntax of SQLite for the shared statements.
pub(in crate::store) const DIALECT: Dialect = Dialect {
    placeholders: Placeholders::Numbered('?'),
    quote: '"',
    now: NOW,
    record,
    greatest: "max",
    null_safe_eq: "IS",
    lock: "",
    upsert: "ON CONFLICT (id) DO UPDATE SET",
    proposed: "excluded.{}",
};

/// Syntax of SQLite for the saved steps of bodies.
const STEPS: StepDialect = StepDialect {
    // SQLite has one writer at a time, so no row lock is needed.
    lock: "",
    on_conflict: "ON CONFLICT (id, name) DO UPDATE SET first_claimed_at = excluded.first_claimed_at, \
        codec = excluded.codec, payload = excluded.payload WHERE {saved}.first_claimed_at <> excluded.first_claimed_at",
    name: "s.name",
};

/// Statements for one table.
#[derive(Debug)]
pub(super) struct SqliteStatements {
    pub(super) table: Table,
    pub(super) shared: sql::SharedStatements,
    /// Reads the records whose ids are in the parameter, a JSON array of hex digits.
    pub(super) find_all: Statement,
    pub(super) claim: Statement,
    pub(super) take_over: Statement,
    pub(super) purge: Statement,
    pub(super) requeue: Statement,
    pub(super) steps: StepStatements,
}

impl SqliteStatements {
    pub(super) fn new(table: Table) -> Self {
        let records = table.quoted('"', "");
        let fencing_floor = table.quoted('"', "_fencing_floor");
        let record = record();
        let Conditions {
            expired,
            unsettled,
            observed,
            next_fencing_token,
            ..
        } = Conditions::new(&DIALECT, "r.");
        let sql = |text: String| Statement::new(&text, DIALECT.placeholders);
        Self {
            shared: sql::SharedStatements::new(&DIALECT, &table),
            steps: StepStatements::new(&DIALECT, &STEPS, &table),
            find_all: sql(format!(
                "SELECT {record} FROM {records} WHERE id IN (SELECT unhex(value) FROM json_each(?1))"
            )),
            claim: sql(format!(
                "-- Two callers may both have read that there is no record. The primary key lets one of them insert;\n\
                 -- the insert of the other becomes an update, whose condition is checked on the row that won.\n\
                 INSERT INTO {records} AS r (id, scope, operation, idempotency_key, fingerprint, state, claim_id, fencing_token, \
                   attempt, lease_until, retention, on_crash, first_claimed_at, purge_after) \
                 SELECT ?1, ?2, ?3, ?4, ?5, 'running', ?6, \
                   max({NOW}, coalesce((SELECT fencing_token + 1 FROM {fencing_floor}), 0)), \
                   1, {NOW} + ?7, ?8, ?9, {NOW}, {NOW} + ?7 + ?8 \
                 WHERE true \
                 ON CONFLICT (id) DO UPDATE SET \
                   fencing_token = CASE WHEN r.state = 'running' AND NOT ({expired}) THEN r.fencing_token \
                     ELSE max(r.fencing_token + 1, excluded.fencing_token) END, \
                   attempt = CASE WHEN {expired} THEN 1 WHEN r.state = 'running' THEN r.attempt \
                     ELSE min(r.attempt + 1, 4294967295) END, \
                   on_crash = CASE WHEN {expired} THEN excluded.on_crash ELSE r.on_crash END, \
                   first_claimed_at = CASE WHEN {expired} THEN excluded.first_claimed_at ELSE r.first_claimed_at END, \
                   state = 'running', fingerprint = excluded.fingerprint, claim_id = excluded.claim_id, \
                   lease_until = excluded.lease_until, retention = excluded.retention, \
                   codec = NULL, payload = NULL, ended_at = NULL, purge_after = excluded.purge_after \
                 WHERE {expired} \
                   OR r.fingerprint = excluded.fingerprint \
                     AND (r.state = 'released' OR r.state = 'running' AND r.claim_id = excluded.claim_id) \
                 RETURNING {GRANTED_COLUMNS}"
            )),
            take_over: sql(format!(
                "-- The owner may renew its lease or complete after the record was read as lapsed, and another caller\n\
                 -- may take over first. Each of these changes what was observed, and the condition compares all of\n\
                 -- it.\n\
                 UPDATE {records} AS r SET state = 'running', claim_id = ?6, lease_until = {NOW} + ?8, retention = ?9, \
                   purge_after = {NOW} + ?8 + ?9, \
                   fencing_token = CASE WHEN r.state = 'running' AND r.claim_id = ?6 THEN r.fencing_token \
                     ELSE {next_fencing_token} END, \
                   attempt = CASE WHEN r.state = 'running' AND r.claim_id = ?6 THEN r.attempt \
                     ELSE min(r.attempt + 1, 4294967295) END \
                 WHERE r.id = ?10 AND r.fingerprint = ?7 AND NOT ({expired}) \
                   AND (r.state = 'running' AND r.claim_id = ?6 \
                     OR {observed} AND {unsettled} AND r.on_crash <> 'refuse') \
                 RETURNING {GRANTED_COLUMNS}"
            )),
            purge: sql(format!(
                "-- The due time was set at the claim: the owner may have renewed its lease since, or completed late.\n\
                 -- The condition is therefore checked again here, where no other write can come in between.\n\
                 DELETE FROM {records} AS r WHERE ({expired}) AND r.id IN \
                   (SELECT id FROM {records} WHERE purge_after <= {NOW} ORDER BY purge_after LIMIT ?1) \
                 RETURNING state"
            )),
            requeue: sql(format!(
                "-- As above for records that stay: they are interrupted, or still alive and queued until they may\n\
                 -- expire. Without the check of the lease, a renewal would be overwritten.\n\
                 UPDATE {records} AS r SET \
                   state = CASE WHEN r.state = 'running' AND r.lease_until + r.retention <= {NOW} \
                     THEN 'interrupted' ELSE r.state END, \
                   purge_after = CASE WHEN r.state = 'interrupted' THEN NULL \
                     WHEN r.state <> 'running' THEN r.ended_at + r.retention \
                     WHEN r.lease_until + r.retention > {NOW} THEN r.lease_until + r.retention END \
                 WHERE NOT ({expired}) AND r.id IN \
                   (SELECT id FROM {records} WHERE purge_after <= {NOW} ORDER BY purge_after LIMIT ?1) \
                 RETURNING state"
            )),
            table,
        }
    }
}

#[cfg(test)]
mod tests {
    use sqlx::sqlite::SqlitePoolOptions;
    use sqlx::{AssertSqlSafe, Row};

    use super::*;
    use crate::store::sqlite::SqliteStore;

    /// Checks the plan of each statement that must not scan all rows.
    #[test]
    fn statements_find_their_rows_by_an_index() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let pool = SqlitePoolOptions::new()
                .max_connections(1)
                .connect("sqlite::memory:")
                .await
                .unwrap();
            SqliteStore::new(pool.clone()).migrate().await.unwrap();
            let statements = SqliteStatements::new(Table::default());
            let plan = async |statement: &Statement| {
                let explain = format!("EXPLAIN QUERY PLAN {}", statement.as_str());
                let rows = sqlx::query(AssertSqlSafe(explain))
                    .fetch_all(&pool)
                    .await
                    .unwrap();
                let lines = rows.iter().map(|row| row.get::<String, _>(3));
                lines.collect::<Vec<_>>().join("\n")
            };
            for statement in [
                &statements.shared.due,
                &statements.purge,
                &statements.requeue,
            ] {
                let plan = plan(statement).await;
                assert!(
                    plan.contains("INDEX idem_records_purge (purge_after<?)"),
                    "{plan}"
                );
                assert!(!plan.contains("SCAN idem_records"), "{plan}");
                assert!(!plan.contains("SCAN r"), "{plan}");
            }
            for statement in [
                &statements.shared.get,
                &statements.find_all,
                &statements.take_over,
                &statements.shared.renew,
                &statements.shared.complete,
                &statements.shared.release,
                &statements.shared.interrupt,
                &statements.shared.resolve_complete,
                &statements.shared.resolve_release,
                &statements.shared.resolve_interrupt,
                &statements.shared.erase,
                &statements.shared.list,
            ]
            .into_iter()
            .chain(statements.steps.each())
            {
                let plan = plan(statement).await;
                assert!(
                    plan.contains("INDEX sqlite_autoindex_idem_records_1 (id"),
                    "{plan}"
                );
            }
        });
    }
}
