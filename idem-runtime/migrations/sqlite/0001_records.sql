-- Records of idempotent calls. Times are in microseconds since 1970-01-01 UTC, by the database's clock. Durations are
-- in microseconds. A store with another table name replaces every "idem_records" below by that name.

CREATE TABLE IF NOT EXISTS "idem_records" (
    id BLOB NOT NULL PRIMARY KEY,       -- SHA-256 over scope, operation and key, 32 bytes
    scope TEXT NOT NULL,                -- empty for none
    operation TEXT NOT NULL,
    idempotency_key TEXT NOT NULL,
    fingerprint BLOB NOT NULL,          -- version, id of the secret, hash: 37 bytes
    state TEXT NOT NULL,                -- running, released, completed, failed, unrecorded, interrupted
    claim_id BLOB,                      -- 16 bytes; null after a release or a resolution by an operator
    fencing_token INTEGER NOT NULL,     -- never decreases
    attempt INTEGER NOT NULL,
    lease_until INTEGER NOT NULL,
    retention INTEGER NOT NULL,
    on_crash TEXT NOT NULL,             -- rerun, refuse, reconcile
    codec TEXT,
    payload BLOB,
    first_claimed_at INTEGER NOT NULL,
    ended_at INTEGER,                   -- time at which the record ended or was released
    purge_after INTEGER                 -- time from which a purge checks the record; null if it stays until resolved
) STRICT;

-- The column is set at the claim, so that completing a record does not write this index.
CREATE INDEX IF NOT EXISTS "idem_records_purge" ON "idem_records" (purge_after) WHERE purge_after IS NOT NULL;

-- Saved steps of calls. A step is stored as long as its record.
CREATE TABLE IF NOT EXISTS "idem_records_steps" (
    id BLOB NOT NULL,                   -- of the record
    name TEXT NOT NULL,                 -- unique in its record
    first_claimed_at INTEGER NOT NULL,  -- as in the record; a row of an earlier generation is replaced
    codec TEXT NOT NULL,
    payload BLOB NOT NULL,
    PRIMARY KEY (id, name)
) STRICT;

-- Recovery inputs of calls. An input is stored until its record has an outcome.
CREATE TABLE IF NOT EXISTS "idem_records_recovery" (
    id BLOB NOT NULL PRIMARY KEY,       -- of the record
    first_claimed_at INTEGER NOT NULL,  -- as in the record; a row of an earlier generation is ignored
    operation TEXT NOT NULL,
    codec TEXT NOT NULL,
    payload BLOB NOT NULL,
    recover_after INTEGER NOT NULL,     -- time from which recovery checks whether the owner crashed
    recoveries INTEGER NOT NULL         -- number of times that the call was retried
) STRICT;

CREATE INDEX IF NOT EXISTS "idem_records_recovery_due" ON "idem_records_recovery" (operation, recover_after);

-- Fencing floor: the highest fencing token of all deleted records. A record may be deleted, and claimed again within
-- one tick of the clock or after the clock was set back. It must not get a fencing token that a paused owner of the
-- deleted record still has.
CREATE TABLE IF NOT EXISTS "idem_records_fencing_floor" (
    one INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    fencing_token INTEGER NOT NULL
) STRICT;

-- Raises the fencing floor, and deletes the steps and the recovery input of a deleted record. The trigger covers every
-- statement that deletes records. Foreign keys would not: each connection decides whether they are enforced.
CREATE TRIGGER IF NOT EXISTS "idem_records_deleted" AFTER DELETE ON "idem_records"
BEGIN
    INSERT INTO "idem_records_fencing_floor" (one, fencing_token) VALUES (1, OLD.fencing_token)
    ON CONFLICT (one) DO UPDATE SET fencing_token = excluded.fencing_token
    WHERE fencing_token < excluded.fencing_token;
    DELETE FROM "idem_records_steps" WHERE id = OLD.id;
    DELETE FROM "idem_records_recovery" WHERE id = OLD.id;
END;
