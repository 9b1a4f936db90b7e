-- Audit of manual changes of parked messages: who requeued or discarded which message, and why. No process changes or
-- deletes entries. They are read by number, the newest first.
CREATE TABLE IF NOT EXISTS `idem_outbox_audit` (
    entry BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    made_at BIGINT NOT NULL,
    actor VARCHAR(120) NOT NULL,
    reason VARCHAR(1000) NOT NULL,
    action VARCHAR(16) NOT NULL,        -- requeued, discarded
    message_key VARBINARY(255) NOT NULL, -- a text type would ignore trailing blanks
    topic VARCHAR(255) NOT NULL,
    ordering_key VARCHAR(255),
    attempt BIGINT NOT NULL,            -- number of claims by relays, before the change
    enqueued_at BIGINT NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
