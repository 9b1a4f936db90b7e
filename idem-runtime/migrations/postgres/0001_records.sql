-- Records of idempotent calls. Times are microseconds since 1970-01-01 UTC by the database's clock, durations are
-- microseconds. With another table name, every "idem_records" below is replaced by it; with a schema, that is the
-- search path.

-- A record is written twice, when it is claimed and when it ends. The room that is left keeps the second version on the
-- page of the first, so that no index is written (a HOT update).
CREATE TABLE IF NOT EXISTS "idem_records" (
    id bytea NOT NULL PRIMARY KEY,      -- SHA-256 over scope, operation and key, 32 bytes
    scope text NOT NULL,                -- empty for none
    operation text NOT NULL,
    idempotency_key text NOT NULL,
    fingerprint bytea NOT NULL,         -- version, id of the secret, hash: 37 bytes
    state text NOT NULL,                -- running, released, completed, failed, unrecorded, interrupted
    token bytea,                        -- 16 bytes; null once released or resolved by hand
    grant_number bigint NOT NULL,       -- the fencing token, never goes back
    attempt bigint NOT NULL,
    lease_until bigint NOT NULL,
    retention bigint NOT NULL,
    on_crash text NOT NULL,             -- rerun, refuse, reconcile
    codec text,
    payload bytea,
    first_claimed_at bigint NOT NULL,
    ended_at bigint,                    -- when it ended or was released
    purge_after bigint                  -- when purging looks at it, coarse; null where it stays until it is resolved
) WITH (fillfactor = 85);

-- Set once, at the claim, so that completing a record leaves the index alone. An index on the state would not.
CREATE INDEX IF NOT EXISTS "idem_records_purge" ON "idem_records" (purge_after);

-- A record that is deleted and claimed again after the clock was put back must not get a grant that a paused owner of
-- the deleted one still holds: the highest deleted grant is kept, by whomever the row was deleted. Once a statement, so
-- that a batch of deletions writes this row once.
CREATE TABLE IF NOT EXISTS "idem_records_dropped" (
    one bigint NOT NULL PRIMARY KEY CHECK (one = 1),
    grant_number bigint NOT NULL
) WITH (fillfactor = 10);

CREATE OR REPLACE FUNCTION "idem_records_deleted"() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- Whoever deletes may have another search path.
    EXECUTE format(
        'INSERT INTO %I.%I AS kept (one, grant_number)
         SELECT 1, max(grant_number) FROM deleted HAVING count(*) > 0
         ON CONFLICT (one) DO UPDATE SET grant_number = excluded.grant_number
         WHERE kept.grant_number < excluded.grant_number',
        TG_TABLE_SCHEMA, TG_TABLE_NAME || '_dropped');
    RETURN NULL;
END
$$;

DROP TRIGGER IF EXISTS "idem_records_deleted" ON "idem_records";
CREATE TRIGGER "idem_records_deleted" AFTER DELETE ON "idem_records"
    REFERENCING OLD TABLE AS deleted
    FOR EACH STATEMENT EXECUTE FUNCTION "idem_records_deleted"();
