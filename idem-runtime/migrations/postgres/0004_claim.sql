-- Makes a record that is not there, and gives its grant; 0 where somebody else has made it at the same time. The
-- statement that claims reads the record, and calls this only where it finds none: to prepare an insert takes the server
-- longer than all the rest of a replay. With another table name, every "idem_records" below is replaced by it; with a
-- schema, that is the search path, and the function keeps it: whoever claims may have another.
CREATE OR REPLACE FUNCTION "idem_records_claim"(
    its_id bytea, its_scope text, its_operation text, its_key text, its_fingerprint bytea, its_token bytea,
    its_lease bigint, its_retention bigint, its_on_crash text
) RETURNS bigint LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    at bigint := (date_part('epoch', statement_timestamp()) * 1000000)::bigint;
    granted bigint;
BEGIN
    INSERT INTO "idem_records" AS r (
        id, scope, operation, idempotency_key, fingerprint, state, token, grant_number, attempt, lease_until, retention,
        on_crash, first_claimed_at, purge_after
    ) VALUES (
        its_id, its_scope, its_operation, its_key, its_fingerprint, 'running', its_token,
        greatest(at, coalesce((SELECT d.grant_number + 1 FROM "idem_records_dropped" AS d), 0)), 1, at + its_lease,
        its_retention, its_on_crash, at, at + its_lease + its_retention
    ) ON CONFLICT (id) DO NOTHING RETURNING r.grant_number INTO granted;
    RETURN coalesce(granted, 0);
END
$$;
