-- Syntax of PostgreSQL for statements on messages, and the statements that only PostgreSQL has.

-- part: key_text
{it}message_key

-- part: on_duplicate
ON CONFLICT (message_key) DO NOTHING

-- part: latest
-- Each statement sees what was committed before it.

-- part: undelivered_key
-- Column with the ordering key of an undelivered message.
ordering_key

-- part: is_ordered
{it}ordering_key IS NOT NULL

-- part: is_unordered
{it}ordering_key IS NULL

-- part: number_in_window
-- Number of the messages of a window as a 64-bit integer.
sum(c.number)::bigint

-- part: first_waiting
-- Id of the first message of the ordering key `{it}` that waits. There must be one. With equalities the server might
-- read by id instead, past all messages of other keys. States sort by name, and `waiting` follows `parked`.
(
    SELECT e.id
    FROM {messages} AS e
    WHERE e.ordering_key >= {it} AND (e.ordering_key, e.state) >= ({it}, 'waiting') AND e.state <> 'delivered'
    ORDER BY e.ordering_key, e.state, e.id LIMIT 1
)

-- part: first_parked
-- Id of the first message of the ordering key `{it}` that is parked, or else of the first that waits.
(
    SELECT e.id
    FROM {messages} AS e
    WHERE e.ordering_key >= {it} AND (e.ordering_key, e.state) >= ({it}, 'parked') AND e.state <> 'delivered'
    ORDER BY e.ordering_key, e.state, e.id LIMIT 1
)

-- name: claim
-- Relays poll concurrently. Each skips rows that another has locked, and checks its own rows again after locking them,
-- so that no message is claimed twice.
WITH unordered AS MATERIALIZED (
    SELECT u.id, u.due_at {unordered:?1}
    ORDER BY u.due_at, u.id LIMIT ?4
    FOR UPDATE SKIP LOCKED
), ordered AS MATERIALIZED (
    SELECT o.id, o.due_at
    FROM {messages} AS o
    WHERE o.id = ANY (ARRAY (
        SELECT c.id FROM {window:?1} AS c WHERE {is_claimable:c.ordering_key}
    )) AND o.due_at <= {now}
    ORDER BY o.due_at, o.id LIMIT ?4
    FOR UPDATE SKIP LOCKED
)
UPDATE {messages} SET {claim}
WHERE id IN (
    SELECT due.id
    FROM (
        SELECT id, due_at FROM unordered
        UNION ALL
        SELECT id, due_at FROM ordered
    ) AS due
    ORDER BY due.due_at, due.id LIMIT ?4
)
RETURNING {columns}

-- name: claim_next
-- Another relay may take the same message. The second one waits for the first, and then finds that the message is no
-- longer due.
UPDATE {messages} AS c SET {claim}
WHERE {claimable_of_key}
RETURNING {columns}

-- name: purge
-- Another process may purge concurrently. The second one waits for the rows of the first, and finds them deleted.
DELETE FROM {messages}
WHERE id IN (SELECT id FROM {messages} WHERE purge_after <= {as_of} ORDER BY purge_after LIMIT ?1)
