-- Attempts of calls, for operators: who made them, and how they ended. Processes of the version before leave these
-- columns null.
ALTER TABLE "idem_records" ADD COLUMN owner TEXT;                 -- label of the owner of the current or last attempt
ALTER TABLE "idem_records" ADD COLUMN attempt_began_at INTEGER;   -- null if the attempt began with the first claim
ALTER TABLE "idem_records" ADD COLUMN history TEXT;               -- earlier attempts, one line each
