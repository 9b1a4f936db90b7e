-- Audit of manual changes: who changed which records, and why. Entries outlive their records, and no process changes or
-- deletes them. The key finds the entries of one record; all others are read by number, the newest first.
CREATE TABLE IF NOT EXISTS `idem_records_audit` (
    entry BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    made_at BIGINT NOT NULL,
    actor VARCHAR(120) NOT NULL,
    reason VARCHAR(1000) NOT NULL,
    action VARCHAR(16) NOT NULL,            -- completed, failed, unrecorded, released, interrupted, erased, purged
    id BINARY(32),                          -- of the record; null for a purge, like the next six columns
    scope MEDIUMTEXT,
    operation VARCHAR(255),
    idempotency_key VARCHAR(255),
    state VARCHAR(16),                      -- before the change, like the next two columns
    fencing_token BIGINT,
    attempt BIGINT,
    removed BIGINT,                         -- counts of a purge, null for all others
    abandoned BIGINT,
    interrupted BIGINT,
    KEY audit_of (id, entry)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
