-- Syntax of SQLite, and the statements that only SQLite has.

-- part: now
-- Database clock in microseconds, constant within one statement. It ticks in milliseconds. The rounding corrects the
-- error of a floating-point number of seconds.
(CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000)

-- part: as_of
-- Time as of which a purge works.
min({now}, ?2)

-- part: record
-- Columns that `text_row::record` reads.
printf(
    '%s %s %d %s %d %s %d %d %d%s{newline}%d{newline}%s{newline}%s{newline}',
    state, coalesce(ended_at, '-'), retention, on_crash, lease_until,
    iif(claim_id IS NULL, '-', hex(claim_id)), fencing_token, attempt, first_claimed_at,
    coalesce(' f' || payload_for, ''), {now}, hex(id), coalesce(length(CAST(codec AS BLOB)), '-')
) || operation || '{newline}' || idempotency_key || '{newline}' || coalesce(codec, '') || scope,
fingerprint, payload

-- part: greatest
max

-- part: least
min

-- part: null_safe_eq
IS

-- part: history_with
-- History with a line for the attempt that ends now.
substr(
    coalesce(history, '') || attempt || ' ' || coalesce(attempt_began_at, first_claimed_at) || ' ' || {now} || ' '
    || {it} || ' ' || coalesce(owner, '') || '{newline}',
    -{max_history}
)

-- part: history_with_replay
-- History with a line for a replay at this moment.
coalesce(history, '') || attempt || ' ' || {now} || ' ' || {now} || ' replayed ' || coalesce(?3, '') || '{newline}'

-- part: count_interrupted
-- The index of the purge queue does not have INTERRUPTED records.
NULL

-- part: payload_size
length({it}payload)

-- part: no_bytes
x''

-- part: stuck_rows
SELECT {listed_columns} FROM {records} INDEXED BY "{stuck_index}"
WHERE state IN ('running', 'interrupted') AND {listed}

-- part: find_index
SELECT count(*) FROM sqlite_schema WHERE type = 'index' AND name = ?1

-- part: hint
INDEXED BY "{index_name}"

-- part: scope_bound
{it}

-- part: scope_index
scope

-- part: stuck_columns
id

-- part: scope_sorted
scope

-- part: define_index
CREATE INDEX IF NOT EXISTS "{index_name}" ON {records} ({index_columns}) {index_rows}

-- part: scope_begins_with
substr(scope, 1, length({it})) = {it}

-- part: ids
-- Ids in a parameter, as a JSON array of hexadecimal digits.
(SELECT unhex(value) FROM json_each(?1))

-- part: from_ids
FROM {records} WHERE id IN {ids}

-- part: lock_free
-- SQLite has one writer at a time, so no row lock is needed.

-- part: erase_all
-- The trigger raises the fencing floor, and deletes the steps and the recovery inputs.
DELETE FROM {records} WHERE id IN {ids}

-- part: unless_noted
ON CONFLICT (name) DO NOTHING

-- part: alone
-- No expression of SQLite tells, and sqlx ends a transaction whose `begin` was dropped.
true

-- part: erase_begin
DELETE FROM {records}

-- part: erase_end
-- The trigger raises the fencing floor, and deletes the steps and the recovery input.

-- part: database_user
-- SQLite has no users.
NULL

-- part: entry_column
-- The database numbers the entries.

-- part: entry_number
-- As above.

-- part: lock
-- SQLite has one writer at a time, so no row lock is needed.

-- part: upsert
ON CONFLICT (id) DO UPDATE SET

-- part: proposed
-- Value that the insert proposed for a column.
excluded.{it}

-- part: step_lock
-- As above.

-- part: step_upsert
ON CONFLICT (id, name) DO UPDATE SET
    first_claimed_at = excluded.first_claimed_at,
    codec = excluded.codec,
    payload = excluded.payload
WHERE {steps}.first_claimed_at <> excluded.first_claimed_at

-- part: step_name
s.name

-- part: due
(SELECT id FROM {records} WHERE purge_after <= {as_of} ORDER BY purge_after LIMIT ?1)

-- name: find_all
-- Reads for several claims, each of which checks its record again when it writes.
SELECT {record} FROM {records} WHERE id IN (SELECT unhex(value) FROM json_each(?1))

-- name: claim
-- Two callers may both have read that there is no record. The primary key lets one of them insert; the insert of the
-- other becomes an update, whose condition is checked on the row that won.
INSERT INTO {records} AS r ({inserted})
SELECT
    ?1, ?2, ?3, ?4, ?5, 'running', ?6,
    max({now}, coalesce((SELECT fencing_token + 1 FROM {fencing_floor}), 0)), 1,
    {now} + ?7, ?8, ?9, {now}, {now} + ?7 + ?8, ?10, ?11
WHERE true
ON CONFLICT (id) DO UPDATE SET
    history = CASE WHEN {expired:r.} THEN NULL ELSE r.history END,
    attempt_began_at = CASE
        WHEN {expired:r.} THEN NULL
        WHEN r.state = 'running' THEN r.attempt_began_at
        ELSE {now}
    END,
    owner = excluded.owner,
    members = excluded.members,
    fencing_token = CASE
        WHEN r.state = 'running' AND NOT ({expired:r.}) THEN r.fencing_token
        ELSE max(r.fencing_token + 1, excluded.fencing_token)
    END,
    attempt = CASE
        WHEN {expired:r.} THEN 1
        WHEN r.state = 'running' THEN r.attempt
        ELSE min(r.attempt + 1, 4294967295)
    END,
    on_crash = CASE WHEN {expired:r.} THEN excluded.on_crash ELSE r.on_crash END,
    first_claimed_at = CASE WHEN {expired:r.} THEN excluded.first_claimed_at ELSE r.first_claimed_at END,
    state = 'running',
    fingerprint = excluded.fingerprint,
    claim_id = excluded.claim_id,
    lease_until = excluded.lease_until,
    retention = excluded.retention,
    codec = NULL,
    payload = NULL,
    payload_for = NULL,
    ended_at = NULL,
    purge_after = excluded.purge_after
WHERE {expired:r.}
    OR r.fingerprint = excluded.fingerprint
    AND (r.state = 'released' OR r.state = 'running' AND r.claim_id = excluded.claim_id)
RETURNING {granted}

-- name: take_over
-- The owner may renew its lease or complete after the record was read as lapsed, and another caller may take over
-- first. Each of these changes what was observed, and the condition compares all of it.
UPDATE {records} AS r SET
    history = CASE
        WHEN r.state = 'running' AND r.claim_id = ?6 THEN r.history
        ELSE {history_with:(CASE state WHEN 'interrupted' THEN 'interrupted' ELSE 'lapsed' END)}
    END,
    attempt_began_at = CASE
        WHEN r.state = 'running' AND r.claim_id = ?6 THEN r.attempt_began_at
        ELSE {now}
    END,
    owner = ?11,
    state = 'running',
    claim_id = ?6,
    lease_until = {now} + ?8,
    retention = ?9,
    purge_after = {now} + ?8 + ?9,
    fencing_token = CASE
        WHEN r.state = 'running' AND r.claim_id = ?6 THEN r.fencing_token
        ELSE {next_fencing_token:r.}
    END,
    attempt = CASE
        WHEN r.state = 'running' AND r.claim_id = ?6 THEN r.attempt
        ELSE min(r.attempt + 1, 4294967295)
    END
WHERE r.id = ?10 AND r.fingerprint = ?7 AND NOT ({expired:r.}) AND (
    r.state = 'running' AND r.claim_id = ?6
    OR {observed:r.} AND {stuck:r.} AND r.on_crash <> 'refuse'
)
RETURNING {granted}

-- name: purge
-- The due time was set at the claim: the owner may have renewed its lease since, or completed late. The condition is
-- therefore checked again here, where no other write can come in between.
DELETE FROM {records} AS r
WHERE ({purgeable:r.}) AND r.id IN {due}
RETURNING state

-- name: requeue
-- As above for records that stay: they are interrupted, lose their payload, or are still alive and queued until they may
-- expire. Without the check of the lease, a renewal would be overwritten.
UPDATE {records} AS r SET
    state = CASE
        WHEN r.state = 'running' AND r.lease_until <= {as_of} - r.retention THEN 'interrupted'
        ELSE r.state
    END,
    purge_after = CASE
        WHEN r.state = 'interrupted' THEN NULL
        WHEN r.state <> 'running' THEN {next_purge:r.}
        WHEN r.lease_until + r.retention > {as_of} THEN r.lease_until + r.retention
    END,
    codec = CASE WHEN {forgettable:r.} THEN NULL ELSE r.codec END,
    payload = CASE WHEN {forgettable:r.} THEN NULL ELSE r.payload END
WHERE NOT ({purgeable:r.}) AND r.id IN {due}
RETURNING CASE WHEN payload_for IS NOT NULL AND payload IS NULL THEN 'forgotten' ELSE state END
