-- Messages that wait for their relay. Times are microseconds since 1970-01-01 UTC by the server's clock. With another
-- table name or database, every `idem_outbox` below is replaced by it.

CREATE TABLE IF NOT EXISTS `idem_outbox` (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,  -- the order in which they were enqueued
    message_key VARCHAR(255) NOT NULL,  -- what a consumer tells duplicates by
    topic VARCHAR(255) NOT NULL,
    ordering_key VARCHAR(255),          -- null where order does not matter
    payload LONGTEXT NOT NULL,          -- JSON
    headers LONGTEXT,                   -- a JSON object of strings
    state VARCHAR(16) NOT NULL,         -- waiting, delivered, parked
    attempt BIGINT NOT NULL,            -- how often it was handed out
    claim_id VARBINARY(16),             -- of the relay that delivers it; null while none does
    due_at BIGINT,                      -- while waiting: when it is handed out, at the end of a delay, pause or lease
    enqueued_at BIGINT NOT NULL,
    parked_at BIGINT,
    purge_after BIGINT,                 -- of a delivered message: when it is deleted
    last_error TEXT,
    is_ordered TINYINT GENERATED ALWAYS AS (ordering_key IS NOT NULL) VIRTUAL,
    undelivered_key VARCHAR(255)
        GENERATED ALWAYS AS (CASE WHEN state <> 'delivered' THEN ordering_key END) VIRTUAL,
    UNIQUE KEY message_key (message_key),
    -- Tells ordered messages from others, so that messages that wait in the order of their key are never read on the way
    -- to those that wait for no other.
    KEY due (topic, is_ordered, due_at, id),
    -- The first message of an ordering key that waits, the first one that is parked, and the next ordering key;
    -- delivered messages are not in it.
    KEY ordering (undelivered_key, state, id),
    KEY parked (parked_at),
    KEY purge_queue (purge_after)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
