-- Statements on records, saved steps and recovery inputs that are alike in every dialect, and the conditions on a
-- record that all statements share.
--
-- Between two concurrent transitions, the row as it is at the write decides: each statement that writes checks the row
-- again. In some dialects an assignment sees the results of earlier assignments. Each assignment therefore reads only
-- columns that are written after it.
--
-- A pool may give a connection on which other code has left a transaction open. What is read there may be out of date, and
-- what is written may never be committed. The part `alone` makes a statement fail there, in dialects that can tell.
--
-- `template.rs` explains sections and markers.

-- part: expired
-- The record is absent for claims, and purging deletes it. The difference cannot overflow, as a sum could: somebody may have
-- set the retention by hand, to keep a record for ever.
CASE {it}state
    WHEN 'running' THEN {it}on_crash = 'rerun' AND {it}lease_until <= {now} - {it}retention
    WHEN 'interrupted' THEN false
    ELSE {it}ended_at <= {now} - {it}retention
END

-- part: purgeable
-- As above for a purge, which works as of the earlier of parameter 2 and the database clock: the clock may have jumped
-- forward.
CASE {it}state
    WHEN 'running' THEN {it}on_crash = 'rerun' AND {it}lease_until <= {as_of} - {it}retention
    WHEN 'interrupted' THEN false
    ELSE {it}ended_at <= {as_of} - {it}retention
END

-- part: forgettable
-- The payload is there, and the time for which it is kept is over, as of the time of a purge.
{it}payload IS NOT NULL AND {it}payload_for IS NOT NULL AND {it}ended_at <= {as_of} - {it}payload_for

-- part: next_purge
-- Next purge check of an ended or released record that a purge leaves there: the end of its payload, or of its retention.
{it}ended_at + CASE
    WHEN {it}payload IS NULL OR {forgettable} THEN {it}retention
    ELSE coalesce({it}payload_for, {it}retention)
END

-- part: stuck
-- RUNNING with a lapsed lease, or INTERRUPTED.
({it}state = 'interrupted' OR {it}state = 'running' AND {it}lease_until <= {now})

-- part: observed
-- The record equals the observation in parameters 1 to 5.
{it}id = ?1 AND {it}state = ?2 AND {it}claim_id {null_safe_eq} ?3
    AND {it}fencing_token = ?4 AND {it}lease_until = ?5

-- part: resolvable
-- The record equals the observation, is stuck and has not expired.
{observed} AND {stuck} AND NOT ({expired}) AND {alone}

-- part: writable
-- The record has not ended, so its owner may still write.
{it}state IN ('running', 'interrupted') AND NOT ({expired}) AND {alone}

-- part: held
-- The owner in parameters 1 to 3 may still write.
{it}id = ?1 AND {it}claim_id = ?2 AND {it}fencing_token = ?3 AND {writable}

-- part: next_fencing_token
{greatest}({it}fencing_token + 1, {now})

-- part: queued_from_now
-- Next purge check of a record whose retention begins now.
coalesce({it}purge_after, {now} + {it}retention)

-- part: inserted
-- Columns that a first claim writes.
id, scope, operation, idempotency_key, fingerprint, state, claim_id, fencing_token,
    attempt, lease_until, retention, on_crash, first_claimed_at, purge_after, owner, members

-- part: granted
-- Columns that `rows::granted` reads, in its order.
fencing_token, attempt, first_claimed_at, on_crash

-- name: get
-- Reads the record, even if it has expired. What a caller reads here may change before it writes.
SELECT {record} FROM {records} WHERE id = ?1 AND {alone}

-- name: attempts
-- Reads the record with its attempts and the digests of the request's members in one statement, so that they are those
-- of its generation.
SELECT {record}, owner, attempt_began_at, history, members FROM {records} WHERE id = ?1 AND {alone}

-- name: note_replay
-- The record may have been replaced since its outcome was replayed: that of another generation has another fencing token.
-- A history that is half full keeps its room for attempts.
UPDATE {records} SET history = {history_with_replay}
WHERE id = ?1 AND fencing_token = ?2 AND state IN ('completed', 'failed', 'unrecorded') AND NOT ({expired})
    AND coalesce(length(history), 0) < {max_history_for_replays} AND {alone}

-- name: renew
-- Another caller may have taken the record over, and the owner may have completed it in an earlier try.
UPDATE {records} SET
    purge_after = coalesce(purge_after, {now} + ?4 + retention),
    lease_until = {now} + ?4,
    state = 'running'
WHERE {held}

-- name: complete
-- Another caller may have taken the record over, or an operator may have resolved it. An outcome is never overwritten.
UPDATE {records} SET
    purge_after = {queued_from_now},
    codec = ?5,
    payload = ?6,
    ended_at = {now},
    state = ?4
WHERE {held}

-- name: complete_for
-- As above. A purge drops the payload earlier than the record, so the record is queued for that.
UPDATE {records} SET
    purge_after = {now} + {least}(?7, retention),
    payload_for = ?7,
    codec = ?5,
    payload = ?6,
    ended_at = {now},
    state = ?4
WHERE {held}

-- name: release
-- As above: only the owner may let the next call run the body.
UPDATE {records} SET
    history = {history_with:'released'},
    purge_after = {queued_from_now},
    ended_at = {now},
    claim_id = NULL,
    state = 'released'
WHERE {held}

-- name: interrupt
-- As above: a record that has an outcome, or another owner, stays as it is.
UPDATE {records} SET
    purge_after = NULL,
    state = 'interrupted'
WHERE {held}

-- name: resolve_complete
-- After the operator read the record, its owner may have renewed or completed it, and another operator may have
-- resolved it. Each of these changes what was observed. The new fencing token refuses a paused owner.
UPDATE {records} SET
    history = {history_with:replace('resolved-*', '*', ?6)},
    purge_after = {queued_from_now},
    codec = ?7,
    payload = ?8,
    ended_at = {now},
    claim_id = NULL,
    fencing_token = {next_fencing_token},
    state = ?6
WHERE {resolvable}

-- name: resolve_release
-- As above.
UPDATE {records} SET
    history = {history_with:'resolved-released'},
    purge_after = {queued_from_now},
    ended_at = {now},
    claim_id = NULL,
    fencing_token = {next_fencing_token},
    state = 'released'
WHERE {resolvable}

-- name: resolve_interrupt
-- As above, but the owner may still complete the record.
UPDATE {records} SET
    purge_after = NULL,
    state = 'interrupted'
WHERE {resolvable}

-- name: resolve_correct
-- As above, for a record that has ended without an owner. Another operator may have corrected it since it was read. The
-- time of its end stays, and so does the time of its purge.
UPDATE {records} SET
    codec = ?7,
    payload = ?8,
    fencing_token = {next_fencing_token},
    state = ?6
WHERE {observed} AND state IN ('completed', 'failed', 'unrecorded') AND claim_id IS NULL AND NOT ({expired}) AND {alone}

-- name: erase
-- As above for a record in any state. An owner whose lease is valid may be running: its record is never erased.
{erase_begin}
WHERE {observed} AND NOT ({expired})
    AND NOT (state = 'running' AND lease_until > {now}) AND {alone}
{erase_end}

-- name: write_entry
-- The resolution follows in the same transaction. Another caller must not change the record in between: the entry would
-- tell of a record that nobody resolved. The row therefore stays locked.
INSERT INTO {audit} (
    {entry_column} made_at, actor, reason, action, id, scope, operation, idempotency_key, state, fencing_token, attempt,
    old_value, new_value, database_user
)
SELECT {entry_number} {now}, ?6, ?7, ?8, id, scope, operation, idempotency_key, state, fencing_token, attempt, ?9, ?10,
    {database_user}
FROM {records} WHERE {observed} {lock}

-- name: write_purge
-- The purge precedes it in the same transaction: no record is deleted without this entry.
INSERT INTO {audit} ({entry_column} made_at, actor, reason, action, removed, abandoned, interrupted, database_user)
VALUES ({entry_number} {now}, ?1, ?2, ?3, ?4, ?5, ?6, {database_user})

-- name: lock_all
-- Owners may have renewed their leases since the records were read, and transactions may hold them. The rows that nobody
-- holds stay locked until they are deleted in the same transaction. None is waited for: an owner would wait for it.
SELECT id, fencing_token, state, lease_until - {now}
{from_ids} AND {alone} {lock_free}

-- name: present
-- Records that are still there after an erasure, because an owner or a transaction holds them.
SELECT id {from_ids} AND {alone}

-- name: erase_all
-- The transaction has locked and checked the records.
{erase_all}

-- name: count_erased
-- The batches of an erasure follow each other. Each adds its number in the transaction that deletes.
UPDATE {audit} SET removed = removed + ?3 WHERE id = ?1 AND fencing_token = ?2 AND action = 'erased_scope'

-- name: write_erasure
-- The first batch writes the entry, in the transaction that deletes.
INSERT INTO {audit} ({entry_column} made_at, actor, reason, action, id, fencing_token, removed, database_user)
VALUES ({entry_number} {now}, ?4, ?5, 'erased_scope', ?1, ?2, ?3, {database_user})

-- name: last_entry
-- Entries that are written later belong to calls after the erasure.
SELECT coalesce(max(entry), 0) FROM {audit} WHERE {alone}

-- name: redact_entries
-- Operators may change records meanwhile, which adds entries. An entry keeps the id of its record.
UPDATE {audit} SET scope = NULL, idempotency_key = NULL, old_value = NULL, new_value = NULL
WHERE entry > ?1 AND entry <= ?2 AND idempotency_key IS NOT NULL AND {of_scope} AND {alone}

-- name: note_operation
-- Each process of a service notes the same names.
INSERT INTO {operations} (name) VALUES (?1) {unless_noted}

-- name: operations
-- Names are added and never change.
SELECT {step_name} FROM {operations} AS s WHERE {alone} ORDER BY s.name

-- name: recovery_input_of
-- The call may end meanwhile, and its input with it.
SELECT codec, payload, recoveries FROM {recovery} WHERE id = ?1 AND {alone}

-- name: audit
-- Entries never change, and new ones have higher numbers than those on any page.
SELECT
    entry, made_at, actor, reason, action, id, scope, operation, idempotency_key, state, fencing_token, attempt,
    removed, abandoned, interrupted, old_value, new_value, database_user
FROM {audit}
WHERE entry < ?1
    AND (?2 IS NULL OR id = ?2)
    AND (?3 IS NULL OR actor = ?3 AND length(actor) = length(?3))
    AND (?4 IS NULL OR {now} - made_at <= ?4)
    AND {alone}
ORDER BY entry DESC LIMIT ?5

-- part: of_scope
-- The scope in parameter 3, or one inside of it, whose text begins with parameter 4. Where a comparison ignores trailing
-- blanks, the length does not.
(
    scope = ?3 AND length(scope) = length(?3)
    OR ?4 IS NOT NULL AND {scope_begins_with:?4}
)

-- part: selected
-- Records that match the filter in parameters 3 to 13. Where a comparison ignores trailing blanks, the length does not. A
-- row without a time that its state requires has neither expired nor not: it is listed, so that it is named.
    (?3 IS NULL OR {of_scope})
    AND (?5 IS NULL OR state = ?5)
    AND (?6 IS NULL OR operation = ?6 AND length(operation) = length(?6))
    AND (?7 = 0 OR state = 'running' AND lease_until <= {now})
    AND (?8 = 0 OR {stuck})
    AND (?9 IS NULL OR {now} - first_claimed_at >= ?9)
    AND (?10 IS NULL OR {now} - first_claimed_at <= ?10)
    AND (?11 IS NULL OR idempotency_key = ?11 AND length(idempotency_key) = length(?11))
    AND (?12 IS NULL OR owner = ?12 AND length(owner) = length(?12))
    AND (?13 = 1 OR ({expired}) IS NOT TRUE)
    AND {alone}

-- part: listed
-- Records of a page: those between two ids that match.
id > ?1 AND id <= ?2
    AND {selected}
ORDER BY id LIMIT ?14

-- part: listed_columns
-- Columns of a record, with the size of its result, and with the result only if parameter 15 asks for it.
id, scope, operation, idempotency_key, fingerprint, state, claim_id, fencing_token, attempt, lease_until, retention,
    payload_for, on_crash, codec, CASE WHEN payload IS NULL OR ?15 <> 0 THEN payload ELSE {no_bytes} END AS payload,
    {payload_size} AS payload_size, first_claimed_at, ended_at, owner

-- part: listed_record
-- Columns that `listing::listed` reads, and those of the position of the next page.
{record}, payload_size, owner, id, scope, first_claimed_at

-- name: list
-- Reads for an operator, who resolves by what was observed. The id names a row whose record cannot be read.
SELECT {listed_record} FROM (SELECT {listed_columns} FROM {records} WHERE {listed}) AS page ORDER BY id

-- name: list_stuck
-- As above, by the optional index of stuck records. It may be dropped meanwhile: then a hint that names it fails.
SELECT {listed_record} FROM ({stuck_rows}) AS page ORDER BY id LIMIT ?14

-- name: has_index
-- The index may be created or dropped meanwhile. Without it, the other statement finds the same records.
{find_index}

-- name: id_after
-- Bounds a read of many rows. Records come and go meanwhile, so the read that follows takes the ids as its bounds, and
-- not a number of rows.
SELECT id FROM {records} WHERE id > ?1 AND {alone} ORDER BY id LIMIT 1 OFFSET ?2

-- name: now
-- Nothing is read, so nothing can change meanwhile.
SELECT {now}

-- name: due
-- Mostly nothing is due. This read shows that without blocking any writer.
SELECT state FROM {records} WHERE purge_after <= {as_of} AND {alone} LIMIT ?1

-- part: of_this_generation
s.id = r.id AND s.first_claimed_at = r.first_claimed_at

-- name: save_step
-- A takeover could come between the check of the owner and the insert, and its attempt would read the steps without
-- this one. The record therefore stays locked until the end of the statement.
INSERT INTO {steps} (id, name, first_claimed_at, codec, payload)
SELECT r.id, ?4, r.first_claimed_at, ?5, ?6
FROM {records} AS r
WHERE {held:r.} {step_lock}
{step_upsert}

-- name: find_step
-- The step may have been saved by an earlier try, or the caller may have lost the record.
SELECT 1
FROM {records} AS r JOIN {steps} AS s ON {of_this_generation} AND s.name = ?4
WHERE {held:r.}

-- name: saved_steps
-- One statement, so that the steps are those of the owner's generation. A record without steps returns a row of its
-- own.
SELECT {step_name}, s.codec, s.payload
FROM {records} AS r LEFT JOIN {steps} AS s ON {of_this_generation}
WHERE {held:r.}

-- part: as_read
id = ?1 AND first_claimed_at = ?2 AND recover_after = ?3 AND recoveries = ?4 AND {alone}

-- part: same_generation
{recovery}.first_claimed_at = {proposed:first_claimed_at}

-- name: save_input
-- A takeover could come between the check of the owner and the insert, so the record stays locked until the end of the
-- statement. A row of an earlier generation of the record starts again from zero.
INSERT INTO {recovery} (id, first_claimed_at, operation, codec, payload, recover_after, recoveries)
SELECT r.id, r.first_claimed_at, r.operation, ?4, ?5, {now} + ?6, 0
FROM {records} AS r
WHERE {held:r.} {lock}
{upsert}
    recoveries = CASE WHEN {same_generation} THEN {recovery}.recoveries ELSE 0 END,
    recover_after = CASE
        WHEN {same_generation} THEN {greatest}({recovery}.recover_after, {proposed:recover_after})
        ELSE {proposed:recover_after}
    END,
    codec = {proposed:codec},
    payload = {proposed:payload},
    -- In some dialects an assignment sees the results of earlier assignments, so this column is written last.
    first_claimed_at = {proposed:first_claimed_at}

-- name: due_inputs
-- Several callers may read the same rows. Postponing decides between them.
SELECT id, first_claimed_at, codec, payload, recoveries, recover_after
FROM {recovery}
WHERE operation = ?1 AND recover_after <= {now} AND {alone}
ORDER BY recover_after LIMIT ?2

-- name: postpone_input
-- Several callers may have read the row as due. The first one postpones it, and the others then find another due time
-- than they read.
UPDATE {recovery} SET
    recover_after = {now} + ?5,
    recoveries = recoveries + ?6
WHERE {as_read}

-- name: forget_input
-- A call of the next generation may have replaced the row since it was read.
DELETE FROM {recovery} WHERE {as_read}
