-- The finished steps of calls, kept for as long as their record. With another table name, every "idem_records" below is
-- replaced by it.

CREATE TABLE IF NOT EXISTS "idem_records_steps" (
    id BLOB NOT NULL,                   -- of the record
    name TEXT NOT NULL,                 -- unique in its record
    first_claimed_at INTEGER NOT NULL,  -- as in the record: a row of an earlier life of it is not seen, and written over
    codec TEXT NOT NULL,
    payload BLOB NOT NULL,
    PRIMARY KEY (id, name)
) STRICT;

-- Not a foreign key: whether one is heeded is up to each connection.
CREATE TRIGGER IF NOT EXISTS "idem_records_steps_deleted" AFTER DELETE ON "idem_records"
BEGIN
    DELETE FROM "idem_records_steps" WHERE id = OLD.id;
END;
