-- Time for which the payload of a record is kept, if it is shorter than the retention. Processes of the version before leave
-- the column null.
ALTER TABLE "idem_records" ADD COLUMN payload_for INTEGER;
