-- Messages that wait for a relay. Times are in microseconds since 1970-01-01 UTC, by the server's clock. An outbox with
-- another table name or database replaces every `idem_outbox` below by that name.

CREATE TABLE IF NOT EXISTS `idem_outbox` (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,  -- order of enqueuing
    -- Key by which a consumer recognises duplicates. A text type would ignore trailing blanks.
    message_key VARBINARY(255) NOT NULL,
    topic VARCHAR(255) NOT NULL,
    ordering_key VARCHAR(255),          -- null if order does not matter
    payload LONGTEXT NOT NULL,          -- JSON
    headers LONGTEXT,                   -- JSON object of strings
    state VARCHAR(16) NOT NULL,         -- waiting, delivered, parked
    attempt BIGINT NOT NULL,            -- number of claims by relays
    claim_id VARBINARY(16),             -- claim id of the relay that delivers the message; null if none does
    due_at BIGINT,                      -- while waiting: end of the delay, pause or lease
    enqueued_at BIGINT NOT NULL,
    parked_at BIGINT,
    purge_after BIGINT,                 -- of a delivered message: time from which it is deleted
    last_error TEXT,
    is_ordered TINYINT GENERATED ALWAYS AS (ordering_key IS NOT NULL) VIRTUAL,
    undelivered_key VARCHAR(255)
        GENERATED ALWAYS AS (CASE WHEN state <> 'delivered' THEN ordering_key END) VIRTUAL,
    UNIQUE KEY message_key (message_key),
    -- Separates messages with an ordering key from those without one. A poll for messages without a key then never
    -- reads messages that wait behind others.
    KEY due (topic, is_ordered, due_at, id),
    -- Finds the first waiting and the first parked message of an ordering key, and the next ordering key. Delivered
    -- messages have no key here.
    KEY ordering (undelivered_key, state, id),
    KEY parked (parked_at),
    KEY purge_queue (purge_after)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
