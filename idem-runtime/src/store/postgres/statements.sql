-- Syntax of PostgreSQL, and the statements that only PostgreSQL has.
--
-- These are the parts of the standard form. The file `portable.sql` replaces some of them for the portable form.

-- part: now
-- Database clock in microseconds. It is constant within one statement, and stable, so that an index can be searched
-- with it. It shows when the statement arrived, which is after it was sent. An owner that counts its lease from the
-- sending therefore never overestimates it. The seconds are a floating-point number, and the rounding of the cast
-- restores the exact microsecond. `extract`, whose result is exact from version 14 on, takes ten times as long.
(date_part('epoch', statement_timestamp()) * 1000000)::bigint

-- part: as_of
-- Time as of which a purge works.
least({now}, ?2)

-- part: content
-- Columns that `rows::record_for` reads, in its order; the time of reading comes after them.
{it}fingerprint, {it}state, {it}claim_id, {it}fencing_token, {it}attempt, {it}lease_until, {it}retention, {it}on_crash,
    {it}codec, {it}payload, {it}first_claimed_at, {it}ended_at, {it}payload_for

-- part: record
-- Columns that `rows::record` reads, in its order.
id, scope, operation, idempotency_key, {content}, {now}

-- part: greatest
greatest

-- part: least
least

-- part: null_safe_eq
IS NOT DISTINCT FROM

-- part: history_with
-- History with a line for the attempt that ends now.
right(
    coalesce(history, '') || attempt::text || ' ' || coalesce(attempt_began_at, first_claimed_at)::text || ' '
    || {now}::text || ' ' || {it} || ' ' || coalesce(owner, '') || '{newline}',
    {max_history}
)

-- part: history_with_replay
-- History with a line for a replay at this moment.
coalesce(history, '') || attempt::text || ' ' || {now}::text || ' ' || {now}::text || ' replayed '
    || coalesce(?3, '') || '{newline}'

-- part: count_interrupted
-- Number of INTERRUPTED records up to the limit: only they have no time for the purge queue.
(SELECT count(*) FROM (
    SELECT purge_after FROM {records} WHERE purge_after IS NULL ORDER BY purge_after LIMIT ?1
) AS interrupted)

-- part: payload_size
-- Size of a result as a 64-bit number. A result in the table beside is not read for it.
length({it}payload)::bigint

-- part: no_bytes
'\x'::bytea

-- part: stuck_rows
-- The planner takes the partial index only if the condition says what it holds.
SELECT {listed_columns} FROM {records} WHERE state IN ('running', 'interrupted') AND {listed}

-- part: find_index
-- An index that is not valid is still being built, or building it has failed.
SELECT count(*) FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid
WHERE i.indrelid = '{records}'::regclass AND c.relname = ?1 AND i.indisvalid

-- part: hint
-- The planner takes the index that serves both the condition and the order.

-- part: scope_bound
left({it}, 255)

-- part: scope_index
(left(scope, 255)) COLLATE "C"

-- part: stuck_columns
id

-- part: scope_sorted
-- A scope may be longer than an entry of an index, and its parts are compared by their bytes.
left(scope, 255) COLLATE "C"

-- part: define_index
CREATE INDEX CONCURRENTLY "{index_name}" ON {records} ({index_columns}) {index_rows}

-- part: scope_begins_with
left(scope, length({it})) = {it}

-- part: ids
-- Ids in a parameter, as a JSON array of hexadecimal digits.
(SELECT decode(hex, 'hex') FROM unnest(string_to_array(translate(?1, '["]', ''), ',')) AS hex)

-- part: from_ids
FROM {records} WHERE id IN {ids}

-- part: lock_free
-- In one order, so that two erasures are no deadlock.
ORDER BY id FOR UPDATE SKIP LOCKED

-- part: erase_all
{erase_begin} WHERE id IN {ids} AND {alone} {erase_end}

-- part: unless_noted
ON CONFLICT (name) DO NOTHING

-- part: lock
FOR UPDATE

-- part: upsert
ON CONFLICT (id) DO UPDATE SET

-- part: proposed
-- Value that the insert proposed for a column.
excluded.{it}

-- part: step_lock
-- Locks the current version of the row until the end of the statement.
FOR NO KEY UPDATE

-- part: step_upsert
ON CONFLICT (id, name) DO UPDATE SET
    first_claimed_at = excluded.first_claimed_at,
    codec = excluded.codec,
    payload = excluded.payload
WHERE {steps}.first_claimed_at <> excluded.first_claimed_at

-- part: step_name
s.name

-- part: erase_begin
DELETE FROM {records}

-- part: erase_end
-- The trigger raises the fencing floor, and deletes the steps and recovery inputs.

-- part: database_user
-- User that has logged in, whatever role it has set since.
session_user

-- part: entry_column
-- The database numbers the entries.

-- part: entry_number
-- As above.

-- part: insert_first
-- The function of the part `insert` inserts.

-- part: insert_first_in_transaction
-- As above.

-- part: inserted_row
-- As above.

-- part: restored_wait
-- A transaction that finds the advisory lock taken does not wait.

-- part: insert
-- Returns the fencing token, or the number of a lost race.
CASE WHEN {is_alone} AND {hold_lock:?12}
    THEN {claim_function}('{records}'::regclass, ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
    ELSE {locked}::bigint
END

-- part: may_be_out_of_date
-- Never in a transaction of the caller's or of the call's own.
false

-- part: alone
-- True in a transaction of the caller's or of the call's own. See `statements.rs` for statements on the pool.
true

-- part: is_alone
-- As above, for a condition that is rarely evaluated.
true

-- part: is_of_another
-- The record has another scope, operation or key. Null if there is no record.
r.scope <> ?2 OR r.operation <> ?3 OR r.idempotency_key <> ?4

-- part: locked_by_another
-- Another open transaction may have claimed the record: its row is not visible yet, and an insert or update would wait
-- for it. The advisory lock is therefore tried first. It never waits, and is released with the transaction. Its number
-- includes the table, so that it differs from locks of other users.
--
-- A transaction that many calls join (?13) takes the lock for the first ones only: all transactions share the server's
-- table of locks. The number of the calls is a setting that ends with the transaction, or with the savepoint of a call
-- that is rolled back. Concurrent duplicates of the other calls wait for the transaction, or for the limit of their store.
WHEN CASE
    WHEN ?13 = 0 THEN NOT {try_lock}
    WHEN {joined_calls} < {most_locks}
        THEN set_config('idem.joined_calls', ({joined_calls} + 1)::text, true) IS NULL OR NOT {try_lock}
    ELSE false
END THEN {locked}::bigint

-- part: try_lock
pg_try_advisory_xact_lock({lock_number:?12})

-- part: lock_number
-- Number of the advisory lock of a record.
{it} # '{records}'::regclass::oid::bigint

-- part: hold_lock
-- True in a transaction, which has tried the lock. See `statements.rs` for statements on the pool.
true

-- part: lock_is_free
-- As above, without waiting.
true

-- part: reserved
-- Holds a record without a row. See `inserts_at_end`.
WHEN r.id IS NULL AND {inserts_at_end} THEN {reserve_function}('{records}'::regclass, ?1)

-- part: inserts_at_end
-- The claim holds the record by its advisory lock alone, and its transaction inserts the record when it ends. A joined
-- call inserts it now, because its transaction takes no lock for some calls. So does a call at another isolation level,
-- where a function sees no newer records than the statement that calls it, and one that cannot write: the insert then
-- fails before the body runs.
(?13 = 0 AND current_setting('transaction_isolation') = 'read committed'
    AND current_setting('transaction_read_only') = 'off')

-- part: transaction_number
-- Number of the transaction, if it inserts the record when it ends.
CASE WHEN r.id IS NULL AND {inserts_at_end} THEN txid_current_if_assigned() END

-- part: joined_calls
-- A setting that was never set is null, and one whose transaction has ended is empty.
coalesce(nullif(current_setting('idem.joined_calls', true), ''), '0')::integer

-- part: most_locks
256

-- part: limited_wait
-- Longest wait of a batched statement for a locked row. After that, its requests run individually. Because of one
-- locked record, a caller with another key waits at most this long, and once more for its slot. The function is called
-- before the first row is locked, and only for the statement's own transaction.
(SELECT set_config('lock_timeout', '50ms', true)) AS waiting

-- part: all_of
-- Takes all rows of a batch. The limit is there for its estimate: a plan for any values expects a tenth of the rows, so
-- it costs less than a plan for these values. After five executions the server therefore keeps the first one, and does
-- not plan each batch anew, which takes as long as its execution.
LIMIT cardinality({it}::bytea[])

-- part: claims_to_insert
-- Claims in parameters 1 to 12, and the insert of the records that do not exist and that no open transaction holds. The
-- OFFSET lets the server look at the locks of these records alone.
requests AS (
    SELECT a.*
    FROM {limited_wait}, unnest(
        ?1::bytea[], ?2::text[], ?3::text[], ?4::text[], ?5::bytea[],
        ?6::bytea[], ?7::bigint[], ?8::bigint[], ?9::text[], ?10::text[], ?11::bytea[], ?12::bigint[]
    ) WITH ORDINALITY AS a (
        id, scope, operation, idempotency_key, fingerprint, claim_id, lease, retention, on_crash, owner, members,
        lock, place
    )
    {all_of:?1}
), inserted AS (
    INSERT INTO {records} ({inserted})
    SELECT
        a.id, a.scope, a.operation, a.idempotency_key, a.fingerprint,
        'running', a.claim_id,
        greatest({now}, coalesce((SELECT fencing_token + 1 FROM {fencing_floor}), 0)), 1,
        {now} + a.lease, a.retention, a.on_crash, {now}, {now} + a.lease + a.retention, a.owner, a.members
    FROM (
        SELECT a.* FROM requests AS a
        WHERE {alone} AND NOT EXISTS (SELECT FROM {records} AS r WHERE r.id = a.id)
        OFFSET 0
    ) AS a
    WHERE {lock_is_free:a.lock}
    ON CONFLICT (id) DO NOTHING
    RETURNING id, fencing_token
)

-- part: claimed_rows
SELECT {content:r.}, {now},
    CASE
        WHEN r.id IS NULL THEN coalesce(m.fencing_token, {lost_race})
        WHEN r.scope <> a.scope OR r.operation <> a.operation OR r.idempotency_key <> a.idempotency_key
            THEN {id_mismatch}::bigint
    END,
    a.place
FROM requests AS a
    LEFT JOIN {records} AS r ON r.id = a.id
    LEFT JOIN inserted AS m ON m.id = a.id

-- part: completed_from
-- Completes the records of the completions `a`.
UPDATE {records} AS r SET
    purge_after = {queued_from_now:r.},
    codec = a.codec,
    payload = a.payload,
    ended_at = {now},
    state = a.state
FROM (
    SELECT a.* FROM {limited_wait}

-- part: completed_where
    WITH ORDINALITY AS a (id, claim_id, fencing_token, state, codec, payload, place)
    {all_of}
) AS a
WHERE r.id = a.id AND r.claim_id = a.claim_id AND r.fencing_token = a.fencing_token AND {writable:r.}
RETURNING a.place

-- part: due
WITH due AS MATERIALIZED (
    SELECT id FROM {records}
    WHERE purge_after <= {as_of} AND {alone}
    ORDER BY purge_after LIMIT ?1
    FOR UPDATE SKIP LOCKED
)

-- part: delete_begin
DELETE FROM {records}

-- part: delete_end
RETURNING r.state

-- name: claim
-- Two callers may both have read that there is no record. The primary key lets one of them insert; the other waits for
-- its commit, inserts nothing, and reads again. An existing record is neither written nor locked.
{insert_first}
SELECT {content:r.}, {now},
    CASE
        WHEN r.id IS NULL THEN {insert}
        WHEN {is_of_another} THEN {id_mismatch}::bigint
        WHEN {may_be_out_of_date} THEN {out_of_date}::bigint
    END
FROM (SELECT 1) AS one LEFT JOIN {records} AS r ON r.id = ?1 {inserted_row}

-- name: claim_all
-- As above for each record. A statement that waits for another commit has locked the rows before it. This is no
-- deadlock, because all statements sort their rows. A transaction may hold one of the rows for long: the other requests
-- must not wait for it, so the statement gives up, and each request runs individually.
WITH {claims_to_insert} {claimed_rows}

-- name: complete_all
-- A transaction may hold one of the rows for long. The other requests must not wait for it.
{completed_from}, unnest(?1::bytea[], ?2::bytea[], ?3::bigint[], ?4::text[], ?5::text[], ?6::bytea[])
{completed_where:?1}

-- name: release_all
-- `release` for many records. A transaction may hold one of the rows for long. The other requests must not wait for it.
UPDATE {records} AS r SET
    history = {history_with:'released'},
    purge_after = {queued_from_now},
    ended_at = {now},
    claim_id = NULL,
    state = 'released'
FROM (
    SELECT a.* FROM {limited_wait}, unnest(?1::bytea[], ?2::bytea[], ?3::bigint[])
    WITH ORDINALITY AS a (its_id, its_claim_id, its_token, place)
    {all_of:?1}
) AS a
WHERE r.id = a.its_id AND r.claim_id = a.its_claim_id AND r.fencing_token = a.its_token AND {writable:r.}
RETURNING a.place

-- name: transition_all
-- Both of the above, and `save_step`, with one commit. All parts see the records as they were before the statement. A
-- claim of a record that is completed here therefore finds it running, as if it had come before. A statement never
-- writes a row twice: the caller passes no step of a record that is completed here, because its lock would find the new
-- version of the row and skip the step. Two such statements lock rows of different kinds in any order. They cannot be a
-- deadlock: claims wait only for a lock or an insert of the same key, and completions and steps change records that
-- other processes do not own.
WITH {claims_to_insert}, completed AS (
    {completed_from}, unnest(?13::bytea[], ?14::bytea[], ?15::bigint[], ?16::text[], ?17::text[], ?18::bytea[])
    {completed_where:?13}
), steps_to_save AS (
    SELECT s.*
    FROM {limited_wait}, unnest(
        ?19::bytea[], ?20::bytea[], ?21::bigint[], ?22::text[], ?23::text[], ?24::bytea[]
    ) WITH ORDINALITY AS s (id, claim_id, fencing_token, name, codec, payload, place)
    {all_of:?19}
), saved AS (
    INSERT INTO {steps} (id, name, first_claimed_at, codec, payload)
    SELECT r.id, s.name, r.first_claimed_at, s.codec, s.payload
    FROM steps_to_save AS s JOIN {records} AS r
        ON r.id = s.id AND r.claim_id = s.claim_id AND r.fencing_token = s.fencing_token AND {writable:r.}
    {step_lock} OF r
    {step_upsert}
    RETURNING id, name
)
{claimed_rows}
UNION ALL
SELECT {no_claim}, cardinality(?1::bytea[]) + c.place FROM completed AS c
UNION ALL
SELECT {no_claim}, cardinality(?1::bytea[]) + cardinality(?13::bytea[]) + s.place
FROM saved AS m JOIN steps_to_save AS s ON s.id = m.id AND s.name = m.name

-- name: claim_locked
-- Another open transaction may have claimed the record. This statement detects it without waiting until it ends. A
-- caller that comes after the other transaction has committed may not see that row here: the insert does nothing, and
-- the caller reads again.
{insert_first_in_transaction}
SELECT {content:r.}, {now},
    CASE
        WHEN {is_of_another} THEN {id_mismatch}::bigint
        WHEN r.state IN ('completed', 'failed', 'unrecorded') AND NOT ({expired:r.}) THEN NULL
        {locked_by_another}
        {reserved}
        WHEN r.id IS NULL THEN {insert}
    END,
    {transaction_number} {restored_wait}
FROM (SELECT 1) AS one LEFT JOIN {records} AS r ON r.id = ?1 {inserted_row}

-- name: insert_ended
-- The body may have ended the transaction of its claim by a statement of its own: then another transaction is open, or
-- none, and neither holds the record any more. The insert then writes nothing. A store that does not know the advisory
-- locks may have inserted the record meanwhile, and a leased claim that looked at the lock just before. If theirs was
-- deleted again, the token is higher. Parameter 12 is null for the record of a transaction that is known to have ended: it
-- is interrupted.
INSERT INTO {records} ({inserted}, codec, payload, payload_for, ended_at)
SELECT
    ?1, ?2, ?3, ?4, ?5, ?15, ?6, greatest(?13, coalesce((SELECT fencing_token + 1 FROM {fencing_floor}), 0)),
    1, ?14 + ?7, ?8, ?9, ?14, CASE WHEN ?15 <> 'interrupted' THEN {now} + least(?18, ?8) END, ?10, ?11, ?16, ?17,
    ?18,
    CASE WHEN ?15 <> 'interrupted' THEN {now} END
WHERE ?12 IS NULL OR txid_current_if_assigned() = ?12
ON CONFLICT (id) DO NOTHING

-- name: was_committed
-- A transaction that is neither committed nor in progress was rolled back.
SELECT 1 WHERE txid_status(?1) = 'committed'

-- name: limit_wait
-- Another transaction may have locked the row that the next statement updates. Returns the setting to restore.
SELECT current_setting('lock_timeout'), set_config('lock_timeout', '{longest_wait}', true)

-- name: restore_wait
-- The wait of the caller's own statements has the caller's limit.
SELECT set_config('lock_timeout', ?1, true)

-- name: claim_again
-- Several callers may have read that the record is released or has expired. The first locks the row; for the others the
-- server checks the condition again on the updated row.
UPDATE {records} AS r SET
    history = CASE WHEN {expired:r.} THEN NULL ELSE r.history END,
    attempt_began_at = CASE
        WHEN {expired:r.} THEN NULL
        WHEN r.state = 'running' THEN r.attempt_began_at
        ELSE {now}
    END,
    owner = ?10,
    members = ?11,
    fencing_token = CASE
        WHEN r.state = 'running' AND NOT ({expired:r.}) THEN r.fencing_token
        ELSE {next_fencing_token:r.}
    END,
    attempt = CASE
        WHEN {expired:r.} THEN 1
        WHEN r.state = 'running' THEN r.attempt
        ELSE least(r.attempt + 1, 4294967295)
    END,
    on_crash = CASE WHEN {expired:r.} THEN ?9 ELSE r.on_crash END,
    first_claimed_at = CASE WHEN {expired:r.} THEN {now} ELSE r.first_claimed_at END,
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
WHERE {alone} AND r.id = ?1 AND (
    ({expired:r.})
    OR r.fingerprint = ?5 AND (r.state = 'released' OR r.state = 'running' AND r.claim_id = ?6)
)
RETURNING {granted}

-- name: take_over
-- The owner may renew its lease or complete after the record was read as lapsed, and another caller may take over
-- first. Each of these changes what was observed. The condition compares all of it, and is checked again for a caller
-- that waited for the row.
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
        ELSE least(r.attempt + 1, 4294967295)
    END
WHERE {alone} AND r.id = ?10 AND r.fingerprint = ?7 AND NOT ({expired:r.}) AND (
    r.state = 'running' AND r.claim_id = ?6
    OR {observed:r.} AND {stuck:r.} AND r.on_crash <> 'refuse'
)
RETURNING {granted}

-- name: purge
-- The due time was set at the claim: the owner may have renewed its lease since, or completed late. The condition is
-- therefore checked again here, on locked rows. Rows that another transaction has locked are left for the next purge:
-- waiting for them in another order would be a deadlock.
{due}
{delete_begin} AS r USING due
WHERE r.id = due.id AND ({purgeable:r.})
{delete_end}

-- name: requeue
-- As above for records that stay: they are interrupted, lose their payload, or are still alive and queued until they may
-- expire. Without the check of the lease, a renewal would be overwritten.
{due}
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
FROM due
WHERE r.id = due.id AND NOT ({purgeable:r.})
RETURNING CASE WHEN r.payload_for IS NOT NULL AND r.payload IS NULL THEN 'forgotten' ELSE r.state END
