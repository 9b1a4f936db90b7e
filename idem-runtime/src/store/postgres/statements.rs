//! What PostgreSQL says in a way of its own.

use crate::store::sql::{
    self, COLUMNS, Conditions, Dialect, GRANTED, Placeholders, Statement, StepDialect,
    StepStatements, Table,
};

/// The clock of the database in microseconds, the same wherever it stands in one statement, and stable, so that an
/// index can be searched with it. It shows when the statement arrived, which is after it was sent: an owner that counts
/// its lease from the sending never believes in it for longer than the record says. Before version 14 the seconds are
/// a floating-point number, and the rounding of the cast gives the exact microsecond back.
const NOW: &str = "(extract(epoch FROM statement_timestamp()) * 1000000)::bigint";

/// How PostgreSQL spells what all dialects share.
pub(in crate::store) const DIALECT: Dialect = Dialect {
    placeholders: Placeholders::Numbered('$'),
    quote: '"',
    now: NOW,
    greatest: "greatest",
    same: "IS NOT DISTINCT FROM",
    lock: "FOR UPDATE",
    upsert: "ON CONFLICT (id) DO UPDATE SET",
    proposed: "excluded.{}",
};

/// The column of [`Statements::claim`] that tells whether the row was made by this very claim: 1, or 0.
pub(super) const IS_NEW: usize = 17;

/// How PostgreSQL spells the steps of bodies.
const STEPS: StepDialect = StepDialect {
    lock: "FOR NO KEY UPDATE",
    on_conflict: "ON CONFLICT (id, name) DO UPDATE SET first_claimed_at = excluded.first_claimed_at, \
        codec = excluded.codec, payload = excluded.payload WHERE {saved}.first_claimed_at <> excluded.first_claimed_at",
    name: "s.name",
};

/// The same column of [`Statements::claim_locked`] where another transaction holds the record's lock.
pub(super) const IS_LOCKED: i64 = 2;

/// The statements for one table.
#[derive(Debug)]
pub(super) struct Statements {
    pub(super) table: Table,
    pub(super) shared: sql::Statements,
    /// A row of [`COLUMNS`], the time of reading, and [`IS_NEW`]; none where another claim of the record was
    /// committed while this one ran.
    pub(super) claim: Statement,
    pub(super) claim_again: Statement,
    /// The same in a transaction that stays open; parameter 10 is what the record's lock is found by.
    pub(super) claim_locked: Statement,
    pub(super) take_over: Statement,
    pub(super) purge: Statement,
    pub(super) requeue: Statement,
    pub(super) steps: StepStatements,
}

impl Statements {
    pub(super) fn new(table: Table) -> Self {
        let records = table.quoted('"', "");
        let dropped = table.quoted('"', "_dropped");
        let Conditions {
            expired,
            unsettled,
            observed,
            next_grant,
            ..
        } = Conditions::new(&DIALECT, "r.");
        let sql = |text: String| Statement::new(&text, DIALECT.placeholders);
        let due = format!(
            "WITH due AS MATERIALIZED (SELECT id FROM {records} WHERE purge_after <= {NOW} \
               ORDER BY purge_after LIMIT ?1 FOR UPDATE SKIP LOCKED)"
        );
        Self {
            shared: sql::Statements::new(&DIALECT, &table),
            steps: StepStatements::new(&DIALECT, &STEPS, &table),
            claim: sql(format!(
                "-- Two callers may both have read that there is no record. The primary key lets one of them insert;\n\
                 -- the other waits for its commit, inserts nothing, and cannot see the row in its own snapshot: no\n\
                 -- row comes back, and it reads again. Where a record is there, nothing is written or locked.\n\
                 WITH existing AS (SELECT {COLUMNS} FROM {records} WHERE id = ?1), \
                 claimed AS (INSERT INTO {records} (id, scope, operation, idempotency_key, fingerprint, state, token, \
                     grant_number, attempt, lease_until, retention, on_crash, first_claimed_at, purge_after) \
                   SELECT ?1, ?2, ?3, ?4, ?5, 'running', ?6, \
                     greatest({NOW}, coalesce((SELECT grant_number + 1 FROM {dropped}), 0)), \
                     1, {NOW} + ?7, ?8, ?9, {NOW}, {NOW} + ?7 + ?8 \
                   WHERE NOT EXISTS (SELECT FROM existing) \
                   ON CONFLICT (id) DO NOTHING RETURNING {COLUMNS}) \
                 SELECT {COLUMNS}, {NOW}, 0::bigint FROM existing \
                 UNION ALL SELECT {COLUMNS}, {NOW}, 1::bigint FROM claimed"
            )),
            claim_locked: sql(format!(
                "-- Another transaction may have claimed the record and not ended: its row cannot be seen, and an insert\n\
                 -- or update would wait for it. So the lock is tried first, which waits for nobody and is let go with the\n\
                 -- transaction. It is the table's own, whatever others lock by the same number. Whoever gets it after the\n\
                 -- other has committed does not see that in its snapshot: the insert does nothing, and it reads again.\n\
                 WITH existing AS (SELECT {COLUMNS} FROM {records} WHERE id = ?1), \
                 turn AS MATERIALIZED (SELECT pg_try_advisory_xact_lock(?10 # '{records}'::regclass::oid::bigint) AS held \
                   WHERE NOT EXISTS (SELECT FROM {records} AS r WHERE r.id = ?1 \
                     AND r.state IN ('completed', 'failed', 'unrecorded') AND NOT ({expired}))), \
                 claimed AS (INSERT INTO {records} (id, scope, operation, idempotency_key, fingerprint, state, token, \
                     grant_number, attempt, lease_until, retention, on_crash, first_claimed_at, purge_after) \
                   SELECT ?1, ?2, ?3, ?4, ?5, 'running', ?6, \
                     greatest({NOW}, coalesce((SELECT grant_number + 1 FROM {dropped}), 0)), \
                     1, {NOW} + ?7, ?8, ?9, {NOW}, {NOW} + ?7 + ?8 \
                   WHERE NOT EXISTS (SELECT FROM existing) AND (SELECT held FROM turn) \
                   ON CONFLICT (id) DO NOTHING RETURNING {COLUMNS}) \
                 SELECT {COLUMNS}, {NOW}, CASE WHEN (SELECT held FROM turn) IS FALSE THEN {IS_LOCKED}::bigint \
                   ELSE 0::bigint END FROM existing \
                 UNION ALL SELECT {COLUMNS}, {NOW}, 1::bigint FROM claimed"
            )),
            claim_again: sql(format!(
                "-- Several callers may have read that the record is released or has expired. The first locks the row;\n\
                 -- for the others the condition is looked at again on what the first has made of it.\n\
                 UPDATE {records} AS r SET \
                   grant_number = CASE WHEN r.state = 'running' AND NOT ({expired}) THEN r.grant_number \
                     ELSE {next_grant} END, \
                   attempt = CASE WHEN {expired} THEN 1 WHEN r.state = 'running' THEN r.attempt \
                     ELSE least(r.attempt + 1, 4294967295) END, \
                   on_crash = CASE WHEN {expired} THEN ?9 ELSE r.on_crash END, \
                   first_claimed_at = CASE WHEN {expired} THEN {NOW} ELSE r.first_claimed_at END, \
                   state = 'running', fingerprint = ?5, token = ?6, lease_until = {NOW} + ?7, retention = ?8, \
                   codec = NULL, payload = NULL, ended_at = NULL, purge_after = {NOW} + ?7 + ?8 \
                 WHERE r.id = ?1 AND (({expired}) \
                   OR r.fingerprint = ?5 AND (r.state = 'released' OR r.state = 'running' AND r.token = ?6)) \
                 RETURNING {GRANTED}"
            )),
            take_over: sql(format!(
                "-- Its owner may send a heartbeat, or complete, after it was seen to be silent; another caller may take\n\
                 -- over first. Each changes what was observed, and the condition is on all of it: whoever waited for\n\
                 -- the row looks at it again.\n\
                 UPDATE {records} AS r SET state = 'running', token = ?6, lease_until = {NOW} + ?8, retention = ?9, \
                   purge_after = {NOW} + ?8 + ?9, \
                   grant_number = CASE WHEN r.state = 'running' AND r.token = ?6 THEN r.grant_number \
                     ELSE {next_grant} END, \
                   attempt = CASE WHEN r.state = 'running' AND r.token = ?6 THEN r.attempt \
                     ELSE least(r.attempt + 1, 4294967295) END \
                 WHERE r.id = ?10 AND r.fingerprint = ?7 AND NOT ({expired}) \
                   AND (r.state = 'running' AND r.token = ?6 \
                     OR {observed} AND {unsettled} AND r.on_crash <> 'refuse') \
                 RETURNING {GRANTED}"
            )),
            purge: sql(format!(
                "-- The queue was filled at the claim: its owner may have sent heartbeats since, or completed late.\n\
                 -- What it says is looked at again here, on rows that are locked. Rows that somebody else holds are\n\
                 -- left for the next time: waiting for them in another order than theirs would be a deadlock.\n\
                 {due} DELETE FROM {records} AS r USING due WHERE r.id = due.id AND ({expired}) RETURNING r.state"
            )),
            requeue: sql(format!(
                "-- The same for those that are not to be deleted: they are interrupted, or live on and are queued for\n\
                 -- when they may expire. Without the look at the lease, a heartbeat would be overwritten.\n\
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
