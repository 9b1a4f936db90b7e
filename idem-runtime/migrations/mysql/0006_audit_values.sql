-- Hashes of the content that a manual change replaced and stored, and the user of the database who made it. Entries of the
-- versions before have none. One statement adds all columns or none. If they exist, the migration ignores the error.
--
-- Compatible since version 5.
ALTER TABLE `idem_records_audit`
    ADD COLUMN old_value BINARY(32),
    ADD COLUMN new_value BINARY(32),
    ADD COLUMN database_user VARCHAR(400);
