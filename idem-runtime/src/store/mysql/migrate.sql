-- Statements on the table of applied versions.

-- name: count
-- Ten processes may start concurrently, and all of them find the same version missing. Each counts again when it has
-- the lock of the server.
SELECT count(*) FROM {log}

-- name: create
-- As above: one process at a time creates the table.
CREATE TABLE IF NOT EXISTS {log} (version INT NOT NULL PRIMARY KEY, applied_at BIGINT NOT NULL) ENGINE = InnoDB

-- name: enter
-- As above: nobody else has entered the version. It comes after the statements of the version, which are repeated if
-- the process crashes before.
INSERT INTO {log} (version, applied_at) VALUES (?1, {now})
