-- Names of the operations that had records. Scope, operation and key give the id of a record, so that an operator finds a
-- key in all operations without an index. Each process writes the name of an operation once.
CREATE TABLE IF NOT EXISTS `idem_records_operations` (
    name VARBINARY(255) NOT NULL PRIMARY KEY    -- UTF-8; a text type would ignore trailing blanks
) ENGINE = InnoDB;
