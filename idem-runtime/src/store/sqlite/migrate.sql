-- Statements on the table of applied versions.

-- name: count
-- Another process may be applying a version at this moment. Entering it decides.
SELECT count(*) FROM {log}

-- name: compatible_since
-- Another process may be applying a version at this moment. A version that is applied later says for itself whether this
-- release works with it.
SELECT coalesce(max(coalesce(compatible_since, version)), 0) FROM {log} WHERE version > ?1

-- name: create
-- Another process may create the table concurrently. The write lock of the transaction prevents that.
CREATE TABLE IF NOT EXISTS {log} (version INTEGER NOT NULL PRIMARY KEY, applied_at INTEGER NOT NULL, compatible_since INTEGER) STRICT

-- name: enter
-- Ten processes may start concurrently, and all of them find the same version missing. The first one enters it, and the
-- others find its row when they get the lock.
INSERT INTO {log} (version, compatible_since, applied_at) VALUES (?1, ?2, unixepoch() * 1000000)
ON CONFLICT (version) DO NOTHING
