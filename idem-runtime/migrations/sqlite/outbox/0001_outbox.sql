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
    claim_id BLOB,                      -- of the relay that delivers it, 16 bytes; null while none does
    due_at INTEGER,                     -- while waiting: when it is handed out, at the end of a delay, pause or lease
    enqueued_at INTEGER NOT NULL,
    parked_at INTEGER,
    purge_after INTEGER,                -- of a delivered message: when it is deleted
    last_error TEXT
) STRICT;

-- The index of what is due tells ordered messages from others, so that messages that wait in the order of their key are
-- never read on the way to those that wait for no other.
CREATE INDEX IF NOT EXISTS "idem_outbox_due_ordered" ON "idem_outbox" (topic, due_at, id)
    WHERE due_at IS NOT NULL AND ordering_key IS NOT NULL;

CREATE INDEX IF NOT EXISTS "idem_outbox_due_unordered" ON "idem_outbox" (topic, due_at, id)
    WHERE due_at IS NOT NULL AND ordering_key IS NULL;

-- The first message of an ordering key that waits, the first one that is parked, and the next ordering key.
CREATE INDEX IF NOT EXISTS "idem_outbox_order" ON "idem_outbox" (ordering_key, state, id)
    WHERE ordering_key IS NOT NULL AND state <> 'delivered';

CREATE INDEX IF NOT EXISTS "idem_outbox_parked" ON "idem_outbox" (id) WHERE parked_at IS NOT NULL;

CREATE INDEX IF NOT EXISTS "idem_outbox_purge" ON "idem_outbox" (purge_after) WHERE purge_after IS NOT NULL;
