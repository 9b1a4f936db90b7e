-- Records of idempotent calls. Times are microseconds since 1970-01-01 UTC by the database's clock, durations are
-- microseconds. With another table name, every "idem_records" below is replaced by it.

CREATE TABLE IF NOT EXISTS "idem_records" (
    id BLOB NOT NULL PRIMARY KEY,       -- SHA-256 over scope, operation and key, 32 bytes
    scope TEXT NOT NULL,                -- empty for none
    operation TEXT NOT NULL,
    idempotency_key TEXT NOT NULL,
    fingerprint BLOB NOT NULL,          -- version, id of the secret, hash: 37 bytes
    state TEXT NOT NULL,                -- running, released, completed, failed, unrecorded, interrupted
    claim_id BLOB,                      -- 16 bytes; null once released or resolved by hand
    fencing_token INTEGER NOT NULL,     -- never goes back
    attempt INTEGER NOT NULL,
    lease_until INTEGER NOT NULL,
    retention INTEGER NOT NULL,
    on_crash TEXT NOT NULL,             -- rerun, refuse, reconcile
    codec TEXT,
    payload BLOB,
    first_claimed_at INTEGER NOT NULL,
    ended_at INTEGER,                   -- when it ended or was released
    purge_after INTEGER                 -- when purging looks at it, coarse; null where it stays until it is resolved
) STRICT;

-- Set once, at the claim, so that completing a record leaves the index alone.
CREATE INDEX IF NOT EXISTS "idem_records_purge" ON "idem_records" (purge_after) WHERE purge_after IS NOT NULL;

-- The saved steps of calls, stored for as long as their record.
CREATE TABLE IF NOT EXISTS "idem_records_steps" (
    id BLOB NOT NULL,                   -- of the record
    name TEXT NOT NULL,                 -- unique in its record
    first_claimed_at INTEGER NOT NULL,  -- as in the record: a row of an earlier generation is not read, and overwritten
    codec TEXT NOT NULL,
    payload BLOB NOT NULL,
    PRIMARY KEY (id, name)
) STRICT;

-- The recovery inputs of calls, stored for as long as their record has no outcome.
CREATE TABLE IF NOT EXISTS "idem_records_recovery" (
    id BLOB NOT NULL PRIMARY KEY,       -- of the record
    first_claimed_at INTEGER NOT NULL,  -- as in the record: a row of an earlier generation of it counts for nothing
    operation TEXT NOT NULL,
    codec TEXT NOT NULL,
    payload BLOB NOT NULL,
    recover_after INTEGER NOT NULL,     -- when recovery checks whether the call's owner crashed
    recoveries INTEGER NOT NULL         -- how often the call was retried
) STRICT;

CREATE INDEX IF NOT EXISTS "idem_records_recovery_due" ON "idem_records_recovery" (operation, recover_after);

-- The highest fencing token of all deleted records. A record that is deleted and claimed again within one tick of the
-- clock, or after the clock was put back, must not get a fencing token that a paused owner of the deleted one still has.
CREATE TABLE IF NOT EXISTS "idem_records_fencing_floor" (
    one INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    fencing_token INTEGER NOT NULL
) STRICT;

-- Raises the floor, and deletes the steps and the recovery input of a deleted record, by whomever the row is deleted. Not
-- foreign keys: whether they are heeded is up to each connection.
CREATE TRIGGER IF NOT EXISTS "idem_records_deleted" AFTER DELETE ON "idem_records"
BEGIN
    INSERT INTO "idem_records_fencing_floor" (one, fencing_token) VALUES (1, OLD.fencing_token)
    ON CONFLICT (one) DO UPDATE SET fencing_token = excluded.fencing_token
    WHERE fencing_token < excluded.fencing_token;
    DELETE FROM "idem_records_steps" WHERE id = OLD.id;
    DELETE FROM "idem_records_recovery" WHERE id = OLD.id;
END;
