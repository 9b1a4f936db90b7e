-- What calls keep to be made again, for as long as their record has no outcome. With another table name, every
-- "idem_records" below is replaced by it; with a schema, that is the search path.

CREATE TABLE IF NOT EXISTS "idem_records_kept" (
    id bytea NOT NULL PRIMARY KEY,      -- of the record
    first_claimed_at bigint NOT NULL,   -- as in the record: a row of an earlier life of it counts for nothing
    operation text NOT NULL,
    codec text NOT NULL,
    payload bytea NOT NULL,
    recover_after bigint NOT NULL,      -- when somebody looks whether the call's owner died
    recoveries bigint NOT NULL          -- how often the call was made again
);

CREATE INDEX IF NOT EXISTS "idem_records_recover" ON "idem_records_kept" (operation, recover_after);

-- Deleted records take along what was kept with them.
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
    EXECUTE format(
        'DELETE FROM %I.%I AS k USING deleted WHERE k.id = deleted.id',
        TG_TABLE_SCHEMA, TG_TABLE_NAME || '_kept');
    RETURN NULL;
END
$$;
