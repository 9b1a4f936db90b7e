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
