-- The finished steps of calls, kept for as long as their record. With another table name or database, every
-- `idem_records` below is replaced by it.

CREATE TABLE IF NOT EXISTS `idem_records_steps` (
    id BINARY(32) NOT NULL,                 -- of the record
    name VARBINARY(255) NOT NULL,           -- UTF-8, unique in its record; as text, blanks at its end would not count
    first_claimed_at BIGINT NOT NULL,       -- as in the record: a row of an earlier life is not seen, and written over
    codec VARCHAR(255) NOT NULL,
    payload LONGBLOB NOT NULL,
    PRIMARY KEY (id, name),
    FOREIGN KEY (id) REFERENCES `idem_records` (id) ON DELETE CASCADE
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
