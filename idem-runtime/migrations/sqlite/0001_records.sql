-- Records of idempotent calls. Times are microseconds since 1970-01-01 UTC by the database's clock, durations are
-- microseconds. With another table name, every "idem_records" below is replaced by it.

CREATE TABLE IF NOT EXISTS "idem_records" (
    id BLOB NOT NULL PRIMARY KEY,       -- SHA-256 over scope, operation and key, 32 bytes
    scope TEXT NOT NULL,                -- empty for none
    operation TEXT NOT NULL,
    idempotency_key TEXT NOT NULL,
    fingerprint BLOB NOT NULL,          -- version, id of the secret, hash: 37 bytes
    state TEXT NOT NULL,                -- running, released, completed, failed, unrecorded, interrupted
    token BLOB,                         -- 16 bytes; null once released or resolved by hand
    grant_number INTEGER NOT NULL,      -- the fencing token, never goes back
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

-- A record that is deleted and claimed again within one tick of the clock, or after the clock was put back, must not
-- get a grant that a paused owner of the deleted one still holds: the highest deleted grant is kept, by whomever the
-- row was deleted.
CREATE TABLE IF NOT EXISTS "idem_records_dropped" (
    one INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    grant_number INTEGER NOT NULL
) STRICT;

CREATE TRIGGER IF NOT EXISTS "idem_records_deleted" AFTER DELETE ON "idem_records"
BEGIN
    INSERT INTO "idem_records_dropped" (one, grant_number) VALUES (1, OLD.grant_number)
    ON CONFLICT (one) DO UPDATE SET grant_number = excluded.grant_number
    WHERE grant_number < excluded.grant_number;
END;
