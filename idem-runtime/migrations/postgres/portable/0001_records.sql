-- Tables of the portable form, for databases that speak PostgreSQL but have no triggers, no PL/pgSQL, no advisory locks or
-- no sequences. Times are in microseconds since 1970-01-01 UTC, by the database's clock. Durations are in microseconds.
-- A store with another table name replaces every "idem_records" below by that name. A store with a schema puts it before
-- the names of the tables.
--
-- Each statement runs on its own, because some databases commit a transaction before a definition. Each statement may be
-- repeated. A statement ends with a semicolon at the end of a line.

-- Applied versions. The first statement creates this table: its existence tells every process that the tables have the
-- portable form.
CREATE TABLE IF NOT EXISTS "idem_records_portable" (
    version bigint NOT NULL PRIMARY KEY,
    applied_at bigint NOT NULL,
    compatible_since bigint             -- number of versions that a release knows to work with this one; null for itself
);

CREATE TABLE IF NOT EXISTS "idem_records" (
    id bytea NOT NULL PRIMARY KEY,      -- SHA-256 over scope, operation and key, 32 bytes
    scope text NOT NULL,                -- empty for none
    operation text NOT NULL,
    idempotency_key text NOT NULL,
    fingerprint bytea NOT NULL,         -- version, id of the secret, hash: 37 bytes
    state text NOT NULL,                -- running, released, completed, failed, unrecorded, interrupted
    claim_id bytea,                     -- 16 bytes; null after a release or a resolution by an operator
    fencing_token bigint NOT NULL,      -- never decreases
    attempt bigint NOT NULL,
    lease_until bigint NOT NULL,
    retention bigint NOT NULL,
    on_crash text NOT NULL,             -- rerun, refuse, reconcile
    codec text,
    payload bytea,
    first_claimed_at bigint NOT NULL,
    ended_at bigint,                    -- time at which the record ended or was released
    purge_after bigint,                 -- time from which a purge checks the record; null if it stays until resolved
    owner text,                         -- label of the owner of the current or last attempt
    attempt_began_at bigint,            -- null if the attempt began with the first claim
    history text,                       -- earlier attempts, one line each
    members bytea                       -- digests of the request's members
);

-- The column is set at the claim, so that completing a record does not write this index. An index on the state would be
-- written at each completion.
CREATE INDEX IF NOT EXISTS "idem_records_purge" ON "idem_records" (purge_after);

-- Saved steps of calls. A step is stored as long as its record.
CREATE TABLE IF NOT EXISTS "idem_records_steps" (
    id bytea NOT NULL,                  -- of the record
    name text NOT NULL,                 -- unique in its record
    first_claimed_at bigint NOT NULL,   -- as in the record; a row of an earlier generation is replaced
    codec text NOT NULL,
    payload bytea NOT NULL,
    PRIMARY KEY (id, name)
);

-- Recovery inputs of calls. An input is stored until its record has an outcome.
CREATE TABLE IF NOT EXISTS "idem_records_recovery" (
    id bytea NOT NULL PRIMARY KEY,      -- of the record
    first_claimed_at bigint NOT NULL,   -- as in the record; a row of an earlier generation is ignored
    operation text NOT NULL,
    codec text NOT NULL,
    payload bytea NOT NULL,
    recover_after bigint NOT NULL,      -- time from which recovery checks whether the owner crashed
    recoveries bigint NOT NULL          -- number of times that the call was retried
);

CREATE INDEX IF NOT EXISTS "idem_records_recovery_due" ON "idem_records_recovery" (operation, recover_after);

-- Fencing floor: the highest fencing token of all deleted records. A record may be deleted, and claimed again after the
-- clock was set back. It must not get a fencing token that a paused owner of the deleted record still has. Every
-- statement of the store that deletes records raises this number. If you delete rows by hand, raise it by hand as well.
CREATE TABLE IF NOT EXISTS "idem_records_fencing_floor" (
    one bigint NOT NULL PRIMARY KEY CHECK (one = 1),
    fencing_token bigint NOT NULL
);

-- Audit of manual changes: who changed which records, and why. Entries outlive their records, and no process changes or
-- deletes them. The index finds the entries of one record; all others are read by number, the newest first.
CREATE TABLE IF NOT EXISTS "idem_records_audit" (
    entry bigint NOT NULL PRIMARY KEY,  -- one more than the highest before
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
