-- The index of what is due tells ordered messages from others, so that those that wait in the order of their key are
-- never read on the way to those that wait for nobody.
CREATE INDEX IF NOT EXISTS "idem_outbox_due_ordered" ON "idem_outbox" (topic, due_at, id)
    WHERE due_at IS NOT NULL AND ordering_key IS NOT NULL;

CREATE INDEX IF NOT EXISTS "idem_outbox_due_unordered" ON "idem_outbox" (topic, due_at, id)
    WHERE due_at IS NOT NULL AND ordering_key IS NULL;

DROP INDEX IF EXISTS "idem_outbox_due";

-- The first message of an ordering key that waits, the first one that is parked, and the next ordering key.
CREATE INDEX IF NOT EXISTS "idem_outbox_heads" ON "idem_outbox" (ordering_key, state, id)
    WHERE ordering_key IS NOT NULL AND state <> 'delivered';

DROP INDEX IF EXISTS "idem_outbox_order";
