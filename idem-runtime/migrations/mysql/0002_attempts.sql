-- Attempts of calls, for operators: who made them, and how they ended. Processes of the version before leave these
-- columns null. One statement adds all columns, so that it adds all or none. MySQL has no `IF NOT EXISTS` for columns:
-- if the columns exist, the migration ignores the error.
ALTER TABLE `idem_records`
    ADD COLUMN owner VARCHAR(120),          -- label of the owner of the current or last attempt
    ADD COLUMN attempt_began_at BIGINT,     -- null if the attempt began with the first claim
    ADD COLUMN history MEDIUMTEXT,          -- earlier attempts, one line each
    ADD COLUMN members VARBINARY(1024);     -- digests of the request's members
