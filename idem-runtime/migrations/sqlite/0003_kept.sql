-- What calls keep to be made again, for as long as their record has no outcome. With another table name, every
-- "idem_records" below is replaced by it.

CREATE TABLE IF NOT EXISTS "idem_records_kept" (
    id BLOB NOT NULL PRIMARY KEY,       -- of the record
    first_claimed_at INTEGER NOT NULL,  -- as in the record: a row of an earlier life of it counts for nothing
    operation TEXT NOT NULL,
    codec TEXT NOT NULL,
    payload BLOB NOT NULL,
    recover_after INTEGER NOT NULL,     -- when somebody looks whether the call's owner died
    recoveries INTEGER NOT NULL         -- how often the call was made again
) STRICT;

CREATE INDEX IF NOT EXISTS "idem_records_recover" ON "idem_records_kept" (operation, recover_after);

-- Not a foreign key: whether one is heeded is up to each connection.
CREATE TRIGGER IF NOT EXISTS "idem_records_kept_deleted" AFTER DELETE ON "idem_records"
BEGIN
    DELETE FROM "idem_records_kept" WHERE id = OLD.id;
END;
