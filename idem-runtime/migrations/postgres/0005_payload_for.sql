-- Time for which the payload of a record is kept, if it is shorter than the retention. Processes of the version before leave
-- the column null. Adding a column without a default rewrites no row.
ALTER TABLE "idem_records" ADD COLUMN IF NOT EXISTS payload_for bigint;
