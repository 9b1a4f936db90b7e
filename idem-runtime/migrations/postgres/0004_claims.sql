-- Fails with a division by zero if other code has left a transaction open on the connection, and returns true otherwise.
-- The store's other statements contain this condition. A claim calls it as a function, and only if it inserts: the server
-- prepares each subquery of a statement for execution, even if it is not executed, which takes longer than a replay.
CREATE OR REPLACE FUNCTION "idem_records_alone"() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN 1 / coalesce(
        transaction_timestamp() IN (
            statement_timestamp(),
            (SELECT max(c.creation_time) FROM pg_catalog.pg_cursors AS c)
        ), false)::integer = 1;
END
$$;

-- Looks for a record after its advisory lock was taken. Returns 0 if there is one, and otherwise the fencing token of a
-- claim that holds the record by its lock alone: its transaction inserts the record when it ends.
--
-- The statement that calls this function takes the lock. What that statement reads itself may be older than the lock:
-- another transaction may have inserted the record in between. A function sees what was committed before its own
-- statements, at the isolation level at which the store calls it. The transaction gets its number here, by which the
-- insert recognises it.
--
-- Like `idem_records_begin`, the function serves tables in another schema than that of its search path.
CREATE OR REPLACE FUNCTION "idem_records_reserve"(records regclass, p_id bytea)
RETURNS bigint LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    at bigint := (date_part('epoch', statement_timestamp()) * 1000000)::bigint;
    granted bigint;
    schema_name text;
BEGIN
    IF records = to_regclass('"idem_records"') THEN
        SELECT greatest(at, coalesce((SELECT f.fencing_token + 1 FROM "idem_records_fencing_floor" AS f), 0))
        WHERE NOT EXISTS (SELECT FROM "idem_records" AS r WHERE r.id = p_id)
        INTO granted;
    ELSE
        SELECT n.nspname INTO STRICT schema_name
        FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = records;
        EXECUTE format(
            'SELECT greatest($1, coalesce((SELECT f.fencing_token + 1 FROM %I."idem_records_fencing_floor" AS f), 0))
            WHERE NOT EXISTS (SELECT FROM %I."idem_records" AS r WHERE r.id = $2)', schema_name, schema_name)
        INTO granted
        USING at, p_id;
    END IF;
    IF granted IS NOT NULL THEN
        PERFORM txid_current();
    END IF;
    RETURN coalesce(granted, 0);
END
$$;
