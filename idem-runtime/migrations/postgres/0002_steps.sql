-- The finished steps of calls, kept for as long as their record. With another table name, every "idem_records" below is
-- replaced by it; with a schema, that is the search path.

CREATE TABLE IF NOT EXISTS "idem_records_steps" (
    id bytea NOT NULL,                  -- of the record
    name text COLLATE "C" NOT NULL,     -- unique in its record
    first_claimed_at bigint NOT NULL,   -- as in the record: a row of an earlier life of it is not seen, and written over
    codec text NOT NULL,
    payload bytea NOT NULL,
    PRIMARY KEY (id, name)
);

-- The trigger that keeps the highest deleted grant deletes the steps as well: once a statement, where a foreign key would
-- look for them row by row, and purging would take several times as long.
CREATE OR REPLACE FUNCTION "idem_records_deleted"() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- Whoever deletes may have another search path.
    EXECUTE format(
        'INSERT INTO %I.%I AS kept (one, grant_number)
         SELECT 1, max(grant_number) FROM deleted HAVING count(*) > 0
         ON CONFLICT (one) DO UPDATE SET grant_number = excluded.grant_number
         WHERE kept.grant_number < excluded.grant_number',
        TG_TABLE_SCHEMA, TG_TABLE_NAME || '_dropped');
    EXECUTE format(
        'DELETE FROM %I.%I AS s USING deleted WHERE s.id = deleted.id',
        TG_TABLE_SCHEMA, TG_TABLE_NAME || '_steps');
    RETURN NULL;
END
$$;
