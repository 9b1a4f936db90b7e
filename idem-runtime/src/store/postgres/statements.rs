//! Statements and syntax that only PostgreSQL has.

use super::rows::{COLUMNS, CONTENT, CONTENT_LEN};
use crate::store::sql::{
    self, Conditions, Dialect, GRANTED_COLUMNS, Placeholders, Statement, StepDialect,
    StepStatements, Table,
};

/// Database clock in microseconds. It is constant within one statement, and stable, so that an index can be searched
/// with it. It shows when the statement arrived, which is after it was sent. An owner that counts its lease from the
/// sending therefore never overestimates it. The seconds are a floating-point number, and the rounding of the cast
/// restores the exact microsecond. `extract`, whose result is exact from version 14 on, takes ten times as long.
const NOW: &str = "(date_part('epoch', statement_timestamp()) * 1000000)::bigint";

/// Syntax of PostgreSQL for the shared statements.
pub(in crate::store) const DIALECT: Dialect = Dialect {
    placeholders: Placeholders::Numbered('$'),
    quote: '"',
    now: NOW,
    record: || format!("{COLUMNS}, {NOW}"),
    greatest: "greatest",
    null_safe_eq: "IS NOT DISTINCT FROM",
    lock: "FOR UPDATE",
    upsert: "ON CONFLICT (id) DO UPDATE SET",
    proposed: "excluded.{}",
};

/// Column of [`PostgresStatements::claim`] and [`PostgresStatements::claim_locked`] with the result of the claim. It is
/// null if there is a record, the fencing token if this claim created it, or one of the numbers below.
pub(super) const CLAIM_RESULT: usize = CONTENT_LEN + 1;
/// Column of [`PostgresStatements::claim_all`] after [`CLAIM_RESULT`].
pub(super) const POSITION: usize = CLAIM_RESULT + 1;
/// A concurrent claim created the record.
pub(super) const LOST_RACE: i64 = 0;
/// Another transaction holds the record's lock.
pub(super) const LOCKED: i64 = -1;
/// The record with this id has another scope, operation or key.
pub(super) const ID_MISMATCH: i64 = -2;

/// Syntax of PostgreSQL for the saved steps of bodies.
const STEPS: StepDialect = StepDialect {
    lock: "FOR NO KEY UPDATE",
    on_conflict: "ON CONFLICT (id, name) DO UPDATE SET first_claimed_at = excluded.first_claimed_at, \
        codec = excluded.codec, payload = excluded.payload WHERE {saved}.first_claimed_at <> excluded.first_claimed_at",
    name: "s.name",
};

/// Longest wait of a batched statement for a locked row, in milliseconds. After that, its requests run individually.
/// Because of one locked record, a caller with another key waits at most this long, and once more for its slot.
const BATCH_WAIT_MS: u32 = 50;

/// Statements for one table.
#[derive(Debug)]
pub(super) struct PostgresStatements {
    pub(super) table: Table,
    pub(super) shared: sql::SharedStatements,
    /// Returns one row: [`CONTENT`], which is all null if there is no record, the time of reading, and
    /// [`CLAIM_RESULT`].
    pub(super) claim: Statement,
    pub(super) claim_again: Statement,
    /// `claim` for many records, each at most once. Parameters 1 to 9 are arrays. The last column of each row is the
    /// position of its claim in them, counted from 1.
    pub(super) claim_all: Statement,
    /// Returns the positions of the completions that took effect. Parameters 1 to 6 are arrays: those of an owner, then
    /// those of an outcome.
    pub(super) complete_all: Statement,
    /// `claim` for a transaction that stays open. Parameter 10 is the number of the record's advisory lock.
    pub(super) claim_locked: Statement,
    pub(super) take_over: Statement,
    pub(super) purge: Statement,
    pub(super) requeue: Statement,
    pub(super) steps: StepStatements,
}

impl PostgresStatements {
    pub(super) fn new(table: Table) -> Self {
        let records = table.quoted('"', "");
        let fencing_floor = table.quoted('"', "_fencing_floor");
        let insert = format!(
            "{}('{records}'::regclass, ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
            table.quoted('"', "_claim")
        );
        let from_record = format!("FROM (SELECT) AS one LEFT JOIN {records} AS r ON r.id = ?1");
        // Null if there is no record.
        let id_mismatch = "r.scope <> ?2 OR r.operation <> ?3 OR r.idempotency_key <> ?4";
        let Conditions {
            expired,
            unsettled,
            observed,
            held,
            next_fencing_token,
            queued_from_now,
            ..
        } = Conditions::new(&DIALECT, "r.");
        // The owner is in a row of arrays instead of parameters.
        let held = held
            .replace("?1", "a.id")
            .replace("?2", "a.claim_id")
            .replace("?3", "a.fencing_token");
        let content = CONTENT.split(", ").map(|column| format!("r.{column}"));
        let content = content.collect::<Vec<_>>().join(", ");
        let sql = |text: String| Statement::new(&text, DIALECT.placeholders);
        // Evaluated before the first row is locked, and only for the statement's own transaction.
        let limit = format!("(SELECT set_config('lock_timeout', '{BATCH_WAIT_MS}ms', true))");
        let due = format!(
            "WITH due AS MATERIALIZED (SELECT id FROM {records} WHERE purge_after <= {NOW} \
               ORDER BY purge_after LIMIT ?1 FOR UPDATE SKIP LOCKED)"
        );
        Self {
            shared: sql::SharedStatements::new(&DIALECT, &table),
            steps: StepStatements::new(&DIALECT, &STEPS, &table),
            claim: sql(format!(
                "-- Two callers may both have read that there is no record. The primary key lets one of them insert;\n\
                 -- the other waits for its commit, inserts nothing, and reads again. An existing record is neither\n\
                 -- written nor locked.\n\
                 SELECT {CONTENT}, {NOW}, CASE WHEN r.id IS NULL THEN {insert} WHEN {id_mismatch} THEN {ID_MISMATCH}::bigint END \
                 {from_record}"
            )),
            claim_all: sql(format!(
                "-- As above for each record. A statement that waits for another commit has locked the rows before\n\
                 -- it. This is no deadlock, because all statements sort their rows. A transaction may hold one of\n\
                 -- the rows for long: the other requests must not wait for it, so the statement gives up, and each\n\
                 -- request runs individually.\n\
                 WITH requests AS (SELECT a.* FROM {limit} AS waiting, unnest(?1::bytea[], ?2::text[], ?3::text[], ?4::text[], ?5::bytea[], \
                     ?6::bytea[], ?7::bigint[], ?8::bigint[], ?9::text[]) WITH ORDINALITY \
                   AS a (id, scope, operation, idempotency_key, fingerprint, claim_id, lease, retention, on_crash, place)), \
                 inserted AS (INSERT INTO {records} (id, scope, operation, idempotency_key, fingerprint, state, claim_id, \
                     fencing_token, attempt, lease_until, retention, on_crash, first_claimed_at, purge_after) \
                   SELECT a.id, a.scope, a.operation, a.idempotency_key, a.fingerprint, 'running', a.claim_id, \
                     greatest({NOW}, coalesce((SELECT fencing_token + 1 FROM {fencing_floor}), 0)), \
                     1, {NOW} + a.lease, a.retention, a.on_crash, {NOW}, {NOW} + a.lease + a.retention \
                   FROM requests AS a WHERE NOT EXISTS (SELECT FROM {records} AS r WHERE r.id = a.id) \
                   ON CONFLICT (id) DO NOTHING RETURNING id, fencing_token) \
                 SELECT {content}, {NOW}, \
                   CASE WHEN r.id IS NULL THEN coalesce(m.fencing_token, {LOST_RACE}) \
                     WHEN r.scope <> a.scope OR r.operation <> a.operation OR r.idempotency_key <> a.idempotency_key \
                     THEN {ID_MISMATCH}::bigint END, a.place \
                 FROM requests AS a LEFT JOIN {records} AS r ON r.id = a.id LEFT JOIN inserted AS m ON m.id = a.id"
            )),
            complete_all: sql(format!(
                "-- A transaction may hold one of the rows for long. The other requests must not wait for it.\n\
                 UPDATE {records} AS r SET purge_after = {queued_from_now}, codec = a.codec, payload = a.payload, \
                   ended_at = {NOW}, state = a.state \
                 FROM {limit} AS waiting, \
                   unnest(?1::bytea[], ?2::bytea[], ?3::bigint[], ?4::text[], ?5::text[], ?6::bytea[]) WITH ORDINALITY \
                   AS a (id, claim_id, fencing_token, state, codec, payload, place) \
                 WHERE {held} RETURNING a.place"
            )),
            claim_locked: sql(format!(
                "-- Another open transaction may have claimed the record: its row is not visible yet, and an insert\n\
                 -- or update would wait for it. The advisory lock is therefore tried first. It never waits, and is\n\
                 -- released with the transaction. Its number includes the table, so that it differs from locks of\n\
                 -- other users. A caller that gets it after the other transaction has committed does not see that\n\
                 -- row here: the insert does nothing, and the caller reads again.\n\
                 SELECT {CONTENT}, {NOW}, CASE WHEN {id_mismatch} THEN {ID_MISMATCH}::bigint \
                   WHEN r.state IN ('completed', 'failed', 'unrecorded') AND NOT ({expired}) THEN NULL \
                   WHEN NOT pg_try_advisory_xact_lock(?10 # '{records}'::regclass::oid::bigint) THEN {LOCKED}::bigint \
                   WHEN r.id IS NULL THEN {insert} END \
                 {from_record}"
            )),
            claim_again: sql(format!(
                "-- Several callers may have read that the record is released or has expired. The first locks the\n\
                 -- row; for the others the server checks the condition again on the updated row.\n\
                 UPDATE {records} AS r SET \
                   fencing_token = CASE WHEN r.state = 'running' AND NOT ({expired}) THEN r.fencing_token \
                     ELSE {next_fencing_token} END, \
                   attempt = CASE WHEN {expired} THEN 1 WHEN r.state = 'running' THEN r.attempt \
                     ELSE least(r.attempt + 1, 4294967295) END, \
                   on_crash = CASE WHEN {expired} THEN ?9 ELSE r.on_crash END, \
                   first_claimed_at = CASE WHEN {expired} THEN {NOW} ELSE r.first_claimed_at END, \
                   state = 'running', fingerprint = ?5, claim_id = ?6, lease_until = {NOW} + ?7, retention = ?8, \
                   codec = NULL, payload = NULL, ended_at = NULL, purge_after = {NOW} + ?7 + ?8 \
                 WHERE r.id = ?1 AND (({expired}) \
                   OR r.fingerprint = ?5 AND (r.state = 'released' OR r.state = 'running' AND r.claim_id = ?6)) \
                 RETURNING {GRANTED_COLUMNS}"
            )),
            take_over: sql(format!(
                "-- The owner may renew its lease or complete after the record was read as lapsed, and another caller\n\
                 -- may take over first. Each of these changes what was observed. The condition compares all of it,\n\
                 -- and is checked again for a caller that waited for the row.\n\
                 UPDATE {records} AS r SET state = 'running', claim_id = ?6, lease_until = {NOW} + ?8, retention = ?9, \
                   purge_after = {NOW} + ?8 + ?9, \
                   fencing_token = CASE WHEN r.state = 'running' AND r.claim_id = ?6 THEN r.fencing_token \
                     ELSE {next_fencing_token} END, \
                   attempt = CASE WHEN r.state = 'running' AND r.claim_id = ?6 THEN r.attempt \
                     ELSE least(r.attempt + 1, 4294967295) END \
                 WHERE r.id = ?10 AND r.fingerprint = ?7 AND NOT ({expired}) \
                   AND (r.state = 'running' AND r.claim_id = ?6 \
                     OR {observed} AND {unsettled} AND r.on_crash <> 'refuse') \
                 RETURNING {GRANTED_COLUMNS}"
            )),
            purge: sql(format!(
                "-- The due time was set at the claim: the owner may have renewed its lease since, or completed late.\n\
                 -- The condition is therefore checked again here, on locked rows. Rows that another transaction has\n\
                 -- locked are left for the next purge: waiting for them in another order would be a deadlock.\n\
                 {due} DELETE FROM {records} AS r USING due WHERE r.id = due.id AND ({expired}) RETURNING r.state"
            )),
            requeue: sql(format!(
                "-- As above for records that stay: they are interrupted, or still alive and queued until they may\n\
                 -- expire. Without the check of the lease, a renewal would be overwritten.\n\
                 {due} UPDATE {records} AS r SET \
                   state = CASE WHEN r.state = 'running' AND r.lease_until + r.retention <= {NOW} \
                     THEN 'interrupted' ELSE r.state END, \
                   purge_after = CASE WHEN r.state = 'interrupted' THEN NULL \
                     WHEN r.state <> 'running' THEN r.ended_at + r.retention \
                     WHEN r.lease_until + r.retention > {NOW} THEN r.lease_until + r.retention END \
                 FROM due WHERE r.id = due.id AND NOT ({expired}) RETURNING r.state"
            )),
            table,
        }
    }
}
