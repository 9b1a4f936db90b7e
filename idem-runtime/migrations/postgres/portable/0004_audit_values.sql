-- Hashes of the content that a manual change replaced and stored, and the user of the database who made it. Entries of the
-- versions before have none. Adding a column without a default rewrites no row.
--
-- Compatible since version 3.
ALTER TABLE "idem_records_audit" ADD COLUMN IF NOT EXISTS old_value bytea;
ALTER TABLE "idem_records_audit" ADD COLUMN IF NOT EXISTS new_value bytea;
ALTER TABLE "idem_records_audit" ADD COLUMN IF NOT EXISTS database_user text;
