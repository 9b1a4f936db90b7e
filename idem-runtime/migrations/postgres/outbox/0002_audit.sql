-- Audit of manual changes of parked messages: who requeued or discarded which message, and why. No process changes or
-- deletes entries. They are read by number, the newest first.
CREATE TABLE IF NOT EXISTS "idem_outbox_audit" (
    entry bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    made_at bigint NOT NULL,
    actor text NOT NULL,
    reason text NOT NULL,
    action text NOT NULL,               -- requeued, discarded
    message_key text NOT NULL,
    topic text NOT NULL,
    ordering_key text,
    attempt bigint NOT NULL,            -- number of claims by relays, before the change
    enqueued_at bigint NOT NULL
);
