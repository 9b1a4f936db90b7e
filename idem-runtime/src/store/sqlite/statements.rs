//! The SQL of the SQLite store. Every step is one statement that commits by itself, so a step that is dropped half way
//! leaves no transaction open, and one that two callers take at once is decided by the row as it is at the write.

use sqlx::{AssertSqlSafe, SqlSafeStr, SqlStr};

use crate::store::sql::{COLUMNS, GRANTED};

/// The clock of the database in microseconds, the same wherever it stands in one statement. It ticks in milliseconds;
/// the rounding undoes what a floating-point number of seconds loses.
const NOW: &str = "(CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000)";

/// The statements for one table.
#[derive(Debug)]
pub(super) struct Statements {
    pub(super) table: Box<str>,
    pub(super) get: SqlStr,
    pub(super) claim: SqlStr,
    pub(super) take_over: SqlStr,
    pub(super) renew: SqlStr,
    pub(super) complete: SqlStr,
    pub(super) release: SqlStr,
    pub(super) interrupt: SqlStr,
    pub(super) resolve_complete: SqlStr,
    pub(super) resolve_release: SqlStr,
    pub(super) resolve_interrupt: SqlStr,
    pub(super) resolve_erase: SqlStr,
    pub(super) list: SqlStr,
    pub(super) due: SqlStr,
    pub(super) purge: SqlStr,
    pub(super) requeue: SqlStr,
}

impl Statements {
    /// The table's name must have been checked: it becomes part of the text.
    pub(super) fn new(table: &str) -> Self {
        // What a claim treats as absent, and purging removes.
        let expired = format!(
            "CASE r.state \
             WHEN 'running' THEN r.on_crash = 'rerun' AND r.lease_until + r.retention <= {NOW} \
             WHEN 'interrupted' THEN 0 \
             ELSE r.ended_at + r.retention <= {NOW} END"
        );
        let held = format!(
            "r.id = ?1 AND r.token = ?2 AND r.grant_number = ?3 AND r.state IN ('running', 'interrupted') \
             AND NOT ({expired})"
        );
        let unsettled =
            format!("(r.state = 'interrupted' OR r.state = 'running' AND r.lease_until <= {NOW})");
        let observed = "r.id = ?1 AND r.state = ?2 AND r.token IS ?3 AND r.grant_number = ?4 AND r.lease_until = ?5";
        let resolvable = format!("{observed} AND {unsettled} AND NOT ({expired})");
        let next_grant = format!("max(r.grant_number + 1, {NOW})");
        let queued_from_now = format!("coalesce(r.purge_after, {NOW} + r.retention)");
        let update = |rest: String| sql(format!("UPDATE \"{table}\" AS r SET {rest}"));

        Self {
            table: table.into(),
            get: sql(format!(
                "SELECT {COLUMNS}, {NOW} FROM \"{table}\" WHERE id = ?1"
            )),
            claim: sql(format!(
                "-- Two callers may both have read that there is no record. The primary key lets one of them insert;\n\
                 -- the insert of the other becomes an update, whose condition looks at the row that won.\n\
                 INSERT INTO \"{table}\" AS r (id, scope, operation, \"key\", fingerprint, state, token, grant_number, \
                   attempt, lease_until, retention, on_crash, first_claimed_at, purge_after) \
                 SELECT ?1, ?2, ?3, ?4, ?5, 'running', ?6, \
                   max({NOW}, coalesce((SELECT grant_number + 1 FROM \"{table}_dropped\"), 0)), \
                   1, {NOW} + ?7, ?8, ?9, {NOW}, {NOW} + ?7 + ?8 \
                 WHERE true \
                 ON CONFLICT (id) DO UPDATE SET \
                   grant_number = CASE WHEN r.state = 'running' AND NOT ({expired}) THEN r.grant_number \
                     ELSE max(r.grant_number + 1, excluded.grant_number) END, \
                   attempt = CASE WHEN {expired} THEN 1 WHEN r.state = 'running' THEN r.attempt \
                     ELSE min(r.attempt + 1, 4294967295) END, \
                   on_crash = CASE WHEN {expired} THEN excluded.on_crash ELSE r.on_crash END, \
                   first_claimed_at = CASE WHEN {expired} THEN excluded.first_claimed_at ELSE r.first_claimed_at END, \
                   state = 'running', fingerprint = excluded.fingerprint, token = excluded.token, \
                   lease_until = excluded.lease_until, retention = excluded.retention, \
                   codec = NULL, payload = NULL, ended_at = NULL, purge_after = excluded.purge_after \
                 WHERE {expired} \
                   OR r.fingerprint = excluded.fingerprint \
                     AND (r.state = 'released' OR r.state = 'running' AND r.token = excluded.token) \
                 RETURNING {GRANTED}"
            )),
            take_over: sql(format!(
                "-- Its owner may send a heartbeat, or complete, after it was seen to be silent; another caller may take\n\
                 -- over first. Each changes what was observed, and the condition is on all of it.\n\
                 UPDATE \"{table}\" AS r SET state = 'running', token = ?6, lease_until = {NOW} + ?8, retention = ?9, \
                   purge_after = {NOW} + ?8 + ?9, \
                   grant_number = CASE WHEN r.state = 'running' AND r.token = ?6 THEN r.grant_number \
                     ELSE {next_grant} END, \
                   attempt = CASE WHEN r.state = 'running' AND r.token = ?6 THEN r.attempt \
                     ELSE min(r.attempt + 1, 4294967295) END \
                 WHERE r.id = ?10 AND r.fingerprint = ?7 AND NOT ({expired}) \
                   AND (r.state = 'running' AND r.token = ?6 \
                     OR {observed} AND {unsettled} AND r.on_crash <> 'refuse') \
                 RETURNING {GRANTED}"
            )),
            renew: update(format!(
                "state = 'running', lease_until = {NOW} + ?4, \
                 purge_after = coalesce(r.purge_after, {NOW} + ?4 + r.retention) WHERE {held}"
            )),
            complete: update(format!(
                "state = ?4, codec = ?5, payload = ?6, ended_at = {NOW}, purge_after = {queued_from_now} WHERE {held}"
            )),
            release: update(format!(
                "state = 'released', token = NULL, ended_at = {NOW}, purge_after = {queued_from_now} WHERE {held}"
            )),
            interrupt: update(format!(
                "state = 'interrupted', purge_after = NULL WHERE {held}"
            )),
            resolve_complete: update(format!(
                "state = ?6, codec = ?7, payload = ?8, ended_at = {NOW}, token = NULL, grant_number = {next_grant}, \
                 purge_after = {queued_from_now} WHERE {resolvable}"
            )),
            resolve_release: update(format!(
                "state = 'released', ended_at = {NOW}, token = NULL, grant_number = {next_grant}, \
                 purge_after = {queued_from_now} WHERE {resolvable}"
            )),
            resolve_interrupt: update(format!(
                "state = 'interrupted', purge_after = NULL WHERE {resolvable}"
            )),
            resolve_erase: sql(format!(
                "DELETE FROM \"{table}\" AS r WHERE {observed} AND NOT ({expired}) \
                 AND NOT (r.state = 'running' AND r.lease_until > {NOW})"
            )),
            list: sql(format!(
                "SELECT {COLUMNS}, {NOW} FROM \"{table}\" AS r WHERE r.id > ?1 \
                 AND (?2 IS NULL OR r.state = ?2) AND (?3 IS NULL OR r.operation = ?3) \
                 AND (?4 = 0 OR r.state = 'running' AND r.lease_until <= {NOW}) \
                 AND (?5 IS NULL OR {NOW} - r.first_claimed_at >= ?5) \
                 AND NOT ({expired}) ORDER BY r.id LIMIT ?6"
            )),
            due: sql(format!(
                "SELECT EXISTS (SELECT 1 FROM \"{table}\" WHERE purge_after <= {NOW})"
            )),
            purge: sql(format!(
                "-- The queue was filled at the claim: its owner may have sent heartbeats since, or completed late.\n\
                 -- What it says is looked at again here, where nobody can come in between.\n\
                 DELETE FROM \"{table}\" AS r WHERE ({expired}) AND r.id IN \
                   (SELECT id FROM \"{table}\" WHERE purge_after <= {NOW} ORDER BY purge_after LIMIT ?1) \
                 RETURNING state"
            )),
            requeue: sql(format!(
                "-- The same for those that are not to be deleted: they are interrupted, or live on and are queued for\n\
                 -- when they may expire. Without the look at the lease, a heartbeat would be overwritten.\n\
                 UPDATE \"{table}\" AS r SET \
                   state = CASE WHEN r.state = 'running' AND r.lease_until + r.retention <= {NOW} \
                     THEN 'interrupted' ELSE r.state END, \
                   purge_after = CASE WHEN r.state = 'interrupted' THEN NULL \
                     WHEN r.state <> 'running' THEN r.ended_at + r.retention \
                     WHEN r.lease_until + r.retention > {NOW} THEN r.lease_until + r.retention END \
                 WHERE NOT ({expired}) AND r.id IN \
                   (SELECT id FROM \"{table}\" WHERE purge_after <= {NOW} ORDER BY purge_after LIMIT ?1) \
                 RETURNING state"
            )),
        }
    }
}

fn sql(text: String) -> SqlStr {
    // Nothing but the checked name of the table is put into it. Shared text makes the copy for each use cheap.
    AssertSqlSafe(std::sync::Arc::<str>::from(text)).into_sql_str()
}

#[cfg(test)]
mod tests {
    use sqlx::Row;
    use sqlx::sqlite::SqlitePoolOptions;

    use super::*;
    use crate::store::sqlite::SqliteStore;

    /// The plan of each statement that must not look at every row.
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
            let statements = Statements::new("idem_records");
            let plan = async |statement: &SqlStr| {
                let explain = format!("EXPLAIN QUERY PLAN {}", statement.as_str());
                let rows = sqlx::query(AssertSqlSafe(explain))
                    .fetch_all(&pool)
                    .await
                    .unwrap();
                let lines = rows.iter().map(|row| row.get::<String, _>(3));
                lines.collect::<Vec<_>>().join("\n")
            };
            for statement in [&statements.due, &statements.purge, &statements.requeue] {
                let plan = plan(statement).await;
                assert!(
                    plan.contains("INDEX idem_records_purge (purge_after<?)"),
                    "{plan}"
                );
                assert!(!plan.contains("SCAN idem_records"), "{plan}");
                assert!(!plan.contains("SCAN r"), "{plan}");
            }
            for statement in [
                &statements.get,
                &statements.take_over,
                &statements.renew,
                &statements.complete,
                &statements.release,
                &statements.interrupt,
                &statements.resolve_complete,
                &statements.resolve_release,
                &statements.resolve_interrupt,
                &statements.resolve_erase,
                &statements.list,
            ] {
                let plan = plan(statement).await;
                assert!(
                    plan.contains("INDEX sqlite_autoindex_idem_records_1 (id"),
                    "{plan}"
                );
            }
        });
    }
}
