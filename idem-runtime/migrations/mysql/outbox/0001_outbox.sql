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
    token VARBINARY(16),                -- whoever handles it; null while nobody does
    due_at BIGINT,                      -- while waiting: when it is handed out, at the end of a delay, pause or lease
    enqueued_at BIGINT NOT NULL,
    parked_at BIGINT,
    keep_until BIGINT,                  -- when delivered and kept
    last_error TEXT,
    UNIQUE KEY message_key (message_key),
    KEY due (topic, due_at, id),
    -- Whether an earlier message of the same ordering key is undelivered.
    KEY ordering (ordering_key, state, id),
    KEY parked (parked_at),
    KEY kept (keep_until)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
