-- What calls keep to be made again, for as long as their record has no outcome. With another table name or database,
-- every `idem_records` below is replaced by it.

CREATE TABLE IF NOT EXISTS `idem_records_kept` (
    id BINARY(32) NOT NULL PRIMARY KEY,     -- of the record
    first_claimed_at BIGINT NOT NULL,       -- as in the record: a row of an earlier life of it counts for nothing
    operation VARBINARY(255) NOT NULL,      -- UTF-8; as text, blanks at its end would not count
    codec VARCHAR(255) NOT NULL,
    payload LONGBLOB NOT NULL,
    recover_after BIGINT NOT NULL,          -- when somebody looks whether the call's owner died
    recoveries BIGINT NOT NULL,             -- how often the call was made again
    KEY recover_queue (operation, recover_after),
    FOREIGN KEY (id) REFERENCES `idem_records` (id) ON DELETE CASCADE
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
