-- The function of 0004 inserted into the table that its search path had found when it was made: after the schema was
-- renamed it failed, and in a copy of the schema it claimed in the original. Whoever claims now says into which table. The
-- insert whose plan is kept serves the schema that the function was made in; any other is found by name. With another
-- table name, every "idem_records" below is replaced by it; with a schema, that is the search path.
DROP FUNCTION IF EXISTS "idem_records_claim"(bytea, text, text, text, bytea, bytea, bigint, bigint, text);

CREATE OR REPLACE FUNCTION "idem_records_claim"(
    records regclass, its_id bytea, its_scope text, its_operation text, its_key text, its_fingerprint bytea,
    its_token bytea, its_lease bigint, its_retention bigint, its_on_crash text
) RETURNS bigint LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    at bigint := (date_part('epoch', statement_timestamp()) * 1000000)::bigint;
    granted bigint;
    schema_name text;
BEGIN
    IF records = to_regclass('"idem_records"') THEN
        INSERT INTO "idem_records" AS r (
            id, scope, operation, idempotency_key, fingerprint, state, token, grant_number, attempt, lease_until,
            retention, on_crash, first_claimed_at, purge_after
        ) VALUES (
            its_id, its_scope, its_operation, its_key, its_fingerprint, 'running', its_token,
            greatest(at, coalesce((SELECT d.grant_number + 1 FROM "idem_records_dropped" AS d), 0)), 1,
            at + its_lease, its_retention, its_on_crash, at, at + its_lease + its_retention
        ) ON CONFLICT (id) DO NOTHING RETURNING r.grant_number INTO granted;
    ELSE
        SELECT n.nspname INTO STRICT schema_name
        FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = records;
        EXECUTE format(
            'INSERT INTO %I."idem_records" AS r (
                id, scope, operation, idempotency_key, fingerprint, state, token, grant_number, attempt, lease_until,
                retention, on_crash, first_claimed_at, purge_after
            ) VALUES (
                $1, $2, $3, $4, $5, ''running'', $6,
                greatest($7, coalesce((SELECT d.grant_number + 1 FROM %I."idem_records_dropped" AS d), 0)), 1,
                $7 + $8, $9, $10, $7, $7 + $8 + $9
            ) ON CONFLICT (id) DO NOTHING RETURNING r.grant_number', schema_name, schema_name)
        INTO granted
        USING its_id, its_scope, its_operation, its_key, its_fingerprint, its_token, at, its_lease, its_retention,
            its_on_crash;
    END IF;
    RETURN coalesce(granted, 0);
END
$$;
