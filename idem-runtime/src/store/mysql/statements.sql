-- Syntax of MySQL and MariaDB, and the statements that only they have.
--
-- To MySQL, the text between `/*M!` and its end is a comment. MariaDB runs it.

-- part: now
-- Server clock in microseconds: the time at which the statement began, constant within one statement. It is in UTC in
-- every session, so an hour that a time zone's clock shows twice is not ambiguous.
--
-- A statement that waited for a row sees a time before the end of the wait. This errs on the safe side. A lease or
-- retention seems to have more time left, so no live record is taken over or deleted. A lease that is granted after a
-- wait began when it was requested, and its owner counts from then as well. `SYSDATE(6)` would show the end of the
-- wait. But it uses the session's time zone, differs within one statement, cannot be used with an index, and is unsafe
-- for statement-based replication.
TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))

-- part: as_of
-- Time as of which a purge works.
least({now}, ?2)

-- part: record
-- Columns that `text_row::record` reads. Line breaks are written literally, because the meaning of a backslash depends
-- on a setting.
CONCAT(
    CONCAT_WS(
        ' ', state, COALESCE(ended_at, '-'), retention, on_crash, lease_until,
        COALESCE(HEX(claim_id), '-'), fencing_token, attempt, first_claimed_at, CONCAT('f', payload_for)
    ),
    '{newline}', {now}, '{newline}', HEX(id), '{newline}', COALESCE(LENGTH(codec), '-'),
    '{newline}', operation, '{newline}', idempotency_key, '{newline}', COALESCE(codec, ''), scope
),
fingerprint, payload

-- part: greatest
greatest

-- part: least
least

-- part: null_safe_eq
<=>

-- part: history_with
-- History with a line for the attempt that ends now. The assignment comes before those of the columns that it reads.
RIGHT(
    CONCAT(
        COALESCE(history, ''), attempt, ' ', COALESCE(attempt_began_at, first_claimed_at), ' ', {now}, ' ', {it}, ' ',
        COALESCE(owner, ''), '{newline}'
    ),
    {max_history}
)

-- part: history_with_replay
-- History with a line for a replay at this moment.
CONCAT(COALESCE(history, ''), attempt, ' ', {now}, ' ', {now}, ' replayed ', COALESCE(?3, ''), '{newline}')

-- part: count_interrupted
-- Number of INTERRUPTED records up to the limit: only they have no time for the purge queue.
(SELECT count(*) FROM (
    SELECT purge_after FROM {records} WHERE purge_after IS NULL ORDER BY purge_after LIMIT ?1
) AS interrupted)

-- part: payload_size
length({it}payload)

-- part: no_bytes
x''

-- part: stuck_rows
-- There are no partial indexes. The index on the state holds the ids of each state in order. It cannot give those of two
-- states in order, and sorting all of them would take longer than reading two pages.
(SELECT {listed_columns} FROM {records} FORCE INDEX (`{stuck_index}`) WHERE state = 'running' AND {listed})
UNION ALL
(SELECT {listed_columns} FROM {records} FORCE INDEX (`{stuck_index}`) WHERE state = 'interrupted' AND {listed})

-- part: find_index
SELECT count(*) FROM information_schema.statistics
WHERE table_schema = {schema_name} AND table_name = {table_name} AND index_name = ?1 AND seq_in_index = 1

-- part: hint
FORCE INDEX (`{index_name}`)

-- part: scope_bound
{it}

-- part: scope_index
scope(255)

-- part: stuck_columns
state

-- part: scope_sorted
scope

-- part: define_index
CREATE INDEX `{index_name}` ON {records} ({index_columns})

-- part: scope_begins_with
left(scope, char_length({it})) = {it}

-- part: ids
-- Ids in a parameter, as a JSON array of hexadecimal digits.
JSON_TABLE(?1, '$[*]' COLUMNS (p_id CHAR(64) PATH '$')) AS a

-- part: from_ids
-- Found one by one: a scan would lock all rows.
FROM {ids} STRAIGHT_JOIN {records} AS r FORCE INDEX (PRIMARY) ON r.id = UNHEX(a.p_id) WHERE true

-- part: lock_free
-- The ids are in order, so two erasures are no deadlock. MySQL cannot lock the ids, which are no table, and has to be told.
-- MariaDB does not know the clause, and ignores the comment.
FOR UPDATE /*!80001 OF r */ SKIP LOCKED

-- part: erase_all
-- The server counts deleted steps and inputs as well, so the number of rows is not that of the records.
DELETE {any_rows} r, s, v FROM {ids} STRAIGHT_JOIN {with_dependents:UNHEX(a.p_id)}

-- part: unless_noted
ON DUPLICATE KEY UPDATE name = VALUES(name)

-- part: alone
-- MariaDB tells by the settings that each statement begins with, and MySQL does not tell.
true

-- part: any_rows
-- `sql_safe_updates` refuses a statement that changes rows which it finds by a join, depending on the plan. On MariaDB,
-- where this is a comment, the settings that the statement begins with turn it off.
/*+ SET_VAR(sql_safe_updates = OFF) */

-- part: erase_begin
-- One statement deletes the record, its steps and its recovery input. A foreign key that cascades would do so too, but
-- Group Replication refuses to write such a table if several members accept writes.
DELETE {any_rows} r, s, v FROM (
    SELECT id FROM {records}

-- part: erase_end
    -- The caller has raised the fencing floor.
    LIMIT 1 FOR UPDATE
) AS erased STRAIGHT_JOIN {with_dependents:erased.id}

-- part: with_dependents
-- The record with this id, its steps and its recovery input.
{records} AS r FORCE INDEX (PRIMARY) ON r.id = {it}
    LEFT JOIN {steps} AS s ON s.id = r.id
    LEFT JOIN {recovery} AS v ON v.id = r.id

-- part: database_user
-- Account that the server has authenticated, with its host.
CURRENT_USER()

-- part: entry_column
-- The database numbers the entries.

-- part: entry_number
-- As above.

-- part: lock
FOR UPDATE

-- part: upsert
ON DUPLICATE KEY UPDATE

-- part: proposed
-- Value that the insert proposed for a column.
VALUES({it})

-- part: step_lock
-- Locks the current version of the row until the end of the statement.
FOR UPDATE

-- part: step_upsert
-- An assignment sees the results of earlier assignments, so the column that decides comes last. A row counts as matched
-- even if nothing changes, so the server also reports a number for a step that was there: that of a column, because MariaDB
-- evaluates a constant in any case.
ON DUPLICATE KEY UPDATE
    {steps}.codec = IF(
        {steps}.first_claimed_at = VALUES(first_claimed_at) AND LAST_INSERT_ID({steps}.first_claimed_at),
        {steps}.codec,
        VALUES(codec)
    ),
    {steps}.payload = IF({steps}.first_claimed_at = VALUES(first_claimed_at), {steps}.payload, VALUES(payload)),
    {steps}.first_claimed_at = VALUES(first_claimed_at)

-- part: step_name
CONVERT(s.name USING utf8mb4)

-- part: returning_record
-- On MariaDB, an assignment that changes nothing: neither a row nor a byte of the log is written, and the row is
-- returned.
/*M! ON DUPLICATE KEY UPDATE id = VALUES(id) RETURNING {record} */

-- part: nowait
-- Only for MariaDB. Statements of MySQL cannot be kept from waiting, so it gets no batches. `MySqlStatements` adds the
-- settings that other statements begin with.
/*M! SET STATEMENT innodb_lock_wait_timeout = 0 FOR */

-- part: completions
-- A parameter with completions: a JSON array of arrays.
JSON_TABLE(?1, '$[*]' COLUMNS (
    p_id CHAR(64) PATH '$[0]',
    p_claim_id CHAR(32) PATH '$[1]',
    p_fencing_token BIGINT PATH '$[2]',
    p_state VARCHAR(16) PATH '$[3]',
    p_codec VARCHAR(255) CHARACTER SET utf8mb4 PATH '$[4]',
    p_payload LONGTEXT PATH '$[5]'
)) AS a

-- part: past_retention
-- The owner is gone for good, or the record waits to be reconciled.
{it}state = 'running' AND {it}lease_until <= {as_of} - {it}retention

-- part: read_due
-- Tells which statements of a purge have something to do. Each of them selects and checks the records itself.
SELECT
    fencing_token,
    CASE
        WHEN {purgeable} THEN 'delete'
        WHEN {past_retention} THEN 'interrupt'
        WHEN {forgettable} THEN 'forget'
        ELSE 'requeue'
    END
FROM {records} FORCE INDEX (purge_queue)
WHERE purge_after <= {as_of}
ORDER BY purge_after LIMIT ?1

-- part: due_records
-- The due records that nobody else has locked, in the order of the queue: only as many as may be changed. In a table of
-- few rows the server would otherwise scan, and wait for the locks of, the rows that were skipped.
(
    SELECT id FROM {records} FORCE INDEX (purge_queue)
    WHERE purge_after <= {as_of}
    ORDER BY purge_after LIMIT ?1
    FOR UPDATE SKIP LOCKED
) AS due STRAIGHT_JOIN {records} AS r FORCE INDEX (PRIMARY) ON r.id = due.id

-- name: lock
-- Another transaction may hold the row until it commits. The statement then fails instead of waiting.
SELECT {record} FROM {records} WHERE id = ?1 FOR UPDATE NOWAIT

-- name: insert
-- Two callers may claim an absent record concurrently: the primary key lets one of them insert. A purge may delete the
-- record in between: the shared lock waits for a purge that raises the floor.
INSERT INTO {records} ({inserted})
SELECT
    ?1, ?2, ?3, ?4, ?5, 'running', ?6, last_insert_id({now}), 1,
    {now} + ?7, ?8, ?9, {now}, {now} + ?7 + ?8, ?10, ?11
FROM {fencing_floor}
WHERE one = 1 AND fencing_token < {now}
LOCK IN SHARE MODE
{returning_record}

-- name: insert_above
-- As above, after the clock was set back, or has not ticked since a record was deleted.
INSERT INTO {records} ({inserted})
SELECT
    ?1, ?2, ?3, ?4, ?5, 'running', ?6, greatest({now}, coalesce(max(fencing_token) + 1, 0)), 1,
    {now} + ?7, ?8, ?9, {now}, {now} + ?7 + ?8, ?10, ?11
FROM {fencing_floor}
WHERE one = 1
LOCK IN SHARE MODE
{returning_record}

-- name: insert_all
-- As above for each record. A transaction may hold one of the rows for long: the other requests must not wait for it.
-- The statement therefore waits for no lock, and if it fails, each request runs individually.
{nowait} INSERT INTO {records} ({inserted})
SELECT
    UNHEX(a.p_id), a.p_scope, a.p_operation, a.p_key, UNHEX(a.p_fingerprint), 'running', UNHEX(a.p_claim_id), {now}, 1,
    {now} + a.p_lease, a.p_retention, a.p_on_crash, {now}, {now} + a.p_lease + a.p_retention, a.p_owner,
    UNHEX(a.p_members)
FROM {fencing_floor} AS d JOIN JSON_TABLE(?1, '$[*]' COLUMNS (
    p_id CHAR(64) PATH '$[0]',
    p_scope MEDIUMTEXT CHARACTER SET utf8mb4 PATH '$[1]',
    p_operation VARCHAR(255) CHARACTER SET utf8mb4 PATH '$[2]',
    p_key VARCHAR(255) PATH '$[3]',
    p_fingerprint CHAR(74) PATH '$[4]',
    p_claim_id CHAR(32) PATH '$[5]',
    p_lease BIGINT PATH '$[6]',
    p_retention BIGINT PATH '$[7]',
    p_on_crash VARCHAR(16) PATH '$[8]',
    p_owner VARCHAR(120) CHARACTER SET utf8mb4 PATH '$[9]',
    p_members VARCHAR(2048) PATH '$[10]'
)) AS a
WHERE d.one = 1 AND d.fencing_token < {now}
LOCK IN SHARE MODE
{returning_record}

-- name: complete_all
-- A transaction may hold one of the rows for long. The other requests must not wait for it. No assignment reads what
-- another one writes: their order is the server's choice.
{nowait} UPDATE {completions} STRAIGHT_JOIN {records} AS r ON r.id = UNHEX(a.p_id) SET
    r.purge_after = {queued_from_now:r.},
    r.codec = a.p_codec,
    r.payload = UNHEX(a.p_payload),
    r.ended_at = {now},
    r.state = a.p_state
WHERE r.id = UNHEX(a.p_id) AND r.claim_id = UNHEX(a.p_claim_id) AND r.fencing_token = a.p_fencing_token
    AND {writable:r.}

-- name: completed
-- Some completions of a batch took no effect. The owner of a record that has ended with its claim id and fencing token
-- is acknowledged, whichever try completed it.
SELECT r.id FROM {completions} STRAIGHT_JOIN {records} AS r ON r.id = UNHEX(a.p_id)
WHERE r.claim_id = UNHEX(a.p_claim_id) AND r.fencing_token = a.p_fencing_token
    AND r.state IN ('completed', 'failed', 'unrecorded') AND NOT ({expired:r.})

-- name: claim
-- Another caller may have claimed a record that was read as expired or released. That claim changed what the condition
-- compares. Or the claim finds its own claim id, from a try whose answer was lost. An assignment sees the results of
-- earlier assignments: the columns that `expired` reads come last.
UPDATE {records} SET
    history = CASE WHEN {expired} THEN NULL ELSE history END,
    attempt_began_at = CASE
        WHEN {expired} THEN NULL
        WHEN state = 'running' THEN attempt_began_at
        ELSE {now}
    END,
    owner = ?10,
    members = ?11,
    fencing_token = CASE
        WHEN state = 'running' AND NOT ({expired}) THEN fencing_token
        ELSE {next_fencing_token}
    END,
    attempt = CASE
        WHEN {expired} THEN 1
        WHEN state = 'running' THEN attempt
        ELSE least(attempt + 1, 4294967295)
    END,
    first_claimed_at = CASE WHEN {expired} THEN {now} ELSE first_claimed_at END,
    on_crash = CASE WHEN {expired} THEN ?9 ELSE on_crash END,
    state = 'running',
    fingerprint = ?5,
    claim_id = ?6,
    lease_until = {now} + ?7,
    retention = ?8,
    codec = NULL,
    payload = NULL,
    payload_for = NULL,
    ended_at = NULL,
    purge_after = {now} + ?7 + ?8
WHERE id = ?1 AND (
    ({expired})
    OR fingerprint = ?5 AND (state = 'released' OR state = 'running' AND claim_id = ?6)
)

-- name: take_over
-- The owner may renew its lease or complete after the record was read as lapsed, and another caller may take over
-- first. Each of these changes what was observed, and the condition compares all of it.
UPDATE {records} SET
    history = CASE
        WHEN state = 'running' AND claim_id = ?6 THEN history
        ELSE {history_with:(CASE state WHEN 'interrupted' THEN 'interrupted' ELSE 'lapsed' END)}
    END,
    attempt_began_at = CASE
        WHEN state = 'running' AND claim_id = ?6 THEN attempt_began_at
        ELSE {now}
    END,
    owner = ?11,
    fencing_token = CASE
        WHEN state = 'running' AND claim_id = ?6 THEN fencing_token
        ELSE {next_fencing_token}
    END,
    attempt = CASE
        WHEN state = 'running' AND claim_id = ?6 THEN attempt
        ELSE least(attempt + 1, 4294967295)
    END,
    state = 'running',
    claim_id = ?6,
    lease_until = {now} + ?8,
    retention = ?9,
    purge_after = {now} + ?8 + ?9
WHERE id = ?10 AND fingerprint = ?7 AND NOT ({expired}) AND (
    state = 'running' AND claim_id = ?6
    OR {observed} AND {stuck} AND on_crash <> 'refuse'
)

-- name: purge_due
-- Reads without a lock, when a purge has waited for its turn long enough.
{read_due}

-- name: purge_turn
-- Fails while another purge changes one of the records.
{read_due}
FOR UPDATE NOWAIT

-- name: fencing_floor
-- Another purge may have raised the floor already.
SELECT fencing_token FROM {fencing_floor} WHERE one = 1

-- name: lock_floor
-- Claims and transactions lock the row. A statement that waits for it makes all further claims wait.
SELECT one FROM {fencing_floor} WHERE one = 1 FOR UPDATE NOWAIT

-- name: raise_floor
-- A floor that another purge has raised further stays.
UPDATE {fencing_floor} SET fencing_token = greatest(?1, {now})
WHERE one = 1 AND fencing_token < ?1

-- name: purge_lock
-- The due time was set at the claim: an owner may have renewed its lease since, or completed late. A record that was
-- claimed again in between has a higher fencing token than the floor was raised to. The records stay locked until they
-- are deleted in the same transaction.
SELECT HEX(r.id), r.state FROM {due_records}
WHERE ({purgeable:r.}) AND r.fencing_token <= ?3
FOR UPDATE

-- name: purge_interrupt
-- As above. The owner may have renewed its lease.
UPDATE {any_rows} {due_records} SET r.purge_after = NULL, r.state = 'interrupted'
WHERE {past_retention:r.} AND r.on_crash <> 'rerun' AND r.purge_after <= {as_of}

-- name: purge_forget
-- As above. An operator may have erased the record, and another call may have claimed the key again.
UPDATE {any_rows} {due_records} SET
    r.purge_after = r.ended_at + r.retention,
    r.codec = NULL,
    r.payload = NULL
WHERE {forgettable:r.} AND NOT ({purgeable:r.}) AND r.purge_after <= {as_of}

-- name: purge_requeue
-- As above, for records that are still alive: queued until they may expire, or lose their payload. Records that became due
-- for that meanwhile are left to the next purge.
UPDATE {any_rows} {due_records} SET
    r.purge_after = CASE
        WHEN r.state = 'interrupted' THEN NULL
        WHEN r.state <> 'running' THEN {next_purge:r.}
        ELSE r.lease_until + r.retention
    END
WHERE NOT ({purgeable:r.}) AND NOT ({past_retention:r.}) AND NOT ({forgettable:r.}) AND r.purge_after <= {as_of}

-- name: touch
-- A lock holds on one node of Galera, or on one member of a group, only. A takeover on another node conflicts with a transaction of the owner if both
-- change the record, so the transaction changes it: its purge moves by a microsecond, or its lease if it has none.
UPDATE {records} SET lease_until = lease_until + (purge_after IS NULL), purge_after = purge_after + 1 WHERE {held}
