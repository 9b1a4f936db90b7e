-- Syntax of MySQL and MariaDB for statements on messages, and the statements that only they have. No statement that
-- writes returns rows: a relay reads ids, claims the messages that are still due, and reads the claimed ones.

-- part: on_duplicate
-- A duplicate is an error, which undoes only the statement.

-- part: key_text
-- The column is binary, because a text type would ignore trailing blanks.
CONVERT({it}message_key USING utf8mb4)

-- part: latest
-- In a transaction, a plain read may not see the message with which the insert conflicted.
LOCK IN SHARE MODE

-- part: undelivered_key
-- Column that is null unless a message has an ordering key and is undelivered.
undelivered_key

-- part: is_ordered
{it}is_ordered = 1

-- part: is_unordered
{it}is_ordered = 0

-- part: number_in_window
-- Number of the messages of a window as a 64-bit integer.
CAST(sum(c.number) AS SIGNED)

-- part: first_waiting
-- Id of the first message of the ordering key `{it}` that waits.
(
    SELECT e.id
    FROM {messages} AS e
    WHERE e.undelivered_key = {it} AND e.state = 'waiting' AND e.state <> 'delivered'
    ORDER BY e.id LIMIT 1
)

-- part: first_parked
-- Id of the first message of the ordering key `{it}` that is parked.
(
    SELECT e.id
    FROM {messages} AS e
    WHERE e.undelivered_key = {it} AND e.state = 'parked' AND e.state <> 'delivered'
    ORDER BY e.id LIMIT 1
)

-- name: claim
-- Reads four times as many as requested, so that concurrent relays seldom take the same.
SELECT due.id
FROM (
    SELECT one.id, one.due_at
    FROM (SELECT u.id, u.due_at {unordered:?1} ORDER BY u.due_at, u.id LIMIT {candidates}) AS one
    UNION ALL
    SELECT c.id, c.due_at FROM {window:?1} AS c WHERE {is_claimable:c.ordering_key}
) AS due
ORDER BY due.due_at, due.id LIMIT {candidates}

-- name: claim_next
-- Another relay may read the same message. The statement that claims it checks again that it is due.
SELECT c.id FROM {messages} AS c
WHERE {claimable_of_key}

-- name: purge
-- Another process may purge concurrently. The second one waits for the rows of the first, and finds them deleted.
DELETE FROM {messages} WHERE purge_after <= {as_of} LIMIT ?1
