-- Records of idempotent calls. Times are microseconds since 1970-01-01 UTC by the server's clock, durations are
-- microseconds. With another table name or database, every `idem_records` below is replaced by it.

CREATE TABLE IF NOT EXISTS `idem_records` (
    id BINARY(32) NOT NULL PRIMARY KEY,     -- SHA-256 over scope, operation and key
    scope MEDIUMTEXT NOT NULL,              -- empty for none
    operation VARCHAR(255) NOT NULL,
    idempotency_key VARCHAR(255) NOT NULL,
    fingerprint VARBINARY(37) NOT NULL,     -- version, id of the secret, hash
    state VARCHAR(16) NOT NULL,             -- running, released, completed, failed, unrecorded, interrupted
    claim_id VARBINARY(16),                 -- null once released or resolved by hand
    fencing_token BIGINT NOT NULL,          -- never goes back
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

-- The saved steps of calls, stored for as long as their record.
CREATE TABLE IF NOT EXISTS `idem_records_steps` (
    id BINARY(32) NOT NULL,                 -- of the record
    name VARBINARY(255) NOT NULL,           -- UTF-8, unique in its record; as text, blanks at its end would not count
    first_claimed_at BIGINT NOT NULL,       -- as in the record: a row of an earlier generation is not read, and overwritten
    codec VARCHAR(255) NOT NULL,
    payload LONGBLOB NOT NULL,
    PRIMARY KEY (id, name),
    FOREIGN KEY (id) REFERENCES `idem_records` (id) ON DELETE CASCADE
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The recovery inputs of calls, stored for as long as their record has no outcome.
CREATE TABLE IF NOT EXISTS `idem_records_recovery` (
    id BINARY(32) NOT NULL PRIMARY KEY,     -- of the record
    first_claimed_at BIGINT NOT NULL,       -- as in the record: a row of an earlier generation of it counts for nothing
    operation VARBINARY(255) NOT NULL,      -- UTF-8; as text, blanks at its end would not count
    codec VARCHAR(255) NOT NULL,
    payload LONGBLOB NOT NULL,
    recover_after BIGINT NOT NULL,          -- when recovery checks whether the call's owner crashed
    recoveries BIGINT NOT NULL,             -- how often the call was retried
    KEY recovery_due (operation, recover_after),
    FOREIGN KEY (id) REFERENCES `idem_records` (id) ON DELETE CASCADE
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The fencing floor: all fencing tokens of first claims are above this number. A record that is deleted and claimed
-- again within one tick of the clock, or after the clock was put back, must not get a fencing token that a paused owner
-- of the deleted one still has. Whoever deletes first raises the floor to the highest fencing token that is about to be
-- deleted. No trigger does that, because making one takes privileges that an application seldom has (TRIGGER, with
-- binary logging SUPER as well): before deleting rows by hand, raise it by hand.
CREATE TABLE IF NOT EXISTS `idem_records_fencing_floor` (
    one TINYINT NOT NULL PRIMARY KEY CHECK (one = 1),
    fencing_token BIGINT NOT NULL
) ENGINE = InnoDB;

INSERT INTO `idem_records_fencing_floor` (one, fencing_token) VALUES (1, 0)
ON DUPLICATE KEY UPDATE fencing_token = `idem_records_fencing_floor`.fencing_token;
