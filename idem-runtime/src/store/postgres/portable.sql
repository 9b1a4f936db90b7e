-- Parts of the statements that the portable form has in place of those of the standard form. They need no trigger, no
-- function, no advisory lock and no sequence.

-- part: erase_begin
WITH deleted AS (DELETE FROM {records}

-- part: erase_end
RETURNING id, state, fencing_token), {deleted_with_records}
SELECT state FROM deleted

-- part: scope_sorted
-- Databases differ in how they compare texts, so the index serves equal scopes alone.
left(scope, 255)

-- part: scope_index
(left(scope, 255))

-- part: deleted_with_records
-- Raises the fencing floor, and deletes the steps and recovery inputs of deleted records, in the statement that deletes
-- the records: a crash between two statements would lose the fencing token of a record.
raised AS (
    INSERT INTO {fencing_floor} AS f (one, fencing_token)
    SELECT 1, max(fencing_token) FROM deleted HAVING count(*) > 0
    ON CONFLICT (one) DO UPDATE SET fencing_token = excluded.fencing_token
    WHERE f.fencing_token < excluded.fencing_token
), deleted_steps AS (
    DELETE FROM {steps} WHERE id IN (SELECT id FROM deleted)
), deleted_inputs AS (
    DELETE FROM {recovery} WHERE id IN (SELECT id FROM deleted)
)

-- part: entry_column
entry,

-- part: entry_number
-- Number of a new entry. Two transactions may find the same number. The primary key then refuses one of them, and the
-- store runs that one again.
(SELECT coalesce(max(entry), 0) + 1 FROM {audit}),

-- part: new_record
-- A record that exists is neither written nor locked.
INSERT INTO {records} ({inserted})
SELECT
    ?1, ?2, ?3, ?4, ?5, 'running', ?6,
    greatest({now}, coalesce((SELECT fencing_token + 1 FROM {fencing_floor}), 0)), 1,
    {now} + ?7, ?8, ?9, {now}, {now} + ?7 + ?8, ?10, ?11

-- part: unless_it_exists
WHERE NOT EXISTS (SELECT 1 FROM {records} AS e WHERE e.id = ?1)
ON CONFLICT (id) DO NOTHING
RETURNING fencing_token

-- part: insert_first
WITH inserted AS ({new_record} {unless_it_exists})

-- part: insert_first_in_transaction
-- An insert waits for the transaction that inserted the row and is still open. The wait is limited from before the
-- insert until this statement ends. After an error the setting is restored by rolling back.
WITH waiting AS (
    SELECT current_setting('lock_timeout') AS before, set_config('lock_timeout', '{longest_wait}', true) AS during
), inserted AS ({new_record} FROM waiting {unless_it_exists})

-- part: inserted_row
LEFT JOIN inserted AS m ON true

-- part: insert
-- Fencing token of the inserted record, or the number of a lost race.
coalesce(m.fencing_token, {lost_race})

-- part: locked_by_another
-- There is no lock to try: an insert that waits too long fails.

-- part: reserved
-- Without an advisory lock, only its row can hold a record.

-- part: transaction_number
-- As above.
NULL::bigint

-- part: restored_wait
, (SELECT set_config('lock_timeout', before, true) FROM waiting)

-- part: delete_begin
, deleted AS (DELETE FROM {records}

-- part: delete_end
RETURNING r.id, r.state, r.fencing_token), {deleted_with_records}
SELECT state FROM deleted
