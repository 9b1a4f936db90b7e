-- Syntax of SQLite for statements on messages, and the statements that only SQLite has.

-- part: key_text
{it}message_key

-- part: on_duplicate
ON CONFLICT (message_key) DO NOTHING

-- part: latest
-- There is one writer at a time, so a transaction that has written sees the latest rows.

-- part: undelivered_key
-- Column with the ordering key of an undelivered message.
ordering_key

-- part: is_ordered
{it}ordering_key IS NOT NULL

-- part: is_unordered
{it}ordering_key IS NULL

-- part: number_in_window
-- Number of the messages of a window as a 64-bit integer.
sum(c.number)

-- part: first_waiting
-- Id of the first message of the ordering key `{it}` that waits. A partial index is used only if the statement repeats
-- its condition.
(
    SELECT e.id
    FROM {messages} AS e
    WHERE e.ordering_key = {it} AND e.state = 'waiting' AND e.state <> 'delivered'
    ORDER BY e.id LIMIT 1
)

-- part: first_parked
-- Id of the first message of the ordering key `{it}` that is parked.
(
    SELECT e.id
    FROM {messages} AS e
    WHERE e.ordering_key = {it} AND e.state = 'parked' AND e.state <> 'delivered'
    ORDER BY e.id LIMIT 1
)

-- name: claim
-- One statement takes the write lock before it reads, so that no message is claimed twice.
UPDATE {messages} SET {claim}
WHERE id IN (
    SELECT due.id
    FROM (
        SELECT id, due_at FROM (SELECT u.id, u.due_at {unordered:?1} ORDER BY u.due_at, u.id LIMIT ?4)
        UNION ALL
        SELECT c.id, c.due_at FROM {window:?1} AS c WHERE {is_claimable:c.ordering_key}
    ) AS due
    ORDER BY due.due_at, due.id LIMIT ?4
)
RETURNING {columns}

-- name: claim_next
-- As above.
UPDATE {messages} AS c SET {claim}
WHERE {claimable_of_key}
RETURNING {columns}

-- name: purge
-- Another process may have purged the same messages: they are gone when this statement gets the write lock.
DELETE FROM {messages}
WHERE id IN (SELECT id FROM {messages} WHERE purge_after <= {as_of} ORDER BY purge_after LIMIT ?1)
