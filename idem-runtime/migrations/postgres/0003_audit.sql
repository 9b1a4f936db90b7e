-- Audit of manual changes: who changed which records, and why. Entries outlive their records, and no process changes or
-- deletes them. The index finds the entries of one record; all others are read by number, the newest first.
CREATE TABLE IF NOT EXISTS "idem_records_audit" (
    entry bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    made_at bigint NOT NULL,
    actor text NOT NULL,
    reason text NOT NULL,
    action text NOT NULL,               -- completed, failed, unrecorded, released, interrupted, erased, purged
    id bytea,                           -- of the record; null for a purge, like the next six columns
    scope text,
    operation text,
    idempotency_key text,
    state text,                         -- before the change, like the next two columns
    fencing_token bigint,
    attempt bigint,
    removed bigint,                     -- counts of a purge, null for all others
    abandoned bigint,
    interrupted bigint
);

CREATE INDEX IF NOT EXISTS "idem_records_audit_of" ON "idem_records_audit" (id, entry);
