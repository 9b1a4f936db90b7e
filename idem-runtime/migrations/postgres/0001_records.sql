-- Records of idempotent calls. Times are in microseconds since 1970-01-01 UTC, by the database's clock. Durations are
-- in microseconds. A store with another table name replaces every "idem_records" below by that name. A store with a
-- schema sets the search path to that schema.

-- A record is written twice: when it is claimed, and when it ends. The fill factor leaves room for the second version
-- on the page of the first, so that the update writes no index (a HOT update).
CREATE TABLE IF NOT EXISTS "idem_records" (
    id bytea NOT NULL PRIMARY KEY,      -- SHA-256 over scope, operation and key, 32 bytes
    scope text NOT NULL,                -- empty for none
    operation text NOT NULL,
    idempotency_key text NOT NULL,
    fingerprint bytea NOT NULL,         -- version, id of the secret, hash: 37 bytes
    state text NOT NULL,                -- running, released, completed, failed, unrecorded, interrupted
    claim_id bytea,                     -- 16 bytes; null after a release or a resolution by an operator
    fencing_token bigint NOT NULL,      -- never decreases
    attempt bigint NOT NULL,
    lease_until bigint NOT NULL,
    retention bigint NOT NULL,
    on_crash text NOT NULL,             -- rerun, refuse, reconcile
    codec text,
    payload bytea,
    first_claimed_at bigint NOT NULL,
    ended_at bigint,                    -- time at which the record ended or was released
    purge_after bigint                  -- time from which a purge checks the record; null if it stays until resolved
) WITH (fillfactor = 85);

-- The column is set at the claim, so that completing a record does not write this index. An index on the state would be
-- written at each completion.
CREATE INDEX IF NOT EXISTS "idem_records_purge" ON "idem_records" (purge_after);

-- Saved steps of calls. A step is stored as long as its record.
CREATE TABLE IF NOT EXISTS "idem_records_steps" (
    id bytea NOT NULL,                  -- of the record
    name text COLLATE "C" NOT NULL,     -- unique in its record
    first_claimed_at bigint NOT NULL,   -- as in the record; a row of an earlier generation is replaced
    codec text NOT NULL,
    payload bytea NOT NULL,
    PRIMARY KEY (id, name)
);

-- Recovery inputs of calls. An input is stored until its record has an outcome.
CREATE TABLE IF NOT EXISTS "idem_records_recovery" (
    id bytea NOT NULL PRIMARY KEY,      -- of the record
    first_claimed_at bigint NOT NULL,   -- as in the record; a row of an earlier generation is ignored
    operation text NOT NULL,
    codec text NOT NULL,
    payload bytea NOT NULL,
    recover_after bigint NOT NULL,      -- time from which recovery checks whether the owner crashed
    recoveries bigint NOT NULL          -- number of times that the call was retried
);

CREATE INDEX IF NOT EXISTS "idem_records_recovery_due" ON "idem_records_recovery" (operation, recover_after);

-- Fencing floor: the highest fencing token of all deleted records. A record may be deleted, and claimed again after the
-- clock was set back. It must not get a fencing token that a paused owner of the deleted record still has.
CREATE TABLE IF NOT EXISTS "idem_records_fencing_floor" (
    one bigint NOT NULL PRIMARY KEY CHECK (one = 1),
    fencing_token bigint NOT NULL
) WITH (fillfactor = 10);

-- Raises the fencing floor, and deletes the steps and recovery inputs of deleted records. The trigger covers every
-- statement that deletes records, and runs once for each statement, so that a batch of deletions writes the floor once.
-- A foreign key would search the steps row by row, and purging would take several times as long.
CREATE OR REPLACE FUNCTION "idem_records_deleted"() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- The session that deletes may have another search path.
    EXECUTE format(
        'INSERT INTO %I.%I AS f (one, fencing_token)
         SELECT 1, max(fencing_token) FROM deleted HAVING count(*) > 0
         ON CONFLICT (one) DO UPDATE SET fencing_token = excluded.fencing_token
         WHERE f.fencing_token < excluded.fencing_token',
        TG_TABLE_SCHEMA, TG_TABLE_NAME || '_fencing_floor');
    EXECUTE format(
        'DELETE FROM %I.%I AS s USING deleted WHERE s.id = deleted.id',
        TG_TABLE_SCHEMA, TG_TABLE_NAME || '_steps');
    EXECUTE format(
        'DELETE FROM %I.%I AS r USING deleted WHERE r.id = deleted.id',
        TG_TABLE_SCHEMA, TG_TABLE_NAME || '_recovery');
    RETURN NULL;
END
$$;

DROP TRIGGER IF EXISTS "idem_records_deleted" ON "idem_records";
CREATE TRIGGER "idem_records_deleted" AFTER DELETE ON "idem_records"
    REFERENCING OLD TABLE AS deleted
    FOR EACH STATEMENT EXECUTE FUNCTION "idem_records_deleted"();

-- Inserts a record that does not exist, and returns its fencing token. Returns 0 if a concurrent claim inserted the
-- record first. The statement that claims reads the record, and calls this function only if there is none: preparing an
-- insert takes the server longer than the rest of a replay.
--
-- The caller passes its table. The function keeps the search path of its creation, because the caller may have another
-- one. After the schema was renamed or copied, the caller's table may be in another schema than this path names. The
-- insert with a cached plan serves the schema of the path. For any other schema, the function builds an insert with the
-- name of that schema.
CREATE OR REPLACE FUNCTION "idem_records_claim"(
    records regclass, p_id bytea, p_scope text, p_operation text, p_key text, p_fingerprint bytea, p_claim_id bytea,
    p_lease bigint, p_retention bigint, p_on_crash text
) RETURNS bigint LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    at bigint := (date_part('epoch', statement_timestamp()) * 1000000)::bigint;
    granted bigint;
    schema_name text;
BEGIN
    IF records = to_regclass('"idem_records"') THEN
        INSERT INTO "idem_records" AS r (
            id, scope, operation, idempotency_key, fingerprint, state, claim_id, fencing_token, attempt, lease_until,
            retention, on_crash, first_claimed_at, purge_after
        ) VALUES (
            p_id, p_scope, p_operation, p_key, p_fingerprint, 'running', p_claim_id,
            greatest(at, coalesce((SELECT f.fencing_token + 1 FROM "idem_records_fencing_floor" AS f), 0)), 1,
            at + p_lease, p_retention, p_on_crash, at, at + p_lease + p_retention
        ) ON CONFLICT (id) DO NOTHING RETURNING r.fencing_token INTO granted;
    ELSE
        SELECT n.nspname INTO STRICT schema_name
        FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = records;
        EXECUTE format(
            'INSERT INTO %I."idem_records" AS r (
                id, scope, operation, idempotency_key, fingerprint, state, claim_id, fencing_token, attempt,
                lease_until, retention, on_crash, first_claimed_at, purge_after
            ) VALUES (
                $1, $2, $3, $4, $5, ''running'', $6,
                greatest($7, coalesce((SELECT f.fencing_token + 1 FROM %I."idem_records_fencing_floor" AS f), 0)), 1,
                $7 + $8, $9, $10, $7, $7 + $8 + $9
            ) ON CONFLICT (id) DO NOTHING RETURNING r.fencing_token', schema_name, schema_name)
        INTO granted
        USING p_id, p_scope, p_operation, p_key, p_fingerprint, p_claim_id, at, p_lease, p_retention, p_on_crash;
    END IF;
    RETURN coalesce(granted, 0);
END
$$;
