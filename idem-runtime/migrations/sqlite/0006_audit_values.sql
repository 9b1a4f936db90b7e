-- Hashes of the content that a manual change replaced and stored, and the user who made it, which SQLite does not have.
-- Entries of the versions before have none.
--
-- Compatible since version 5.
ALTER TABLE "idem_records_audit" ADD COLUMN old_value BLOB;
ALTER TABLE "idem_records_audit" ADD COLUMN new_value BLOB;
ALTER TABLE "idem_records_audit" ADD COLUMN database_user TEXT;
