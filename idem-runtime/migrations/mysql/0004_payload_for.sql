-- Time for which the payload of a record is kept, if it is shorter than the retention. Processes of the version before leave
-- the column null. MySQL has no `IF NOT EXISTS` for columns: if the column exists, the migration ignores the error.
ALTER TABLE `idem_records` ADD COLUMN payload_for BIGINT;
