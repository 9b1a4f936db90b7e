-- Records of idempotent calls. Times are microseconds since 1970-01-01 UTC by the server's clock, durations are
-- microseconds. With another table name or database, every `idem_records` below is replaced by it.

CREATE TABLE IF NOT EXISTS `idem_records` (
    id BINARY(32) NOT NULL PRIMARY KEY,     -- SHA-256 over scope, operation and key
    scope MEDIUMTEXT NOT NULL,              -- empty for none
    operation VARCHAR(255) NOT NULL,
    idempotency_key VARCHAR(255) NOT NULL,
    fingerprint VARBINARY(37) NOT NULL,     -- version, id of the secret, hash
    state VARCHAR(16) NOT NULL,             -- running, released, completed, failed, unrecorded, interrupted
    token VARBINARY(16),                    -- null once released or resolved by hand
    grant_number BIGINT NOT NULL,           -- the fencing token, never goes back
    attempt BIGINT NOT NULL,
    lease_until BIGINT NOT NULL,
    retention BIGINT NOT NULL,
    on_crash VARCHAR(16) NOT NULL,          -- rerun, refuse, reconcile
    codec VARCHAR(255),
    payload LONGBLOB,
    first_claimed_at BIGINT NOT NULL,
    ended_at BIGINT,                        -- when it ended or was released
    purge_after BIGINT,                     -- when purging looks at it, coarse; null where it stays until it is resolved
    -- Set once, at the claim, so that completing a record leaves the index alone.
    KEY purge_queue (purge_after)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- A record that is deleted and claimed again within one tick of the clock, or after the clock was put back, must not
-- get a grant that a paused owner of the deleted one still holds. Whoever deletes first raises this number to the
-- highest grant it is about to delete, and every first claim goes above it. No trigger does that, because making one
-- takes privileges that an application seldom has (TRIGGER, with binary logging SUPER as well): before deleting rows
-- by hand, raise it by hand.
CREATE TABLE IF NOT EXISTS `idem_records_dropped` (
    one TINYINT NOT NULL PRIMARY KEY CHECK (one = 1),
    grant_number BIGINT NOT NULL
) ENGINE = InnoDB;

INSERT INTO `idem_records_dropped` (one, grant_number) VALUES (1, 0)
ON DUPLICATE KEY UPDATE grant_number = `idem_records_dropped`.grant_number;
