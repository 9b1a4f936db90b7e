-- Audit of manual changes: who changed which records, and why. Entries outlive their records, and no process changes or
-- deletes them. The index finds the entries of one record; all others are read by number, the newest first.
CREATE TABLE IF NOT EXISTS "idem_records_audit" (
    entry INTEGER PRIMARY KEY,
    made_at INTEGER NOT NULL,
    actor TEXT NOT NULL,
    reason TEXT NOT NULL,
    action TEXT NOT NULL,               -- completed, failed, unrecorded, released, interrupted, erased, purged
    id BLOB,                            -- of the record; null for a purge, like the next six columns
    scope TEXT,
    operation TEXT,
    idempotency_key TEXT,
    state TEXT,                         -- before the change, like the next two columns
    fencing_token INTEGER,
    attempt INTEGER,
    removed INTEGER,                    -- counts of a purge, null for all others
    abandoned INTEGER,
    interrupted INTEGER
) STRICT;

CREATE INDEX IF NOT EXISTS "idem_records_audit_of" ON "idem_records_audit" (id, entry);
