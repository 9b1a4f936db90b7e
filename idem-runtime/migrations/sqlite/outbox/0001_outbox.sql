-- Messages that wait for a relay. Times are in microseconds since 1970-01-01 UTC, by the database's clock. An outbox
-- with another table name replaces every "idem_outbox" below by that name.

-- AUTOINCREMENT never reuses a number. A reused number would put a message before those that wait longer.
CREATE TABLE IF NOT EXISTS "idem_outbox" (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,  -- order of enqueuing
    message_key TEXT NOT NULL UNIQUE,   -- key by which a consumer recognises duplicates
    topic TEXT NOT NULL,
    ordering_key TEXT,                  -- null if order does not matter
    payload TEXT NOT NULL,              -- JSON
    headers TEXT,                       -- JSON object of strings
    state TEXT NOT NULL,                -- waiting, delivered, parked
    attempt INTEGER NOT NULL,           -- number of claims by relays
    claim_id BLOB,                      -- claim id of the relay that delivers the message, 16 bytes; null if none does
    due_at INTEGER,                     -- while waiting: end of the delay, pause or lease
    enqueued_at INTEGER NOT NULL,
    parked_at INTEGER,
    purge_after INTEGER,                -- of a delivered message: time from which it is deleted
    last_error TEXT
) STRICT;

-- Due messages with an ordering key have another index than those without one. A poll for messages without a key then
-- never reads messages that wait behind others.
CREATE INDEX IF NOT EXISTS "idem_outbox_due_ordered" ON "idem_outbox" (topic, due_at, id)
    WHERE due_at IS NOT NULL AND ordering_key IS NOT NULL;

CREATE INDEX IF NOT EXISTS "idem_outbox_due_unordered" ON "idem_outbox" (topic, due_at, id)
    WHERE due_at IS NOT NULL AND ordering_key IS NULL;

-- Finds the first waiting and the first parked message of an ordering key, and the next ordering key.
CREATE INDEX IF NOT EXISTS "idem_outbox_order" ON "idem_outbox" (ordering_key, state, id)
    WHERE ordering_key IS NOT NULL AND state <> 'delivered';

CREATE INDEX IF NOT EXISTS "idem_outbox_parked" ON "idem_outbox" (id) WHERE parked_at IS NOT NULL;

CREATE INDEX IF NOT EXISTS "idem_outbox_purge" ON "idem_outbox" (purge_after) WHERE purge_after IS NOT NULL;
