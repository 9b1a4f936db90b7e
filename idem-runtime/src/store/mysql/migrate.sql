-- Statements on the table of applied versions.

-- name: count
-- Ten processes may start concurrently, and all of them find the same version missing. Each counts again when it has
-- the lock of the server.
SELECT count(*) FROM {log} WHERE version > 0

-- name: compatible_since
-- Another process may be applying a version at this moment. A version that is applied later says for itself whether this
-- release works with it.
SELECT coalesce(max(coalesce(compatible_since, version)), 0) FROM {log} WHERE version > ?1

-- name: create
-- As above: one process at a time creates the table.
CREATE TABLE IF NOT EXISTS {log} (version INT NOT NULL PRIMARY KEY, applied_at BIGINT NOT NULL, compatible_since BIGINT) ENGINE = InnoDB

-- name: reserve
-- Two primaries of a group insert this row. The group commits one of the inserts, and refuses the other.
INSERT INTO {log} (version, applied_at) VALUES (-1, {now})

-- name: free
-- Only the process that inserted the row deletes it.
DELETE FROM {log} WHERE version = -1

-- name: free_abandoned
-- The process that inserted the row may have crashed. If several others find that out, one of them inserts it next.
DELETE FROM {log} WHERE version = -1 AND applied_at < {now} - 600000000

-- name: enter
-- As above: nobody else has entered the version. It comes after the statements of the version, which are repeated if
-- the process crashes before.
INSERT INTO {log} (version, compatible_since, applied_at) VALUES (?1, ?2, {now})
