//! Statements and syntax that only MySQL and MariaDB have.

use crate::store::sql::{
    self, Conditions, Dialect, Placeholders, Statement, StepDialect, StepStatements, Table,
};

/// Server clock in microseconds: the time at which the statement began, constant within one statement. It is in UTC in
/// every session, so an hour that a time zone's clock shows twice is not ambiguous.
///
/// A statement that waited for a row sees a time before the end of the wait. This errs on the safe side. A lease or
/// retention seems to have more time left, so no live record is taken over or deleted. A lease that is granted after a
/// wait began when it was requested, and its owner counts from then as well. `SYSDATE(6)` would show the end of the
/// wait. But it uses the session's time zone, differs within one statement, cannot be used with an index, and is unsafe
/// for statement-based replication.
const NOW: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";

/// Columns of [`text_row::record`](sql::text_row::record). Line breaks are written literally, because the meaning of a
/// backslash depends on a setting.
fn record() -> String {
    format!(
        "CONCAT(CONCAT_WS(' ', state, COALESCE(ended_at, '-'), retention, on_crash, lease_until, \
           COALESCE(HEX(claim_id), '-'), fencing_token, attempt, first_claimed_at), \
         '\n', {NOW}, '\n', HEX(id), '\n', COALESCE(LENGTH(codec), '-'), '\n', operation, '\n', idempotency_key, '\n', \
         COALESCE(codec, ''), scope), fingerprint, payload"
    )
}

/// Syntax of MySQL for the shared statements.
pub(in crate::store) const DIALECT: Dialect = Dialect {
    placeholders: Placeholders::InOrder,
    quote: '`',
    now: NOW,
    record,
    greatest: "greatest",
    null_safe_eq: "<=>",
    lock: "FOR UPDATE",
    upsert: "ON DUPLICATE KEY UPDATE",
    proposed: "VALUES({})",
};

/// Syntax of MySQL for the saved steps of bodies. An assignment sees the results of earlier assignments, so the column
/// that decides comes last. A row counts as matched even if nothing changes.
const STEPS: StepDialect = StepDialect {
    lock: "FOR UPDATE",
    on_conflict: "ON DUPLICATE KEY UPDATE \
        {saved}.codec = IF({saved}.first_claimed_at = VALUES(first_claimed_at), {saved}.codec, VALUES(codec)), \
        {saved}.payload = IF({saved}.first_claimed_at = VALUES(first_claimed_at), {saved}.payload, VALUES(payload)), \
        {saved}.first_claimed_at = VALUES(first_claimed_at)",
    name: "CONVERT(s.name USING utf8mb4)",
};

/// Statements for one table.
#[derive(Debug)]
pub(super) struct MySqlStatements {
    pub(super) table: Table,
    pub(super) shared: sql::SharedStatements,
    /// [`sql::SharedStatements::get`] that also locks the row, and fails if another transaction has locked it.
    pub(super) lock: Statement,
    /// MariaDB returns a row of [`record`]: the inserted or the existing record. MySQL returns no row, and an error for
    /// a duplicate. Neither inserts anything while the clock is not ahead of all deleted fencing tokens.
    pub(super) insert: Statement,
    /// `insert` for a clock that is not ahead of all deleted fencing tokens.
    pub(super) insert_above: Statement,
    /// [`MySqlStatements::insert`] for many records, each at most once; the parameter is [`claims`](super::batch).
    /// MySQL refuses all of them if one is a duplicate.
    pub(super) insert_all: Statement,
    /// Applies those completions in the parameter whose owners may still write.
    pub(super) complete_all: Statement,
    /// Ids of the records in the parameter that are completed.
    pub(super) completed: Statement,
    pub(super) claim: Statement,
    pub(super) take_over: Statement,
    pub(super) due: Statement,
    /// The fencing floor, and the number 1 on MariaDB.
    pub(super) fencing_floor: Statement,
    /// Raises the fencing floor to the server's time if it is lower than the parameter. On MariaDB it does not wait for
    /// its row. MySQL waits as long as the session's setting says.
    pub(super) raise_now: Statement,
    /// Raises the fencing floor, and waits for its row.
    pub(super) raise: Statement,
    /// Statements that end in `id IN (`, to be followed by ids.
    pub(super) purge: Purge,
    pub(super) steps: StepStatements,
}

/// Statements for due records. The due time was set at the claim: an owner may have renewed its lease since, or
/// completed late. Each statement therefore checks again what was read of the row.
#[derive(Debug)]
pub(super) struct Purge {
    pub(super) abandoned: Box<str>,
    pub(super) expired: Box<str>,
    pub(super) interrupt: Box<str>,
    pub(super) requeue: Box<str>,
}

impl MySqlStatements {
    pub(super) fn new(table: Table) -> Self {
        let records = table.quoted(DIALECT.quote, "");
        let fencing_floor = table.quoted(DIALECT.quote, "_fencing_floor");
        let record = record();
        let Conditions {
            expired,
            unsettled,
            observed,
            next_fencing_token,
            ..
        } = Conditions::new(&DIALECT, "");
        let sql = |text: String| Statement::new(&text, DIALECT.placeholders);
        let Conditions {
            held,
            queued_from_now,
            expired: gone,
            ..
        } = Conditions::new(&DIALECT, "r.");
        // Only for MariaDB. Statements of MySQL cannot be kept from waiting, so it gets no batches.
        let nowait = "/*M! SET STATEMENT innodb_lock_wait_timeout = 0 FOR */";
        let raise = format!(
            "UPDATE {fencing_floor} SET fencing_token = greatest(?1, {NOW}) WHERE one = 1 AND fencing_token < ?1"
        );
        let completions = "JSON_TABLE(?1, '$[*]' COLUMNS ( \
               p_id CHAR(64) PATH '$[0]', p_claim_id CHAR(32) PATH '$[1]', p_fencing_token BIGINT PATH '$[2]', \
               p_state VARCHAR(16) PATH '$[3]', p_codec VARCHAR(255) CHARACTER SET utf8mb4 PATH '$[4]', \
               p_payload LONGTEXT PATH '$[5]')) AS a";
        let held = held
            .replace("?1", "UNHEX(a.p_id)")
            .replace("?2", "UNHEX(a.p_claim_id)")
            .replace("?3", "a.p_fencing_token");
        let insert = |race: &str, fencing_token: &str, from: &str| {
            // To MySQL the last part is a comment. To MariaDB it is an assignment that changes nothing. Neither a row
            // nor a byte of the log is written, and the row is returned.
            sql(format!(
                "{race}\n\
                 INSERT INTO {records} (id, scope, operation, idempotency_key, fingerprint, state, claim_id, fencing_token, \
                   attempt, lease_until, retention, on_crash, first_claimed_at, purge_after) \
                 SELECT ?1, ?2, ?3, ?4, ?5, 'running', ?6, {fencing_token}, 1, {NOW} + ?7, ?8, ?9, {NOW}, {NOW} + ?7 + ?8 {from} \
                 /*M! ON DUPLICATE KEY UPDATE id = VALUES(id) RETURNING {record} */"
            ))
        };
        // The owner is gone for good, or the record waits to be reconciled.
        let silent = format!("state = 'running' AND lease_until + retention <= {NOW}");
        Self {
            shared: sql::SharedStatements::new(&DIALECT, &table),
            lock: sql(format!(
                "SELECT {record} FROM {records} WHERE id = ?1 FOR UPDATE NOWAIT"
            )),
            steps: StepStatements::new(&DIALECT, &STEPS, &table),
            insert: insert(
                "-- Two callers may claim an absent record concurrently: the primary key lets one of them insert.\n\
                 -- A purge may delete the record in between: the shared lock waits for a purge that raises the floor.",
                &format!("last_insert_id({NOW})"),
                &format!("FROM {fencing_floor} WHERE one = 1 AND fencing_token < {NOW} LOCK IN SHARE MODE"),
            ),
            insert_above: insert(
                "-- As above, after the clock was set back, or has not ticked since a record was deleted.",
                &format!("greatest({NOW}, coalesce(max(fencing_token) + 1, 0))"),
                &format!("FROM {fencing_floor} WHERE one = 1 LOCK IN SHARE MODE"),
            ),
            insert_all: sql(format!(
                "-- As above for each record. A transaction may hold one of the rows for long: the other requests\n\
                 -- must not wait for it. The statement therefore waits for no lock, and if it fails, each request\n\
                 -- runs individually.\n\
                 {nowait} INSERT INTO {records} (id, scope, operation, idempotency_key, fingerprint, state, claim_id, fencing_token, \
                   attempt, lease_until, retention, on_crash, first_claimed_at, purge_after) \
                 SELECT UNHEX(a.p_id), a.p_scope, a.p_operation, a.p_key, UNHEX(a.p_fingerprint), 'running', \
                   UNHEX(a.p_claim_id), {NOW}, 1, {NOW} + a.p_lease, a.p_retention, a.p_on_crash, {NOW}, \
                   {NOW} + a.p_lease + a.p_retention \
                 FROM {fencing_floor} AS d JOIN JSON_TABLE(?1, '$[*]' COLUMNS ( \
                   p_id CHAR(64) PATH '$[0]', p_scope MEDIUMTEXT CHARACTER SET utf8mb4 PATH '$[1]', \
                   p_operation VARCHAR(255) CHARACTER SET utf8mb4 PATH '$[2]', p_key VARCHAR(255) PATH '$[3]', \
                   p_fingerprint CHAR(74) PATH '$[4]', p_claim_id CHAR(32) PATH '$[5]', p_lease BIGINT PATH '$[6]', \
                   p_retention BIGINT PATH '$[7]', p_on_crash VARCHAR(16) PATH '$[8]')) AS a \
                 WHERE d.one = 1 AND d.fencing_token < {NOW} LOCK IN SHARE MODE \
                 /*M! ON DUPLICATE KEY UPDATE id = VALUES(id) RETURNING {record} */"
            )),
            // No assignment reads what another one writes: their order is the server's choice.
            complete_all: sql(format!(
                "-- A transaction may hold one of the rows for long. The other requests must not wait for it.\n\
                 {nowait} UPDATE {completions} STRAIGHT_JOIN {records} AS r ON r.id = UNHEX(a.p_id) \
                 SET r.purge_after = {queued_from_now}, r.codec = a.p_codec, r.payload = UNHEX(a.p_payload), \
                   r.ended_at = {NOW}, r.state = a.p_state WHERE {held}"
            )),
            completed: sql(format!(
                "SELECT r.id FROM {completions} STRAIGHT_JOIN {records} AS r ON r.id = UNHEX(a.p_id) \
                 WHERE r.claim_id = UNHEX(a.p_claim_id) AND r.fencing_token = a.p_fencing_token \
                   AND r.state IN ('completed', 'failed', 'unrecorded') AND NOT ({gone})"
            )),
            // An assignment sees the results of earlier assignments: the columns that `expired` reads come last.
            claim: sql(format!(
                "-- Another caller may have claimed a record that was read as expired or released. That claim changed\n\
                 -- what the condition compares. Or the claim finds its own claim id, from a try whose answer was\n\
                 -- lost.\n\
                 UPDATE {records} SET \
                   fencing_token = CASE WHEN state = 'running' AND NOT ({expired}) THEN fencing_token ELSE {next_fencing_token} END, \
                   attempt = CASE WHEN {expired} THEN 1 WHEN state = 'running' THEN attempt \
                     ELSE least(attempt + 1, 4294967295) END, \
                   first_claimed_at = CASE WHEN {expired} THEN {NOW} ELSE first_claimed_at END, \
                   on_crash = CASE WHEN {expired} THEN ?9 ELSE on_crash END, \
                   state = 'running', fingerprint = ?5, claim_id = ?6, lease_until = {NOW} + ?7, retention = ?8, \
                   codec = NULL, payload = NULL, ended_at = NULL, purge_after = {NOW} + ?7 + ?8 \
                 WHERE id = ?1 AND (({expired}) \
                   OR fingerprint = ?5 AND (state = 'released' OR state = 'running' AND claim_id = ?6))"
            )),
            take_over: sql(format!(
                "-- The owner may renew its lease or complete after the record was read as lapsed, and another caller\n\
                 -- may take over first. Each of these changes what was observed, and the condition compares all of\n\
                 -- it.\n\
                 UPDATE {records} SET \
                   fencing_token = CASE WHEN state = 'running' AND claim_id = ?6 THEN fencing_token ELSE {next_fencing_token} END, \
                   attempt = CASE WHEN state = 'running' AND claim_id = ?6 THEN attempt \
                     ELSE least(attempt + 1, 4294967295) END, \
                   state = 'running', claim_id = ?6, lease_until = {NOW} + ?8, retention = ?9, \
                   purge_after = {NOW} + ?8 + ?9 \
                 WHERE id = ?10 AND fingerprint = ?7 AND NOT ({expired}) \
                   AND (state = 'running' AND claim_id = ?6 OR {observed} AND {unsettled} AND on_crash <> 'refuse')"
            )),
            due: sql(format!(
                "SELECT id, fencing_token, CASE WHEN {expired} THEN IF(state = 'running', 'abandoned', 'expired') \
                   WHEN {silent} THEN 'interrupt' ELSE 'requeue' END \
                 FROM {records} WHERE purge_after <= {NOW} ORDER BY purge_after LIMIT ?1"
            )),
            fencing_floor: sql(format!(
                "SELECT fencing_token, CAST(VERSION() LIKE '%MariaDB%' AS SIGNED) FROM {fencing_floor} WHERE one = 1"
            )),
            raise_now: sql(format!(
                "-- Claims and transactions lock the row. A statement that waits for it makes all further claims\n\
                 -- wait.\n\
                 {nowait} {raise}"
            )),
            raise: sql(raise),
            purge: Purge {
                abandoned: format!(
                    "DELETE FROM {records} WHERE state = 'running' AND ({expired}) AND fencing_token <= ? AND id IN ("
                )
                .into(),
                expired: format!(
                    "DELETE FROM {records} WHERE state <> 'running' AND ({expired}) AND fencing_token <= ? AND id IN ("
                )
                .into(),
                interrupt: format!(
                    "UPDATE {records} SET purge_after = NULL, state = 'interrupted' \
                     WHERE {silent} AND on_crash <> 'rerun' AND purge_after <= {NOW} AND id IN ("
                )
                .into(),
                requeue: format!(
                    "UPDATE {records} SET purge_after = CASE WHEN state = 'interrupted' THEN NULL \
                       WHEN state <> 'running' THEN ended_at + retention ELSE lease_until + retention END \
                     WHERE NOT ({expired}) AND NOT ({silent}) AND purge_after <= {NOW} AND id IN ("
                )
                .into(),
            },
            table,
        }
    }
}
