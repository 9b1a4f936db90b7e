-- Records of idempotent calls. Times are in microseconds since 1970-01-01 UTC, by the server's clock. Durations are in
-- microseconds. A store with another table name or database replaces every `idem_records` below by that name.

CREATE TABLE IF NOT EXISTS `idem_records` (
    id BINARY(32) NOT NULL PRIMARY KEY,     -- SHA-256 over scope, operation and key
    scope MEDIUMTEXT NOT NULL,              -- empty for none
    operation VARCHAR(255) NOT NULL,
    idempotency_key VARCHAR(255) NOT NULL,
    fingerprint VARBINARY(37) NOT NULL,     -- version, id of the secret, hash
    state VARCHAR(16) NOT NULL,             -- running, released, completed, failed, unrecorded, interrupted
    claim_id VARBINARY(16),                 -- null after a release or a resolution by an operator
    fencing_token BIGINT NOT NULL,          -- never decreases
    attempt BIGINT NOT NULL,
    lease_until BIGINT NOT NULL,
    retention BIGINT NOT NULL,
    on_crash VARCHAR(16) NOT NULL,          -- rerun, refuse, reconcile
    codec VARCHAR(255),
    payload LONGBLOB,
    first_claimed_at BIGINT NOT NULL,
    ended_at BIGINT,                        -- time at which the record ended or was released
    purge_after BIGINT,                     -- time from which a purge checks it; null if it stays until resolved
    -- The column is set at the claim, so that completing a record does not write this index.
    KEY purge_queue (purge_after)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Saved steps of calls. A step is stored as long as its record: the statements that delete a record delete its steps and
-- its recovery input. There is no foreign key, because Group Replication refuses to write tables with keys that cascade
-- if several members accept writes.
CREATE TABLE IF NOT EXISTS `idem_records_steps` (
    id BINARY(32) NOT NULL,                 -- of the record
    name VARBINARY(255) NOT NULL,           -- UTF-8, unique in its record; a text type would ignore trailing blanks
    first_claimed_at BIGINT NOT NULL,       -- as in the record; a row of an earlier generation is replaced
    codec VARCHAR(255) NOT NULL,
    payload LONGBLOB NOT NULL,
    PRIMARY KEY (id, name)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Recovery inputs of calls. An input is stored until its record has an outcome.
CREATE TABLE IF NOT EXISTS `idem_records_recovery` (
    id BINARY(32) NOT NULL PRIMARY KEY,     -- of the record
    first_claimed_at BIGINT NOT NULL,       -- as in the record; a row of an earlier generation is ignored
    operation VARBINARY(255) NOT NULL,      -- UTF-8; a text type would ignore trailing blanks
    codec VARCHAR(255) NOT NULL,
    payload LONGBLOB NOT NULL,
    recover_after BIGINT NOT NULL,          -- time from which recovery checks whether the owner crashed
    recoveries BIGINT NOT NULL,             -- number of times that the call was retried
    KEY recovery_due (operation, recover_after)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Fencing floor: the fencing tokens of first claims are above this number. A record may be deleted, and claimed again
-- within one tick of the clock or after the clock was set back. It must not get a fencing token that a paused owner of
-- the deleted record still has. A purge first raises the floor to the highest fencing token that it is about to delete.
-- No trigger does this, because creating one takes privileges that an application seldom has (TRIGGER, and SUPER with
-- binary logging). If you delete rows by hand, raise the floor by hand first, and delete the
-- rows of the same id in the tables of steps and recovery inputs.
CREATE TABLE IF NOT EXISTS `idem_records_fencing_floor` (
    one TINYINT NOT NULL PRIMARY KEY CHECK (one = 1),
    fencing_token BIGINT NOT NULL
) ENGINE = InnoDB;

INSERT INTO `idem_records_fencing_floor` (one, fencing_token) VALUES (1, 0)
ON DUPLICATE KEY UPDATE fencing_token = `idem_records_fencing_floor`.fencing_token;
