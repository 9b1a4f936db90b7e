-- Messages that wait for their relay. Times are microseconds since 1970-01-01 UTC by the database's clock. With another
-- table name, every "idem_outbox" below is replaced by it.

-- AUTOINCREMENT, because a number that was used again would put a message before those that wait longer.
CREATE TABLE IF NOT EXISTS "idem_outbox" (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,  -- the order in which they were enqueued
    message_key TEXT NOT NULL UNIQUE,   -- what a consumer tells duplicates by
    topic TEXT NOT NULL,
    ordering_key TEXT,                  -- null where order does not matter
    payload TEXT NOT NULL,              -- JSON
    headers TEXT,                       -- a JSON object of strings
    state TEXT NOT NULL,                -- waiting, delivered, parked
    attempt INTEGER NOT NULL,           -- how often it was handed out
    token BLOB,                         -- whoever handles it, 16 bytes; null while nobody does
    due_at INTEGER,                     -- while waiting: when it is handed out, at the end of a delay, pause or lease
    enqueued_at INTEGER NOT NULL,
    parked_at INTEGER,
    keep_until INTEGER,                 -- when delivered and kept
    last_error TEXT
) STRICT;

CREATE INDEX IF NOT EXISTS "idem_outbox_due" ON "idem_outbox" (topic, due_at) WHERE due_at IS NOT NULL;

-- Whether an earlier message of the same ordering key is undelivered.
CREATE INDEX IF NOT EXISTS "idem_outbox_order" ON "idem_outbox" (ordering_key, id)
    WHERE ordering_key IS NOT NULL AND state <> 'delivered';

CREATE INDEX IF NOT EXISTS "idem_outbox_parked" ON "idem_outbox" (id) WHERE parked_at IS NOT NULL;

CREATE INDEX IF NOT EXISTS "idem_outbox_kept" ON "idem_outbox" (keep_until) WHERE keep_until IS NOT NULL;
