-- Audit of manual changes of parked messages: who requeued or discarded which message, and why. No process changes or
-- deletes entries. They are read by number, the newest first.
CREATE TABLE IF NOT EXISTS "idem_outbox_audit" (
    entry INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    made_at INTEGER NOT NULL,
    actor TEXT NOT NULL,
    reason TEXT NOT NULL,
    action TEXT NOT NULL,               -- requeued, discarded
    message_key TEXT NOT NULL,
    topic TEXT NOT NULL,
    ordering_key TEXT,
    attempt INTEGER NOT NULL,           -- number of claims by relays, before the change
    enqueued_at INTEGER NOT NULL
) STRICT;
