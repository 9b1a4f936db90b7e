//! What MySQL and MariaDB say in a way of their own.

use crate::store::sql::{
    self, Conditions, Dialect, Placeholders, Statement, StepDialect, StepStatements, Table,
};

/// The clock of the server in microseconds. It is the time at which the statement began, the same wherever it stands in
/// one, and in UTC whatever the session's time zone is: an hour that a zone's clock shows twice is no ambiguity.
///
/// A statement that waited for a row sees an older time than the wait's end. That errs on the safe side: a lease or a
/// retention looks as if it had more time left, so nothing that lives is taken over or deleted, and a lease that is
/// granted after a wait began when it was asked for, which is also when its owner began to count. `SYSDATE(6)` would
/// show the end of the wait, but in the session's time zone, differing within one statement, of no use to an index, and
/// unsafe for statement-based replication.
const NOW: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";

/// The columns of [`text_row::record`](sql::text_row::record). The ends of lines stand as they are: whether a backslash
/// makes one is a setting.
fn record() -> String {
    format!(
        "CONCAT(CONCAT_WS(' ', state, COALESCE(ended_at, '-'), retention, on_crash, lease_until, \
           COALESCE(HEX(claim_id), '-'), fencing_token, attempt, first_claimed_at), \
         '\n', {NOW}, '\n', HEX(id), '\n', COALESCE(LENGTH(codec), '-'), '\n', operation, '\n', idempotency_key, '\n', \
         COALESCE(codec, ''), scope), fingerprint, payload"
    )
}

/// How MySQL spells what all dialects share.
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

/// How MySQL spells the steps of bodies. An assignment sees what those before it did, so the column that decides comes
/// last. Where nothing changes, the row counts as matched nevertheless.
const STEPS: StepDialect = StepDialect {
    lock: "FOR UPDATE",
    on_conflict: "ON DUPLICATE KEY UPDATE \
        {saved}.codec = IF({saved}.first_claimed_at = VALUES(first_claimed_at), {saved}.codec, VALUES(codec)), \
        {saved}.payload = IF({saved}.first_claimed_at = VALUES(first_claimed_at), {saved}.payload, VALUES(payload)), \
        {saved}.first_claimed_at = VALUES(first_claimed_at)",
    name: "CONVERT(s.name USING utf8mb4)",
};

/// The statements for one table.
#[derive(Debug)]
pub(super) struct MySqlStatements {
    pub(super) table: Table,
    pub(super) shared: sql::SharedStatements,
    /// [`sql::SharedStatements::get`] that takes the row's lock, and fails where another transaction has it.
    pub(super) lock: Statement,
    /// From MariaDB a row of [`record`]: what was inserted, or what was there. From MySQL no row, and the error of a
    /// duplicate. Neither does anything where the clock is not ahead of all fencing tokens that were deleted.
    pub(super) insert: Statement,
    /// The same for such a clock.
    pub(super) insert_above: Statement,
    /// [`MySqlStatements::insert`] for many records, none twice; the parameter is [`claims`](super::batch). MySQL
    /// refuses all of them where one is a duplicate.
    pub(super) insert_all: Statement,
    /// The completions in the parameter that may take effect.
    pub(super) complete_all: Statement,
    /// The ids of those that have.
    pub(super) completed: Statement,
    pub(super) claim: Statement,
    pub(super) take_over: Statement,
    pub(super) due: Statement,
    /// The number above which all new fencing tokens are, and 1 on MariaDB.
    pub(super) fencing_floor: Statement,
    /// Raises that number to the server's time where it is lower than the parameter, without waiting for its row on
    /// MariaDB. MySQL cannot, and waits as its session says.
    pub(super) raise_now: Statement,
    /// Raises that number, and waits.
    pub(super) raise: Statement,
    /// These end in `id IN (`, to be followed by ids.
    pub(super) purge: Purge,
    pub(super) steps: StepStatements,
}

/// What becomes of records that are due. The queue is filled at the claim: an owner may have sent heartbeats since, or
/// completed late, so each of these looks again at what was read of the row.
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
            next_grant,
            ..
        } = Conditions::new(&DIALECT, "");
        let sql = |text: String| Statement::new(&text, DIALECT.placeholders);
        let Conditions {
            held,
            queued_from_now,
            expired: gone,
            ..
        } = Conditions::new(&DIALECT, "r.");
        // MariaDB's alone. MySQL, where no statement can be kept from waiting, is not asked for many at once.
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
        let insert = |race: &str, grant: &str, from: &str| {
            // MySQL takes the last part for a comment. To MariaDB it is an assignment that changes nothing, so nothing
            // is written, neither a row nor a byte of the log, and the row comes back.
            sql(format!(
                "{race}\n\
                 INSERT INTO {records} (id, scope, operation, idempotency_key, fingerprint, state, claim_id, fencing_token, \
                   attempt, lease_until, retention, on_crash, first_claimed_at, purge_after) \
                 SELECT ?1, ?2, ?3, ?4, ?5, 'running', ?6, {grant}, 1, {NOW} + ?7, ?8, ?9, {NOW}, {NOW} + ?7 + ?8 {from} \
                 /*M! ON DUPLICATE KEY UPDATE id = VALUES(id) RETURNING {record} */"
            ))
        };
        // Gone for good, or only for as long as nobody reconciles it.
        let silent = format!("state = 'running' AND lease_until + retention <= {NOW}");
        Self {
            shared: sql::SharedStatements::new(&DIALECT, &table),
            lock: sql(format!(
                "SELECT {record} FROM {records} WHERE id = ?1 FOR UPDATE NOWAIT"
            )),
            steps: StepStatements::new(&DIALECT, &STEPS, &table),
            insert: insert(
                "-- Two callers may claim at once what is not there: the primary key lets one of them insert.\n\
                 -- A record may be deleted in between: the lock waits for whoever raises the number before deleting.",
                &format!("last_insert_id({NOW})"),
                &format!("FROM {fencing_floor} WHERE one = 1 AND fencing_token < {NOW} LOCK IN SHARE MODE"),
            ),
            insert_above: insert(
                "-- The same where the clock was put back, or has not ticked since a record was deleted.",
                &format!("greatest({NOW}, coalesce(max(fencing_token) + 1, 0))"),
                &format!("FROM {fencing_floor} WHERE one = 1 LOCK IN SHARE MODE"),
            ),
            insert_all: sql(format!(
                "-- As above for each. A transaction may hold one of the rows for long: the others must not wait for it,\n\
                 -- so the statement waits for nobody, and where it cannot go on each runs alone.\n\
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
                "-- Somebody may hold one of the rows for long. The others must not wait for it.\n\
                 {nowait} UPDATE {completions} STRAIGHT_JOIN {records} AS r ON r.id = UNHEX(a.p_id) \
                 SET r.purge_after = {queued_from_now}, r.codec = a.p_codec, r.payload = UNHEX(a.p_payload), \
                   r.ended_at = {NOW}, r.state = a.p_state WHERE {held}"
            )),
            completed: sql(format!(
                "SELECT r.id FROM {completions} STRAIGHT_JOIN {records} AS r ON r.id = UNHEX(a.p_id) \
                 WHERE r.claim_id = UNHEX(a.p_claim_id) AND r.fencing_token = a.p_fencing_token \
                   AND r.state IN ('completed', 'failed', 'unrecorded') AND NOT ({gone})"
            )),
            // An assignment sees what those before it did: the columns that `expired` looks at come last.
            claim: sql(format!(
                "-- Another caller may have claimed a record that was read as expired or released. It changed what the\n\
                 -- condition is on, or the claim finds its own claim id, from a try whose answer was lost.\n\
                 UPDATE {records} SET \
                   fencing_token = CASE WHEN state = 'running' AND NOT ({expired}) THEN fencing_token ELSE {next_grant} END, \
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
                "-- Its owner may send a heartbeat, or complete, after it was seen to be silent; another caller may take\n\
                 -- over first. Each changes what was observed, and the condition is on all of it.\n\
                 UPDATE {records} SET \
                   fencing_token = CASE WHEN state = 'running' AND claim_id = ?6 THEN fencing_token ELSE {next_grant} END, \
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
                "-- Claims and transactions hold the row. Whoever waits for it makes all further claims wait.\n\
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
