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
    claim_id bytea,                     -- 16 bytes; null once released or resolved by hand
    fencing_token bigint NOT NULL,      -- never goes back
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

-- The saved steps of calls, stored for as long as their record.
CREATE TABLE IF NOT EXISTS "idem_records_steps" (
    id bytea NOT NULL,                  -- of the record
    name text COLLATE "C" NOT NULL,     -- unique in its record
    first_claimed_at bigint NOT NULL,   -- as in the record: a row of an earlier generation is not read, and overwritten
    codec text NOT NULL,
    payload bytea NOT NULL,
    PRIMARY KEY (id, name)
);

-- The recovery inputs of calls, stored for as long as their record has no outcome.
CREATE TABLE IF NOT EXISTS "idem_records_recovery" (
    id bytea NOT NULL PRIMARY KEY,      -- of the record
    first_claimed_at bigint NOT NULL,   -- as in the record: a row of an earlier generation of it counts for nothing
    operation text NOT NULL,
    codec text NOT NULL,
    payload bytea NOT NULL,
    recover_after bigint NOT NULL,      -- when recovery checks whether the call's owner crashed
    recoveries bigint NOT NULL          -- how often the call was retried
);

CREATE INDEX IF NOT EXISTS "idem_records_recovery_due" ON "idem_records_recovery" (operation, recover_after);

-- The highest fencing token of all deleted records. A record that is deleted and claimed again after the clock was put
-- back must not get a fencing token that a paused owner of the deleted one still has.
CREATE TABLE IF NOT EXISTS "idem_records_fencing_floor" (
    one bigint NOT NULL PRIMARY KEY CHECK (one = 1),
    fencing_token bigint NOT NULL
) WITH (fillfactor = 10);

-- Raises the floor, and deletes the steps and the recovery inputs of deleted records, by whomever the rows are deleted.
-- Once a statement, so that a batch of deletions writes the floor once. A foreign key would look for the steps row by
-- row, and purging would take several times as long.
CREATE OR REPLACE FUNCTION "idem_records_deleted"() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- Whoever deletes may have another search path.
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

-- Inserts a record that does not exist, and returns its fencing token; 0 where a concurrent claim has inserted it. The
-- statement that claims reads the record, and calls this only where it finds none: to prepare an insert takes the server
-- longer than all the rest of a replay.
--
-- The caller says into which table. The function has a search path of its own, because the caller's may be another, and
-- a function keeps the schema that it was created in: after the schema was renamed, or in a copy of it, that is another
-- one. The insert whose plan is cached serves the schema of the function, and any other schema is found by name.
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
