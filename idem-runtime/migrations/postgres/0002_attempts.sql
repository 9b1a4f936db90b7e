-- Attempts of calls, for operators: who made them, and how they ended. Processes of the version before leave these
-- columns null. Adding a column without a default rewrites no row.
ALTER TABLE "idem_records"
    ADD COLUMN IF NOT EXISTS owner text,                -- label of the owner of the current or last attempt
    ADD COLUMN IF NOT EXISTS attempt_began_at bigint,   -- null if the attempt began with the first claim
    ADD COLUMN IF NOT EXISTS history text,              -- earlier attempts, one line each
    ADD COLUMN IF NOT EXISTS members bytea;             -- digests of the request's members

-- Inserts a record that does not exist, and returns its fencing token, like the function `idem_records_claim`. That one
-- stores no label of the owner, and stays for processes of the version before.
CREATE OR REPLACE FUNCTION "idem_records_begin"(
    records regclass, p_id bytea, p_scope text, p_operation text, p_key text, p_fingerprint bytea, p_claim_id bytea,
    p_lease bigint, p_retention bigint, p_on_crash text, p_owner text,
    p_members bytea
) RETURNS bigint LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    at bigint := (date_part('epoch', statement_timestamp()) * 1000000)::bigint;
    granted bigint;
    schema_name text;
BEGIN
    IF records = to_regclass('"idem_records"') THEN
        INSERT INTO "idem_records" AS r (
            id, scope, operation, idempotency_key, fingerprint, state, claim_id, fencing_token, attempt, lease_until,
            retention, on_crash, first_claimed_at, purge_after, owner, members
        ) VALUES (
            p_id, p_scope, p_operation, p_key, p_fingerprint, 'running', p_claim_id,
            greatest(at, coalesce((SELECT f.fencing_token + 1 FROM "idem_records_fencing_floor" AS f), 0)), 1,
            at + p_lease, p_retention, p_on_crash, at, at + p_lease + p_retention, p_owner, p_members
        ) ON CONFLICT (id) DO NOTHING RETURNING r.fencing_token INTO granted;
    ELSE
        SELECT n.nspname INTO STRICT schema_name
        FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = records;
        EXECUTE format(
            'INSERT INTO %I."idem_records" AS r (
                id, scope, operation, idempotency_key, fingerprint, state, claim_id, fencing_token, attempt,
                lease_until, retention, on_crash, first_claimed_at, purge_after, owner, members
            ) VALUES (
                $1, $2, $3, $4, $5, ''running'', $6,
                greatest($7, coalesce((SELECT f.fencing_token + 1 FROM %I."idem_records_fencing_floor" AS f), 0)), 1,
                $7 + $8, $9, $10, $7, $7 + $8 + $9, $11, $12
            ) ON CONFLICT (id) DO NOTHING RETURNING r.fencing_token', schema_name, schema_name)
        INTO granted
        USING p_id, p_scope, p_operation, p_key, p_fingerprint, p_claim_id, at, p_lease, p_retention, p_on_crash,
            p_owner, p_members;
    END IF;
    RETURN coalesce(granted, 0);
END
$$;
