-- For operators: who made the attempts of a call and how they ended, and digests of the members of its request. Processes of the version before leave these
-- columns null.
ALTER TABLE "idem_records" ADD COLUMN owner TEXT;                 -- label of the owner of the current or last attempt
ALTER TABLE "idem_records" ADD COLUMN attempt_began_at INTEGER;   -- null if the attempt began with the first claim
ALTER TABLE "idem_records" ADD COLUMN history TEXT;               -- earlier attempts, one line each
ALTER TABLE "idem_records" ADD COLUMN members BLOB;               -- digests of the request's members
