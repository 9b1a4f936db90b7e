-- Statements on messages that are alike in every dialect.
--
-- A message waits behind all undelivered messages of its ordering key that were enqueued earlier. Any number of
-- messages may wait behind one that is parked, leased or pausing, and no statement reads all of them:
--
-- - Messages without an ordering key do not wait for others, and have their own index.
-- - Of the due ordered messages, only the first ones are read, by time: a window.
-- - If nearly all of those wait behind others (crowded), the first message of each ordering key is checked instead,
--   from key to key by another index.

-- part: columns
-- Columns that `stored` reads, in its order.
id, {key_text}, topic, ordering_key, payload, headers, attempt, enqueued_at, parked_at, last_error

-- part: claimed
-- The relay in parameters 1 and 2 has the message.
id = ?1 AND claim_id = ?2

-- part: claim
-- Assignments that claim a message, by parameters 2 and 3.
attempt = attempt + 1, claim_id = ?2, due_at = {now} + ?3

-- part: unordered
-- Due messages of the topic `{it}` without an ordering key.
FROM {messages} AS u
WHERE u.topic = {it} AND {is_unordered:u.} AND u.due_at <= {now}

-- part: window
-- First due ordered messages of the topic `{it}`, including those behind others: the first message of each ordering key,
-- and the number of its messages here. The table is then searched once for each ordering key, and not for each message:
-- all of them may have the same ordering key.
(
    SELECT min(d.id) AS id, d.ordering_key, min(d.due_at) AS due_at, count(*) AS number
    FROM (
        SELECT w.id, w.ordering_key, w.due_at
        FROM {messages} AS w
        WHERE w.topic = {it} AND {is_ordered:w.} AND w.due_at <= {now}
        ORDER BY w.due_at, w.id LIMIT {window_size}
    ) AS d
    GROUP BY d.ordering_key
)

-- part: is_first_or_behind_parked
-- The message `c` is the first one of the ordering key `{it}`, parked ones aside.
c.id = {first_waiting}

-- part: is_first
-- No message of the ordering key `{it}` is before the message `c`. A message blocks later ones as long as it is
-- undelivered, even while it pauses. Two messages of one ordering key are therefore never claimed concurrently, by any
-- number of relays.
c.id = {first_waiting} AND c.id <= coalesce({first_parked}, c.id)

-- part: claimable_of_key
-- The message `c` is the first one of the ordering key in parameter 1, is due, and its topic is polled.
{is_claimable:?1} AND c.ordering_key = ?1 AND c.due_at <= {now} AND c.topic IN ({topics_from_4})

-- part: due_of_topic
SELECT
    {it} AS topic,
    (SELECT count(*) FROM (SELECT u.id {unordered} LIMIT 1) AS one),
    count(CASE WHEN {is_claimable:c.ordering_key} THEN 1 END),
    coalesce({number_in_window}, 0)
FROM {window} AS c

-- name: insert
-- Another transaction may enqueue a message with the same key concurrently: the unique key lets one of them insert.
INSERT INTO {messages} (
    message_key, topic, ordering_key, payload, headers, state, attempt, due_at, enqueued_at
) VALUES (?1, ?2, ?3, ?4, ?5, 'waiting', 0, {now} + ?6, {now})
{on_duplicate}

-- name: find
-- The message with which the insert conflicted may have been deleted since. The caller then inserts again.
SELECT {key_text}, topic, coalesce(ordering_key, ''), payload
FROM {messages}
WHERE message_key = ?1 {latest}

-- name: renew
-- Another relay may have claimed the message after its lease. The condition compares the claim id.
UPDATE {messages} SET due_at = {now} + ?3
WHERE {claimed}

-- name: delete
-- As above: a message that another relay delivers stays until that relay has settled it.
DELETE FROM {messages}
WHERE {claimed}

-- name: deliver
-- As above.
UPDATE {messages} SET state = 'delivered', claim_id = NULL, due_at = NULL, purge_after = {now} + ?3
WHERE {claimed}

-- name: give_back
-- As above.
UPDATE {messages} SET claim_id = NULL, due_at = {now} + ?3, last_error = ?4
WHERE {claimed}

-- name: park
-- As above.
UPDATE {messages} SET state = 'parked', claim_id = NULL, due_at = NULL, parked_at = {now}, last_error = ?3
WHERE {claimed}

-- name: attempt
-- Reads without a lock: only the claim that counts attempts changes the number.
SELECT attempt FROM {messages} WHERE id = ?1

-- name: parked
-- Reads for an operator. Requeuing and discarding check again that a message is parked.
SELECT {columns} FROM {messages} WHERE parked_at IS NOT NULL AND id > ?1 ORDER BY id LIMIT ?2

-- name: requeue
-- Another operator may have requeued the message, and a relay may have claimed it since: it is no longer parked, or was
-- parked again later, which the time shows.
UPDATE {messages} SET state = 'waiting', due_at = {now}, attempt = 0, parked_at = NULL
WHERE message_key = ?1 AND state = 'parked' AND (?2 IS NULL OR parked_at = ?2)

-- name: discard
-- As above.
DELETE FROM {messages} WHERE message_key = ?1 AND state = 'parked' AND (?2 IS NULL OR parked_at = ?2)

-- name: write_entry
-- The change follows in the same transaction, with the same condition. Another operator must not change the message in
-- between: the entry would tell of a message that nobody changed. The row therefore stays locked.
INSERT INTO {message_audit} (
    made_at, actor, reason, action, message_key, topic, ordering_key, attempt, enqueued_at
)
SELECT {now}, ?3, ?4, ?5, message_key, topic, ordering_key, attempt, enqueued_at
FROM {messages}
WHERE message_key = ?1 AND state = 'parked' AND (?2 IS NULL OR parked_at = ?2) {lock}

-- name: audit
-- Entries never change, and new ones have higher numbers than those on any page.
SELECT entry, made_at, actor, reason, action, {key_text}, topic, ordering_key, attempt, enqueued_at
FROM {message_audit}
WHERE entry < ?1
    AND (?2 IS NULL OR message_key = ?2 AND length(message_key) = length(?2))
    AND (?3 IS NULL OR actor = ?3 AND length(actor) = length(?3))
    AND (?4 IS NULL OR {now} - made_at <= ?4)
ORDER BY entry DESC LIMIT ?5

-- name: now
-- Nothing is read, so nothing can change meanwhile.
SELECT {now}

-- name: count
-- One statement, so that a message that is parked meanwhile is counted once. Each count reads one index.
SELECT waiting.number, parked.number, waiting.oldest
FROM (
    SELECT count(*) AS number, coalesce({now} - min(enqueued_at), 0) AS oldest
    FROM (
        SELECT enqueued_at FROM {messages} WHERE due_at IS NOT NULL AND ordering_key IS NULL
        UNION ALL
        SELECT enqueued_at FROM {messages} WHERE due_at IS NOT NULL AND ordering_key IS NOT NULL
    ) AS both_kinds
) AS waiting, (
    SELECT count(*) AS number FROM {messages} WHERE parked_at IS NOT NULL
) AS parked

-- name: take
-- Another relay may have claimed some of the messages since they were read: they are no longer due.
UPDATE {messages} SET attempt = attempt + 1, claim_id = ?{claim_id_after_batch}, due_at = {now} + ?{lease_after_batch}
WHERE id IN ({batch}) AND due_at <= {now}

-- name: taken
-- The claim id tells which of the messages this relay has claimed, and not another one.
SELECT {columns} FROM {messages} WHERE id IN ({batch}) AND claim_id = ?{claim_id_after_batch}

-- name: due
-- Reads without a lock: each claim checks again that a message is due. Returns for each topic: whether a message
-- without an ordering key is due, how many ordered messages of the window are claimable, and how many messages the
-- window has.
{due_of_each_topic}

-- name: next_key
-- Reads without a lock, as above: the ordering key after the one in parameter 1, and whether its first message is
-- claimable.
SELECT next.name, (
    SELECT count(*)
    FROM {messages} AS c
    WHERE {is_claimable:next.name} AND c.ordering_key = next.name AND c.due_at <= {now} AND c.topic IN ({topics_from_2})
)
FROM (
    SELECT e.{undelivered_key} AS name
    FROM {messages} AS e
    WHERE e.{undelivered_key} > ?1 AND e.state <> 'delivered'
    ORDER BY e.{undelivered_key} LIMIT 1
) AS next
