-- Statements by an optional index of the table, filled in for one index at a time. Markers: `by_index` is the hint that
-- names the index, `sorted` the expression that it sorts by, `wanted` the value of a search.
--
-- The index may be dropped meanwhile: then a hint that names it fails. The other statements find the same records.

-- name: list_equal
-- Reads for an operator, who resolves by what was observed. All records of one value, by their ids.
SELECT {listed_record} FROM (
    SELECT {listed_columns} FROM {records} {by_index} WHERE {sorted} = {wanted} AND {listed}
) AS page ORDER BY id

-- name: list_range
-- As above for the values from parameter 16 to 17: first the rest of the records of the value at which the last page ended,
-- then those beyond it. The index may cut values, so `others` excludes those that another statement reads. Each of the two reads one range of the index.
SELECT {listed_record} FROM (
    SELECT * FROM (
        SELECT {listed_columns} FROM {records} {by_index}
        WHERE {sorted} = {bound:?16} AND id {beyond} ?1 AND id <= ?2 AND {others} AND {selected}
        ORDER BY id {direction} LIMIT ?14
    ) AS rest
    UNION ALL
    SELECT * FROM (
        SELECT {listed_columns} FROM {records} {by_index}
        WHERE {sorted} {beyond} {bound:?16} AND {sorted} {before} {bound:?17} AND {selected}
        ORDER BY {sorted} {direction}, id {direction} LIMIT ?14
    ) AS others
) AS page ORDER BY {sorted} {direction}, id {direction} LIMIT ?14

-- name: define
-- If another process creates the index first, the statement fails. Calls go on meanwhile, except in SQLite, where they wait.
{define_index}
