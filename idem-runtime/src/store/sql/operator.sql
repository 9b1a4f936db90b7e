-- Statements for operators, alike in every dialect. They only read.

-- name: steps_of
-- The record may end or be replaced meanwhile. One statement, so that the steps are those of one generation.
SELECT {step_name}, s.codec, {payload_size}, CASE WHEN ?2 = 1 THEN s.payload END
FROM {records} AS r JOIN {steps} AS s ON {of_this_generation}
WHERE r.id = ?1 ORDER BY s.name

-- name: clock
-- Nothing is read, so nothing can change meanwhile.
SELECT {now}

-- name: stats
-- Records change meanwhile. One statement, so that each record is counted in one state.
SELECT operation, state, count(*),
    count(CASE WHEN {unsettled} THEN 1 END),
    max({now} - first_claimed_at), min(retention), max(retention),
    count(CASE WHEN purge_after <= {now} THEN 1 END),
    coalesce(max(CASE WHEN purge_after <= {now} THEN {now} - purge_after END), 0)
FROM {records} GROUP BY operation, state ORDER BY operation, state
