-- Statements for operators, alike in every dialect. They change no record.

-- name: steps_of
-- The record may end or be replaced meanwhile. One statement, so that the steps are those of one generation.
SELECT {step_name}, s.codec, {payload_size:s.}, CASE WHEN ?2 = 1 THEN s.payload END
FROM {records} AS r JOIN {steps} AS s ON {of_this_generation}
WHERE r.id = ?1 AND {alone} ORDER BY s.name

-- part: groups
-- Columns that `group` reads.
operation, state, count(*), count(CASE WHEN {stuck} THEN 1 END), max({now} - first_claimed_at), min(retention),
    max(retention)

-- name: stats
-- Records change meanwhile. One statement, so that each record is counted in one state.
SELECT {groups} FROM {records} WHERE {alone} GROUP BY operation, state ORDER BY operation, state

-- name: stats_between
-- As above, for a sample: the records between two ids.
SELECT {groups} FROM {records} WHERE id > ?1 AND id < ?2 AND {alone} GROUP BY operation, state ORDER BY operation, state

-- name: purge_queue
-- Records become due meanwhile. One statement, so that number and lag are those of one moment. Each part reads the index
-- in its order, and stops at a limit.
SELECT
    (SELECT count(*) FROM (
        SELECT purge_after FROM {records} WHERE purge_after <= {now} AND {alone} ORDER BY purge_after LIMIT ?1
    ) AS due),
    (SELECT {now} - purge_after FROM {records} WHERE purge_after <= {now} ORDER BY purge_after LIMIT 1),
    {count_interrupted}
